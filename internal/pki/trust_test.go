package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func nextCA(t *testing.T, ca *CA) *CA {
	t.Helper()
	next, err := ca.Next(testNow)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

func trusts(t *testing.T, s *Store, want ...*x509.Certificate) {
	t.Helper()
	got, err := s.Trusted()
	if err != nil || !slices.EqualFunc(got, want, (*x509.Certificate).Equal) {
		t.Errorf("it trusts %d CAs, not those %d (%v)", len(got), len(want), err)
	}
}

func TestANodeFollowsItsClusterToTheNextCA(t *testing.T) {
	dir, old := t.TempDir(), newTestCA(t, "c")
	next := nextCA(t, old)
	s := openStore(t, dir)
	if err := s.Trust(old.Cert()); !errors.Is(err, ErrNotJoined) {
		t.Errorf("got %v", err)
	}
	enroll(t, s, old, testHost)
	trusts(t, s, old.Cert())
	if err := s.Trust(old.Cert(), next.Cert()); err != nil {
		t.Fatal(err)
	}
	if s.Outdated() {
		t.Error("outdated while the old CA signs")
	}
	trusts(t, openStore(t, dir), old.Cert(), next.Cert())
	if err := s.Trust(old.Cert()); !errors.Is(err, ErrEarlier) {
		t.Errorf("the CAs of before: %v", err)
	}
	if err := s.Trust(next.Cert()); !errors.Is(err, ErrOusted) {
		t.Errorf("without the CA of its certificate: %v", err)
	}
	for name, tt := range map[string]struct {
		cas  []*x509.Certificate
		says string
	}{
		"none":               {nil, "1 to 4 CA certificates"},
		"of another cluster": {[]*x509.Certificate{nextCA(t, newTestCA(t, "d")).Cert()}, "another cluster"},
		"twice":              {[]*x509.Certificate{next.Cert(), old.Cert(), next.Cert()}, "is there twice"},
		"no CA":              {[]*x509.Certificate{served(t, s)}, "not the CA of a cluster"},
		"of two clusters":    {[]*x509.Certificate{old.Cert(), newTestCA(t, "d").Cert()}, "not of one cluster"},
	} {
		if err := s.Trust(tt.cas...); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %q in it", name, err, tt.says)
		}
	}
	if err := s.Trust(next.Cert(), old.Cert()); err != nil {
		t.Fatal(err)
	}
	if !s.Outdated() {
		t.Error("not outdated while another CA signs")
	}
	if err := s.Enroll(next, testHost, LeafTTL, testNow, next.Cert(), old.Cert()); err != nil {
		t.Fatal(err)
	}
	again := openStore(t, dir)
	trusts(t, again, next.Cert(), old.Cert())
	if again.Outdated() || served(t, again).CheckSignatureFrom(next.Cert()) != nil {
		t.Error("the new certificate is not of the next CA")
	}
	if err := s.Trust(next.Cert()); err != nil {
		t.Fatal(err)
	}
	trusts(t, openStore(t, dir), next.Cert())
}

// TestACertificateOfAnotherCASurvivesACrash at each point of its installation, also where the old CA is trusted no more.
func TestACertificateOfAnotherCASurvivesACrash(t *testing.T) {
	old := newTestCA(t, "c")
	next := nextCA(t, old)
	crashed := func(files map[string][]byte) *Store {
		t.Helper()
		dir := t.TempDir()
		s := openStore(t, dir)
		enroll(t, s, old, testHost)
		csr, err := s.Request()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := next.Issue(csr, testHost, LeafTTL, testNow)
		if err != nil {
			t.Fatal(err)
		}
		if files[certFile] != nil {
			files[certFile] = EncodeCert(leaf)
		}
		for name, data := range files {
			if err := os.WriteFile(filepath.Join(dir, name), data, certMode); err != nil {
				t.Fatal(err)
			}
		}
		if files == nil {
			if err := s.Install(leaf, next.Cert()); err != nil {
				t.Fatal(err)
			}
		}
		return openStore(t, dir)
	}
	during := encodeCerts([]*x509.Certificate{next.Cert(), old.Cert()})
	trusts(t, crashed(map[string][]byte{caFile: during}), next.Cert(), old.Cert())
	trusts(t, crashed(map[string][]byte{caFile: during, certFile: {0}}), next.Cert(), old.Cert())
	trusts(t, crashed(nil), next.Cert())
}

// TestARenewalKeepsWhatIsTrusted also when the answer to it was older than what the node was told since.
func TestARenewalKeepsWhatIsTrusted(t *testing.T) {
	old := newTestCA(t, "c")
	next := nextCA(t, old)
	s := openStore(t, t.TempDir())
	enroll(t, s, old, testHost)
	renew := func(ca *CA, others ...*x509.Certificate) error {
		t.Helper()
		csr, err := s.Request()
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := ca.Issue(csr, testHost, LeafTTL, testNow)
		if err != nil {
			t.Fatal(err)
		}
		return s.Renew(leaf, others...)
	}
	if err := s.Trust(old.Cert(), next.Cert()); err != nil {
		t.Fatal(err)
	}
	if err := renew(old, old.Cert()); err != nil {
		t.Fatal(err)
	}
	trusts(t, s, old.Cert(), next.Cert())
	if err := renew(next); err != nil {
		t.Fatal(err)
	}
	trusts(t, s, old.Cert(), next.Cert())
	third := nextCA(t, next)
	if err := renew(third); err == nil {
		t.Error("a certificate of a CA that nobody named was taken")
	}
	if err := renew(third, third.Cert()); err != nil {
		t.Fatal(err)
	}
	trusts(t, s, third.Cert())
	if err := s.Renew(nil); err == nil {
		t.Error("no certificate was taken")
	}
}

func TestTheNextCAIsNewerWhateverTheClockSays(t *testing.T) {
	old := newTestCA(t, "c")
	next, err := old.Next(testNow.Add(-time.Hour))
	if err != nil || !next.Cert().NotBefore.After(old.Cert().NotBefore) || next.ClusterID() != "c" {
		t.Errorf("%v %v", next, err)
	}
}

func TestABridgeIsNoCAForAnybodyElse(t *testing.T) {
	old := newTestCA(t, "c")
	next := nextCA(t, old)
	bridge, err := old.Bridge(next)
	if err != nil {
		t.Fatal(err)
	}
	if !Bridges(bridge, old.Cert()) || Bridges(bridge, next.Cert()) || Bridges(old.Cert(), old.Cert()) || Bridges(next.Cert(), old.Cert()) {
		t.Error("what bridges what is wrong")
	}
	leaf := issue(t, next, testHost, LeafTTL, testNow)
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(old.Cert())
	between.AddCert(bridge)
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: testNow, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}); err == nil {
		t.Error("a certificate of the next CA is good for who trusts the old one alone")
	}
	if _, err := old.Bridge(nextCA(t, newTestCA(t, "d"))); err == nil {
		t.Error("a bridge to another cluster was made")
	}
}

func TestParseTrustRefuses(t *testing.T) {
	one := newTestCA(t, "c")
	four := []*x509.Certificate{one.Cert()}
	for len(four) < maxTrust {
		four = append(four, newTestCA(t, "c").Cert())
	}
	five := append(slices.Clone(four), newTestCA(t, "c").Cert())
	below, err := one.Bridge(nextCA(t, one))
	if err != nil {
		t.Fatal(err)
	}
	key, err := one.EncodeKey()
	if err != nil {
		t.Fatal(err)
	}
	broken := pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: []byte("x")})
	for name, tt := range map[string]struct {
		pem  []byte
		says string
	}{
		"four":              {encodeCerts(four), ""},
		"five":              {encodeCerts(five), "1 to 4 CA certificates"},
		"five and text":     {append(encodeCerts(five), "x"...), "1 to 4 CA certificates"},
		"nothing":           {[]byte(" \n"), "1 to 4 CA certificates"},
		"text":              {[]byte("x"), "not only PEM blocks"},
		"text after them":   {append(encodeCerts(four), "x"...), "not only PEM blocks"},
		"a key":             {key, "not only PEM blocks"},
		"what is none":      {broken, "x509"},
		"signed by another": {EncodeCert(below), "CA certificate: "},
	} {
		got, err := ParseTrust(tt.pem)
		if tt.says == "" {
			if err != nil || !slices.EqualFunc(got, four, (*x509.Certificate).Equal) {
				t.Errorf("%s: %d, %v", name, len(got), err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %q in it", name, err, tt.says)
		}
	}
	if got, err := ParseTrustDER(RawCerts(four)); err != nil || !slices.EqualFunc(got, four, (*x509.Certificate).Equal) {
		t.Errorf("four in DER: %d, %v", len(got), err)
	}
	if _, err := ParseTrustDER(RawCerts(five)); err == nil {
		t.Error("five in DER were taken")
	}
	if _, err := ParseTrustDER([][]byte{nil}); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("nothing in DER: %v", err)
	}
}

// TestEveryViewOfAStoreIsOfOneNode asks a store for all that it knows, before and after it has joined.
func TestEveryViewOfAStoreIsOfOneNode(t *testing.T) {
	ca := newTestCA(t, "c")
	next := nextCA(t, ca)
	s := openStore(t, t.TempDir())
	views := map[string]func() (bool, error){
		"Leaf": func() (bool, error) {
			leaf, err := s.Leaf()
			return leaf != nil && leaf.CheckSignatureFrom(ca.Cert()) == nil, err
		},
		"CA":      func() (bool, error) { got, err := s.CA(); return got != nil && got.Equal(ca.Cert()), err },
		"Trusted": func() (bool, error) { got, err := s.Trusted(); return len(got) == 2, err },
		"Current": func() (bool, error) {
			leaf, by, trusted, err := s.Current()
			return leaf != nil && by.Equal(ca.Cert()) && len(trusted) == 2, err
		},
		"Roots": func() (bool, error) {
			roots, err := s.Roots()
			want := x509.NewCertPool()
			want.AddCert(ca.Cert())
			want.AddCert(next.Cert())
			return roots != nil && roots.Equal(want), err
		},
		"Identity":       func() (bool, error) { id, err := s.Identity(); return id == testHost, err },
		"GetCertificate": func() (bool, error) { got, err := s.GetCertificate(nil); return got != nil && got.Leaf != nil, err },
	}
	for name, view := range views {
		if ok, err := view(); ok || !errors.Is(err, ErrNotJoined) {
			t.Errorf("%s before it has joined: %v, %v", name, ok, err)
		}
	}
	if s.Outdated() {
		t.Error("a node without a certificate has an outdated one")
	}
	enroll(t, s, ca, testHost)
	if err := s.Trust(ca.Cert(), next.Cert()); err != nil {
		t.Fatal(err)
	}
	for name, view := range views {
		if ok, err := view(); !ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

func TestTheFirstRenewalIsAnInstallation(t *testing.T) {
	ca, s := newTestCA(t, "c"), openStore(t, t.TempDir())
	csr, err := s.Request()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(csr, testHost, LeafTTL, testNow)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(leaf, ca.Cert()); err != nil || !served(t, s).Equal(leaf) {
		t.Errorf("%v", err)
	}
}

func TestTheSameTrustWritesNothing(t *testing.T) {
	dir, ca := t.TempDir(), newTestCA(t, "c")
	s := openStore(t, dir)
	enroll(t, s, ca, testHost)
	before, err := os.Stat(filepath.Join(dir, caFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Trust(ca.Cert()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(filepath.Join(dir, caFile)); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was written again, %v", err)
	}
}

// TestAFailedInstallationLeavesCAsThatCanBeRead also where the CA does not change.
func TestAFailedInstallationLeavesCAsThatCanBeRead(t *testing.T) {
	dir, ca := t.TempDir(), newTestCA(t, "c")
	s := openStore(t, dir)
	enroll(t, s, ca, testHost)
	if err := errors.Join(os.Remove(filepath.Join(dir, certFile)), os.MkdirAll(filepath.Join(dir, certFile, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := s.Enroll(ca, testHost, LeafTTL, testNow); err == nil || !strings.Contains(err.Error(), "install certificate") {
		t.Errorf("installed: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, caFile))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseTrust(data); err != nil || len(got) != 1 {
		t.Errorf("%d CAs, %v", len(got), err)
	}
	if entries, _ := filepath.Glob(filepath.Join(dir, ".*.tmp")); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// TestABridgedChain ends with the bridge and the older CA, and only while there is a bridge.
func TestABridgedChain(t *testing.T) {
	old := newTestCA(t, "c")
	next := nextCA(t, old)
	s := openStore(t, t.TempDir())
	if err := s.Enroll(next, testHost, LeafTTL, testNow, old.Cert()); err != nil {
		t.Fatal(err)
	}
	bridge, err := old.Bridge(next)
	if err != nil {
		t.Fatal(err)
	}
	s.SetBridge(bridge)
	cert, err := s.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := cert.Leaf
	want := [][]byte{leaf.Raw, next.Cert().Raw, bridge.Raw, old.Cert().Raw}
	if !slices.EqualFunc(cert.Certificate, want, bytes.Equal) {
		t.Errorf("a chain of %d, not leaf, CA, bridge and the older CA", len(cert.Certificate))
	}
	s.SetBridge(nil)
	if !served(t, s).Equal(leaf) { // which wants a chain of two
		t.Error("another certificate")
	}
}
