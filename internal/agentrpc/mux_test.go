package agentrpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"

	"gantry/internal/pki"
	"gantry/internal/share"
)

func newHealthServer() *health.Server { return health.NewServer() }

// logBuffer is a log that a test can read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// port is a scheduler's port under test.
type port struct {
	mux   *Mux
	ca    *pki.CA
	store *pki.Store
	addr  string
	log   *logBuffer
}

func newPort(t *testing.T, config MuxConfig) *port {
	t.Helper()
	checkLeaks(t)
	ca := newCA(t)
	p := &port{ca: ca, store: newStore(t, ca, schedulerID), log: &logBuffer{}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config.Log = slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p.mux, err = NewMux(ln, p.store, config)
	if err != nil {
		t.Fatal(err)
	}
	p.addr = ln.Addr().String()
	t.Cleanup(func() {
		if err := p.mux.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func hostCreds(t *testing.T, store *pki.Store) credentials.TransportCredentials {
	t.Helper()
	config, err := HostClientTLS(store)
	if err != nil {
		t.Fatal(err)
	}
	return credentials.NewTLS(config)
}

// serveEcho accepts Raft connections and sends back what comes.
func serveEcho(t *testing.T, ln net.Listener) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(testDeadline))
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
}

// echo reports whether a Raft connection carries bytes both ways.
func echo(t *testing.T, conn net.Conn) error {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(testDeadline))
	if _, err := conn.Write([]byte("ping")); err != nil {
		return err
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != "ping" {
		t.Errorf("echo of %q", got)
	}
	return nil
}

// waitClosed waits until the other end has closed conn; what it sent before does not count.
func waitClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(testDeadline))
	_, err := io.Copy(io.Discard, conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatal("the connection stays open")
	}
}

func dialTCP(t *testing.T, addr string) net.Conn {
	t.Helper()
	dialer := net.Dialer{Timeout: testDeadline}
	conn, err := dialer.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestMuxServesBothProtocols(t *testing.T) {
	p := newPort(t, MuxConfig{})
	serveHealth(t, p.mux.GRPC())
	serveEcho(t, p.mux.Raft())
	host, peer := newStore(t, p.ca, hostID), newStore(t, p.ca, pki.Identity{Role: pki.RoleScheduler, ID: "sched2"})
	join := JoinClientTLS(pki.NewJoinToken(p.ca.Digest()))
	for want, creds := range map[string]credentials.TransportCredentials{
		"host/host1":       hostCreds(t, host),
		"scheduler/sched2": hostCreds(t, peer),
		"nobody":           credentials.NewTLS(join.Config()),
	} {
		if got, err := whoami(t, p.addr, creds); got != want || err != nil {
			t.Errorf("the server sees %q, %v; want %q", got, err, want)
		}
	}
	if ca := join.CA(); ca == nil || !ca.Equal(p.ca.Cert()) {
		t.Error("the joining node has not learnt the CA")
	}
	for range 2 {
		conn, err := DialRaft(testContext(t), peer, p.addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := echo(t, conn); err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestJoinedStoreWorksWithLearntCA(t *testing.T) {
	p := newPort(t, MuxConfig{})
	serveHealth(t, p.mux.GRPC())
	join := JoinClientTLS(pki.NewJoinToken(p.ca.Digest()))
	if _, err := whoami(t, p.addr, credentials.NewTLS(join.Config())); err != nil {
		t.Fatal(err)
	}
	store, err := pki.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	csr, err := store.Request()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := p.ca.Issue(csr, hostID, time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Install(leaf, join.CA()); err != nil {
		t.Fatal(err)
	}
	if got, err := whoami(t, p.addr, hostCreds(t, store)); got != "host/host1" || err != nil {
		t.Errorf("the server sees %q, %v", got, err)
	}
}

func TestMuxRefusesOnRaft(t *testing.T) {
	p := newPort(t, MuxConfig{})
	serveEcho(t, p.mux.Raft())
	past := time.Now().Add(-30 * time.Hour)
	for name, store := range map[string]*pki.Store{
		"host":              newStore(t, p.ca, hostID),
		"expired scheduler": newStoreAt(t, p.ca, schedulerID, past),
	} {
		conn, err := DialRaft(testContext(t), store, p.addr)
		if err == nil {
			err = echo(t, conn)
			_ = conn.Close()
		}
		if err == nil {
			t.Errorf("%s: it may speak raft", name)
		}
	}
	if _, err := DialRaft(testContext(t), newStore(t, newCA(t), schedulerID), p.addr); err == nil {
		t.Error("a scheduler of another cluster was connected")
	}
	if err := p.mux.Close(); err != nil { // the log is complete after it
		t.Fatal(err)
	}
	if log := p.log.String(); !strings.Contains(log, "level=WARN msg=handshake") || !strings.Contains(log, "host/host1 may not speak gantry-raft") {
		t.Errorf("the refusal of the host is not in the log:\n%s", log)
	}
}

func TestMuxRefusesOnGRPC(t *testing.T) {
	p := newPort(t, MuxConfig{})
	serveHealth(t, p.mux.GRPC())
	for name, creds := range map[string]credentials.TransportCredentials{
		"plain HTTP/2":            nil,
		"expired host":            hostCreds(t, newStoreAt(t, p.ca, hostID, time.Now().Add(-30*time.Hour))),
		"host of another cluster": hostCreds(t, newStore(t, newCA(t), hostID)),
		"token of another":        credentials.NewTLS(JoinClientTLS(pki.NewJoinToken(newCA(t).Digest())).Config()),
	} {
		if creds == nil {
			conn := dialTCP(t, p.addr)
			if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
				t.Error(err)
			}
			waitClosed(t, conn)
			continue
		}
		if got, err := whoami(t, p.addr, creds); err == nil {
			t.Errorf("%s: served as %q", name, got)
		}
	}
	if err := p.mux.Close(); err != nil { // the log is complete after it
		t.Fatal(err)
	}
	if strings.Contains(p.log.String(), "level=WARN") {
		t.Errorf("what anybody can provoke is in the normal log:\n%s", p.log.String())
	}
}

func TestMuxClosesGarbageAndServesOn(t *testing.T) {
	p := newPort(t, MuxConfig{})
	serveHealth(t, p.mux.GRPC())
	hugeRecord := "\x16\x03\x01\xff\xff" + strings.Repeat("A", 1<<16)
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", hugeRecord, "\x00", strings.Repeat("\xff", 4096)} {
		conn := dialTCP(t, p.addr)
		_, _ = conn.Write([]byte(garbage)) // the other end may close before it has read everything
		_ = conn.(*net.TCPConn).CloseWrite()
		waitClosed(t, conn)
	}
	if _, err := whoami(t, p.addr, hostCreds(t, newStore(t, p.ca, hostID))); err != nil {
		t.Error(err)
	}
}

// TestHungHandshakesEnd fills every slot with connections that say nothing: they are closed after the deadline and others are served.
func TestHungHandshakesEnd(t *testing.T) {
	p := newPort(t, MuxConfig{HandshakeTimeout: 300 * time.Millisecond, MaxStrangers: 8})
	serveHealth(t, p.mux.GRPC())
	var hung []net.Conn
	for i := range 8 {
		dialer := net.Dialer{Timeout: testDeadline, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i/2))}}
		conn, err := dialer.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		hung = append(hung, conn)
	}
	if _, err := whoami(t, p.addr, hostCreds(t, newStore(t, p.ca, hostID))); err != nil {
		t.Errorf("behind hung handshakes: %v", err)
	}
	for _, conn := range hung {
		waitClosed(t, conn)
	}
}

func TestMuxDropsConnectionThatNobodyTakes(t *testing.T) {
	p := newPort(t, MuxConfig{HandshakeTimeout: 300 * time.Millisecond})
	peer := newStore(t, p.ca, schedulerID)
	conn, err := DialRaft(testContext(t), peer, p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	waitClosed(t, conn)
}

func TestClosedListenerLeavesTheOtherOpen(t *testing.T) {
	p := newPort(t, MuxConfig{})
	serveHealth(t, p.mux.GRPC())
	for range 2 {
		if err := p.mux.Raft().Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.mux.Raft().Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	conn, err := DialRaft(testContext(t), newStore(t, p.ca, schedulerID), p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	waitClosed(t, conn)
	if _, err := whoami(t, p.addr, hostCreds(t, newStore(t, p.ca, hostID))); err != nil {
		t.Error(err)
	}
}

// TestCloseEndsEverything closes the port while handshakes hang, connections wait to be taken and both listeners accept.
func TestCloseEndsEverything(t *testing.T) {
	p := newPort(t, MuxConfig{HandshakeTimeout: time.Hour, MaxStrangers: 8})
	hung := dialTCP(t, p.addr)
	waiting, err := DialRaft(testContext(t), newStore(t, p.ca, schedulerID), p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	accepted := make(chan error, 1)
	go func() {
		_, err := p.mux.GRPC().Accept()
		accepted <- err
	}()
	closed := make(chan error, 1)
	go func() { closed <- p.mux.Close() }()
	for name, result := range map[string]chan error{"accept": accepted, "close": closed} {
		select {
		case err := <-result:
			if (name == "close") != (err == nil) || (err != nil && !errors.Is(err, net.ErrClosed)) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testDeadline):
			t.Fatalf("%s hangs", name)
		}
	}
	waitClosed(t, hung)
	waitClosed(t, waiting)
	if _, err := p.mux.Raft().Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if err := p.mux.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestRenewedServerCertificateIsServed(t *testing.T) {
	p := newPort(t, MuxConfig{})
	serveEcho(t, p.mux.Raft())
	peer := newStore(t, p.ca, schedulerID)
	serial := func() string {
		conn, err := DialRaft(testContext(t), peer, p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := echo(t, conn); err != nil {
			t.Fatal(err)
		}
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	if err := p.store.Enroll(p.ca, schedulerID, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	if serial() == before {
		t.Error("the old certificate is still presented")
	}
}

func TestDialRaftEndsWithContext(t *testing.T) {
	checkLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := DialRaft(ctx, newStore(t, newCA(t), schedulerID), ln.Addr().String()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

func TestNewMuxRefuses(t *testing.T) {
	checkLeaks(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if _, err := NewMux(ln, newStore(t, newCA(t), schedulerID), MuxConfig{}); err == nil {
		t.Error("no logger: accepted")
	}
	empty, err := pki.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewMux(ln, empty, MuxConfig{Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, pki.ErrNotJoined) {
		t.Errorf("store without a certificate: %v", err)
	}
}

// A forwarded connection is for schedulers that are not refused, and knows who is at its ends.
func TestMuxHTTP(t *testing.T) {
	p := newPort(t, MuxConfig{Refuse: func(id pki.Identity) error {
		if id.ID == "removed" {
			return errors.New("it was removed")
		}
		return nil
	}})
	serveEcho(t, p.mux.HTTP())
	serveEcho(t, p.mux.Raft())
	ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
	defer cancel()
	for id, want := range map[pki.Identity]bool{
		{Role: pki.RoleScheduler, ID: "sched2"}: true, {Role: pki.RoleScheduler, ID: "removed"}: false, hostID: false,
	} {
		store := newStore(t, p.ca, id)
		for name, dial := range map[string]func(context.Context, *pki.Store, string) (net.Conn, error){"http": DialHTTP, "raft": DialRaft} {
			conn, err := dial(ctx, store, p.addr)
			if err == nil {
				for _, c := range []net.Conn{conn, share.NewConn(conn)} {
					if who, idErr := ConnIdentity(c); idErr != nil || who != schedulerID {
						t.Errorf("%s: at the other end is %v, %v", name, who, idErr)
					}
				}
				err = echo(t, conn)
				_ = conn.Close()
			}
			if (err == nil) != want {
				t.Errorf("%s of %s: %v", name, id, err)
			}
		}
	}
	if !strings.Contains(p.log.String(), "it was removed") {
		t.Error("the refusal is not in the log")
	}
}
