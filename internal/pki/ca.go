package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"gantry/internal/atomicfile"
)

// LeafTTL is the default life of a host's or scheduler's certificate.
const LeafTTL = 7 * 24 * time.Hour

const (
	caLife = 10 * 365 * 24 * time.Hour
	// backdate covers a verifier whose clock is behind the issuer's.
	backdate = 5 * time.Minute
	// maxCSR bounds a certificate request, in bytes; a P-256 request without extensions has about 220.
	maxCSR = 8 << 10
)

const (
	pemCertificate = "CERTIFICATE"
	pemPrivateKey  = "PRIVATE KEY"
)

// Digest is the SHA-256 of a CA certificate's DER form. It is public.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a certificate.
func DigestOf(cert *x509.Certificate) Digest { return sha256.Sum256(cert.Raw) }

// CA is the certificate authority of one cluster. Its methods are safe for concurrent use.
type CA struct {
	cert    *x509.Certificate
	key     func() *ecdsa.PrivateKey // a closure for the reason given at Secret
	cluster string
}

func newCA(cert *x509.Certificate, key *ecdsa.PrivateKey, cluster string) *CA {
	return &CA{cert: cert, key: func() *ecdsa.PrivateKey { return key }, cluster: cluster}
}

// NewCA makes a self-signed authority for a cluster, valid for ten years from now. clusterID holds 1 to 63 of a-z 0-9 . _ - and begins
// and ends with a letter or a digit.
func NewCA(clusterID string, now time.Time) (*CA, error) {
	if !validCluster(clusterID) {
		return nil, fmt.Errorf("cluster id must be 1 to %d lower-case letters, digits, '.', '_' or '-'", maxClusterID)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make CA key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{Organization: []string{"Gantry"}, CommonName: "Gantry cluster CA"},
		URIs:                  []*url.URL{clusterURI(clusterID)},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	cert, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign CA certificate: %w", err)
	}
	return newCA(cert, key, clusterID), nil
}

// ParseCA reads what EncodeCert and EncodeKey wrote. The key must belong to the certificate and the certificate must have signed itself.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	cert, err := ParseCert(certPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	cluster, err := ClusterID(cert)
	if err != nil {
		return nil, err
	}
	if err := cert.CheckSignatureFrom(cert); err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("CA key does not belong to the CA certificate")
	}
	return newCA(cert, key, cluster), nil
}

// Save writes certificate and key into one new file with mode 0600. It returns an error that wraps fs.ErrExist, and changes nothing, if
// path exists: replacing a cluster's CA would cut off every node.
func (ca *CA) Save(path string) error {
	key, err := ca.EncodeKey()
	if err != nil {
		return err
	}
	if err := atomicfile.Create(path, append(EncodeCert(ca.cert), key...), keyMode); err != nil {
		return fmt.Errorf("save CA: %w", err)
	}
	return nil
}

// LoadCA reads what Save wrote. The file must be a regular one that only its owner can read.
func LoadCA(path string) (*CA, error) {
	data, err := ReadSecretFile(path)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	_, key := pem.Decode(data) // ParseCA refuses what is not there
	ca, err := ParseCA(data[:len(data)-len(key)], key)
	if err != nil {
		return nil, fmt.Errorf("load CA from %s: %w", path, err)
	}
	return ca, nil
}

// Cert returns the CA's certificate, which the caller must not change.
func (ca *CA) Cert() *x509.Certificate { return ca.cert }

// ClusterID returns the trust domain.
func (ca *CA) ClusterID() string { return ca.cluster }

// Digest returns the SHA-256 of the CA certificate's DER form.
func (ca *CA) Digest() Digest { return DigestOf(ca.cert) }

// EncodeKey returns the private key as PEM (PKCS #8). The result is a secret: seal it or write it with mode 0600.
func (ca *CA) EncodeKey() ([]byte, error) { return encodeKey(ca.key()) }

// String hides the key.
func (ca *CA) String() string { return "CA of " + ca.cluster }

// Issue signs a certificate for id from a certificate request in DER form. Only the request's public key counts (P-256 or Ed25519, its
// possession proven by the request's signature); its names are ignored. The certificate begins five minutes before now and ends after
// ttl, or with the CA if that is earlier. It makes its own randomness, so it must not be called from a state machine.
func (ca *CA) Issue(csrDER []byte, id Identity, ttl time.Duration, now time.Time) (*x509.Certificate, error) {
	if err := id.validate(); err != nil {
		return nil, err
	}
	if ttl <= 0 {
		return nil, errors.New("certificate life must be positive")
	}
	if now.Before(ca.cert.NotBefore) || !now.Before(ca.cert.NotAfter) {
		return nil, errors.New("the CA certificate is not valid now")
	}
	public, err := requestKey(csrDER)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{Organization: []string{"Gantry"}, CommonName: "Gantry " + string(id.Role)},
		URIs:                  []*url.URL{id.uri(ca.cluster)},
		NotBefore:             later(now.Add(-backdate), ca.cert.NotBefore),
		NotAfter:              earlier(now.Add(ttl), ca.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if name := id.Role.serverName(); name != "" {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames = []string{name}
	}
	leaf, err := sign(template, ca.cert, public, ca.key())
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	return leaf, nil
}

// VerifyScheduler reports whether leaf is a scheduler's certificate under ca that is valid at now: signed by it, for server use, with the
// name ServerName and the role scheduler.
func VerifyScheduler(leaf, ca *x509.Certificate, now time.Time) error {
	return verifyServer(leaf, ca, RoleScheduler, now)
}

// VerifyGateway is VerifyScheduler for the certificate of the gateway of an id, and GatewayName.
func VerifyGateway(leaf, ca *x509.Certificate, id string, now time.Time) error {
	err := verifyServer(leaf, ca, RoleGateway, now)
	if who, _ := IdentityFromCert(leaf, ca); err == nil && who.ID != id {
		err = fmt.Errorf("%w: the server is %s, and not gateway/%s", ErrIdentity, who, id)
	}
	return err
}

func verifyServer(leaf, ca *x509.Certificate, role Role, now time.Time) error {
	id, err := IdentityFromCert(leaf, ca)
	if err != nil {
		return err
	}
	if id.Role != role {
		return fmt.Errorf("%w: the server is a %s, not a %s", ErrIdentity, id.Role, role)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		DNSName:     role.serverName(),
		CurrentTime: now,
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return fmt.Errorf("verify the %s's certificate: %w", role, err)
	}
	return nil
}

// RenewAt returns when to renew cert: a point between 50 % and 80 % of its life, chosen by fraction, a random number in [0, 1], so that
// hosts which joined together do not renew together.
func RenewAt(cert *x509.Certificate, fraction float64) time.Time {
	fraction = min(max(fraction, 0), 1)
	if fraction != fraction { // NaN passes through min and max
		fraction = 0
	}
	life := cert.NotAfter.Sub(cert.NotBefore)
	return cert.NotBefore.Add(time.Duration(float64(life) * (0.5 + 0.3*fraction)))
}

// EncodeCert returns a certificate as PEM.
func EncodeCert(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: cert.Raw})
}

// ParseCert reads exactly one certificate from PEM.
func ParseCert(data []byte) (*x509.Certificate, error) {
	der, err := onePEM(data, pemCertificate)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der}), nil
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	der, err := onePEM(data, pemPrivateKey)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("not a private key in PKCS #8 form")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("not a P-256 key")
	}
	return key, nil
}

func onePEM(data []byte, kind string) ([]byte, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != kind || len(bytes.TrimSpace(rest)) != 0 {
		return nil, fmt.Errorf("not exactly one PEM block %q", kind)
	}
	return block.Bytes, nil
}

// RequestID identifies what a node that joins asks for: a certificate for its key, being what it says of itself. The same request made
// again, which only the holder of the key can use the answer to, has the same id. It fails for a request that Issue would refuse.
func RequestID(csrDER []byte, says string) ([]byte, error) {
	key, err := requestKey(csrDER)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	sum := sha256.Sum256(append(public, says...))
	return sum[:], nil
}

func requestKey(csrDER []byte) (any, error) {
	if len(csrDER) > maxCSR {
		return nil, fmt.Errorf("certificate request is larger than %d bytes", maxCSR)
	}
	csr, err := x509.ParseCertificateRequest(csrDER)
	if err != nil {
		return nil, fmt.Errorf("parse certificate request: %w", err)
	}
	switch key := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() {
			return nil, errors.New("certificate request: key must be P-256 or Ed25519")
		}
	case ed25519.PublicKey:
	default:
		return nil, errors.New("certificate request: key must be P-256 or Ed25519")
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return csr.PublicKey, nil
}

func sign(template, parent *x509.Certificate, public any, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newSerial returns a random number in [1, 2^128).
func newSerial() *big.Int {
	var b [16]byte
	for {
		_, _ = rand.Read(b[:]) // never returns an error
		if n := new(big.Int).SetBytes(b[:]); n.Sign() > 0 {
			return n
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
