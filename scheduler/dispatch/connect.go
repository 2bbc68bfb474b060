package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
	"gantry/scheduler/state"
)

const (
	helloTimeout = 5 * time.Second
	maxRun       = 64 // bytes of a run's name
)

var (
	errSilent = fleet.Unavailable("the host was silent for too long", nil)
	errNotYet = fleet.Unavailable("no scheduler is known that leads", nil)
	errLeft   = fleet.Unavailable("the host has no session any more with the scheduler that passed it on", nil)
	errAgain  = fleet.Unavailable("the agent has begun another session", nil)
)

// Session implements agentrpc.LinkServer.
func (s *Server) Session(stream agentrpc.Link_SessionServer) error {
	who, err := hostOf(stream.Context())
	if err != nil {
		return err
	}
	if s.Dial == nil && !s.Node.IsLeader() {
		return s.notLeader(stream.Context())
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	hello, err := recvHello(ctx, stream)
	if err != nil {
		return grpcOrStatus(err)
	}
	host, place := fleet.HostID(who.ID), hello.GetPlace()
	for until := time.Now().Add(s.HeartbeatTimeout); ; {
		switch {
		case s.Node.IsLeader():
			if place == agentrpc.Place_PLACE_ANYWHERE {
				if to := s.elsewhere(host); to != "" {
					return agentrpc.NotLeader(stream.Context(), to)
				}
			}
			err = s.hold(ctx, stream, newSession(s, host, hello, cancel), hello)
		case place == agentrpc.Place_PLACE_LEADER:
			return s.notLeader(stream.Context())
		default:
			hello, err = s.pass(ctx, cancel, host, hello, stream)
		}
		if !errors.Is(err, errNotYet) {
			return err
		}
		if s.Dial == nil || s.relay.stops.Load() || time.Now().After(until) {
			return s.notLeader(stream.Context())
		}
		// Another may be about to lead, or this one.
		if err := sleep.For(ctx, leaderLook); err != nil {
			return err
		}
		if err := stream.Send(plainBeat); err != nil {
			return err
		}
	}
}

// hold holds a session, here at the leader, until it ends.
func (s *Server) hold(ctx context.Context, stream agentrpc.Link_SessionServer, x *session, hello *agentrpc.Hello) error {
	if err := s.enter(ctx, x); err != nil {
		return err
	}
	err := x.begin(ctx, stream, hello)
	if err == nil {
		// Here and not below, where the stack is deep: there may be ten thousand that wait. What was begun is not waited for: a Send
		// or Recv in progress ends only when the handler has returned. endAll waits for it.
		<-ctx.Done()
		x.sender.end()
	}
	s.leave(x)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	s.Log.Info("session ended", "host", x.host, "epoch", x.epoch, "err", err)
	switch {
	case errors.Is(err, errMoved):
		return agentrpc.NotLeader(ctx, s.elsewhere(x.host))
	case s.Node.IsLeader():
		return grpcOrStatus(err)
	case s.Dial != nil && x.place != agentrpc.Place_PLACE_LEADER: // the host may stay here
		return agentrpc.NotLeader(ctx, s.Address)
	}
	return s.notLeader(ctx)
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
// refused. A session that is silent for too long makes room, and one that its own agent has given up.
func (s *Server) enter(ctx context.Context, x *session) error {
	for {
		s.mu.Lock()
		if s.lead == nil {
			s.mu.Unlock()
			return errNotYet
		}
		old := s.sessions[x.host]
		if old == nil {
			s.sessions[x.host] = x
			s.arrives(x.host)
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		now := time.Now()
		switch {
		case old.run != "" && old.run == x.run && x.attempt > old.attempt:
			old.cancel(errAgain)
		case old.run != "" && old.run == x.run:
			return status.Error(codes.Aborted, "this agent has begun a later session")
		case old.silent(now, s.HeartbeatTimeout):
			old.cancel(errSilent)
		default:
			// An agent that has just died may not be known to have. When its session is heard again, there are two.
			old.rival.CompareAndSwap(0, now.UnixNano())
			s.Log.Warn("a second session of a host was refused", "host", x.host)
			return status.Error(codes.AlreadyExists, "this host has a live session already: another agent uses its identity, or did a moment ago")
		}
		select {
		case <-old.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave gives the place back. When the host does not come back, watchAbsent has it marked.
func (s *Server) leave(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, x.host)
	for _, line := range x.lines {
		line.End()
	}
	if x.connecting { // its agent may have given the session up, to begin another one
		by := x.lostBy()
		if before, was := s.absent[x.host]; was && !x.welcomed.Load() { // it is on its way, as it was before this session
			if before.IsZero() {
				before = s.settled.by
			}
			if before.After(by) {
				by = before
			}
		}
		s.absent[x.host] = by
	}
	close(x.done)
}

// arrives notes that a host is on its way to this leader for the first time. The caller holds mu.
func (s *Server) arrives(host fleet.HostID) {
	if until, was := s.absent[host]; was && until.IsZero() {
		s.settled.came(time.Now(), s.HostTimeout)
	}
}

// welcome lets the rest of the server use the session.
func (s *Server) welcome(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrives(x.host)
	delete(s.absent, x.host)
	delete(s.moved, x.host)
	x.welcomed.Store(true)
	s.announce()
}

// announce wakes who waits for a host. The caller holds mu.
func (s *Server) announce() {
	close(s.arrived)
	s.arrived = make(chan struct{})
}

func recvHello(ctx context.Context, stream agentrpc.Link_SessionServer) (*agentrpc.Hello, error) {
	type result struct {
		up  *agentrpc.Up
		err error
	}
	got := make(chan result, 1)
	go func() { // ends with the stream at the latest
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
		h := r.up.GetHello()
		if h == nil || len(h.GetRun()) > maxRun || max(len(h.GetMachineId()), len(h.GetBootId()), len(h.GetHardware())) > maxWord {
			return nil, status.Error(codes.InvalidArgument, "the first message must be a hello, with ids of at most 256 bytes")
		}
		return h, nil
	case <-timer.C:
		return nil, status.Error(codes.DeadlineExceeded, "no hello came")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// connect records the session: from here on reports of earlier epochs are refused, and what the host has
// was compared with the state where that was restored. A host that says too little in brief is asked for the whole.
func (x *session) connect(ctx context.Context, stream agentrpc.Link_SessionServer, h *agentrpc.Hello) (fleet.Host, error) {
	x.connecting = true
	known := true
	if h.GetBrief() {
		err := x.server.Store.View(func(v *state.View) error { known = v.Knows(x.host, digestOf(h.GetInventory())); return nil })
		if err != nil {
			return fleet.Host{}, err
		}
	}
	var host fleet.Host
	err := state.ErrBrief
	if known {
		host, err = x.connectAs(ctx, stream, h)
	}
	if errors.Is(err, state.ErrBrief) {
		if err = x.send(stream, &agentrpc.Down{Kind: &agentrpc.Down_Whole{Whole: &agentrpc.Whole{}}}); err != nil {
			return host, err
		}
		if h, err = recvHello(ctx, stream); err != nil {
			return host, err
		}
		if h.GetBrief() {
			return host, status.Error(codes.InvalidArgument, "everything was asked for, and the hello leaves something out")
		}
		host, err = x.connectAs(ctx, stream, h)
	}
	var e *fleet.Error
	if errors.As(err, &e) && e.Code != fleet.CodeUnavailable { // the state's answer
		x.connecting = false
		x.refused(ctx, e)
	}
	return host, err
}

// connectAs proposes the session. While it is not decided the host hears beats: with many hosts at once it takes a while, and who
// gave up would come again.
func (x *session) connectAs(ctx context.Context, stream agentrpc.Link_SessionServer, h *agentrpc.Hello) (fleet.Host, error) {
	type decided struct {
		host fleet.Host
		err  error
	}
	done := make(chan decided, 1)
	x.tasks.Go(func() {
		res, err := x.server.inTurn(ctx, state.ConnectHost{
			Host: x.host, MachineID: h.GetMachineId(), BootID: h.GetBootId(), Generation: h.GetGeneration(),
			Inventory: decodeInventory(h.GetInventory()), At: time.Now(),
			Pods: decodePods(h.GetPods()), Hardware: h.GetHardware(), Lineage: h.GetLineage(), Brief: h.GetBrief(),
		})
		out := decided{err: err}
		if err == nil {
			var ok bool
			if out.host, ok = res.(fleet.Host); !ok {
				out.err = fmt.Errorf("connecting a host gave a %T", res)
			}
		}
		done <- out
	})
	tick := time.NewTicker(max(x.server.Heartbeat/2, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case out := <-done:
			return out.host, out.err
		case <-tick.C:
			if err := x.send(stream, plainBeat); err != nil {
				return fleet.Host{}, err
			}
		case <-ctx.Done():
			return fleet.Host{}, context.Cause(ctx)
		}
	}
}

const textUnknown = "a host that this control plane does not know"

// refused tells operators of a host that is unknown, and raises an alarm when the host's identity was used by what is not the host.
func (x *session) refused(ctx context.Context, e *fleet.Error) {
	switch e.Code {
	case fleet.CodeNotFound:
		// It comes again and again.
		if x.server.mayRaise(alarm{x.host, textUnknown}, time.Now()) {
			x.server.Log.Error(textUnknown+" was refused: it joined after the copy that this control plane was restored from, or was removed long ago; it has to join again", "host", x.host)
		}
	case fleet.CodeForbidden:
		x.server.raise(ctx, alarm{x.host, "an agent was refused that uses the identity of this host: " + e.Msg})
	}
}

// largeFleet is how many hosts make it worth while to hear less often of each.
const largeFleet = 2000

// interval returns how often a host is to say something. HeartbeatTimeout has room for two that are lost, in a large fleet too.
func (s *Server) interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions)+len(s.absent) <= largeFleet {
		return s.Heartbeat
	}
	return max(s.Heartbeat, min(s.Heartbeat+s.Heartbeat/2, s.HeartbeatTimeout/2))
}

// greeting makes the answer to a hello, and decides whether the host needs the full set. The host is to notice
// a silence before this end does, so that it has begun another session by then.
func (x *session) greeting(h *agentrpc.Hello, host fleet.Host) (*agentrpc.Welcome, error) {
	s := x.server
	x.told, x.toldTrust, x.gateways, x.center = s.members.Load(), s.trust.Load(), s.gateways.Load(), host.DataCenter
	out := &agentrpc.Welcome{
		Epoch: host.Epoch, HeartbeatMs: int32(s.interval().Milliseconds()), SilenceMs: int32((s.HeartbeatTimeout - s.HeartbeatTimeout/4).Milliseconds()), //nolint:gosec // small
		Schedulers: *x.told, Cas: x.toldTrust.cas, Gateways: gatewaysOf(*x.gateways, x.center),
	}
	if x.through != nil {
		out.Leader = s.Address
	}
	return out, s.Store.View(func(v *state.View) error {
		cluster, _ := v.Cluster()
		out.ClusterId, out.Lineage = cluster.ID, cluster.Lineage
		now, ok := v.Host(x.host)
		if !ok || !h.GetHoldsSet() || h.GetLineage() != cluster.Lineage || h.GetGeneration() != now.Generation {
			return nil
		}
		pods := v.HostPods(x.host)
		x.accounts = accountsOf(v, pods)
		x.sent = make(map[fleet.PodID]uint64, len(pods))
		for i := range pods {
			x.sent[pods[i].ID] = pods[i].Generation
		}
		x.generation, x.fullNext, out.KeepSet = now.Generation, false, true
		return nil
	})
}
