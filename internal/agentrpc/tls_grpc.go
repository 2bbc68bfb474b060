package agentrpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"gantry/internal/pki"
)

// ErrNoIdentity says that a caller presented no certificate.
var ErrNoIdentity = errors.New("the caller presented no certificate")

// PeerIdentity returns the role and id in the verified certificate of a gRPC caller, or ErrNoIdentity. It tells who the caller was at the
// handshake: whether its record still allows the call is for the handler to ask.
func PeerIdentity(ctx context.Context) (pki.Identity, error) {
	caller, ok := peer.FromContext(ctx)
	if !ok {
		return pki.Identity{}, ErrNoIdentity
	}
	info, ok := caller.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return pki.Identity{}, ErrNoIdentity
	}
	return verifiedIdentity(info.State)
}

func verifiedIdentity(state tls.ConnectionState) (pki.Identity, error) {
	if len(state.VerifiedChains) == 0 {
		return pki.Identity{}, ErrNoIdentity
	}
	chain := state.VerifiedChains[0]
	return pki.IdentityFromCert(chain[0], chain[len(chain)-1])
}

// HostCredentials are those of a gRPC client with the configuration of HostClientTLS, made anew for each handshake: a connection that gRPC
// makes again goes by the certificate and the CAs that the store has then. The store must have joined.
func HostCredentials(store *pki.Store) (credentials.TransportCredentials, error) {
	conf, err := HostClientTLS(store)
	if err != nil {
		return nil, err
	}
	return hostCredentials{credentials.NewTLS(conf), store}, nil
}

type hostCredentials struct {
	credentials.TransportCredentials
	store *pki.Store
}

// ClientHandshake implements credentials.TransportCredentials.
func (c hostCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conf, err := HostClientTLS(c.store)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(conf).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (c hostCredentials) Clone() credentials.TransportCredentials {
	return hostCredentials{c.TransportCredentials.Clone(), c.store}
}

// ServerCredentials returns the transport credentials of a gRPC server that accepts from Mux.GRPC: the handshake is done, so they only
// hand its result to gRPC. A server with these credentials refuses a connection that did not pass a TLS handshake.
func ServerCredentials() credentials.TransportCredentials { return doneHandshake{} }

type doneHandshake struct{}

func (doneHandshake) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	tlsConn, ok := conn.(*tls.Conn)
	if !ok || !tlsConn.ConnectionState().HandshakeComplete {
		_ = conn.Close()
		return nil, nil, errors.New("connection without a TLS handshake")
	}
	return conn, credentials.TLSInfo{
		State:          tlsConn.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

func (doneHandshake) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for servers")
}

func (doneHandshake) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (doneHandshake) Clone() credentials.TransportCredentials { return doneHandshake{} }

// OverrideServerName is part of the interface; a server has no name to override.
func (doneHandshake) OverrideServerName(string) error { return nil }
