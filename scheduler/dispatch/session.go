package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

const (
	downQueue    = 256
	helloTimeout = 10 * time.Second
)

// session is the scheduler's side of one host's session.
type session struct {
	server   *Server
	host     fleet.HostID
	epoch    uint64
	cancel   context.CancelCauseFunc
	done     chan struct{} // closed when the session has let go of its place
	tasks    sync.WaitGroup
	wake     chan struct{}
	down     chan *link.Down
	welcomed atomic.Bool
	lastSeen atomic.Int64 // Unix nanoseconds
	working  atomic.Bool  // a message of the host is being worked on

	// Of the sending goroutine alone.
	sent       map[fleet.PodID]uint64 // generation that the host was sent
	generation uint64
	fullNext   bool

	mu   sync.Mutex // guards live
	live map[fleet.PodID]fleet.Live
}

func (x *session) poke() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// Session implements link.LinkServer.
func (s *Server) Session(stream link.Link_SessionServer) error {
	who, err := link.PeerIdentity(stream.Context())
	if err != nil || who.Role != pki.RoleHost {
		return status.Error(codes.PermissionDenied, "a host certificate is needed")
	}
	if !s.Node.IsLeader() {
		return status.Error(codes.Unavailable, "this scheduler does not lead")
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	x := &session{
		server: s, host: fleet.HostID(who.ID), cancel: cancel, done: make(chan struct{}),
		wake: make(chan struct{}, 1), down: make(chan *link.Down, downQueue), live: map[fleet.PodID]fleet.Live{},
	}
	x.lastSeen.Store(time.Now().UnixNano())
	if err := s.enter(ctx, x); err != nil {
		return err
	}
	err = x.run(ctx, stream)
	s.leave(x)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	s.Log.Info("session ended", "host", x.host, "epoch", x.epoch, "err", err)
	return grpcOrStatus(err)
}

func grpcOrStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return grpcError(err)
}

// enter takes the host's one place. A live session keeps it: the second one of a cloned disk is
// refused. A session that is silent for too long makes room.
func (s *Server) enter(ctx context.Context, x *session) error {
	for {
		s.mu.Lock()
		if s.lead == nil {
			s.mu.Unlock()
			return status.Error(codes.Unavailable, "this scheduler does not lead")
		}
		old := s.sessions[x.host]
		if old == nil {
			s.sessions[x.host] = x
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		if !old.silent(s.Silence) {
			s.Log.Error("a second session of a host was refused: two agents use one identity", "host", x.host)
			return status.Error(codes.AlreadyExists, "this host has a live session already: two agents use one identity")
		}
		old.cancel(errors.New("the host was silent for too long"))
		select {
		case <-old.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave gives the place back. When the host does not come back, watchMissing has it marked.
func (s *Server) leave(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x.host)
	close(x.done)
}

// silent reports whether the host has said nothing for longer than d. While something that it said is
// being worked on, it is not the silent one.
func (x *session) silent(d time.Duration) bool {
	return !x.working.Load() && time.Since(time.Unix(0, x.lastSeen.Load())) > d
}

// run greets the host and serves both directions until one fails.
func (x *session) run(ctx context.Context, stream link.Link_SessionServer) error {
	hello, err := recvHello(ctx, stream)
	if err != nil {
		return err
	}
	host, err := x.connect(ctx, hello)
	if err != nil {
		return err
	}
	x.epoch, x.fullNext = host.Epoch, true
	x.server.Log.Info("session began", "host", x.host, "name", host.Name, "epoch", x.epoch)
	welcome := &link.Welcome{Epoch: x.epoch, HeartbeatMs: int32(x.server.Heartbeat.Milliseconds())} //nolint:gosec // small
	if err := stream.Send(&link.Down{Kind: &link.Down_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	x.server.welcome(x)
	x.tasks.Go(func() { x.cancel(x.sendAll(ctx, stream)) })
	x.tasks.Go(func() { x.watchSilence(ctx) })
	x.tasks.Go(func() { x.cancel(x.receiveAll(ctx, stream)) })
	// They are not waited for here: a Send or Recv in progress ends only when this handler has
	// returned. endAll waits for them.
	<-ctx.Done()
	return context.Cause(ctx)
}

// welcome lets the rest of the server use the session.
func (s *Server) welcome(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.welcomed.Store(true)
	close(s.arrived)
	s.arrived = make(chan struct{})
}

func recvHello(ctx context.Context, stream link.Link_SessionServer) (*link.Hello, error) {
	type result struct {
		up  *link.Up
		err error
	}
	got := make(chan result, 1)
	go func() {
		up, err := stream.Recv()
		got <- result{up, err}
	}()
	timer := time.NewTimer(helloTimeout)
	defer timer.Stop()
	select {
	case r := <-got:
		if r.err != nil {
			return nil, r.err
		}
		if h := r.up.GetHello(); h != nil {
			return h, nil
		}
		return nil, status.Error(codes.InvalidArgument, "the first message must be a hello")
	case <-timer.C:
		return nil, status.Error(codes.DeadlineExceeded, "no hello came")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// connect records the session: from here on reports of earlier epochs are refused.
func (x *session) connect(ctx context.Context, h *link.Hello) (fleet.Host, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := x.server.Node.Propose(ctx, state.ConnectHost{
		Host: x.host, MachineID: h.GetMachineId(), BootID: h.GetBootId(), Generation: h.GetGeneration(),
		Inventory: decodeInventory(h.GetInventory()), At: time.Now(),
	})
	if err != nil {
		return fleet.Host{}, err
	}
	if res[0].Err != nil {
		return fleet.Host{}, res[0].Err
	}
	host, ok := res[0].Value.(fleet.Host)
	if !ok {
		return fleet.Host{}, fmt.Errorf("connecting a host gave a %T", res[0].Value)
	}
	return host, nil
}

func (x *session) watchSilence(ctx context.Context) {
	tick := time.NewTicker(x.server.Silence / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if x.silent(x.server.Silence) {
				x.cancel(fleet.Unavailable("the host was silent for too long", nil))
			}
		case <-ctx.Done():
			return
		}
	}
}

// receiveAll handles what the host says, in order.
func (x *session) receiveAll(ctx context.Context, stream link.Link_SessionServer) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		x.working.Store(true)
		err = x.receive(ctx, msg)
		x.lastSeen.Store(time.Now().UnixNano())
		x.working.Store(false)
		if err != nil {
			return err
		}
	}
}

func (x *session) receive(ctx context.Context, msg *link.Up) error {
	switch {
	case msg.GetReports() != nil:
		return x.record(ctx, msg.GetReports())
	case msg.GetHeartbeat() != nil:
		x.heartbeat(msg.GetHeartbeat())
	case msg.GetResync() != nil:
		return x.enqueue(ctx, nil)
	case msg.GetApplied() != nil:
		x.server.Log.Debug("host applied", "host", x.host, "generation", msg.GetApplied().GetGeneration())
	}
	return nil
}

// record commits a message of reports and only then acknowledges it.
func (x *session) record(ctx context.Context, r *link.Reports) error {
	now := time.Now()
	cmd := state.ReportPods{Host: x.host, Epoch: x.epoch, At: now, Reports: decodeReports(r.GetPods(), clockError(r.GetSentNs(), now))}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if err := x.server.propose(ctx, cmd); err != nil {
		return err
	}
	return x.enqueue(ctx, &link.Down{Kind: &link.Down_ReportsKept{ReportsKept: &link.ReportsKept{Sequence: r.GetSequence()}}})
}

// enqueue hands a message to the sender; nil asks for the full set.
func (x *session) enqueue(ctx context.Context, msg *link.Down) error {
	select {
	case x.down <- msg:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// sendAll is the only goroutine that sends.
func (x *session) sendAll(ctx context.Context, stream link.Link_SessionServer) error {
	for {
		msg, err := x.assignments()
		if err != nil {
			return err
		}
		if msg != nil {
			if err := stream.Send(msg); err != nil {
				return err
			}
		}
		select {
		case <-x.wake:
		case msg := <-x.down:
			if msg == nil {
				x.fullNext = true
				continue
			}
			if err := stream.Send(msg); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// assignments returns what the host has to be told to come from what it was sent last to what is
// wanted now: nil when that is nothing.
func (x *session) assignments() (*link.Down, error) {
	var host fleet.Host
	var pods []fleet.Pod
	err := x.server.Store.View(func(v *state.View) error {
		var ok bool
		if host, ok = v.Host(x.host); !ok {
			return status.Error(codes.PermissionDenied, "this host is not known any more")
		}
		if x.fullNext || host.Generation != x.generation {
			pods = v.HostPods(x.host)
		}
		return nil
	})
	if err != nil || (!x.fullNext && host.Generation == x.generation) {
		return nil, err
	}
	grace := x.server.Grace
	now := make(map[fleet.PodID]uint64, len(pods))
	var put []*link.Assignment
	for i := range pods {
		p := &pods[i]
		now[p.ID] = p.Generation
		if x.fullNext || x.sent[p.ID] != p.Generation {
			put = append(put, encodeAssignment(p, grace, x.credential(p)))
		}
	}
	from, full := x.generation, x.fullNext
	var gone []string
	for id := range x.sent {
		if _, ok := now[id]; !ok {
			gone = append(gone, string(id))
		}
	}
	x.sent, x.generation, x.fullNext = now, host.Generation, false
	if full {
		return &link.Down{Kind: &link.Down_Full{Full: &link.FullSet{Generation: host.Generation, Assignments: put}}}, nil
	}
	return &link.Down{Kind: &link.Down_Difference{Difference: &link.Difference{
		From: from, To: host.Generation, Put: put, Gone: gone,
	}}}, nil
}

// credential opens what a pod that is to run needs for its image. Without it the pod is assigned all
// the same: its image may be on the host, or its registry open to all.
func (x *session) credential(p *fleet.Pod) *fleet.Credential {
	open := x.server.Credentials
	if open == nil || p.Goal != fleet.GoalRun || p.Spec.Registry == "" {
		return nil
	}
	c, err := open(p.Account, p.Spec.Registry)
	if err != nil {
		x.server.Log.Error("open a registry credential", "pod", p.ID, "registry", p.Spec.Registry, "err", err)
		return nil
	}
	return c
}

func (x *session) heartbeat(h *link.Heartbeat) {
	now := time.Now()
	live := make(map[fleet.PodID]fleet.Live, len(h.GetPods()))
	for _, p := range h.GetPods() {
		live[fleet.PodID(p.GetPodId())] = fleet.Live{
			At: now, CPUPercent: int(p.GetCpuPercent()), MemoryPercent: int(p.GetMemoryPercent()),
			Activity: p.GetActivity(), PullDone: p.GetPullDone(), PullTotal: p.GetPullTotal(), GPUs: decodeUse(p.GetGpus()),
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.live = live
}

func decodeUse(in []*link.GPUUse) []fleet.GPUUse {
	var out []fleet.GPUUse
	for _, g := range in {
		out = append(out, fleet.GPUUse{Util: int(g.GetUtil()), MemoryUtil: int(g.GetMemoryUtil())})
	}
	return out
}

func (x *session) livePod(id fleet.PodID) *fleet.Live {
	x.mu.Lock()
	defer x.mu.Unlock()
	l, ok := x.live[id]
	if !ok {
		return nil
	}
	return &l
}
