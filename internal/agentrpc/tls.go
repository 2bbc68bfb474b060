package agentrpc

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"gantry/internal/pki"
)

// The application protocols of a scheduler's one TLS port.
const (
	ALPNGRPC = "h2"
	ALPNRaft = "gantry-raft"
	ALPNJobs = "gantry-jobs" // Raft of the group that has the jobs
	ALPNHTTP = "gantry-http" // HTTP/1.1 that a scheduler or a gateway forwards to a scheduler
	ALPNData = "gantry-data" // streams to what is on a host; see DataConn
)

// ServerTLS returns the configuration of a scheduler's port: TLS 1.3 only, the store's certificate and CA as the chain, client
// certificates verified against the CAs that the store trusts when given. gRPC may come without a certificate, since a joining host has none; Raft is
// open to schedulers only, HTTP to gateways as well, data connections to hosts only, and this is decided within the handshake. The store must have joined; what it holds takes effect at the next
// handshake.
func ServerTLS(store *pki.Store) (*tls.Config, error) { return serverTLS(store, protocols(false), nil) }

func protocols(dataOnly bool) []string {
	if dataOnly {
		return []string{ALPNData}
	}
	return []string{ALPNGRPC, ALPNRaft, ALPNJobs, ALPNHTTP, ALPNData}
}

// serverTLS is ServerTLS for some of the protocols that also refuses Raft and HTTP to whom refuse, if it is not nil, gives an error for.
func serverTLS(store *pki.Store, protocols []string, refuse func(pki.Identity) error) (*tls.Config, error) {
	if _, err := store.Roots(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			roots, err := store.Roots()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:     tls.VersionTLS13,
				NextProtos:     protocols,
				GetCertificate: store.GetCertificate,
				ClientAuth:     tls.VerifyClientCertIfGiven,
				ClientCAs:      roots,
				// A resumed session would carry a verdict on a certificate past that certificate's end.
				SessionTicketsDisabled: true,
				VerifyConnection:       func(state tls.ConnectionState) error { return checkClient(state, refuse) },
			}, nil
		},
	}, nil
}

// checkClient runs after the chain of a client's certificate, if it sent one, was verified.
func checkClient(state tls.ConnectionState, refuse func(pki.Identity) error) error {
	protocol := state.NegotiatedProtocol
	forPeers := protocol == ALPNRaft || protocol == ALPNJobs || protocol == ALPNHTTP
	if protocol != ALPNGRPC && protocol != ALPNData && !forPeers {
		return &refusedError{"no application protocol of this port was asked for"}
	}
	if len(state.PeerCertificates) == 0 {
		if protocol != ALPNGRPC {
			return &refusedError{fmt.Sprintf("%s needs a certificate", protocol)}
		}
		return nil
	}
	id, err := verifiedIdentity(state)
	if err != nil {
		return &refusedError{err.Error()}
	}
	if protocol == ALPNGRPC {
		return nil
	}
	if protocol == ALPNData != (id.Role == pki.RoleHost) || forPeers && id.Role == pki.RoleGateway && protocol != ALPNHTTP {
		return &refusedError{fmt.Sprintf("%s may not speak %s", id, protocol)}
	}
	if forPeers && refuse != nil {
		if err := refuse(id); err != nil {
			return &refusedError{fmt.Sprintf("%s: %v", id, err)}
		}
	}
	return nil
}

// refusedError marks a connection that broke a rule of ours, as opposed to noise from a port scan.
type refusedError struct{ why string }

func (e *refusedError) Error() string { return "refused: " + e.why }

// HostClientTLS returns the configuration with which a host, or a scheduler as a client of another one, dials a scheduler for gRPC: it
// presents the store's certificate and accepts only a scheduler of the same cluster, whatever its address. The store must have joined. It
// trusts the CAs that the store trusts at the call; HostCredentials goes by the store at each handshake.
//
// In TLS 1.3 the client's handshake ends before the server has looked at the client's certificate: a refusal shows at the first read.
func HostClientTLS(store *pki.Store) (*tls.Config, error) { return clientTLS(store, ALPNGRPC) }

func clientTLS(store *pki.Store, protocol string) (*tls.Config, error) {
	return clientOf(store, protocol, pki.ServerName, pki.VerifyScheduler)
}

// clientOf is the configuration of a client of whom verify accepts.
func clientOf(store *pki.Store, protocol, name string, verify func(leaf, ca *x509.Certificate, now time.Time) error) (*tls.Config, error) {
	trust, err := store.Trusted()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, ca := range trust {
		roots.AddCert(ca)
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{protocol},
		GetClientCertificate: store.GetClientCertificate,
		RootCAs:              roots,
		ServerName:           name,
		// gRPC may put another name into ServerName; the role and the fixed name are checked here in any case.
		VerifyConnection: func(state tls.ConnectionState) error {
			err, now := ErrNoIdentity, time.Now()
			for _, ca := range trust {
				if err = verify(state.PeerCertificates[0], ca, now); err == nil {
					break
				}
			}
			return err
		},
	}, nil
}

// JoinTLS is the client's side of a connection that joins a cluster. It is safe for concurrent use.
type JoinTLS struct {
	digest pki.Digest
	ca     atomic.Pointer[x509.Certificate]
}

// JoinClientTLS prepares to join with a token. The new node knows nothing of the cluster but the digest in the token: it presents no
// certificate and accepts only a scheduler whose chain holds the CA certificate of that digest, as the one that signed the scheduler's
// certificate or that vouches for the CA that did.
func JoinClientTLS(token pki.JoinToken) *JoinTLS { return &JoinTLS{digest: token.CA} }

// Config returns the TLS configuration to dial with; hand it to gRPC with credentials.NewTLS.
func (j *JoinTLS) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{ALPNGRPC},
		ServerName: pki.ServerName,
		// The standard verification needs roots, which are in the chain to be verified; verify replaces all of it.
		InsecureSkipVerify: true, //nolint:gosec // see verify
		VerifyConnection:   j.verify,
	}
}

// CA returns the certificate under which the scheduler proved itself, once a handshake has succeeded; nil before. What is to be trusted
// from then on tells Trusted.
func (j *JoinTLS) CA() *x509.Certificate { return j.ca.Load() }

// Trusted returns the CAs that a scheduler's answer says are to be trusted, the one that signs first, in DER form; from a scheduler that
// names none it is the one under which it proved itself. The CA that signed the scheduler's own certificate must be among them.
func (j *JoinTLS) Trusted(cas [][]byte) ([]*x509.Certificate, error) {
	proved := j.ca.Load()
	if proved == nil {
		return nil, errors.New("the scheduler's CA was not verified")
	}
	if len(cas) == 0 {
		cas = [][]byte{proved.Raw}
	}
	trust, err := pki.ParseTrustDER(cas)
	if err != nil {
		return nil, err
	}
	for _, ca := range trust {
		if bytes.Equal(ca.RawSubjectPublicKeyInfo, proved.RawSubjectPublicKeyInfo) && slices.EqualFunc(ca.URIs, proved.URIs, sameURI) {
			return trust, nil
		}
	}
	return nil, errors.New("the scheduler's own CA is none of those that it says are to be trusted")
}

func sameURI(a, b *url.URL) bool { return a.String() == b.String() }

func (j *JoinTLS) verify(state tls.ConnectionState) error {
	now := time.Now()
	leaf := state.PeerCertificates[0]
	for _, pinned := range state.PeerCertificates {
		if pki.DigestOf(pinned) != j.digest {
			continue
		}
		err := pki.VerifyScheduler(leaf, pinned, now)
		if err == nil {
			j.ca.Store(pinned)
			return nil
		}
		for _, bridge := range state.PeerCertificates {
			// The dates of a bridge lie within those of the CA that signed it.
			if pki.Bridges(bridge, pinned) && pki.VerifyScheduler(leaf, bridge, now) == nil {
				j.ca.Store(bridge)
				return nil
			}
		}
		return err
	}
	return errors.New("the join token is for another cluster, or for a CA that this cluster trusts no more: make a new token")
}
