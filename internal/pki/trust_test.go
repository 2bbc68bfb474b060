package pki

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
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
	for name, cas := range map[string][]*x509.Certificate{
		"none": nil, "of another cluster": {nextCA(t, newTestCA(t, "d")).Cert()}, "twice": {next.Cert(), next.Cert()},
		"no CA": {served(t, s)}, "of two clusters": {old.Cert(), newTestCA(t, "d").Cert()},
	} {
		if err := s.Trust(cas...); err == nil {
			t.Errorf("%s: taken", name)
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
