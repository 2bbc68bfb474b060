package dispatch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/feed"
	"gantry/scheduler/state"
)

const downQueue = 64

// session is the scheduler's side of one host's session.
type session struct {
	server   *Server
	host     fleet.HostID
	run      string // of the agent, and which of its sessions this is
	attempt  uint64
	place    agentrpc.Place
	through  *through // the scheduler that passes the session on; nil: none
	since    time.Time
	cancel   context.CancelCauseFunc
	done     chan struct{} // closed when the session has let go of its place
	tasks    sync.WaitGroup
	wake     chan struct{}
	down     chan *agentrpc.Down
	welcomed atomic.Bool
	lastSeen atomic.Int64 // Unix nanoseconds
	lastSent atomic.Int64 // the same
	left     atomic.Bool  // the scheduler between has told its end
	moves    atomic.Bool  // the host was told to go to another scheduler
	working  atomic.Bool  // a message of the host is being worked on
	rival    atomic.Int64 // Unix nanoseconds of when another agent was refused for this session; 0: none
	changed  atomic.Bool  // assignments may have
	beatDue  atomic.Bool
	stock    stock
	lines    []feed.Line // of the server's feeds, once the session is welcomed

	// Of the handler alone, until the session is welcomed.
	epoch      uint64
	connecting bool // the state may count the host as ready

	// Of the handler, then of the sending goroutine alone.
	sent       map[fleet.PodID]uint64 // generation that the host was sent
	generation uint64
	fullNext   bool
	told       *[]string // the members, as the host knows them
	toldTrust  *trust
	gateways   *[]fleet.Gateway // likewise
	center     fleet.DataCenterID
	accounts   []fleet.AccountID // see feed.Host
	due        []*agentrpc.Down  // what was found to be told and is not sent yet, in order
	orders     *orders           // to be told after that, in parts

	mu   sync.Mutex // guards live
	live map[fleet.PodID]fleet.Live

	sender sender // of a session that another scheduler passes on
}

// sender starts the goroutine that sends when there is something to send: a session of a host that has nothing to say, and is told
// nothing, has none.
type sender struct {
	mu    sync.Mutex // guards the fields below
	start func()     // nil: the session has not begun, is over, or always has one
	runs  bool
}

func (s *sender) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start != nil && !s.runs {
		s.runs = true
		s.start()
	}
}

// rests reports whether there is nothing to send, and that the goroutine ends then.
func (s *sender) rests(idle func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start == nil || !idle() {
		return false
	}
	s.runs = false
	return true
}

func (s *sender) begin(start func()) {
	s.mu.Lock()
	s.start = start
	s.mu.Unlock()
	s.wake()
}

func (s *sender) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = nil
}

func newSession(s *Server, host fleet.HostID, h *agentrpc.Hello, cancel context.CancelCauseFunc) *session {
	x := &session{
		server: s, host: host, run: h.GetRun(), attempt: h.GetAttempt(), place: h.GetPlace(), since: time.Now(), cancel: cancel, done: make(chan struct{}),
		wake: make(chan struct{}, 1), down: make(chan *agentrpc.Down, downQueue), fullNext: true,
	}
	now := time.Now().UnixNano()
	x.lastSeen.Store(now)
	x.lastSent.Store(now)
	return x
}

// poke has the sending goroutine look for what there is to do.
func (x *session) poke() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
	x.sender.wake()
}

// Host implements feed.Session.
func (x *session) Host() fleet.HostID { return x.host }

// Epoch implements feed.Session.
func (x *session) Epoch() uint64 { return x.epoch }

// Wake implements feed.Session: assignments of the host may have changed, or what a feed tells it.
func (x *session) Wake() {
	x.changed.Store(true)
	x.poke()
}

// Go implements feed.Session.
func (x *session) Go(task func() error) {
	x.tasks.Go(func() {
		if err := task(); err != nil {
			x.cancel(err)
		}
	})
}

// Propose implements feed.Session.
func (x *session) Propose(ctx context.Context, cmd state.Command) (any, error) {
	return x.server.inTurn(ctx, cmd)
}

// silent reports whether the host has said nothing for longer than d. While something that it said is
// being worked on, its hello too, it is not the silent one.
func (x *session) silent(now time.Time, d time.Duration) bool {
	if x.through != nil { // which knows whether the host is silent
		return x.through.silent(now, d)
	}
	return x.welcomed.Load() && !x.working.Load() && now.Sub(time.Unix(0, x.lastSeen.Load())) > d
}

// begin greets the host and has both directions served until one fails, which ends ctx.
func (x *session) begin(ctx context.Context, stream agentrpc.Link_SessionServer, hello *agentrpc.Hello) error {
	host, err := x.connect(ctx, stream, hello)
	if err != nil {
		return err
	}
	x.epoch = host.Epoch
	welcome, err := x.greeting(hello, host)
	if err != nil {
		return err
	}
	x.server.Log.Info("session began", "host", x.host, "name", host.Name, "epoch", x.epoch, "set_kept", welcome.GetKeepSet())
	if err := x.send(stream, &agentrpc.Down{Kind: &agentrpc.Down_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	x.lastSeen.Store(time.Now().UnixNano()) // the connecting took its time, and it was not the host's
	for _, f := range x.server.Feeds {
		x.lines = append(x.lines, f.Begin(x))
	}
	x.server.welcome(x)
	send := func() {
		x.tasks.Go(func() {
			if err := x.sendAll(ctx, stream); err != nil {
				x.cancel(err)
			}
		})
	}
	if x.through != nil {
		x.sender.begin(send)
	} else {
		send()
	}
	x.tasks.Go(func() { x.cancel(x.receiveAll(ctx, stream)) })
	return nil
}

// receiveAll handles what the host says, in order.
func (x *session) receiveAll(ctx context.Context, stream agentrpc.Link_SessionServer) error {
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		if left := msg.GetLeft(); left != nil && x.through != nil {
			quiet := time.Duration(max(0, left.GetQuietMs())) * time.Millisecond
			x.lastSeen.Store(time.Now().Add(-min(quiet, x.server.HeartbeatTimeout)).UnixNano())
			x.left.Store(true)
			return errLeft
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

func (x *session) receive(ctx context.Context, msg *agentrpc.Up) error {
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
	case msg.GetApplied() != nil:
		x.server.Log.Debug("host applied", "host", x.host, "generation", msg.GetApplied().GetGeneration())
	default:
		for _, line := range x.lines {
			if err := line.Heard(ctx, msg); err != nil {
				return err
			}
		}
	}
	return nil
}

// record commits a message of reports and only then acknowledges it. What the state has already is not committed again: a host
// tells all of its pods in each session.
func (x *session) record(ctx context.Context, r *agentrpc.Reports) error {
	now := time.Now()
	cmd := state.ReportPods{Host: x.host, Epoch: x.epoch, At: now, Reports: decodeReports(r.GetPods(), clockError(r.GetSentNs(), now))}
	err := x.server.Store.View(func(v *state.View) error {
		cmd.Reports = slices.DeleteFunc(cmd.Reports, func(p state.PodReport) bool { return v.Recorded(x.host, &p) })
		return nil
	})
	if err == nil && len(cmd.Reports) > 0 {
		_, err = x.server.inTurn(ctx, cmd)
	}
	if err != nil {
		return err
	}
	return x.enqueue(ctx, &agentrpc.Down{Kind: &agentrpc.Down_ReportsKept{ReportsKept: &agentrpc.ReportsKept{Sequence: r.GetSequence()}}})
}

// enqueue hands a message to the sender; nil asks for the full set.
func (x *session) enqueue(ctx context.Context, msg *agentrpc.Down) error {
	select {
	case x.down <- msg:
		x.sender.wake()
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answer has a beat sent for a heartbeat, so that a host notices when either direction is stuck, unless it
// was sent something a moment ago.
func (x *session) answer(now time.Time) {
	if x.through == nil && now.Sub(time.Unix(0, x.lastSent.Load())) >= x.server.Heartbeat/8 {
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
func (x *session) send(stream agentrpc.Link_SessionServer, msg *agentrpc.Down) error {
	err := stream.Send(msg)
	x.lastSent.Store(time.Now().UnixNano())
	return err
}

// sendAll is the only goroutine that sends. It returns nil when it is to be started again once there is something to send.
func (x *session) sendAll(ctx context.Context, stream agentrpc.Link_SessionServer) error {
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
		if x.sender.rests(func() bool { return len(x.wake)+len(x.down) == 0 }) {
			return nil
		}
		select {
		case <-x.wake:
		case msg := <-x.down:
			if msg == nil {
				x.fullNext, x.due, x.orders = true, nil, nil
				for _, line := range x.lines {
					line.Forget()
				}
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
var plainBeat = &agentrpc.Down{Kind: &agentrpc.Down_Beat{Beat: &agentrpc.Beat{}}}

// next returns what the session itself has to say; nil when that is nothing.
func (x *session) next() (*agentrpc.Down, error) {
	if len(x.due) == 0 && x.orders == nil && (x.changed.Swap(false) || x.fullNext) {
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
	if x.orders != nil {
		x.poke()
		return x.part(), nil
	}
	if gateways := x.server.gateways.Load(); gateways != x.gateways {
		x.gateways = gateways
		return &agentrpc.Down{Kind: &agentrpc.Down_Gateways{Gateways: gatewaysOf(*gateways, x.center)}}, nil
	}
	if !x.beatDue.Swap(false) {
		return nil, nil
	}
	members, cas := x.server.members.Load(), x.server.trust.Load()
	if members == x.told && cas == x.toldTrust {
		return plainBeat, nil
	}
	beat := &agentrpc.Beat{}
	if members != x.told {
		x.told, beat.Schedulers = members, *members
	}
	if cas != x.toldTrust {
		x.toldTrust, beat.Cas = cas, cas.cas
	}
	return &agentrpc.Down{Kind: &agentrpc.Down_Beat{Beat: beat}}, nil
}

// heartbeat keeps what the host says of its pods. Nearly all of them say what the one before said of the same pods,
// and most of none: nothing is allocated for those.
func (x *session) heartbeat(h *agentrpc.Heartbeat, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.live)
	pods := h.GetPods()[:min(len(h.GetPods()), maxLedgerPods)]
	if x.live == nil && len(pods) > 0 {
		x.live = make(map[fleet.PodID]fleet.Live, len(pods))
	}
	for _, p := range pods {
		x.live[fleet.PodID(p.GetPodId())] = fleet.Live{
			At: now, CPUPercent: int(p.GetCpuPercent()), MemoryPercent: int(p.GetMemoryPercent()),
			Activity: agentrpc.Sentence(p.GetActivity()), PullDone: p.GetPullDone(), PullTotal: p.GetPullTotal(), GPUs: decodeUse(p.GetGpus()),
			DiskPercent: int(p.GetDiskPercent()),
		}
	}
}

func decodeUse(in []*agentrpc.GPUUse) []fleet.GPUUse {
	var out []fleet.GPUUse
	for _, g := range in[:min(len(in), maxGPUs)] {
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
