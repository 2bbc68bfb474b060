package agentrpc

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
)

// The receive windows of a host's end of its connection, in bytes; a scheduler's end has a smaller one for each call. They are fixed:
// gRPC would else measure the line with a ping after every small message, which for ten thousand hosts that do nothing but beat is a
// large part of the work. They bound what one stream and one connection hold for a reader that is slow, and the rate over a long line:
// ConnWindow in one round trip.
const (
	StreamWindow = 4 << 20
	ConnWindow   = 16 << 20
)

const tcpRTOMax = 44 // TCP_RTO_MAX_MS of Linux 6.15

// Thin prepares a connection for few and small messages that must not be late on a network that loses packets: what was lost is sent
// again at even intervals rather than ever more rarely, and the connection breaks when sent bytes stay unconfirmed for longer than
// unconfirmed; 0: for as long as the system has it. What is no TCP connection stays as it is.
func Thin(conn net.Conn, unconfirmed time.Duration) {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn }) // such as *tls.Conn
		if !ok {
			break
		}
		conn = outer.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = ThinSocket(raw, unconfirmed)
		}
	}
}

// ThinSocket is Thin for a socket that is not connected yet.
func ThinSocket(raw syscall.RawConn, unconfirmed time.Duration) error {
	var err error
	ctl := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
		// Older kernels have no such bound: there it is later by chance.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMax, 1000)
		if err == nil && unconfirmed > 0 {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unconfirmed/time.Millisecond))
		}
	})
	return errors.Join(ctl, err)
}

// ThinServerCredentials is ServerCredentials for a server that applies Thin to each connection.
func ThinServerCredentials(unconfirmed time.Duration) credentials.TransportCredentials {
	return thinHandshake{ServerCredentials(), unconfirmed}
}

type thinHandshake struct {
	credentials.TransportCredentials
	unconfirmed time.Duration
}

// ServerHandshake implements credentials.TransportCredentials.
func (t thinHandshake) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	Thin(conn, t.unconfirmed)
	return t.TransportCredentials.ServerHandshake(conn)
}

// Clone implements credentials.TransportCredentials.
func (t thinHandshake) Clone() credentials.TransportCredentials {
	return thinHandshake{t.TransportCredentials.Clone(), t.unconfirmed}
}

// DialThin connects over TCP for Thin use.
func DialThin(ctx context.Context, addr string, unconfirmed time.Duration) (net.Conn, error) {
	d := net.Dialer{ControlContext: func(_ context.Context, _, _ string, raw syscall.RawConn) error { return ThinSocket(raw, unconfirmed) }}
	return d.DialContext(ctx, "tcp", addr)
}

// Listen listens on an address for connections that are Thin from their first packet on. Without more said Go listens for MPTCP, of
// which the kernel takes none of these options.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	conf := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error { return ThinSocket(raw, 0) }}
	conf.SetMultipathTCP(false)
	return conf.Listen(ctx, "tcp", addr)
}
