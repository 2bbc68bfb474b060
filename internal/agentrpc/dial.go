package agentrpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/pki"
	"gantry/internal/share"
)

// A forwarded request may wait long for its answer. So it is the connection that tells a peer that is gone from one that takes its time.
const (
	peerProbe       = 3 * time.Second  // between probes of a silent connection
	peerProbes      = 3                // without an answer until it is broken
	peerUnconfirmed = 10 * time.Second // that sent bytes may stay unconfirmed
)

// PeerConn is a connection with another scheduler whose handshake is done. It hides its *tls.Conn from net/http, which would take the
// protocol's name for one that it does not know.
type PeerConn struct {
	net.Conn
	tls *tls.Conn
}

// Identity returns who is at the other end.
func (c *PeerConn) Identity() (pki.Identity, error) { return ConnIdentity(c.tls) }

// ConnIdentity returns the identity in the verified certificate of the other end of a connection from DialRaft or a Mux, or
// ErrNoIdentity.
func ConnIdentity(conn net.Conn) (pki.Identity, error) {
	if counted, ok := conn.(*share.Conn); ok {
		conn = counted.NetConn()
	}
	if peer, ok := conn.(*PeerConn); ok {
		conn = peer.tls
	}
	tlsConn, ok := conn.(*tls.Conn)
	if !ok {
		return pki.Identity{}, ErrNoIdentity
	}
	return verifiedIdentity(tlsConn.ConnectionState())
}

// DialRaft connects to the Raft listener of the scheduler at addr (host:port), presenting the certificate in store and accepting only a
// scheduler of the same cluster. ctx bounds connecting and the handshake; it has no effect on the connection afterwards. A peer that
// refuses this node's certificate shows at the first read.
func DialRaft(ctx context.Context, store *pki.Store, addr string) (net.Conn, error) {
	conn, err := dialPeer(ctx, store, addr, ALPNRaft)
	if err != nil {
		return nil, fmt.Errorf("dial raft peer %s: %w", addr, err)
	}
	return conn, nil
}

// DialJobs is DialRaft for the group that has the jobs.
func DialJobs(ctx context.Context, store *pki.Store, addr string) (net.Conn, error) {
	conn, err := dialPeer(ctx, store, addr, ALPNJobs)
	if err != nil {
		return nil, fmt.Errorf("dial raft peer %s for jobs: %w", addr, err)
	}
	return conn, nil
}

// DialHTTP is DialRaft for the listener of forwarded requests. The connection breaks by itself when the peer's machine is gone.
func DialHTTP(ctx context.Context, store *pki.Store, addr string) (net.Conn, error) {
	conn, err := dialPeer(ctx, store, addr, ALPNHTTP)
	if err != nil {
		return nil, fmt.Errorf("dial scheduler %s: %w", addr, err)
	}
	return &PeerConn{Conn: conn, tls: conn}, nil
}

func dialPeer(ctx context.Context, store *pki.Store, addr, protocol string) (*tls.Conn, error) {
	config, err := clientTLS(store, protocol)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: peerProbe, Interval: peerProbe, Count: peerProbes},
		Control:         breakUnconfirmed,
	}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return shakeHands(ctx, conn, config)
}

// shakeHands makes a TLS connection whose one protocol both ends speak. On an error conn is closed.
func shakeHands(ctx context.Context, conn net.Conn, config *tls.Config) (*tls.Conn, error) {
	secure := tls.Client(conn, config)
	err := secure.HandshakeContext(ctx)
	if protocol := config.NextProtos[0]; err == nil && secure.ConnectionState().NegotiatedProtocol != protocol {
		err = fmt.Errorf("it does not speak %s", protocol)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secure, nil
}

// breakUnconfirmed bounds how long sent bytes may stay unconfirmed: probes do not run meanwhile.
func breakUnconfirmed(_, _ string, raw syscall.RawConn) error {
	var err error
	ctl := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(peerUnconfirmed/time.Millisecond))
	})
	return errors.Join(ctl, err)
}
