package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// Proposer commits commands; see replica.Node.
type Proposer interface {
	Propose(ctx context.Context, cmds ...state.Command) ([]state.Result, error)
	Barrier(ctx context.Context) error
	IsLeader() bool
}

// Config is what a Server is made from. Zero durations stand for the defaults.
type Config struct {
	Store     *state.Store
	Node      Proposer
	CA        func(ctx context.Context) (*pki.CA, error)
	Heartbeat time.Duration // between heartbeats of a host; default 2 s
	Silence   time.Duration // after which a session counts as lost; default 5 s
	Patience  time.Duration // for a lost host to come back before it is unreachable; default 5 s
	Grace     time.Duration // between SIGTERM and SIGKILL; default 10 s
	CertLife  time.Duration // of host certificates; default 7 days
	// Credentials opens a registry credential of an account; nil: there are none.
	Credentials func(fleet.AccountID, fleet.RegistryID) (*fleet.Credential, error)
	Log         *slog.Logger
}

const (
	defaultHeartbeat = 2 * time.Second
	defaultSilence   = 5 * time.Second
	defaultPatience  = 5 * time.Second
	defaultGrace     = 10 * time.Second
	defaultCertLife  = 7 * 24 * time.Hour

	proposeTimeout = 10 * time.Second
	maxMessage     = 64 << 20 // bytes; the largest full set
	minPing        = 5 * time.Second
)

// Server is the scheduler's end of every link. Its methods are safe for concurrent use.
type Server struct {
	link.UnimplementedLinkServer
	link.UnimplementedJoinServer
	Config

	mu       sync.Mutex // guards the fields below
	sessions map[fleet.HostID]*session
	arrived  chan struct{} // closed and made anew when a host is welcomed
	waiting  map[string]*tunnel
	lead     context.Context // ends with leadership; nil when this scheduler does not lead
	pending  sync.WaitGroup  // goroutines that look after lost hosts; grows under mu while lead is set
}

// New returns a server that has no sessions yet.
func New(c Config) *Server {
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{
		{&c.Heartbeat, defaultHeartbeat},
		{&c.Silence, defaultSilence},
		{&c.Patience, defaultPatience},
		{&c.Grace, defaultGrace},
		{&c.CertLife, defaultCertLife},
	} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	return &Server{Config: c, sessions: map[fleet.HostID]*session{}, arrived: make(chan struct{}), waiting: map[string]*tunnel{}}
}

// GRPC returns a gRPC server with the link's services, for a listener whose connections have passed
// their TLS handshake.
func (s *Server) GRPC() *grpc.Server {
	g := grpc.NewServer(
		grpc.Creds(link.ServerCredentials()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	)
	link.RegisterLinkServer(g, s)
	link.RegisterJoinServer(g, s)
	return g
}

// Lead accepts sessions and wakes those whose assignments changed, until ctx, which ends with
// leadership, does; then it ends every session. Hosts that were ready under the leader before and do
// not come back are marked unreachable.
func (s *Server) Lead(ctx context.Context) error {
	var after uint64
	if err := s.Store.View(func(v *state.View) error { after = v.Index(); return nil }); err != nil {
		return err
	}
	s.mu.Lock()
	s.lead = ctx
	s.pending.Go(func() { s.watchMissing(ctx) })
	s.mu.Unlock()
	defer s.endAll()
	for {
		if err := s.Store.Wait(ctx, after); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		events, upTo, ok := s.Store.Events(after)
		after = upTo
		s.wakeFor(events, !ok)
	}
}

func (s *Server) wakeFor(events []state.Event, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all {
		for _, x := range s.sessions {
			x.poke()
		}
		return
	}
	for _, e := range events {
		if e.Kind != state.KindAssign {
			continue
		}
		if x := s.sessions[fleet.HostID(e.ID)]; x != nil {
			x.poke()
		}
	}
}

func (s *Server) endAll() {
	s.mu.Lock()
	s.lead = nil
	open := make([]*session, 0, len(s.sessions))
	for _, x := range s.sessions {
		x.cancel(fleet.Unavailable("this scheduler does not lead any more", nil))
		open = append(open, x)
	}
	s.mu.Unlock()
	for _, x := range open {
		<-x.done
		x.tasks.Wait()
	}
	s.pending.Wait()
}

// watchMissing marks hosts unreachable that count as ready and have had no session for longer than
// the patience. After a change of leader they get the time of a silence on top, to find this one.
// It looks again and again, so a mark that could not be made is made later.
func (s *Server) watchMissing(ctx context.Context) {
	if !sleep(ctx, s.Silence) {
		return
	}
	since := map[fleet.HostID]time.Time{}
	for sleep(ctx, s.Patience/4) {
		now := time.Now()
		missing, err := s.missing()
		if err != nil {
			s.Log.Error("read hosts", "err", err)
			continue
		}
		for id := range since {
			if _, still := missing[id]; !still {
				delete(since, id)
			}
		}
		for id, epoch := range missing {
			first, known := since[id]
			switch {
			case !known:
				since[id] = now
			case now.Sub(first) >= s.Patience:
				s.markUnreachable(ctx, id, epoch)
			}
		}
	}
}

// missing returns the hosts that count as ready and have no session, with their epochs.
func (s *Server) missing() (map[fleet.HostID]uint64, error) {
	s.mu.Lock()
	there := make(map[fleet.HostID]bool, len(s.sessions))
	for id := range s.sessions {
		there[id] = true
	}
	s.mu.Unlock()
	out := map[fleet.HostID]uint64{}
	err := s.Store.View(func(v *state.View) error {
		for _, c := range v.Candidates() {
			if c.Host.State == fleet.HostReady && !there[c.Host.ID] {
				out[c.Host.ID] = c.Host.Epoch
			}
		}
		return nil
	})
	return out, err
}

// markUnreachable records that the session of an epoch is lost. A host that has come back since has
// another epoch, and the mark is refused.
func (s *Server) markUnreachable(ctx context.Context, id fleet.HostID, epoch uint64) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	err := s.propose(ctx, state.SetHostState{Host: id, Epoch: epoch, State: fleet.HostUnreachable, At: time.Now()})
	switch {
	case fleet.CodeOf(err) == fleet.CodeStale: // it has come back meanwhile
	case err != nil:
		s.Log.Warn("mark a host unreachable", "host", id, "err", err)
	default:
		s.Log.Warn("host is unreachable", "host", id)
	}
}

func (s *Server) propose(ctx context.Context, cmd state.Command) error {
	res, err := s.Node.Propose(ctx, cmd)
	if err != nil {
		return err
	}
	return res[0].Err
}

// Reachable reports whether the host has a live session.
func (s *Server) Reachable(id fleet.HostID) bool { return s.session(id) != nil }

func (s *Server) session(id fleet.HostID) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.sessions[id]
	if x == nil || !x.welcomed.Load() {
		return nil
	}
	return x
}

// Live returns what the pod's host last said of it.
func (s *Server) Live(host fleet.HostID, pod fleet.PodID) *fleet.Live {
	x := s.session(host)
	if x == nil {
		return nil
	}
	return x.livePod(pod)
}

// sleep waits for d and reports whether ctx was still alive then.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// grpcError turns an error into what a host is told.
func grpcError(err error) error {
	code, ok := map[fleet.Code]codes.Code{
		fleet.CodeUnauthorized: codes.Unauthenticated,
		fleet.CodeForbidden:    codes.PermissionDenied,
		fleet.CodeNotFound:     codes.NotFound,
		fleet.CodeExists:       codes.AlreadyExists,
		fleet.CodeInvalid:      codes.InvalidArgument,
		fleet.CodeUnavailable:  codes.Unavailable,
	}[fleet.CodeOf(err)]
	if !ok {
		code = codes.Internal
	}
	var e *fleet.Error
	if errors.As(err, &e) {
		return status.Error(code, e.Msg)
	}
	return status.Error(code, "internal error")
}
