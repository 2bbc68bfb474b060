package link

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"gantry/internal/pki"
)

// The application protocols of a scheduler's one TLS port.
const (
	ALPNGRPC = "h2"
	ALPNRaft = "gantry-raft"
	ALPNHTTP = "gantry-http" // HTTP/1.1 that one scheduler forwards to another
)

// ServerTLS returns the configuration of a scheduler's port: TLS 1.3 only, the store's certificate and CA as the chain, client
// certificates verified against that CA when given. gRPC may come without a certificate, since a joining host has none; Raft and HTTP are
// open to schedulers only, and this is decided within the handshake. The store must have joined; renewals take effect at the next
// handshake.
func ServerTLS(store *pki.Store) (*tls.Config, error) { return serverTLS(store, nil) }

// serverTLS is ServerTLS that also refuses Raft and HTTP to whom refuse, if it is not nil, gives an error for.
func serverTLS(store *pki.Store, refuse func(pki.Identity) error) (*tls.Config, error) {
	ca, roots, err := clusterRoots(store)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		NextProtos:     []string{ALPNGRPC, ALPNRaft, ALPNHTTP},
		GetCertificate: store.GetCertificate,
		ClientAuth:     tls.VerifyClientCertIfGiven,
		ClientCAs:      roots,
		// A resumed session would carry a verdict on a certificate past that certificate's end.
		SessionTicketsDisabled: true,
		VerifyConnection:       func(state tls.ConnectionState) error { return checkClient(state, ca, refuse) },
	}, nil
}

// checkClient runs after the chain of a client's certificate, if it sent one, was verified.
func checkClient(state tls.ConnectionState, ca *x509.Certificate, refuse func(pki.Identity) error) error {
	protocol := state.NegotiatedProtocol
	forPeers := protocol == ALPNRaft || protocol == ALPNHTTP
	if protocol != ALPNGRPC && !forPeers {
		return &refusedError{"no application protocol of this port was asked for"}
	}
	if len(state.PeerCertificates) == 0 {
		if forPeers {
			return &refusedError{fmt.Sprintf("%s needs a certificate", protocol)}
		}
		return nil
	}
	id, err := pki.IdentityFromCert(state.PeerCertificates[0], ca)
	if err != nil {
		return &refusedError{err.Error()}
	}
	if !forPeers {
		return nil
	}
	if id.Role != pki.RoleScheduler {
		return &refusedError{fmt.Sprintf("%s may not speak %s", id, protocol)}
	}
	if refuse != nil {
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
// presents the store's certificate and accepts only a scheduler of the same cluster, whatever its address. The store must have joined;
// renewals take effect at the next handshake. Hand it to gRPC with credentials.NewTLS.
//
// In TLS 1.3 the client's handshake ends before the server has looked at the client's certificate: a refusal shows at the first read.
func HostClientTLS(store *pki.Store) (*tls.Config, error) { return clientTLS(store, ALPNGRPC) }

func clientTLS(store *pki.Store, protocol string) (*tls.Config, error) {
	ca, roots, err := clusterRoots(store)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		NextProtos:           []string{protocol},
		GetClientCertificate: store.GetClientCertificate,
		RootCAs:              roots,
		ServerName:           pki.ServerName,
		// gRPC may put another name into ServerName; the role and the fixed name are checked here in any case.
		VerifyConnection: func(state tls.ConnectionState) error {
			return pki.VerifyScheduler(state.PeerCertificates[0], ca, time.Now())
		},
	}, nil
}

func clusterRoots(store *pki.Store) (*x509.Certificate, *x509.CertPool, error) {
	ca, err := store.CA()
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return ca, roots, nil
}

// JoinTLS is the client's side of a connection that joins a cluster. It is safe for concurrent use.
type JoinTLS struct {
	digest pki.Digest
	ca     atomic.Pointer[x509.Certificate]
}

// JoinClientTLS prepares to join with a token. The new node knows nothing of the cluster but the digest in the token: it presents no
// certificate and accepts only a scheduler whose chain holds the CA certificate of that digest.
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

// CA returns the cluster's CA certificate, to be saved, once a handshake has succeeded; nil before.
func (j *JoinTLS) CA() *x509.Certificate { return j.ca.Load() }

func (j *JoinTLS) verify(state tls.ConnectionState) error {
	for _, cert := range state.PeerCertificates {
		if pki.DigestOf(cert) != j.digest {
			continue
		}
		if err := pki.VerifyScheduler(state.PeerCertificates[0], cert, time.Now()); err != nil {
			return err
		}
		j.ca.Store(cert)
		return nil
	}
	return errors.New("the join token is for another cluster: the server's chain lacks its CA")
}
