package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/internal/atomicfile"
)

var testHost = Identity{RoleHost, "h1"}

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func enroll(t *testing.T, s *Store, ca *CA, id Identity) {
	t.Helper()
	if err := s.Enroll(ca, id, LeafTTL, testNow); err != nil {
		t.Fatal(err)
	}
}

// served returns the leaf that TLS would present, after checking that the pair fits.
func served(t *testing.T, s *Store) *x509.Certificate {
	t.Helper()
	cert, err := s.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !cert.PrivateKey.(*ecdsa.PrivateKey).PublicKey.Equal(cert.Leaf.PublicKey) {
		t.Fatal("key and certificate do not fit")
	}
	if len(cert.Certificate) != 2 {
		t.Fatalf("chain of %d", len(cert.Certificate))
	}
	return cert.Leaf
}

func TestStoreJoinAndReopen(t *testing.T) {
	dir, ca := t.TempDir(), newTestCA(t, "c")
	s := openStore(t, dir)
	if _, err := s.GetClientCertificate(nil); !errors.Is(err, ErrNotJoined) {
		t.Errorf("before joining: %v", err)
	}
	if _, err := s.Identity(); !errors.Is(err, ErrNotJoined) {
		t.Errorf("before joining: %v", err)
	}
	enroll(t, s, ca, testHost)
	for name, mode := range map[string]fs.FileMode{keyFile: 0o600, certFile: 0o644, caFile: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 3 {
		t.Errorf("the folder holds %v", entries)
	}
	again := openStore(t, dir)
	if !served(t, again).Equal(served(t, s)) {
		t.Error("another certificate after opening again")
	}
	if id, err := again.Identity(); id != testHost || err != nil {
		t.Errorf("identity %v, %v", id, err)
	}
	if got, err := again.CA(); err != nil || !got.Equal(ca.Cert()) {
		t.Errorf("CA: %v", err)
	}
}

func TestRequestAsksForOneKeyUntilInstall(t *testing.T) {
	dir, ca := t.TempDir(), newTestCA(t, "c")
	public := func(s *Store) *ecdsa.PublicKey {
		der, err := s.Request()
		if err != nil {
			t.Fatal(err)
		}
		csr, err := x509.ParseCertificateRequest(der)
		if err != nil {
			t.Fatal(err)
		}
		return csr.PublicKey.(*ecdsa.PublicKey)
	}
	s := openStore(t, dir)
	first := public(s)
	if !public(openStore(t, dir)).Equal(first) {
		t.Error("another key after a restart")
	}
	enroll(t, s, ca, testHost)
	if public(s).Equal(first) {
		t.Error("a renewal reuses the key")
	}
}

func TestRenewalTakesEffectAtOnce(t *testing.T) {
	dir, ca := t.TempDir(), newTestCA(t, "c")
	s := openStore(t, dir)
	enroll(t, s, ca, testHost)
	before := served(t, s)
	other := openStore(t, dir)
	enroll(t, s, ca, testHost)
	if served(t, s).Equal(before) {
		t.Error("the old certificate is still served")
	}
	if err := other.Reload(); err != nil {
		t.Fatal(err)
	}
	if !served(t, other).Equal(served(t, s)) {
		t.Error("Reload did not read the new certificate")
	}
}

// TestStoreSurvivesCrashInInstall puts the folder into every state that a crash during a renewal can leave.
func TestStoreSurvivesCrashInInstall(t *testing.T) {
	ca := newTestCA(t, "c")
	dir := t.TempDir()
	s := openStore(t, dir)
	enroll(t, s, ca, testHost)
	old := served(t, s)
	csr, err := s.Request()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(csr, testHost, LeafTTL, testNow)
	if err != nil {
		t.Fatal(err)
	}
	if got := served(t, openStore(t, dir)); !got.Equal(old) {
		t.Error("crash before the certificate was replaced: the old pair is not served")
	}
	if err := atomicfile.Write(filepath.Join(dir, certFile), EncodeCert(leaf), certMode); err != nil {
		t.Fatal(err)
	}
	if got := served(t, openStore(t, dir)); !got.Equal(leaf) {
		t.Error("crash after the certificate was replaced: the new pair is not served")
	}
	if _, err := os.Stat(filepath.Join(dir, nextKeyFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the new key did not take its place: %v", err)
	}
	if got := served(t, openStore(t, dir)); !got.Equal(leaf) {
		t.Error("opened a second time: another pair is served")
	}
}

func TestInstallRefuses(t *testing.T) {
	dir, ca, other := t.TempDir(), newTestCA(t, "c"), newTestCA(t, "c")
	s := openStore(t, dir)
	enroll(t, s, ca, testHost)
	before := served(t, s)
	if err := s.Install(before, ca.Cert()); err == nil {
		t.Error("installed without a request")
	}
	csr, err := s.Request()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Issue(csr, testHost, LeafTTL, testNow)
	if err != nil {
		t.Fatal(err)
	}
	stranger := newTestCA(t, "d")
	strange, err := stranger.Issue(csr, testHost, LeafTTL, testNow)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		leaf, ca *x509.Certificate
		says     string
	}{
		"no leaf":         {nil, ca.Cert(), "there is none"},
		"no CA":           {before, nil, "not the CA of a cluster"},
		"another key":     {issue(t, ca, testHost, LeafTTL, testNow), ca.Cert(), "for another key"},
		"another CA":      {foreign, ca.Cert(), "not from this CA"},
		"another cluster": {strange, stranger.Cert(), "another cluster"},
	} {
		if err := s.Install(tt.leaf, tt.ca); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %q in it", name, err, tt.says)
		}
	}
	if !served(t, s).Equal(before) || !served(t, openStore(t, dir)).Equal(before) {
		t.Error("a refused certificate changed the store")
	}
}

func TestOpenStoreRefuses(t *testing.T) {
	ca := newTestCA(t, "c")
	foreign := issue(t, ca, testHost, LeafTTL, testNow)
	tests := []struct {
		name  string
		spoil func(t *testing.T, dir string) error
		says  string
	}{
		{"key readable by the group", func(_ *testing.T, dir string) error { return os.Chmod(filepath.Join(dir, keyFile), 0o640) }, "0600"},
		{"no key", func(_ *testing.T, dir string) error { return os.Remove(filepath.Join(dir, keyFile)) }, "no key"},
		{"no CA", func(_ *testing.T, dir string) error { return os.Remove(filepath.Join(dir, caFile)) }, "ca.crt"},
		{"certificate of another key", func(_ *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, certFile), EncodeCert(foreign), certMode)
		}, "no key"},
		{"certificate of another key, a key waits", func(_ *testing.T, dir string) error {
			_, err := openStore(t, dir).Request()
			return errors.Join(err, os.WriteFile(filepath.Join(dir, certFile), EncodeCert(foreign), certMode))
		}, "no key"},
		{"CA of another cluster", func(t *testing.T, dir string) error {
			return os.WriteFile(filepath.Join(dir, caFile), EncodeCert(newTestCA(t, "c").Cert()), certMode)
		}, "not from this CA"},
		{"broken certificate", func(_ *testing.T, dir string) error {
			return os.Truncate(filepath.Join(dir, certFile), 100)
		}, "PEM"},
		{"huge certificate", func(_ *testing.T, dir string) error {
			return os.Truncate(filepath.Join(dir, certFile), maxFile+1)
		}, "larger"},
		{"broken key", func(_ *testing.T, dir string) error { return os.Truncate(filepath.Join(dir, keyFile), 20) }, "PEM"},
		{"file instead of folder", func(_ *testing.T, dir string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		}, "not a folder"},
		{"no folder", func(_ *testing.T, dir string) error { return os.RemoveAll(dir) }, "no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pki")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			s := openStore(t, dir)
			enroll(t, s, ca, testHost)
			before := served(t, s)
			if err := tt.spoil(t, dir); err != nil {
				t.Fatal(err)
			}
			if _, err := OpenStore(dir); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("OpenStore: %v; want %q in it", err, tt.says)
			}
			if err := s.Reload(); err == nil {
				t.Error("Reload accepted it")
			}
			if !served(t, s).Equal(before) {
				t.Error("the pair in use changed")
			}
		})
	}
}

func TestOpenStoreAcceptsExpiredCertificate(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	if err := s.Enroll(newTestCA(t, "c"), testHost, time.Nanosecond, testNow.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	served(t, openStore(t, dir))
}

// TestPairIsNeverTorn reads the pair while it is replaced; run with -race.
func TestPairIsNeverTorn(t *testing.T) {
	ca := newTestCA(t, "c")
	s := openStore(t, t.TempDir())
	enroll(t, s, ca, testHost)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				cert, err := s.GetClientCertificate(&tls.CertificateRequestInfo{})
				if err != nil || !cert.PrivateKey.(*ecdsa.PrivateKey).PublicKey.Equal(cert.Leaf.PublicKey) {
					t.Errorf("torn pair: %v", err)
					return
				}
			}
		})
	}
	for range 20 {
		enroll(t, s, ca, testHost)
	}
	close(done)
	wg.Wait()
}
