package rest

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"gantry/internal/share"
)

// Defaults of what clients share.
const (
	DefaultConnections = 8192
	DefaultPerAddress  = 512

	sparePerAddress = 16
	streamsAtOnce   = 100 // requests at a time on one connection of HTTP/2
)

// Limits bound what clients may do to a server. The zero value of a field means its default.
type Limits struct {
	Header      time.Duration // to send the header of a request; 5 s
	Read        time.Duration // to send a whole request; 30 s; streams and proxied requests extend it as they go
	Write       time.Duration // to take the answer; 60 s; streams and proxied requests extend it as they go
	Idle        time.Duration // between requests; 60 s
	HeaderBytes int           // 16 KiB
	Connections int           // open at a time, taken-over ones (WebSockets) among them; DefaultConnections
	PerAddress  int           // of them of one client address, an IPv6 /64 being one; DefaultPerAddress
	// Spare connections are let in above these numbers. Their handler is that of a Gate, which finds out whether they carry what
	// has to get through. 0: none.
	Spare int
	// Trusted tells addresses that speak for many clients, such as a load balancer's: they have no share of their own. nil: none.
	Trusted func(netip.Addr) bool
}

func (l *Limits) defaults() {
	for _, d := range []struct {
		of *time.Duration
		to time.Duration
	}{{&l.Header, 5 * time.Second}, {&l.Read, 30 * time.Second}, {&l.Write, 60 * time.Second}, {&l.Idle, 60 * time.Second}} {
		if *d.of == 0 {
			*d.of = d.to
		}
	}
	for _, d := range []struct {
		of *int
		to int
	}{{&l.HeaderBytes, 16 << 10}, {&l.Connections, DefaultConnections}, {&l.PerAddress, DefaultPerAddress}} {
		if *d.of == 0 {
			*d.of = d.to
		}
	}
}

// Server is an http.Server that gives each client address its share of connections.
type Server struct {
	*http.Server
	seats share.Seats

	mu        sync.Mutex
	listeners []*share.Listener
}

// NewServer returns a server for h with every limit set. A connection above the limits gets 503 and is closed, or is just closed
// where it is one of TLS; an idle one of whoever has most gives way first. The server's own complaints go to log at level debug:
// clients cause them.
func NewServer(h http.Handler, limits Limits, log *slog.Logger) *Server {
	limits.defaults()
	return &Server{
		Server: &http.Server{
			Handler:                      evenly(limits, h),
			ReadHeaderTimeout:            limits.Header,
			ReadTimeout:                  limits.Read,
			WriteTimeout:                 limits.Write,
			IdleTimeout:                  limits.Idle,
			MaxHeaderBytes:               limits.HeaderBytes,
			ConnState:                    share.State,
			ConnContext:                  withConn,
			DisableGeneralOptionsHandler: true,
			HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: streamsAtOnce},
			ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
		seats: share.Seats{All: limits.Connections, Each: limits.PerAddress, Exempt: limits.Trusted, Spare: limits.Spare, SpareEach: sparePerAddress},
	}
}

const refusal = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nContent-Length: 21\r\n\r\ntoo many connections\n"

// Serve is http.Server's, within the limits.
func (s *Server) Serve(ln net.Listener) error {
	seats := s.seats
	seats.Refusal = []byte(refusal)
	return s.Server.Serve(s.over(ln, seats))
}

// ServeTLS is http.Server's, within the limits.
func (s *Server) ServeTLS(ln net.Listener, cert, key string) error {
	return s.Server.ServeTLS(s.over(ln, s.seats), cert, key)
}

func (s *Server) over(ln net.Listener, seats share.Seats) net.Listener {
	l := share.Listen(ln, seats)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
	return l
}

// Counts tells of the server's connections: those of the public, and the spare ones.
func (s *Server) Counts() (public, spare share.Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		p, q := l.Counts()
		public, spare = public.Plus(p), spare.Plus(q)
	}
	return public, spare
}

type connKey struct{}

// withConn has a request know its connection.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if c, ok := conn.(*share.Conn); ok && c.Spare() != share.Free {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}
