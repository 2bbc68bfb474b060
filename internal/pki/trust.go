package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// maxTrust bounds how many CAs a node trusts at a time. A cluster has two while it goes over from one to the next.
const maxTrust = 4

// String returns the digest in lower-case hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// ParseTrust reads the certificates of 1 to 4 CAs of one cluster from PEM, in their order.
func ParseTrust(data []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for len(bytes.TrimSpace(data)) > 0 {
		block, rest := pem.Decode(data)
		if block == nil || block.Type != pemCertificate {
			return nil, fmt.Errorf("not only PEM blocks %q", pemCertificate)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if out = append(out, cert); len(out) > maxTrust {
			break
		}
		data = rest
	}
	return out, checkTrust(out)
}

// ParseTrustDER is ParseTrust for certificates in DER form.
func ParseTrustDER(ders [][]byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for _, der := range ders[:min(len(ders), maxTrust+1)] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("the CA certificate cannot be read: %w", err)
		}
		out = append(out, cert)
	}
	return out, checkTrust(out)
}

// RawCerts returns certificates in DER form.
func RawCerts(certs []*x509.Certificate) [][]byte {
	out := make([][]byte, len(certs))
	for i, cert := range certs {
		out[i] = cert.Raw
	}
	return out
}

// checkTrust refuses what are not 1 to 4 different CAs of one cluster.
func checkTrust(trust []*x509.Certificate) error {
	if len(trust) == 0 || len(trust) > maxTrust {
		return fmt.Errorf("there must be 1 to %d CA certificates", maxTrust)
	}
	cluster := ""
	for i, cert := range trust {
		id, err := ClusterID(cert)
		if err != nil {
			return err
		}
		if err = cert.CheckSignatureFrom(cert); err != nil {
			return fmt.Errorf("CA certificate: %w", err)
		}
		if i > 0 && id != cluster {
			return errors.New("the CA certificates are not of one cluster")
		}
		cluster = id
		for _, other := range trust[:i] {
			if other.Equal(cert) {
				return errors.New("a CA certificate is there twice")
			}
		}
	}
	return nil
}

// issuer returns which CA signed leaf; nil: none of them.
func issuer(leaf *x509.Certificate, trust []*x509.Certificate) *x509.Certificate {
	for _, ca := range trust {
		if leaf.CheckSignatureFrom(ca) == nil {
			return ca
		}
	}
	return nil
}

// newest returns from when on the newest of CAs is valid. Each CA of a cluster begins after the one before it; see Next.
func newest(trust []*x509.Certificate) (at time.Time) {
	for _, ca := range trust {
		at = later(at, ca.NotBefore)
	}
	return at
}

func encodeCerts(certs []*x509.Certificate) []byte {
	var out []byte
	for _, cert := range certs {
		out = append(out, EncodeCert(cert)...)
	}
	return out
}

// Next makes another CA for the same cluster, valid for ten years from now. It begins after this one, whatever the clock says: so nodes
// tell which of two is the newer.
func (ca *CA) Next(now time.Time) (*CA, error) {
	return NewCA(ca.cluster, later(now, ca.cert.NotBefore.Add(backdate+time.Second)))
}

// Bridge returns a certificate by which ca vouches for the key of next, another CA of the same cluster. It ends with either of them. A
// node takes it only while it joins with a token that names ca: to all others it is one CA below another, which no CA here may have.
func (ca *CA) Bridge(next *CA) (*x509.Certificate, error) {
	if ca.cluster != next.cluster {
		return nil, errors.New("the CAs are of two clusters")
	}
	template := *next.cert
	template.SerialNumber = newSerial()
	template.NotBefore, template.NotAfter = later(ca.cert.NotBefore, next.cert.NotBefore), earlier(ca.cert.NotAfter, next.cert.NotAfter)
	bridge, err := sign(&template, ca.cert, next.cert.PublicKey, ca.key())
	if err != nil {
		return nil, fmt.Errorf("sign the bridge between two CAs: %w", err)
	}
	return bridge, nil
}

// Bridges reports whether bridge is a certificate of old for another CA of the same cluster.
func Bridges(bridge, old *x509.Certificate) bool {
	from, err := ClusterID(old)
	if err != nil || bridge.Equal(old) {
		return false
	}
	to, err := ClusterID(bridge)
	return err == nil && from == to && bridge.CheckSignatureFrom(old) == nil
}
