package agentrpc

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"gantry/internal/pki"
)

// pipes is a listener in memory, whose connections are in virtual time.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.done:
	default:
		close(p.done)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// gate is a port in virtual time, with a service that answers those who have a certificate, and with health's Check for all.
type gate struct {
	*pipes
	mux *Mux
	ca  *pki.CA
}

func newGate(t *testing.T, config MuxConfig) *gate {
	t.Helper()
	ca := newCA(t)
	g := &gate{pipes: &pipes{conns: make(chan net.Conn), done: make(chan struct{})}, ca: ca}
	config.Log = slog.New(slog.DiscardHandler)
	var err error
	if g.mux, err = NewMux(g.pipes, newStore(t, ca, schedulerID), config); err != nil {
		t.Fatal(err)
	}
	s := NewServer(grpc.Creds(ServerCredentials()), []string{healthpb.Health_Check_FullMethodName})
	healthpb.RegisterHealthServer(s, newHealthServer())
	served := make(chan error, 1)
	go func() { served <- s.Serve(g.mux.GRPC()) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := g.mux.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// nobody is a client's configuration without a certificate.
func nobody() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{ALPNGRPC}, MinVersion: tls.VersionTLS13}
}

// TestIdleStrangersAreClosed: in whatever state a connection without a certificate says no more, it is closed in the end.
func TestIdleStrangersAreClosed(t *testing.T) {
	for name, begin := range map[string]func(net.Conn) (net.Conn, error){
		"nothing was sent":        func(c net.Conn) (net.Conn, error) { return c, nil },
		"half a record":           func(c net.Conn) (net.Conn, error) { _, err := c.Write([]byte{22, 3, 1, 2, 0, 1}); return c, err },
		"the handshake is done":   secured,
		"HTTP/2 has begun":        greeted,
		"it pings, but calls not": greeted,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGate(t, MuxConfig{})
				raw, err := g.dial(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = raw.Close() }()
				c, err := begin(raw)
				if err != nil {
					t.Fatal(err)
				}
				closed := make(chan struct{})
				go func() {
					defer close(closed)
					_, _ = io.Copy(io.Discard, c)
				}()
				stop := make(chan struct{})
				if name == "it pings, but calls not" {
					go pings(c, stop)
				}
				select {
				case <-closed:
				case <-time.After(2 * time.Minute):
					t.Error("the connection stays open")
				}
				close(stop)
				synctest.Wait()
				if n := g.mux.Strangers().Open; n != 0 {
					t.Errorf("%d strangers are counted", n)
				}
			})
		})
	}
}

func secured(c net.Conn) (net.Conn, error) {
	secure := tls.Client(c, nobody())
	return secure, secure.Handshake()
}

// greeted has sent HTTP/2's preface and empty settings.
func greeted(c net.Conn) (net.Conn, error) {
	secure, err := secured(c)
	if err == nil {
		go func() { // a pipe holds nothing: the server writes first, too
			_, _ = secure.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		}()
	}
	return secure, err
}

func pings(c net.Conn, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(5 * time.Minute / 60):
			if _, err := c.Write([]byte("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678")); err != nil {
				return
			}
		}
	}
}

// TestACallWithoutACertificateHasATime: one that never ends its message is ended.
func TestACallWithoutACertificateHasATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, MuxConfig{})
		conn, err := grpc.NewClient("passthrough:///x", grpc.WithContextDialer(g.dial), grpc.WithTransportCredentials(credentials.NewTLS(nobody())))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		// The client streams, and the server waits for the one message.
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, healthpb.Health_Check_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(&healthpb.HealthCheckResponse{}); status.Code(err) != codes.DeadlineExceeded && status.Code(err) != codes.Unavailable {
			t.Errorf("the call ended with %v", err)
		}
		if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Errorf("the next call: %v", err)
		}
	})
}

// TestAHandshakeIsBounded: a client that sends much before it is known is cut off.
func TestAHandshakeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, MuxConfig{HandshakeTimeout: time.Hour})
		c, err := g.dial(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		go func() { _, _ = io.Copy(io.Discard, c) }()
		// Records of a handshake message that says it has 60,000 bytes; TLS alone would read them all.
		record := append([]byte{22, 3, 1, 0x40, 0}, make([]byte, 1<<14)...)
		copy(record[5:], []byte{1, 0, 0xea, 0x60})
		sent := 0
		for err == nil {
			var n int
			n, err = c.Write(record)
			sent += n
			copy(record[5:], make([]byte, 4))
		}
		if sent > handshakeBytes {
			t.Errorf("%d bytes were read of a handshake", sent)
		}
	})
}

// TestOneAddressLeavesRoomForOthers: however many connections without a certificate are open, whoever has one is let in, and one
// address has its part of them alone.
func TestOneAddressLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, MuxConfig{MaxStrangers: 8, HandshakeTimeout: time.Hour})
		var held []net.Conn
		for range 40 { // pipes have no address: all are one
			c, err := g.dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, c)
		}
		synctest.Wait()
		if got := g.mux.Strangers(); got.Open != 2 || got.RefusedOwn != 38 {
			t.Errorf("%+v", got)
		}
		time.Sleep(givesWay + time.Second) // what hangs gives way then
		conf, err := HostClientTLS(newStore(t, g.ca, hostID))
		if err != nil {
			t.Fatal(err)
		}
		for range hostConnections + 1 {
			raw, err := g.dial(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			secure := tls.Client(raw, conf)
			held = append(held, raw)
			if err := secure.Handshake(); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, secure) }()
			synctest.Wait()
		}
		if n := g.mux.crowds.hosts.Counts(); n.Open != hostConnections || n.RefusedOwn != 1 {
			t.Errorf("of one host: %+v", n)
		}
		for _, c := range held {
			_ = c.Close()
		}
		synctest.Wait()
	})
}

// TestAFullPortLetsTheNextIn: when all are taken by others, one that hangs gives way.
func TestAFullPortLetsTheNextIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowds(4)
		for i := range 4 {
			near, far := net.Pipe()
			defer func() { _ = near.Close() }()
			if conn, _ := c.take(t.Context(), &from{far, net.IPv4(10, 0, 0, byte(i))}); conn == nil {
				t.Fatal("there was room")
			}
		}
		near, far := net.Pipe()
		defer func() { _ = near.Close() }()
		began := time.Now()
		conn, _ := c.take(t.Context(), &from{far, net.IPv4(10, 0, 1, 0)})
		if waited := time.Since(began); conn == nil || waited < givesWay { // in virtual time
			t.Errorf("taken: %v, after %v", conn != nil, waited)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if conn, _ := c.take(ctx, &from{far, net.IPv4(10, 0, 2, 0)}); conn != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			_ = conn.Close()
		}
	})
}

// from is a connection from an address.
type from struct {
	net.Conn
	ip net.IP
}

func (f *from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: f.ip, Port: 1} }
