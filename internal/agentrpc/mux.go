package agentrpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"gantry/internal/pki"
	"gantry/internal/share"
	"gantry/internal/sleep"
)

// Defaults and limits of a Mux.
const (
	defaultHandshakeTimeout = 10 * time.Second
	maxAcceptDelay          = time.Second
)

// MuxConfig configures a Mux. Zero values stand for the defaults.
type MuxConfig struct {
	// HandshakeTimeout bounds the time from accept until the connection is taken by its listener; 10 s by default.
	HandshakeTimeout time.Duration
	// MaxStrangers bounds the connections that have shown no certificate (yet), of which one address has a quarter; 1024 by
	// default. What is above an address's part is closed. When all are in use no more are accepted for a moment: the kernel's
	// backlog holds the others, until one is done, or is so old that it gives way.
	MaxStrangers int
	// Refuse is asked for the certificate of every client that wants Raft or HTTP, within the handshake: with an error it gets neither.
	// It answers at once. nil: no scheduler of the cluster is refused. Services of gRPC refuse by themselves, so that the caller is
	// told why.
	Refuse   func(pki.Identity) error
	DataOnly bool // only data connections: of a gateway
	// Log receives refusals (warning) and broken handshakes (debug).
	Log *slog.Logger
}

// Mux shares one TCP port between gRPC, Raft, forwarded HTTP and data connections. It does the TLS handshakes and hands each connection to the listener of
// the protocol that the client asked for.
type Mux struct {
	ln     net.Listener
	tls    *tls.Config
	config MuxConfig
	crowds crowds
	grpc   *muxListener
	raft   *muxListener
	jobs   *muxListener
	http   *muxListener
	data   *muxListener
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// NewMux takes over ln, which Listen made, and accepts from it until Close, with the configuration of ServerTLS. On an error ln stays with the caller.
func NewMux(ln net.Listener, store *pki.Store, config MuxConfig) (*Mux, error) {
	tlsConfig, err := serverTLS(store, protocols(config.DataOnly), config.Refuse)
	if err != nil {
		return nil, fmt.Errorf("mux: %w", err)
	}
	if config.Log == nil {
		return nil, errors.New("mux: a logger is needed")
	}
	if config.HandshakeTimeout <= 0 {
		config.HandshakeTimeout = defaultHandshakeTimeout
	}
	if config.MaxStrangers <= 0 {
		config.MaxStrangers = defaultMaxStrangers
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &Mux{
		ln:     ln,
		tls:    tlsConfig,
		config: config,
		crowds: newCrowds(config.MaxStrangers),
		grpc:   newMuxListener(ln.Addr()),
		raft:   newMuxListener(ln.Addr()),
		jobs:   newMuxListener(ln.Addr()),
		http:   newMuxListener(ln.Addr()),
		data:   newMuxListener(ln.Addr()),
		cancel: cancel,
	}
	m.wg.Go(func() { m.accept(ctx) })
	return m, nil
}

// GRPC returns the listener of gRPC connections, for a server with ServerCredentials. Closing it refuses further gRPC connections and
// leaves the port open.
func (m *Mux) GRPC() net.Listener { return m.grpc }

// Raft returns the listener of connections from other schedulers. Closing it refuses further ones and leaves the port open.
func (m *Mux) Raft() net.Listener { return m.raft }

// Jobs is Raft for the group that has the jobs.
func (m *Mux) Jobs() net.Listener { return m.jobs }

// HTTP returns the listener of connections over which other schedulers forward requests; they are of type *PeerConn. Closing it refuses
// further ones and leaves the port open.
func (m *Mux) HTTP() net.Listener { return m.http }

// Data returns the listener of hosts' data connections, for AcceptData. Closing it refuses further ones and leaves the port open.
func (m *Mux) Data() net.Listener { return m.data }

// Close closes the port and all listeners, breaks off the handshakes under way, and waits for all of it. Connections that were taken
// belong to those who took them. A server that is still accepting gets net.ErrClosed, so stop it first.
func (m *Mux) Close() error {
	m.cancel()
	err := m.ln.Close()
	m.closeListeners()
	m.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (m *Mux) closeListeners() {
	for _, l := range []*muxListener{m.grpc, m.raft, m.jobs, m.http, m.data} {
		_ = l.Close()
	}
}

func (m *Mux) accept(ctx context.Context) {
	var delay time.Duration
	for {
		raw, err := m.ln.Accept()
		switch {
		case err == nil:
			delay = 0
			if conn, ration := m.crowds.take(ctx, raw); conn != nil {
				m.wg.Go(func() { m.serve(ctx, conn, ration) })
			}
			continue
		case ctx.Err() != nil:
			return
		case errors.Is(err, net.ErrClosed):
			m.config.Log.Error("port was closed under the mux", "addr", m.ln.Addr().String())
			m.closeListeners()
			return
		}
		// Out of file descriptors or memory: waiting is all that helps.
		delay = min(max(2*delay, 5*time.Millisecond), maxAcceptDelay)
		m.config.Log.Warn("accept connections", "err", err, "retry", delay)
		if sleep.For(ctx, delay) != nil {
			return
		}
	}
}

// Strangers tells of the connections that have shown no certificate.
func (m *Mux) Strangers() share.Counts { return m.crowds.strangers.Counts() }

// serve takes one connection from accept to its listener.
func (m *Mux) serve(ctx context.Context, raw *share.Conn, ration *rationed) {
	ctx, cancel := context.WithTimeout(ctx, m.config.HandshakeTimeout)
	defer cancel()
	conn := tls.Server(raw, m.tls)
	err := conn.HandshakeContext(ctx)
	if err == nil {
		err = m.crowds.known(raw, ration, whoIs(conn))
	}
	if err != nil {
		m.report(raw.RemoteAddr(), err) //nolint:contextcheck // only logs
		_ = raw.Close()
		return
	}
	to, handed := m.grpc, net.Conn(conn)
	switch conn.ConnectionState().NegotiatedProtocol {
	case ALPNRaft:
		to = m.raft
	case ALPNJobs:
		to = m.jobs
	case ALPNHTTP:
		to, handed = m.http, &PeerConn{Conn: conn, tls: conn}
	case ALPNData:
		to = m.data
	}
	if err := to.hand(ctx, handed); err != nil {
		m.config.Log.Debug("connection dropped", "remote", raw.RemoteAddr().String(), "err", err)
		_ = conn.Close()
	}
}

// whoIs returns whom the other end has shown to be; nil: nobody.
func whoIs(conn *tls.Conn) *pki.Identity {
	who, err := verifiedIdentity(conn.ConnectionState())
	if err != nil {
		return nil
	}
	return &who
}

// report keeps what anybody on the network can provoke out of the normal log.
func (m *Mux) report(remote net.Addr, err error) {
	level := slog.LevelDebug
	var refused *refusedError
	if errors.As(err, &refused) {
		level = slog.LevelWarn
	}
	m.config.Log.Log(context.Background(), level, "handshake", "remote", remote.String(), "err", err)
}

// muxListener is one of the listeners behind a Mux.
type muxListener struct {
	addr  net.Addr
	conns chan net.Conn // without a buffer: a connection is always owned by the mux or by who took it
	done  chan struct{}
	close sync.Once
}

func newMuxListener(addr net.Addr) *muxListener {
	return &muxListener{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for the next connection, or returns an error that wraps net.ErrClosed.
func (l *muxListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, &net.OpError{Op: "accept", Net: l.addr.Network(), Addr: l.addr, Err: net.ErrClosed}
	}
}

// Close ends Accept. It may be called more than once.
func (l *muxListener) Close() error {
	l.close.Do(func() { close(l.done) })
	return nil
}

// Addr returns the address of the shared port.
func (l *muxListener) Addr() net.Addr { return l.addr }

func (l *muxListener) hand(ctx context.Context, conn net.Conn) error {
	select {
	case l.conns <- conn:
		return nil
	case <-l.done:
		return net.ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("nobody took the connection: %w", ctx.Err())
	}
}
