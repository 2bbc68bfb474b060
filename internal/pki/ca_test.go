package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newTestCA(t *testing.T, cluster string) *CA {
	t.Helper()
	ca, err := NewCA(cluster, testNow)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newCSR(t *testing.T, key crypto.Signer, template *x509.CertificateRequest) []byte {
	t.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func p256(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func issue(t *testing.T, ca *CA, id Identity, ttl time.Duration, now time.Time) *x509.Certificate {
	t.Helper()
	leaf, err := ca.Issue(newCSR(t, p256(t), &x509.CertificateRequest{}), id, ttl, now)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func TestNewCA(t *testing.T) {
	ca := newTestCA(t, "cluster-1")
	cert := ca.Cert()
	if !cert.IsCA || !cert.MaxPathLenZero || cert.KeyUsage&x509.KeyUsageDigitalSignature != 0 {
		t.Errorf("CA constraints: IsCA %v, MaxPathLenZero %v, usage %v", cert.IsCA, cert.MaxPathLenZero, cert.KeyUsage)
	}
	if got := cert.NotAfter.Sub(testNow); got != caLife {
		t.Errorf("life %v, want %v", got, caLife)
	}
	if got, err := ClusterID(cert); got != "cluster-1" || err != nil {
		t.Errorf("ClusterID = %q, %v", got, err)
	}
	keyPEM, err := ca.EncodeKey()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseCA(EncodeCert(cert), keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != ca.Digest() || again.ClusterID() != "cluster-1" {
		t.Error("the parsed CA differs")
	}
	leaf := issue(t, again, Identity{RoleHost, "h1"}, LeafTTL, testNow)
	if err := leaf.CheckSignatureFrom(cert); err != nil {
		t.Errorf("leaf of the parsed CA: %v", err)
	}
}

func TestNewCARefusesClusterID(t *testing.T) {
	for _, id := range []string{"", "UPPER", "a/b", "a b", "-a", "a-", "a..b", "a:1", "ü", strings.Repeat("a", 64)} {
		if _, err := NewCA(id, testNow); err == nil {
			t.Errorf("NewCA(%q) was accepted", id)
		}
	}
}

func TestParseCARefuses(t *testing.T) {
	ca, other := newTestCA(t, "one"), newTestCA(t, "one")
	keyPEM, _ := ca.EncodeKey()
	otherKey, _ := other.EncodeKey()
	cert := EncodeCert(ca.Cert())
	leaf := EncodeCert(issue(t, ca, Identity{RoleHost, "h"}, LeafTTL, testNow))
	pkcs8 := func(key any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der})
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	below, err := ca.Bridge(nextCA(t, ca)) // a CA of the cluster that another one signed
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		cert, key []byte
		says      string
	}{
		"key of another CA":   {cert, otherKey, "does not belong"},
		"leaf instead of CA":  {leaf, keyPEM, "not the CA of a cluster"},
		"signed by another":   {EncodeCert(below), keyPEM, "CA certificate: "},
		"swapped":             {keyPEM, cert, `CA certificate: not exactly one PEM block "CERTIFICATE"`},
		"no key":              {cert, cert, `CA key: not exactly one PEM block "PRIVATE KEY"`},
		"empty":               {nil, nil, "not exactly one PEM block"},
		"two certificates":    {append(append([]byte{}, cert...), cert...), keyPEM, "not exactly one PEM block"},
		"text after the key":  {cert, append(append([]byte{}, keyPEM...), "x"...), "not exactly one PEM block"},
		"truncated":           {cert[:len(cert)/2], keyPEM, "not exactly one PEM block"},
		"key of another kind": {cert, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), "PKCS #8"},
		"P-384 key":           {cert, pkcs8(p384), "not a P-256 key"},
		"Ed25519 key":         {cert, pkcs8(edwards), "not a P-256 key"},
	}
	for name, tt := range tests {
		if _, err := ParseCA(tt.cert, tt.key); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %q in it", name, err, tt.says)
		}
	}
}

func TestSaveCA(t *testing.T) {
	ca, path := newTestCA(t, "c"), filepath.Join(t.TempDir(), "ca.pem")
	if err := ca.Save(path); err != nil {
		t.Fatal(err)
	}
	if err := newTestCA(t, "c").Save(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second CA in its place: %v", err)
	}
	again, err := LoadCA(path)
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != ca.Digest() || !again.key().Equal(ca.key()) {
		t.Error("another CA was loaded")
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCA(path); err == nil || !strings.Contains(err.Error(), "0600") {
		t.Errorf("readable by the group: %v", err)
	}
	for _, size := range []int64{900, 700, 10, 0} {
		if err := errors.Join(os.Chmod(path, 0o600), os.Truncate(path, size)); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadCA(path); err == nil {
			t.Errorf("truncated to %d bytes: loaded", size)
		}
	}
}

func TestIssue(t *testing.T) {
	ca := newTestCA(t, "cluster-1")
	end := ca.Cert().NotAfter
	tests := []struct {
		name  string
		id    Identity
		ttl   time.Duration
		now   time.Time
		until time.Time
		usage int
		dns   int
	}{
		{"host", Identity{RoleHost, "h1"}, LeafTTL, testNow, testNow.Add(LeafTTL), 1, 0},
		{"scheduler", Identity{RoleScheduler, "s1"}, LeafTTL, testNow, testNow.Add(LeafTTL), 2, 1},
		{"never past the CA", Identity{RoleHost, "h1"}, LeafTTL, end.Add(-time.Hour), end, 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			leaf := issue(t, ca, tt.id, tt.ttl, tt.now)
			if got, err := IdentityFromCert(leaf, ca.Cert()); got != tt.id || err != nil {
				t.Errorf("identity %v, %v; want %v", got, err, tt.id)
			}
			if !leaf.NotAfter.Equal(tt.until) {
				t.Errorf("NotAfter %v, want %v", leaf.NotAfter, tt.until)
			}
			if leaf.NotBefore.After(tt.now.Add(-backdate)) || leaf.IsCA {
				t.Errorf("NotBefore %v, IsCA %v", leaf.NotBefore, leaf.IsCA)
			}
			if len(leaf.ExtKeyUsage) != tt.usage || len(leaf.DNSNames) != tt.dns {
				t.Errorf("usages %v, names %v", leaf.ExtKeyUsage, leaf.DNSNames)
			}
			if n := leaf.SerialNumber.BitLen(); n > 128 || n < 64 {
				t.Errorf("serial of %d bits", n)
			}
		})
	}
}

func TestIssueIgnoresNamesInRequest(t *testing.T) {
	ca := newTestCA(t, "c")
	csr := newCSR(t, p256(t), &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: "root"},
		DNSNames:    []string{ServerName},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "c", Path: "/scheduler/s"}},
	})
	leaf, err := ca.Issue(csr, Identity{RoleHost, "h"}, LeafTTL, testNow)
	if err != nil {
		t.Fatal(err)
	}
	if len(leaf.DNSNames)+len(leaf.IPAddresses) != 0 || len(leaf.URIs) != 1 || leaf.Subject.CommonName == "root" {
		t.Errorf("names from the request came through: %v %v %v %v", leaf.Subject, leaf.DNSNames, leaf.IPAddresses, leaf.URIs)
	}
	if err := VerifyScheduler(leaf, ca.Cert(), testNow); !errors.Is(err, ErrIdentity) {
		t.Errorf("host verified as scheduler: %v", err)
	}
}

func TestIssueAcceptsEd25519(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := newTestCA(t, "c")
	if _, err := ca.Issue(newCSR(t, key, &x509.CertificateRequest{}), Identity{RoleHost, "h"}, LeafTTL, testNow); err != nil {
		t.Error(err)
	}
}

func TestIssueRefuses(t *testing.T) {
	ca := newTestCA(t, "c")
	good := newCSR(t, p256(t), &x509.CertificateRequest{})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged := append([]byte{}, good...)
	forged[len(forged)-1] ^= 1
	host := Identity{RoleHost, "h"}
	tests := map[string]struct {
		csr  []byte
		id   Identity
		ttl  time.Duration
		now  time.Time
		says string
	}{
		"RSA key":           {newCSR(t, rsaKey, &x509.CertificateRequest{}), host, LeafTTL, testNow, "must be P-256 or Ed25519"},
		"P-384 key":         {newCSR(t, p384, &x509.CertificateRequest{}), host, LeafTTL, testNow, "must be P-256 or Ed25519"},
		"broken signature":  {forged, host, LeafTTL, testNow, "certificate request: "},
		"no request":        {nil, host, LeafTTL, testNow, "parse certificate request"},
		"too large":         {sizedCSR(t, maxCSR+1), host, LeafTTL, testNow, "larger than 8192 bytes"},
		"unknown role":      {good, Identity{"root", "h"}, LeafTTL, testNow, "unknown role"},
		"no id":             {good, Identity{RoleHost, ""}, LeafTTL, testNow, "id must be"},
		"id with a slash":   {good, Identity{RoleHost, "a/b"}, LeafTTL, testNow, "id must be"},
		"id of dots":        {good, Identity{RoleHost, ".."}, LeafTTL, testNow, "id must be"},
		"long id":           {good, Identity{RoleHost, strings.Repeat("a", 129)}, LeafTTL, testNow, "id must be"},
		"no life":           {good, host, 0, testNow, "life must be positive"},
		"CA has ended":      {good, host, LeafTTL, ca.Cert().NotAfter, "not valid now"},
		"CA has not begun":  {good, host, LeafTTL, ca.Cert().NotBefore.Add(-time.Second), "not valid now"},
		"certificate as is": {ca.Cert().Raw, host, LeafTTL, testNow, "parse certificate request"},
	}
	for name, tt := range tests {
		if _, err := ca.Issue(tt.csr, tt.id, tt.ttl, tt.now); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %q in it", name, err, tt.says)
		}
	}
}

// sizedCSR returns a good request of a number of bytes.
func sizedCSR(t *testing.T, size int) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader) // its signatures are of one length
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{ExtraExtensions: []pkix.Extension{{Id: []int{1, 2, 3, 4}, Value: make([]byte, size-200)}}}
	csr := newCSR(t, key, template)
	template.ExtraExtensions[0].Value = make([]byte, size-200+size-len(csr))
	if csr = newCSR(t, key, template); len(csr) != size {
		t.Fatalf("a request of %d bytes, not %d", len(csr), size)
	}
	return csr
}

func TestBoundsThemselvesAreTaken(t *testing.T) {
	longest := strings.Repeat("a", maxClusterID-6) + "b.c_-d"
	ca := newTestCA(t, longest)
	id := Identity{RoleHost, strings.Repeat("a", maxNodeID)}
	if _, err := ca.Issue(sizedCSR(t, maxCSR), id, 1, ca.Cert().NotBefore); err != nil {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "largest")
	if err := os.WriteFile(path, make([]byte, maxFile), keyMode); err != nil {
		t.Fatal(err)
	}
	if data, err := ReadSecretFile(path); err != nil || len(data) != maxFile {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

func TestClusterIDRefuses(t *testing.T) {
	uri := func(text string) []*url.URL {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return []*url.URL{u}
	}
	for name, tt := range map[string]struct {
		cert *x509.Certificate
		says string
	}{
		"none":           {nil, "not the CA of a cluster"},
		"no constraints": {&x509.Certificate{IsCA: true, URIs: uri("spiffe://c")}, "not the CA of a cluster"},
		"no CA":          {&x509.Certificate{BasicConstraintsValid: true, URIs: uri("spiffe://c")}, "not the CA of a cluster"},
		"no name":        {&x509.Certificate{BasicConstraintsValid: true, IsCA: true}, "not the CA of a cluster"},
		"two names": {
			&x509.Certificate{BasicConstraintsValid: true, IsCA: true, URIs: append(uri("spiffe://c"), uri("spiffe://d")...)},
			"not the CA of a cluster",
		},
		"capitals":    {&x509.Certificate{BasicConstraintsValid: true, IsCA: true, URIs: uri("spiffe://C")}, "no valid trust domain"},
		"a path":      {&x509.Certificate{BasicConstraintsValid: true, IsCA: true, URIs: uri("spiffe://c/host/h")}, "no valid trust domain"},
		"other kinds": {&x509.Certificate{BasicConstraintsValid: true, IsCA: true, URIs: uri("https://c")}, "no valid trust domain"},
	} {
		if got, err := ClusterID(tt.cert); got != "" || !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %q, %v; want %q in it", name, got, err, tt.says)
		}
	}
}

// issueAs signs a certificate with any names.
func issueAs(t *testing.T, ca *CA, uris ...string) *x509.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: newSerial(), NotBefore: testNow, NotAfter: testNow.Add(time.Hour)}
	for _, text := range uris {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	leaf, err := sign(template, ca.cert, &p256(t).PublicKey, ca.key())
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func TestIdentityFromCert(t *testing.T) {
	ca := newTestCA(t, "c1")
	tests := []struct {
		name string
		uris []string
		want Identity
	}{
		{"host", []string{"spiffe://c1/host/h1"}, Identity{RoleHost, "h1"}},
		{"none", nil, Identity{}},
		{"two", []string{"spiffe://c1/host/h1", "spiffe://c1/host/h2"}, Identity{}},
		{"other cluster", []string{"spiffe://c2/host/h1"}, Identity{}},
		{"other scheme", []string{"https://c1/host/h1"}, Identity{}},
		{"other role", []string{"spiffe://c1/admin/h1"}, Identity{}},
		{"no id", []string{"spiffe://c1/host/"}, Identity{}},
		{"deeper", []string{"spiffe://c1/host/h1/x"}, Identity{}},
		{"doubled slash", []string{"spiffe://c1//host/h1"}, Identity{}},
		{"port", []string{"spiffe://c1:1/host/h1"}, Identity{}},
		{"user", []string{"spiffe://u@c1/host/h1"}, Identity{}},
		{"query", []string{"spiffe://c1/host/h1?a=b"}, Identity{}},
		{"empty query", []string{"spiffe://c1/host/h1?"}, Identity{}},
		{"fragment", []string{"spiffe://c1/host/h1#f"}, Identity{}},
		{"escaped", []string{"spiffe://c1/host/%681"}, Identity{}},
		{"trust domain in capitals", []string{"spiffe://C1/host/h1"}, Identity{}},
		{"the CA's own name", []string{"spiffe://c1"}, Identity{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := IdentityFromCert(issueAs(t, ca, tt.uris...), ca.Cert())
			if got != tt.want || (err == nil) != (tt.want != Identity{}) {
				t.Errorf("got %v, %v; want %v", got, err, tt.want)
			}
			if err != nil && !errors.Is(err, ErrIdentity) {
				t.Errorf("%v does not wrap ErrIdentity", err)
			}
		})
	}
	if _, err := IdentityFromCert(nil, ca.Cert()); err == nil {
		t.Error("no leaf was accepted")
	}
	if _, err := IdentityFromCert(ca.Cert(), nil); err == nil {
		t.Error("no CA was accepted")
	}
}

func TestVerifyScheduler(t *testing.T) {
	ca, twin := newTestCA(t, "c1"), newTestCA(t, "c1")
	scheduler := issue(t, ca, Identity{RoleScheduler, "s"}, time.Hour, testNow)
	tests := []struct {
		name string
		leaf *x509.Certificate
		ca   *CA
		now  time.Time
		ok   bool
	}{
		{"valid", scheduler, ca, testNow, true},
		{"clock behind by four minutes", scheduler, ca, testNow.Add(-4 * time.Minute), true},
		{"clock behind by six minutes", scheduler, ca, testNow.Add(-6 * time.Minute), false},
		{"expired", scheduler, ca, testNow.Add(time.Hour + time.Second), false},
		{"another CA of the same name", scheduler, twin, testNow, false},
		{"another cluster", scheduler, newTestCA(t, "c2"), testNow, false},
		{"host", issue(t, ca, Identity{RoleHost, "h"}, time.Hour, testNow), ca, testNow, false},
		{"the CA itself", ca.Cert(), ca, testNow, false},
		{"a name of no role", issueAs(t, ca, "spiffe://c1/admin/s"), ca, testNow, false},
	}
	for _, tt := range tests {
		if err := VerifyScheduler(tt.leaf, tt.ca.Cert(), tt.now); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	gateway := issue(t, ca, Identity{RoleGateway, "g"}, time.Hour, testNow)
	for name, err := range map[string]error{
		"a gateway": VerifyGateway(gateway, ca.Cert(), "g", testNow), "a scheduler for one": VerifyGateway(scheduler, ca.Cert(), "s", testNow),
		"one for a scheduler": VerifyScheduler(gateway, ca.Cert(), testNow), "an expired one": VerifyGateway(gateway, ca.Cert(), "g", testNow.Add(2*time.Hour)),
		"another gateway": VerifyGateway(gateway, ca.Cert(), "h", testNow),
	} {
		if (err == nil) != (name == "a gateway") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := VerifyScheduler(issueAs(t, ca, "spiffe://c1/admin/s"), ca.Cert(), testNow); err == nil || !strings.Contains(err.Error(), "unknown role") {
		t.Errorf("a name of no role: %v", err)
	}
}

func TestRenewAt(t *testing.T) {
	cert := &x509.Certificate{NotBefore: testNow, NotAfter: testNow.Add(1000 * time.Hour)}
	for fraction, hours := range map[float64]int{0: 500, 0.5: 650, 1: 800, -3: 500, 7: 800, math.Inf(1): 800} {
		if got, want := RenewAt(cert, fraction), testNow.Add(time.Duration(hours)*time.Hour); !got.Equal(want) {
			t.Errorf("RenewAt(%v) = %v, want %v", fraction, got, want)
		}
	}
	if got := RenewAt(cert, math.NaN()); !got.Equal(testNow.Add(500 * time.Hour)) {
		t.Errorf("RenewAt(NaN) = %v", got)
	}
}
