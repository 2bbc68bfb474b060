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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gantry/internal/atomicfile"
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

// ErrOusted says that a node is to trust CAs of which none signed its own certificate: it needs a new one first.
var ErrOusted = errors.New("the node's certificate is of none of these CAs")

// ErrEarlier says that CAs are not those of now but of before the newest one that the node trusts was made: a scheduler that is not up to
// date named them.
var ErrEarlier = errors.New("a newer CA is trusted already")

// Store holds a daemon's key, its certificate and the certificates of the CAs that it trusts in a folder (node.key, node.crt, ca.crt),
// and serves the current pair to TLS. Of the CAs the first is the one that signs; there are others while a cluster goes over from one to
// the next. It is safe for concurrent use by one process.
//
// A new certificate comes with a new key, and two files cannot be replaced at once. So the new key waits as node.key.next until the
// certificate is in place; whichever of the two keys fits node.crt is the right one. A crash at any point leaves a pair that fits.
type Store struct {
	dir string
	// files serialises changes of the folder; it is the only lock that is held across I/O, and nobody who needs the pair takes it.
	files   sync.Mutex
	current atomic.Pointer[pair]
	bridge  atomic.Pointer[x509.Certificate]
}

// pair is never changed once it is published.
type pair struct {
	tls   tls.Certificate
	leaf  *x509.Certificate
	ca    *x509.Certificate   // that signed leaf
	trust []*x509.Certificate // ca among them
	roots *x509.CertPool      // of trust
	id    Identity
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

// Install makes leaf, issued by one of the CAs in trust for the key of the last Request, durable and current, and trust the CAs that the
// node trusts: handshakes that begin after Install use them. A store that has joined refuses the CAs of another cluster. On an error
// before anything was replaced the old pair stays in use.
func (s *Store) Install(leaf *x509.Certificate, trust ...*x509.Certificate) error {
	s.files.Lock()
	defer s.files.Unlock()
	return s.install(leaf, trust)
}

// Renew is Install for a node that goes on trusting the CAs that it trusts: what came with a certificate may be older than what it was told
// since. Only when none of those signed leaf it trusts the others instead.
func (s *Store) Renew(leaf *x509.Certificate, others ...*x509.Certificate) error {
	s.files.Lock()
	defer s.files.Unlock()
	if cur := s.current.Load(); cur != nil && leaf != nil && issuer(leaf, cur.trust) != nil {
		return s.install(leaf, cur.trust)
	}
	return s.install(leaf, others)
}

// install is Install; the caller holds s.files.
func (s *Store) install(leaf *x509.Certificate, trust []*x509.Certificate) error {
	if leaf == nil {
		return errors.New("install certificate: there is none")
	}
	cur := s.current.Load()
	if err := s.ofThisCluster(cur, trust); err != nil {
		return fmt.Errorf("install certificate: %w", err)
	}
	key, err := s.readKey(nextKeyFile)
	if err != nil {
		return fmt.Errorf("install certificate: no request is open: %w", err)
	}
	if _, err := newPair(leaf, trust, key); err != nil {
		return fmt.Errorf("install certificate: %w", err)
	}
	// Until the new certificate is in place, the CA of the old one must be there: a crash in between leaves a pair that fits.
	during := trust
	if cur != nil && !slices.ContainsFunc(trust, cur.ca.Equal) {
		during = append(slices.Clone(trust), cur.ca)
	}
	for _, file := range []struct {
		name  string
		certs []*x509.Certificate
	}{{caFile, during}, {certFile, []*x509.Certificate{leaf}}, {caFile, trust}} {
		if err := atomicfile.Write(s.path(file.name), encodeCerts(file.certs), certMode); err != nil {
			return fmt.Errorf("install certificate: %w", err)
		}
		if len(during) == len(trust) && file.name == certFile {
			break // nothing is to be taken away
		}
	}
	return s.load()
}

// Trust makes the CAs that the node trusts these, durably; the first is the one that signs. Handshakes that begin later go by them. It
// returns ErrOusted, and changes nothing, when the node's own certificate is of none of them, and ErrEarlier when they are those of before.
func (s *Store) Trust(trust ...*x509.Certificate) error {
	s.files.Lock()
	defer s.files.Unlock()
	cur := s.current.Load()
	switch {
	case cur == nil:
		return ErrNotJoined
	case slices.EqualFunc(cur.trust, trust, (*x509.Certificate).Equal):
		return nil
	}
	if err := s.ofThisCluster(cur, trust); err != nil {
		return fmt.Errorf("change the trusted CAs: %w", err)
	}
	if newest(trust).Before(newest(cur.trust)) {
		return fmt.Errorf("change the trusted CAs: %w", ErrEarlier)
	}
	if issuer(cur.leaf, trust) == nil {
		return fmt.Errorf("change the trusted CAs: %w", ErrOusted)
	}
	if err := atomicfile.Write(s.path(caFile), encodeCerts(trust), certMode); err != nil {
		return fmt.Errorf("change the trusted CAs: %w", err)
	}
	return s.load()
}

// ofThisCluster refuses CAs that are not those of one cluster, or of another one than the pair in use.
func (s *Store) ofThisCluster(cur *pair, trust []*x509.Certificate) error {
	if err := checkTrust(trust); err != nil {
		return err
	}
	if cur == nil {
		return nil
	}
	have, err := ClusterID(cur.ca)
	if err != nil {
		return err
	}
	if id, _ := ClusterID(trust[0]); id != have {
		return fmt.Errorf("%s belongs to another cluster", s.dir)
	}
	return nil
}

// Enroll gives the store a certificate from ca itself, for the schedulers that hold the CA's key. Others are CAs to be trusted beside it.
func (s *Store) Enroll(ca *CA, id Identity, ttl time.Duration, now time.Time, others ...*x509.Certificate) error {
	csr, err := s.Request()
	if err != nil {
		return err
	}
	leaf, err := ca.Issue(csr, id, ttl, now)
	if err != nil {
		return err
	}
	trust := []*x509.Certificate{ca.Cert()}
	for _, other := range others {
		if !other.Equal(ca.Cert()) {
			trust = append(trust, other)
		}
	}
	return s.Install(leaf, trust...)
}

// Leaf returns the current certificate, which the caller must not change, or ErrNotJoined.
func (s *Store) Leaf() (*x509.Certificate, error) {
	cur := s.current.Load()
	if cur == nil {
		return nil, ErrNotJoined
	}
	return cur.leaf, nil
}

// CA returns the certificate of the CA that signed the current certificate, which the caller must not change, or ErrNotJoined.
func (s *Store) CA() (*x509.Certificate, error) {
	cur := s.current.Load()
	if cur == nil {
		return nil, ErrNotJoined
	}
	return cur.ca, nil
}

// Trusted returns the certificates of the CAs that the node trusts, the one that signs first, or ErrNotJoined. The caller must not change
// them.
func (s *Store) Trusted() ([]*x509.Certificate, error) {
	cur := s.current.Load()
	if cur == nil {
		return nil, ErrNotJoined
	}
	return cur.trust, nil
}

// Current returns the certificate, the CA that signed it, and the CAs that the node trusts, all as of one moment, or ErrNotJoined. The
// caller must not change them.
func (s *Store) Current() (leaf, ca *x509.Certificate, trusted []*x509.Certificate, err error) {
	cur := s.current.Load()
	if cur == nil {
		return nil, nil, nil, ErrNotJoined
	}
	return cur.leaf, cur.ca, cur.trust, nil
}

// Roots returns the CAs that the node trusts as a pool, which the caller must not change, or ErrNotJoined.
func (s *Store) Roots() (*x509.CertPool, error) {
	cur := s.current.Load()
	if cur == nil {
		return nil, ErrNotJoined
	}
	return cur.roots, nil
}

// Outdated reports whether another CA signs by now than the one that signed the current certificate.
func (s *Store) Outdated() bool {
	cur := s.current.Load()
	return cur != nil && !cur.trust[0].Equal(cur.ca)
}

// SetBridge has the chain end with a certificate by which an older CA vouches for the one that signs, and with that older CA, for nodes
// whose join token names it; nil: it does not. It is not kept on disk.
func (s *Store) SetBridge(bridge *x509.Certificate) { s.bridge.Store(bridge) }

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
	bridge := s.bridge.Load()
	if bridge == nil {
		return &cur.tls, nil
	}
	out := cur.tls
	out.Certificate = append(slices.Clone(out.Certificate), bridge.Raw)
	for _, ca := range cur.trust {
		if !ca.Equal(cur.ca) {
			out.Certificate = append(out.Certificate, ca.Raw)
		}
	}
	return &out, nil
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
	data, err := readPublicFile(s.path(caFile))
	if err != nil {
		return fmt.Errorf("load CA certificate: %w", err)
	}
	trust, err := ParseTrust(data)
	if err != nil {
		return fmt.Errorf("load CA certificate: %s: %w", s.path(caFile), err)
	}
	key, err := s.keyOf(leaf)
	if err != nil {
		return fmt.Errorf("load private key: %w", err)
	}
	next, err := newPair(leaf, trust, key)
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
	return next, atomicfile.SyncDir(s.dir)
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
	return key, atomicfile.Write(s.path(nextKeyFile), data, keyMode)
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

// newPair checks that all belong together. It does not look at the clock.
func newPair(leaf *x509.Certificate, trust []*x509.Certificate, key *ecdsa.PrivateKey) (*pair, error) {
	if !key.PublicKey.Equal(leaf.PublicKey) {
		return nil, errors.New("the certificate is for another key")
	}
	ca := issuer(leaf, trust)
	if ca == nil {
		return nil, errors.New("the certificate is not from this CA")
	}
	id, err := IdentityFromCert(leaf, ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, cert := range trust {
		roots.AddCert(cert)
	}
	return &pair{
		tls:   tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.Raw}, PrivateKey: key, Leaf: leaf},
		leaf:  leaf,
		ca:    ca,
		trust: trust,
		roots: roots,
		id:    id,
	}, nil
}
