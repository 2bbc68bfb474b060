package s3clients

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// certificate writes a certificate of its own authority for all buckets, and its key.
func certificate(t *testing.T) (cert, key string, trusted *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"*.s3.test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	must(t, err)
	rawKey, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o644))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: rawKey}), 0o600))
	leaf, err := x509.ParseCertificate(raw)
	must(t, err)
	trusted = x509.NewCertPool()
	trusted.AddCert(leaf)
	return cert, key, trusted
}

// TestOverTLSByTheBucketsName: the serving process has the certificate though it reads no file.
func TestOverTLSByTheBucketsName(t *testing.T) {
	cert, key, trusted := certificate(t)
	s := startWith(t, []string{"--tls-cert", cert, "--tls-key", key, "--user", "4242"})
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.addr)
		},
	}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+bucket+".s3.test/file", nil)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.dir, "file"), []byte("content"), 0o644))
	s.sign(r)
	resp, err := client.Do(r)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "content" || resp.TLS == nil {
		t.Errorf("%s: %q, %v", resp.Status, text, err)
	}
	if s.tryGet("file") == "content" {
		t.Error("it answers over plain HTTP too")
	}
}
