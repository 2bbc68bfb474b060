package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gantry/agent/ledger"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/agent/s3"
	"gantry/agent/storage"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
	"gantry/internal/sleep"
)

const (
	reconnectLeast = 50 * time.Millisecond
	reconnectMost  = 5 * time.Second // between two tries of one scheduler
	maxMessage     = 8 << 20         // bytes; what is larger comes in parts
	upQueue        = 64
	nudgeEvery     = 200 * time.Millisecond
	nudgesMost     = 3
	lossyTries     = 3 // after a session went silent; not for ever, for the load that it makes
)

// sessions keeps one session with the scheduler that leads.
type sessions struct {
	where   *directory
	dial    Dialer
	store   *pki.Store
	ledger  *ledger.Ledger
	pods    *pod.Pods
	reports *reports
	live    *sampler
	tunnels *tunnels
	hello   func() *link.Hello
	// inventory is what the host has now. After changed has received, the scheduler is told when it has become
	// another than it was told.
	inventory func() fleet.Inventory
	changed   chan struct{}
	prefetch  func(image string)
	storage   *storage.Role
	// storageNews receives when storage has something to tell.
	storageNews chan struct{}
	overlays    *overlay.Keeper
	s3          *s3.Door // nil: nothing answers gantry-s3
	allocate    ledger.Allocate
	followed    func(lineage uint64) error // writes it down beside the ledger, which may be lost
	heard       *atomic.Bool
	metrics     *metrics // nil: nothing is counted
	log         *slog.Logger
	closing     sync.WaitGroup // connections that are being closed

	lastHeard atomic.Int64 // Unix nanoseconds of the session's newest message
	busy      busy         // of run's goroutine and of the one that receives

	// Of run's goroutine and of the session that it holds.
	attempts uint64
	lossy    int  // how often to connect as on a network that loses packets
	holds    bool // the machines have the whole set of the ledger's generation and lineage
	renewal  renewal
	untaken  [][]byte // CAs that are to be trusted and could not be taken yet

	renewNow chan struct{} // capacity 1: another CA signs by now
	ousted   atomic.Bool   // none of the CAs that are trusted by now signed the certificate
}

// run connects again and again until ctx ends. A scheduler that says who leads is believed at once, but
// only once without a pause: two that each name the other must not be asked in a circle.
func (s *sessions) run(ctx context.Context) {
	defer s.closing.Wait()
	defer s.busy.waits()
	var pace pacing
	followed := false
	for ctx.Err() == nil {
		addr := s.where.next()
		s.busy.works()
		stood, err := s.once(ctx, addr)
		if ctx.Err() != nil {
			return
		}
		if stood > 0 {
			s.where.try(addr) // it leads still, unless it says otherwise
		}
		switch {
		case errors.Is(err, errSilence), errors.Is(err, unix.ETIMEDOUT):
			s.lossy = lossyTries
		case stood > 0 || leaderOf(err) != "":
			s.lossy = 0
		case s.lossy > 0:
			s.lossy--
		}
		pace.stood(stood, s.where.count())
		leader := leaderOf(err)
		if followed = leader != "" && !followed; followed {
			s.where.try(leader)
			s.log.Info("leader changed", "asked", addr, "leader", leader)
			continue
		}
		if status.Code(err) == codes.NotFound {
			s.log.Error("the control plane does not know this host: it joined after the copy that the control plane was restored from, or was removed; it has to join again", "addr", addr)
		}
		wait := pace.next(s.where.count())
		s.log.Warn("no session with a scheduler", "addr", addr, "stood", stood, "err", err, "again_in", wait)
		s.busy.waits()
		_ = sleep.For(ctx, wait)
	}
}

// once holds one session until it breaks, and tells how long it stood.
func (s *sessions) once(ctx context.Context, addr string) (stood time.Duration, err error) {
	hello := s.hello()
	s.attempts++
	s.metrics.attempt()
	hello.Attempt, hello.HoldsSet = s.attempts, s.holds
	var conn *grpc.ClientConn
	if s.lossy > 0 {
		conn, err = connectLossy(ctx, addr, s.store, s.dial)
	} else {
		conn, err = connect(addr, s.store, s.dial)
	}
	if err != nil {
		return 0, err
	}
	defer s.closing.Go(func() { _ = conn.Close() }) // which may wait for a dead network
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := helloTimeout
	if s.lossy > 0 {
		limit = lossyTimeout
	}
	stream, welcome, err := greet(ctx, cancel, conn, hello, limit)
	if err != nil {
		return 0, err
	}
	if err := s.follow(welcome); err != nil {
		return 0, err
	}
	s.log.Info("session with the scheduler", "addr", addr, "epoch", welcome.GetEpoch(), "set_kept", welcome.GetKeepSet())
	defer s.metrics.session()()
	began := time.Now()
	err = s.serve(ctx, cancel, conn, stream, welcome, hello.GetInventory())
	return time.Since(began), err
}

// follow takes what the scheduler says of itself. A control plane of a lower lineage than one that was
// followed before is an old copy: what it wants is long past.
func (s *sessions) follow(w *link.Welcome) error {
	have := s.ledger.Lineage()
	if w.GetLineage() < have {
		s.log.Error("a scheduler was refused: it is of a control plane that was restored since; this host follows the restored one only",
			"lineage", w.GetLineage(), "followed", have)
		return fmt.Errorf("the scheduler's lineage %d is below %d, which this host followed", w.GetLineage(), have)
	}
	if w.GetLineage() > have {
		s.log.Warn("the control plane was restored from a copy", "lineage", w.GetLineage(), "followed", have)
		s.holds = false
		if err := s.followed(w.GetLineage()); err != nil {
			return err
		}
		if err := s.ledger.SetLineage(w.GetLineage()); err != nil {
			return err
		}
	}
	if w.GetKeepSet() && !s.holds {
		return errors.New("the scheduler sends no full set, and this agent has none")
	}
	s.holds = w.GetKeepSet()
	s.learn(w.GetSchedulers())
	s.trust(w.GetCas())
	return nil
}

func (s *sessions) learn(members []string) {
	if err := s.where.learn(members); err != nil {
		s.log.Error("keep where the schedulers are", "err", err)
	}
}

// serve runs the session's two directions. Only one goroutine sends. The session's tunnels are told
// of its end, which does not wait for them: some take long, and the host cannot be reached meanwhile.
func (s *sessions) serve(ctx context.Context, end context.CancelCauseFunc, conn *grpc.ClientConn, stream link.Link_SessionClient, welcome *link.Welcome, told *link.Inventory) error {
	group, ctx := errgroup.WithContext(ctx)
	// Whatever ends one direction ends the stream, on which the other one waits.
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	defer stop()
	up := make(chan *link.Up, upQueue)
	group.Go(func() error { return s.tellInventory(ctx, told, up) })
	s.reports.newSession(func(id fleet.PodID) bool { _, ok := s.ledger.Record(id); return ok })
	s.overlays.NewSession()
	defer s.storage.Begin()() //nolint:contextcheck // what is worked on outlives the session
	if s.s3 != nil {
		defer s.s3.During(conn)()
	}
	group.Go(func() error { return s.sendAll(ctx, stream, up) })
	group.Go(func() error { return s.renewInTime(ctx, conn) })
	beat := time.Duration(welcome.GetHeartbeatMs()) * time.Millisecond
	group.Go(func() error { return s.heartbeats(ctx, beat, up) })
	group.Go(func() error {
		var joined link.Parts
		quiet := newSilence(time.Duration(welcome.GetSilenceMs())*time.Millisecond, end)
		defer quiet.stop()
		for {
			s.busy.waits()
			msg, err := stream.Recv()
			s.busy.works()
			quiet.stop()
			s.lastHeard.Store(time.Now().UnixNano())
			if err != nil {
				return named(fmt.Errorf("receive: %w", cause(ctx, err)), stream)
			}
			if msg, err = joined.Add(msg); err != nil {
				return err
			}
			if t := msg.GetOpenTunnel(); t != nil {
				s.tunnels.start(ctx, conn, t)
			} else if err := s.receive(ctx, msg, up); err != nil {
				return err
			}
			quiet.begin()
		}
	})
	return group.Wait()
}

// tellInventory tells the scheduler what the host has, whenever that is another than told.
func (s *sessions) tellInventory(ctx context.Context, told *link.Inventory, up chan<- *link.Up) error {
	for {
		select {
		case <-s.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now := encodeInventory(s.inventory())
		if proto.Equal(now, told) {
			continue
		}
		if err := push(ctx, up, &link.Up{Kind: &link.Up_Inventory{Inventory: now}}); err != nil {
			return err
		}
		told = now
	}
}

// silence ends a session in which nothing is heard for too long. It looks a second time a moment after the limit: on a
// busy machine the clock may come before the reader that has to take what has come.
type silence struct {
	limit time.Duration // 0: the scheduler need not say anything
	end   context.CancelCauseFunc

	mu     sync.Mutex // guards the fields below
	timer  *time.Timer
	rounds uint64 // of the clock
}

func newSilence(limit time.Duration, end context.CancelCauseFunc) *silence {
	s := &silence{limit: limit, end: end}
	s.begin()
	return s
}

// over is called at the end of a round of the clock, and again a moment later.
func (s *silence) over(round uint64, second bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.rounds != round:
	case second:
		s.end(errSilence)
	default:
		s.timer = time.AfterFunc(s.limit/8, func() { s.over(round, true) })
	}
}

// stop stops the clock: what was heard is worked on.
func (s *silence) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rounds++; s.timer != nil {
		s.timer.Stop()
	}
}

// begin starts the clock: the reader is free.
func (s *silence) begin() {
	if s.limit <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rounds++
	round := s.rounds
	s.timer = time.AfterFunc(s.limit, func() { s.over(round, false) })
}

func (s *sessions) sendAll(ctx context.Context, stream link.Link_SessionClient, up <-chan *link.Up) error {
	for {
		if r := s.reports.unsent(time.Now()); r != nil {
			r.SentNs = time.Now().UnixNano()
			if err := send(stream, &link.Up{Kind: &link.Up_Reports{Reports: r}}); err != nil {
				return err
			}
		}
		if msg := s.storage.Next(); msg != nil {
			if err := send(stream, msg); err != nil {
				return err
			}
		}
		select {
		case <-s.storageNews:
		case <-s.reports.wake:
		case msg := <-up:
			if err := send(stream, msg); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// send sends a message. Why a stream has ended is what its receiver is told, and ends the session.
func send(stream link.Link_SessionClient, msg *link.Up) error {
	if err := stream.Send(msg); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// heartbeats sends what is live of the pods, to which the scheduler answers. While it does not, there are
// some more: of two packets of which the first is lost the second tells, and nobody waits for a clock.
func (s *sessions) heartbeats(ctx context.Context, every time.Duration, up chan<- *link.Up) error {
	if every <= 0 {
		return errors.New("the scheduler named no heartbeat interval")
	}
	tick, again := time.NewTicker(every), time.NewTicker(nudgeEvery)
	defer tick.Stop()
	defer again.Stop()
	for nudges := 0; ; {
		sent := time.Now()
		if err := push(ctx, up, &link.Up{Kind: &link.Up_Heartbeat{Heartbeat: s.live.heartbeat()}}); err != nil {
			return err
		}
		again.Reset(nudgeEvery)
		for due := false; !due; {
			select {
			case <-tick.C:
				due, nudges = true, 0
			case <-s.live.hurry:
				due = true
			case <-again.C:
				if due = s.lastHeard.Load() < sent.UnixNano() && nudges < nudgesMost; due {
					nudges++
				}
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

func push(ctx context.Context, up chan<- *link.Up, msg *link.Up) error {
	select {
	case up <- msg:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receive writes what is wanted into the ledger, then hands it to the machines, then acknowledges.
func (s *sessions) receive(ctx context.Context, msg *link.Down, up chan<- *link.Up) error {
	switch {
	case msg.GetFull() != nil:
		full := msg.GetFull()
		changed, err := s.ledger.SetFull(full.GetGeneration(), s.decodeAll(full.GetAssignments()), s.allocate)
		if err != nil {
			return fmt.Errorf("take the full set: %w", err)
		}
		s.order(changed)
		s.holds = true
		return push(ctx, up, applied(full.GetGeneration()))
	case msg.GetDifference() != nil:
		d := msg.GetDifference()
		gone := make([]fleet.PodID, len(d.GetGone()))
		for i, id := range d.GetGone() {
			gone[i] = fleet.PodID(id)
		}
		changed, err := s.ledger.Apply(d.GetFrom(), d.GetTo(), s.decodeAll(d.GetPut()), gone, s.allocate)
		if errors.Is(err, ledger.ErrGap) {
			return push(ctx, up, &link.Up{Kind: &link.Up_Resync{Resync: &link.Resync{}}})
		}
		if err != nil {
			return fmt.Errorf("take a difference: %w", err)
		}
		s.order(changed)
		return push(ctx, up, applied(d.GetTo()))
	case msg.GetReportsKept() != nil:
		s.reports.kept(msg.GetReportsKept().GetSequence())
	case msg.GetPrefetch() != nil:
		s.prefetch(msg.GetPrefetch().GetImage())
	case msg.GetStorage() != nil:
		s.storage.Set(msg.GetStorage()) //nolint:contextcheck // as said
	case msg.GetNetwork() != nil, msg.GetPeers() != nil, msg.GetOverlay() != nil:
		if s.overlays.Hear(msg) {
			return push(ctx, up, &link.Up{Kind: &link.Up_Resync{Resync: &link.Resync{}}})
		}
	case msg.GetBeat() != nil:
		s.learn(msg.GetBeat().GetSchedulers())
		s.trust(msg.GetBeat().GetCas())
	}
	return nil
}

func applied(generation uint64) *link.Up {
	return &link.Up{Kind: &link.Up_Applied{Applied: &link.Applied{Generation: generation}}}
}

// order hands changed assignments to the machines. The first one in an agent's life lets them start
// new containers: until then another host may have been given the work. They have all their orders
// before they are let: those of the ledger lack what is never on disk.
func (s *sessions) order(changed []pod.Assignment) {
	for _, a := range changed {
		s.pods.Set(a)
	}
	if s.heard.CompareAndSwap(false, true) {
		s.pods.Poke()
	}
}

// nextAddr returns an allocator for a subnet.
func nextAddr(subnet netip.Prefix, next func(netip.Prefix, map[netip.Addr]bool) (netip.Addr, error)) ledger.Allocate {
	return func(used map[netip.Addr]bool) (netip.Addr, error) { return next(subnet, used) }
}
