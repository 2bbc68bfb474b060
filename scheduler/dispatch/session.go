package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/scheduler/state"
)

const downQueue = 64

// session is the scheduler's side of one host's session.
type session struct {
	server   *Server
	host     fleet.HostID
	run      string // of the agent, and which of its sessions this is
	attempt  uint64
	cancel   context.CancelCauseFunc
	done     chan struct{} // closed when the session has let go of its place
	tasks    sync.WaitGroup
	wake     chan struct{}
	down     chan *link.Down
	welcomed atomic.Bool
	lastSeen atomic.Int64 // Unix nanoseconds
	lastSent atomic.Int64 // the same
	working  atomic.Bool  // a message of the host is being worked on
	rival    atomic.Int64 // Unix nanoseconds of when another agent was refused for this session; 0: none
	changed  atomic.Bool  // assignments may have
	beatDue  atomic.Bool
	stock    stock
	notes    notes
	storage  atomic.Pointer[link.StorageSet] // what the host has to do for network volumes; nil: it need not be told

	// Of the handler alone, until the session is welcomed.
	epoch      uint64
	connecting bool // the state may count the host as ready

	// Of the handler, then of the sending goroutine alone.
	sent       map[fleet.PodID]uint64 // generation that the host was sent
	generation uint64
	fullNext   bool
	told       *[]string // the members, as the host knows them
	toldTrust  *trust
	toldSet    *link.StorageSet
	network    toldNetwork
	due        []*link.Down // what was found to be told and is not sent yet, in order

	mu   sync.Mutex // guards live
	live map[fleet.PodID]fleet.Live
}

func newSession(s *Server, host fleet.HostID, h *link.Hello, cancel context.CancelCauseFunc) *session {
	x := &session{
		server: s, host: host, run: h.GetRun(), attempt: h.GetAttempt(), cancel: cancel, done: make(chan struct{}),
		wake: make(chan struct{}, 1), down: make(chan *link.Down, downQueue), fullNext: true,
	}
	now := time.Now().UnixNano()
	x.lastSeen.Store(now)
	x.lastSent.Store(now)
	x.changed.Store(true)
	return x
}

// poke has the sending goroutine look for what there is to do.
func (x *session) poke() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// reorder tells that assignments of the host changed.
func (x *session) reorder() {
	x.changed.Store(true)
	x.poke()
}

// silent reports whether the host has said nothing for longer than d. While something that it said is
// being worked on, its hello too, it is not the silent one.
func (x *session) silent(now time.Time, d time.Duration) bool {
	return x.welcomed.Load() && !x.working.Load() && now.Sub(time.Unix(0, x.lastSeen.Load())) > d
}

// serve greets the host and serves both directions until one fails.
func (x *session) serve(ctx context.Context, stream link.Link_SessionServer, hello *link.Hello) error {
	host, err := x.connect(ctx, hello)
	if err != nil {
		return err
	}
	x.epoch = host.Epoch
	welcome, err := x.greeting(hello, host)
	if err != nil {
		return err
	}
	x.server.Log.Info("session began", "host", x.host, "name", host.Name, "epoch", x.epoch, "set_kept", welcome.GetKeepSet())
	if err := x.send(stream, &link.Down{Kind: &link.Down_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	x.lastSeen.Store(time.Now().UnixNano()) // the connecting took its time, and it was not the host's
	x.server.welcome(x)
	x.tasks.Go(func() { x.cancel(x.sendAll(ctx, stream)) })
	x.tasks.Go(func() { x.cancel(x.receiveAll(ctx, stream)) })
	// They are not waited for here: a Send or Recv in progress ends only when this handler has
	// returned. endAll waits for them.
	<-ctx.Done()
	return context.Cause(ctx)
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
		now := time.Now()
		x.lastSeen.Store(now.UnixNano())
		x.working.Store(false)
		x.heardBesideRival(ctx, now)
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
		now := time.Now()
		x.heartbeat(msg.GetHeartbeat(), now)
		x.answer(now)
	case msg.GetInventory() != nil:
		x.restock(ctx, msg.GetInventory())
	case msg.GetResync() != nil:
		return x.enqueue(ctx, nil)
	case msg.GetStorage() != nil:
		return x.heardOfStorage(ctx, msg.GetStorage())
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

// answer has a beat sent for a heartbeat, so that a host notices when either direction is stuck, unless it
// was sent something a moment ago.
func (x *session) answer(now time.Time) {
	if now.Sub(time.Unix(0, x.lastSent.Load())) >= x.server.Heartbeat/8 {
		x.beatDue.Store(true)
		x.poke()
	}
}

// heardBesideRival raises an alarm when the host is heard well after another agent was refused for it: then
// both of them live.
func (x *session) heardBesideRival(ctx context.Context, now time.Time) {
	came := x.rival.Load()
	if came == 0 || now.Sub(time.Unix(0, came)) < x.server.Heartbeat/2 {
		return
	}
	x.rival.Store(0)
	x.tasks.Go(func() { x.server.raise(ctx, alarm{x.host, twoAgents}) })
}

// send sends one message; of the goroutine alone that sends.
func (x *session) send(stream link.Link_SessionServer, msg *link.Down) error {
	err := stream.Send(msg)
	x.lastSent.Store(time.Now().UnixNano())
	return err
}

// sendAll is the only goroutine that sends.
func (x *session) sendAll(ctx context.Context, stream link.Link_SessionServer) error {
	for {
		msg, err := x.next()
		if err != nil {
			return err
		}
		if msg != nil {
			if err := x.send(stream, msg); err != nil {
				return err
			}
		}
		select {
		case <-x.wake:
		case msg := <-x.down:
			if msg == nil {
				x.fullNext, x.due = true, nil
				x.network.forget()
				continue
			}
			if err := x.send(stream, msg); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// plainBeat is the beat that tells nothing else. It is for all sessions and never changed.
var plainBeat = &link.Down{Kind: &link.Down_Beat{Beat: &link.Beat{}}}

// next returns what the session itself has to say; nil when that is nothing.
func (x *session) next() (*link.Down, error) {
	if len(x.due) == 0 && (x.changed.Swap(false) || x.fullNext) {
		if err := x.look(); err != nil {
			return nil, err
		}
	}
	if len(x.due) > 0 {
		msg := x.due[0]
		x.due = x.due[1:]
		x.poke() // there may be more to say
		return msg, nil
	}
	if set := x.storage.Load(); set != x.toldSet {
		x.toldSet = set
		return &link.Down{Kind: &link.Down_Storage{Storage: set}}, nil
	}
	if !x.beatDue.Swap(false) {
		return nil, nil
	}
	members, cas := x.server.members.Load(), x.server.trust.Load()
	if members == x.told && cas == x.toldTrust {
		return plainBeat, nil
	}
	beat := &link.Beat{}
	if members != x.told {
		x.told, beat.Schedulers = members, *members
	}
	if cas != x.toldTrust {
		x.toldTrust, beat.Cas = cas, cas.cas
	}
	return &link.Down{Kind: &link.Down_Beat{Beat: beat}}, nil
}

// look finds what the host has to be told to come from what it was told last to what is wanted now: of private networks
// first, so that a pod finds its own there.
func (x *session) look() error {
	var host fleet.Host
	var pods []fleet.Pod
	at := map[fleet.PodID][]*link.OverlayPlace{}
	full := x.fullNext
	err := x.server.Store.View(func(v *state.View) error {
		var ok bool
		if host, ok = v.Host(x.host); !ok || host.State == fleet.HostGone {
			return status.Error(codes.PermissionDenied, "this host is not known any more")
		}
		if full || host.Generation != x.generation {
			pods = v.HostPods(x.host)
			x.network.assigned(v, pods)
			for i := range pods {
				if p := &pods[i]; len(p.Overlays) > 0 && (full || x.sent[p.ID] != p.Generation) {
					at[p.ID] = places(v, p)
				}
			}
		}
		x.due = x.networks(v, &host)
		return nil
	})
	if err == nil && (full || host.Generation != x.generation) {
		x.due = append(x.due, x.assignments(host.Generation, pods, at))
	}
	return err
}

// assignments returns what the host has to be told to come from the pods that it was sent last to those of a generation;
// at holds the places in private networks of those that it has not been sent.
func (x *session) assignments(generation uint64, pods []fleet.Pod, at map[fleet.PodID][]*link.OverlayPlace) *link.Down {
	grace := x.server.Grace
	now := make(map[fleet.PodID]uint64, len(pods))
	var put []*link.Assignment
	for i := range pods {
		p := &pods[i]
		now[p.ID] = p.Generation
		if x.fullNext || x.sent[p.ID] != p.Generation {
			order := encodeAssignment(p, grace, x.credential(p))
			order.Env, order.Volume, order.Overlays = x.environment(p), x.volume(p), at[p.ID]
			put = append(put, order)
		}
	}
	from, full := x.generation, x.fullNext
	var gone []string
	for id := range x.sent {
		if _, ok := now[id]; !ok {
			gone = append(gone, string(id))
		}
	}
	x.sent, x.generation, x.fullNext = now, generation, false
	if full {
		return &link.Down{Kind: &link.Down_Full{Full: &link.FullSet{Generation: generation, Assignments: put}}}
	}
	return &link.Down{Kind: &link.Down_Difference{Difference: &link.Difference{From: from, To: generation, Put: put, Gone: gone}}}
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

// environment opens what a pod that is to run has in its environment.
func (x *session) environment(p *fleet.Pod) map[string]string {
	open := x.server.Environment
	if open == nil || p.Goal != fleet.GoalRun {
		return p.Spec.Env
	}
	env, err := open(p)
	if err != nil {
		x.server.Log.Error("open the environment of a pod", "pod", p.ID, "err", err)
	}
	return env
}

// heartbeat keeps what the host says of its pods. Nearly all of them say what the one before said of the same pods,
// and most of none: nothing is allocated for those.
func (x *session) heartbeat(h *link.Heartbeat, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.live)
	if x.live == nil && len(h.GetPods()) > 0 {
		x.live = make(map[fleet.PodID]fleet.Live, len(h.GetPods()))
	}
	for _, p := range h.GetPods() {
		x.live[fleet.PodID(p.GetPodId())] = fleet.Live{
			At: now, CPUPercent: int(p.GetCpuPercent()), MemoryPercent: int(p.GetMemoryPercent()),
			Activity: p.GetActivity(), PullDone: p.GetPullDone(), PullTotal: p.GetPullTotal(), GPUs: decodeUse(p.GetGpus()),
			DiskPercent: int(p.GetDiskPercent()),
		}
	}
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
