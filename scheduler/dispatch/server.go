package dispatch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/dataconn"
	"gantry/scheduler/entry"
	"gantry/scheduler/feed"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/routes"
	"gantry/scheduler/state"
)

// Proposer commits commands; see replica.Node.
type Proposer interface {
	Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error)
	Barrier(ctx context.Context) error
	IsLeader() bool
}

// Config is what a Server is made from. Zero durations stand for the defaults.
//
// A host that vanished is unreachable after HeartbeatTimeout and HostTimeout. Both together are to leave room for a
// heartbeat whose packets were lost several times, and HostTimeout for a new connection on such a network.
type Config struct {
	Store *state.Store
	Node  Proposer
	CA    func(ctx context.Context) (*pki.CA, error)
	// Leader returns the link address of the scheduler that leads, as far as this one knows; nil, or an
	// answer of "": hosts that come to one that does not lead are not told.
	Leader func() string
	// Dial returns a connection to another scheduler, by its link address; nil: hosts have sessions with the leader alone.
	Dial    func(address string, opts ...grpc.DialOption) (*grpc.ClientConn, error)
	Address string // this scheduler's own link address, for hosts
	// Refuse gives an error for schedulers that were removed; nil: none was.
	Refuse func(pki.Identity) error
	// Schedulers returns the link addresses of the present members; nil: as the state has them.
	Schedulers       func() []string
	Heartbeat        time.Duration // between heartbeats of a host, default 1 s, at most half of HeartbeatTimeout
	HeartbeatTimeout time.Duration // after which a session counts as lost; default 3.2 s
	HostTimeout      time.Duration // for a lost host to come back before it is unreachable; default 1.6 s
	Settle           time.Duration // for hosts to find a new leader before they are unreachable; default 10 s
	Grace            time.Duration // between SIGTERM and SIGKILL; default 10 s
	CertLife         time.Duration // of host certificates; default 7 days
	// Credentials opens a registry credential of an account; nil: there are none.
	Credentials func(fleet.AccountID, fleet.RegistryID) (*fleet.Credential, error)
	// Environment returns the environment of a pod that is to run as its host needs it, secrets opened; nil: that
	// of its specification.
	Environment func(*fleet.Pod) (map[string]string, error)
	// Member returns what a member of a cluster finds in its container; nil: nothing.
	Member func(*fleet.Pod) (*fleet.MemberSetup, error)
	// ModelHub is the address that hosts fetch models from; empty: fleet.DefaultModelHub.
	ModelHub string
	Backends volumes.Backends // of network volumes
	Feeds    []feed.Feed      // what hosts are told and heard of, beside their pods
	S3       S3Keys           // nil: there are none
	// Workers serves the stream of jobs of a host until its session is over; see workers.Workers. Nil: there are no serverless workers.
	Workers func(host fleet.HostID, session <-chan struct{}, stream agentrpc.Link_JobsServer) error
	Log     *slog.Logger
}

// Defaults of Config.
const (
	DefaultHeartbeat        = time.Second
	DefaultHeartbeatTimeout = 3200 * time.Millisecond
	DefaultHostTimeout      = 1600 * time.Millisecond
	DefaultSettle           = 10 * time.Second
)

const (
	defaultGrace    = 10 * time.Second
	defaultCertLife = 7 * 24 * time.Hour

	proposeTimeout = 10 * time.Second
	maxMessage     = 7 << 18   // bytes from a host: the hello of one with thousands of pods; no other has so many
	callWindow     = 128 << 10 // bytes of a call that come before they are read; for a message that is waited for gRPC makes room
	maxStreams     = 1 << 14   // of one host's connection: a session, and a tunnel for each request to a pod
	minPing        = 5 * time.Second
	idleHost       = 5 * time.Minute  // a connection without a call
	probeHost      = 30 * time.Second // of a connection on which nothing came
	// bufferSize is that of a connection in each direction. There are ten thousand, and hardly any has
	// more to say than a heartbeat.
	bufferSize = 4 << 10
	// unconfirmed is how long a host may leave unconfirmed what it was sent.
	unconfirmed = 10 * time.Second
)

// Server is the scheduler's end of every link. Its methods are safe for concurrent use.
type Server struct {
	agentrpc.UnimplementedLinkServer
	agentrpc.UnimplementedJoinServer
	Config
	members  atomic.Pointer[[]string]        // link addresses, as hosts are told; another pointer: they changed
	gateways atomic.Pointer[[]fleet.Gateway] // likewise
	trust    atomic.Pointer[trust]           // whom hosts are to trust; the same
	turns    chan struct{}                   // see inTurn
	callers  *callers
	data     *dataconn.Conns
	relay    relay

	mu       sync.Mutex // guards the fields below
	sessions map[fleet.HostID]*session
	arrived  chan struct{} // closed and made anew when a host is welcomed, or has another data connection
	waiting  map[string]*tunnel
	absent   map[fleet.HostID]time.Time // until when a host may be without a session; zero: until all have settled
	settled  settling
	others   map[fleet.MemberID]*through // that pass sessions on
	moved    map[fleet.HostID]time.Time  // when they were told to go to one of others, and not come yet
	alarmed  map[alarm]time.Time         // when it was raised last
	lead     context.Context             // ends with leadership; nil when this scheduler does not lead
	pending  sync.WaitGroup              // goroutines that look after hosts; grows under mu while lead is set
}

// New returns a server that has no sessions yet.
func New(c Config) *Server {
	c.ModelHub = cmp.Or(c.ModelHub, fleet.DefaultModelHub)
	if c.HeartbeatTimeout == 0 {
		c.HeartbeatTimeout = DefaultHeartbeatTimeout
	}
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{
		{&c.Heartbeat, min(DefaultHeartbeat, c.HeartbeatTimeout/2)},
		{&c.HostTimeout, DefaultHostTimeout},
		{&c.Settle, DefaultSettle},
		{&c.Grace, defaultGrace},
		{&c.CertLife, defaultCertLife},
	} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	s := &Server{
		Config: c, sessions: map[fleet.HostID]*session{}, arrived: make(chan struct{}), waiting: map[string]*tunnel{},
		absent: map[fleet.HostID]time.Time{}, alarmed: map[alarm]time.Time{},
		turns: make(chan struct{}, maxTurns), callers: newCallers(),
	}
	s.data = dataconn.New(routes.Of(c.Store), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.announce()
	}, c.Log)
	s.members.Store(&[]string{})
	s.gateways.Store(&[]fleet.Gateway{})
	s.trust.Store(&trust{})
	return s
}

// GRPC returns a gRPC server with the link's services, for a listener whose connections have passed their TLS handshake. Whoever
// has no certificate reaches joins alone, within the bounds of agentrpc.NewServer.
func (s *Server) GRPC() *agentrpc.Server {
	g := agentrpc.NewServer(
		grpc.Creds(agentrpc.ThinServerCredentials(unconfirmed)),
		[]string{agentrpc.Join_Join_FullMethodName, agentrpc.Peer_JoinMember_FullMethodName, agentrpc.Peer_JoinGateway_FullMethodName},
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.InTapHandle(s.callers.admit),
		grpc.ReadBufferSize(bufferSize),
		grpc.WriteBufferSize(bufferSize),
		grpc.InitialWindowSize(callWindow), grpc.InitialConnWindowSize(agentrpc.ConnWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleHost, Time: probeHost, Timeout: unconfirmed}),
	)
	agentrpc.RegisterLinkServer(g, s)
	agentrpc.RegisterJoinServer(g, s)
	agentrpc.RegisterHostsServer(g, hostsServer{Server: s})
	return g
}

// Lead accepts sessions and wakes those whose assignments changed, until ctx, which ends with
// leadership, does; then it ends every session. Hosts that were ready under the leader before and do
// not come back are marked unreachable.
func (s *Server) Lead(ctx context.Context) error {
	var after uint64
	absent := map[fleet.HostID]time.Time{}
	began := time.Now()
	err := s.Store.View(func(v *state.View) error {
		after = v.Index()
		for _, h := range v.HostRows() {
			if h.State == fleet.HostReady {
				absent[h.ID] = time.Time{}
			}
		}
		for _, f := range s.Feeds {
			f.Learn(v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.learnMembers()
	s.mu.Lock()
	s.lead, s.absent, s.others = ctx, absent, map[fleet.MemberID]*through{}
	s.moved = map[fleet.HostID]time.Time{}
	s.settled = newSettling(began, s.Settle, len(absent))
	s.pending.Go(func() { s.watchSessions(ctx) })
	s.pending.Go(func() { s.watchAbsent(ctx) })
	for _, f := range s.Feeds {
		s.pending.Go(func() { f.Run(ctx) })
	}
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
		for _, f := range s.Feeds {
			f.Heed(events, !ok)
		}
	}
}

func (s *Server) wakeFor(events []state.Event, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all {
		for _, x := range s.sessions {
			x.Wake()
		}
		return
	}
	for _, e := range events {
		if e.Kind != state.KindAssign && e.Kind != state.KindHost { // a host that is gone must go
			continue
		}
		if x := s.sessions[fleet.HostID(e.ID)]; x != nil {
			x.Wake()
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

// hostOf returns the identity of the host that calls, or the status that refuses whoever is none.
func hostOf(ctx context.Context) (pki.Identity, error) {
	who, err := agentrpc.PeerIdentity(ctx)
	if err != nil || who.Role != pki.RoleHost {
		return pki.Identity{}, status.Error(codes.PermissionDenied, "a host certificate is needed")
	}
	return who, nil
}

// notLeader refuses a call, and tells the caller who leads.
func (s *Server) notLeader(ctx context.Context) error {
	leader := ""
	if s.Leader != nil {
		leader = s.Leader()
	}
	return agentrpc.NotLeader(ctx, leader)
}

// learnMembers looks up what hosts are told of the members and of the cluster's CAs.
func (s *Server) learnMembers() {
	before, members, known := s.trust.Load(), s.members.Load(), s.gateways.Load()
	defer func() {
		if s.trust.Load() != before || s.members.Load() != members || s.gateways.Load() != known {
			s.tellPassed()
		}
	}()
	if err := s.learnTrust(); err != nil {
		s.Log.Error("read the cluster's CAs", "err", err)
	}
	var now []string
	var gateways []fleet.Gateway
	if s.Schedulers != nil {
		now = slices.Clone(s.Schedulers())
	} else if err := s.Store.View(func(v *state.View) error {
		gateways = v.Gateways()
		for _, m := range v.Members() {
			if m.RemovedAt.IsZero() && m.Address != "" {
				now = append(now, m.Address)
			}
		}
		return nil
	}); err != nil {
		s.Log.Error("read the members", "err", err)
		return
	}
	slices.Sort(now)
	if now = slices.Compact(now); !slices.Equal(now, *s.members.Load()) {
		s.members.Store(&now)
	}
	if !slices.Equal(gateways, *s.gateways.Load()) {
		s.gateways.Store(&gateways)
	}
}

// tellPassed has hosts told what beats tell whose heartbeats another scheduler answers.
func (s *Server) tellPassed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		if x.through != nil {
			x.beatDue.Store(true)
			x.poke()
		}
	}
}

// gatewaysOf are the gateways that a host of a data center is told of.
func gatewaysOf(all []fleet.Gateway, center fleet.DataCenterID) *agentrpc.Gateways {
	out := &agentrpc.Gateways{}
	for _, g := range all {
		if g.DataCenter == "" || g.DataCenter == center {
			out.Gateways = append(out.Gateways, &agentrpc.GatewayAddress{Id: string(g.ID), Address: g.Address})
		}
	}
	return out
}

func (s *Server) propose(ctx context.Context, cmd state.Command) error {
	_, err := s.inTurn(ctx, cmd)
	return err
}

// Data are the data connections of hosts that end at this scheduler, whether it leads or not.
func (s *Server) Data() *dataconn.Conns { return s.data }

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

// grpcError turns an error into what a host is told.
func grpcError(err error) error {
	code, ok := map[fleet.Code]codes.Code{
		fleet.CodeUnauthorized: codes.Unauthenticated,
		fleet.CodeForbidden:    codes.PermissionDenied,
		fleet.CodeNotFound:     codes.NotFound,
		fleet.CodeExists:       codes.AlreadyExists,
		fleet.CodeInvalid:      codes.InvalidArgument,
		fleet.CodeUnavailable:  codes.Unavailable,
		fleet.CodeStale:        codes.FailedPrecondition,
		fleet.CodeNotAllowed:   codes.FailedPrecondition,
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
