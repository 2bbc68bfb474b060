package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Names of the files in a store's folder.
const (
	keyFile     = "node.key"
	nextKeyFile = "node.key.next"
	certFile    = "node.crt"
	caFile      = "ca.crt"
)

// ErrNotJoined says that a store holds no certificate yet.
var ErrNotJoined = errors.New("no certificate: this node has not joined a cluster")

// Store holds a daemon's key, certificate and CA certificate in a folder (node.key, node.crt, ca.crt) and serves the current pair to TLS.
// It is safe for concurrent use by one process.
//
// A new certificate comes with a new key, and two files cannot be replaced at once. So the new key waits as node.key.next until the
// certificate is in place; whichever of the two keys fits node.crt is the right one. A crash at any point leaves a pair that fits.
type Store struct {
	dir string
	// files serialises changes of the folder; it is the only lock that is held across I/O, and nobody who needs the pair takes it.
	files   sync.Mutex
	current atomic.Pointer[pair]
}

// pair is never changed once it is published.
type pair struct {
	tls  tls.Certificate
	leaf *x509.Certificate
	ca   *x509.Certificate
	id   Identity
}

// OpenStore reads the folder dir, which must exist. A folder without a certificate is a store that has not joined. A certificate that is
// out of date is loaded like any other: the peer decides.
func OpenStore(dir string) (*Store, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("open certificate store: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open certificate store: %s is not a folder", dir)
	}
	s := &Store{dir: dir}
	if err := s.Reload(); err != nil && !errors.Is(err, ErrNotJoined) {
		return nil, err
	}
	return s, nil
}

// Reload reads the folder again, for files that something else replaced. On an error, ErrNotJoined included, the pair in use stays.
func (s *Store) Reload() error {
	s.files.Lock()
	defer s.files.Unlock()
	return s.load()
}

// Request returns a certificate request (DER) for a new key, which is durable before Request returns. Until Install, every call asks for
// the same key, also after a restart: so a node that lost the answer is recognised by its key when it asks again.
func (s *Store) Request() ([]byte, error) {
	s.files.Lock()
	defer s.files.Unlock()
	key, err := s.readKey(nextKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = s.newKey()
	}
	if err != nil {
		return nil, fmt.Errorf("prepare key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return csr, nil
}

// Install makes leaf, issued by ca for the key of the last Request, durable and current: handshakes that begin after Install use it. A
// store that has joined refuses the CA of another cluster. On an error before anything was replaced the old pair stays in use.
func (s *Store) Install(leaf, ca *x509.Certificate) error {
	s.files.Lock()
	defer s.files.Unlock()
	if leaf == nil || ca == nil {
		return errors.New("install certificate: leaf and CA are needed")
	}
	if cur := s.current.Load(); cur != nil && !cur.ca.Equal(ca) {
		return fmt.Errorf("install certificate: %s belongs to another cluster", s.dir)
	}
	key, err := s.readKey(nextKeyFile)
	if err != nil {
		return fmt.Errorf("install certificate: no request is open: %w", err)
	}
	if _, err := newPair(leaf, ca, key); err != nil {
		return fmt.Errorf("install certificate: %w", err)
	}
	if err := WriteFile(s.path(caFile), EncodeCert(ca), certMode); err != nil {
		return fmt.Errorf("install certificate: %w", err)
	}
	if err := WriteFile(s.path(certFile), EncodeCert(leaf), certMode); err != nil {
		return fmt.Errorf("install certificate: %w", err)
	}
	return s.load()
}

// Enroll gives the store a certificate from ca itself, for the schedulers that hold the CA's key.
func (s *Store) Enroll(ca *CA, id Identity, ttl time.Duration, now time.Time) error {
	csr, err := s.Request()
	if err != nil {
		return err
	}
	leaf, err := ca.Issue(csr, id, ttl, now)
	if err != nil {
		return err
	}
	return s.Install(leaf, ca.Cert())
}

// Leaf returns the current certificate, which the caller must not change, or ErrNotJoined.
func (s *Store) Leaf() (*x509.Certificate, error) {
	cur := s.current.Load()
	if cur == nil {
		return nil, ErrNotJoined
	}
	return cur.leaf, nil
}

// CA returns the cluster's CA certificate, which the caller must not change, or ErrNotJoined.
func (s *Store) CA() (*x509.Certificate, error) {
	cur := s.current.Load()
	if cur == nil {
		return nil, ErrNotJoined
	}
	return cur.ca, nil
}

// Identity returns who this node is, or ErrNotJoined.
func (s *Store) Identity() (Identity, error) {
	cur := s.current.Load()
	if cur == nil {
		return Identity{}, ErrNotJoined
	}
	return cur.id, nil
}

// GetCertificate is a callback for tls.Config on the server's side. The chain it returns includes the CA certificate, which a joining node
// compares with the digest in its token.
func (s *Store) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	cur := s.current.Load()
	if cur == nil {
		return nil, ErrNotJoined
	}
	return &cur.tls, nil
}

// GetClientCertificate is a callback for tls.Config on the client's side.
func (s *Store) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return s.GetCertificate(nil)
}

// load publishes the pair in the folder and finishes an Install that a crash interrupted. The caller holds s.files.
func (s *Store) load() error {
	leaf, err := s.readCert(certFile)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotJoined
	}
	if err != nil {
		return fmt.Errorf("load certificate: %w", err)
	}
	ca, err := s.readCert(caFile)
	if err != nil {
		return fmt.Errorf("load CA certificate: %w", err)
	}
	key, err := s.keyOf(leaf)
	if err != nil {
		return fmt.Errorf("load private key: %w", err)
	}
	next, err := newPair(leaf, ca, key)
	if err != nil {
		return fmt.Errorf("load certificate from %s: %w", s.dir, err)
	}
	s.current.Store(next)
	return nil
}

// keyOf returns the key that fits leaf. If that is the waiting one it takes its place as node.key.
func (s *Store) keyOf(leaf *x509.Certificate) (*ecdsa.PrivateKey, error) {
	key, err := s.readKey(keyFile)
	if err == nil && key.PublicKey.Equal(leaf.PublicKey) {
		return key, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	next, err := s.readKey(nextKeyFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil || !next.PublicKey.Equal(leaf.PublicKey) {
		return nil, fmt.Errorf("no key in %s belongs to %s", s.dir, certFile)
	}
	if err := os.Rename(s.path(nextKeyFile), s.path(keyFile)); err != nil {
		return nil, err
	}
	return next, syncDir(s.dir)
}

func (s *Store) newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	data, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return key, WriteFile(s.path(nextKeyFile), data, keyMode)
}

func (s *Store) readKey(name string) (*ecdsa.PrivateKey, error) {
	data, err := ReadSecretFile(s.path(name))
	if err != nil {
		return nil, err
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path(name), err)
	}
	return key, nil
}

func (s *Store) readCert(name string) (*x509.Certificate, error) {
	data, err := readPublicFile(s.path(name))
	if err != nil {
		return nil, err
	}
	cert, err := ParseCert(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path(name), err)
	}
	return cert, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// newPair checks that the three belong together. It does not look at the clock.
func newPair(leaf, ca *x509.Certificate, key *ecdsa.PrivateKey) (*pair, error) {
	if !key.PublicKey.Equal(leaf.PublicKey) {
		return nil, errors.New("the certificate is for another key")
	}
	if err := leaf.CheckSignatureFrom(ca); err != nil {
		return nil, fmt.Errorf("the certificate is not from this CA: %w", err)
	}
	id, err := IdentityFromCert(leaf, ca)
	if err != nil {
		return nil, err
	}
	return &pair{
		tls:  tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.Raw}, PrivateKey: key, Leaf: leaf},
		leaf: leaf,
		ca:   ca,
		id:   id,
	}, nil
}
