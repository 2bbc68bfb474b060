package agentrpc

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// What a caller without a certificate may do. A join is one call with one small message.
const (
	strangerMessage = 16 << 10 // bytes
	strangerHeader  = 8 << 10  // bytes of a call's metadata
	strangerWindow  = 64 << 10 // bytes under way on one connection; gRPC takes no less
	strangerStreams = 4        // calls at a time on one connection
	strangerCall    = 15 * time.Second
	strangerIdle    = 15 * time.Second // a connection without a call
	strangerAge     = 30 * time.Second // a connection takes no further call
	strangerGrace   = 20 * time.Second // for the calls under way after that
)

// Server answers gRPC on a scheduler's port. Callers without a certificate have a server of their own, with bounds that hold before
// a message is read: a few methods, small messages, few calls, little time.
type Server struct {
	known, strangers *grpc.Server
	open             []string

	mu      sync.Mutex
	stopped bool
	inner   net.Listener // what Serve accepts from
}

// NewServer returns a server without services. open are the full names of the methods that callers without a certificate reach;
// the options are those for callers with one.
func NewServer(creds grpc.ServerOption, open []string, known ...grpc.ServerOption) *Server {
	s := &Server{open: open, known: grpc.NewServer(append([]grpc.ServerOption{creds}, known...)...)}
	s.strangers = grpc.NewServer(
		creds,
		grpc.MaxRecvMsgSize(strangerMessage),
		grpc.MaxHeaderListSize(strangerHeader),
		grpc.MaxConcurrentStreams(strangerStreams),
		grpc.InitialWindowSize(strangerWindow), grpc.InitialConnWindowSize(strangerWindow),
		grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10),
		grpc.ConnectionTimeout(strangerCall),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: strangerIdle, MaxConnectionAge: strangerAge, MaxConnectionAgeGrace: strangerGrace,
		}),
		grpc.InTapHandle(s.admit),
	)
	return s
}

// RegisterService implements grpc.ServiceRegistrar.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.known.RegisterService(desc, impl)
	s.strangers.RegisterService(desc, impl)
}

// admit is asked for each call without a certificate before anything of its message is read.
func (s *Server) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	if !slices.Contains(s.open, info.FullMethodName) {
		return nil, status.Error(codes.PermissionDenied, "a certificate is needed")
	}
	ctx, cancel := context.WithTimeout(ctx, strangerCall)
	context.AfterFunc(ctx, cancel) // the call's own end ends the timer
	return ctx, nil
}

// Serve answers the connections of a listener such as Mux.GRPC, of which each has passed its handshake, until Stop, and closes it.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return l.Close()
	}
	s.inner = l
	s.mu.Unlock()
	known, strangers := newMuxListener(l.Addr()), newMuxListener(l.Addr())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.known.Serve(known) })
	wg.Go(func() { _ = s.strangers.Serve(strangers) })
	err := s.split(l, known, strangers)
	_, _ = known.Close(), strangers.Close()
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil
	}
	return err
}

// split hands each connection to the server for it until l is closed.
func (s *Server) split(l net.Listener, known, strangers *muxListener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		to := known
		if _, err := ConnIdentity(conn); err != nil {
			to = strangers
		}
		if to.hand(context.Background(), conn) != nil { // it was stopped
			_ = conn.Close()
		}
	}
}

// Stop ends all calls and connections. Serve returns nil then.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopped = true
	inner := s.inner
	s.mu.Unlock()
	s.known.Stop()
	s.strangers.Stop()
	if inner != nil {
		_ = inner.Close()
	}
}
