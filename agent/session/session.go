package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gantry/internal/agentrpc"
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
	stoodLeast     = time.Second // for another session on the same connection
	lossyTries     = 3           // after a session went silent; not for ever, for the load that it makes
)

// Config is what Sessions are made from.
type Config struct {
	Where *Directory
	Dial  Dialer
	Store *pki.Store
	// Hello says who the host is, what it has and what its ledger holds. It is asked before each try.
	Hello func() *agentrpc.Hello
	// Inventory is what the host has now. After Changed has rung, the scheduler is told when it has become another than it was told.
	Inventory func() *agentrpc.Inventory
	Changed   Bell
	// Heartbeat is what is live of the pods; it asks nobody. After Hurry has rung, one is sent before its time.
	Heartbeat func() *agentrpc.Heartbeat
	Hurry     Bell
	// News rings when Next of a room has something to send.
	News    Bell
	Rooms   []Room
	Metrics Metrics // nil: nothing is counted
	Log     *slog.Logger
}

// Metrics counts sessions.
type Metrics interface {
	// Attempt counts a try to reach a scheduler.
	Attempt()
	// Session notes that a session stands; the function that it returns notes the end.
	Session() (ended func())
}

// Sessions keeps one session with the scheduler that leads, or with one that passes it on to that.
type Sessions struct {
	Config
	handlers map[reflect.Type]Handler
	closing  sync.WaitGroup // connections that are being closed

	lastHeard atomic.Int64 // Unix nanoseconds of the session's newest message
	busy      busy         // of Run's goroutine and of the one that receives

	// Of Run's goroutine and of the session that it holds.
	attempts uint64
	place    agentrpc.Place
	between  bool // the scheduler passes the session on to the leader
	lossy    int  // how often to connect as on a network that loses packets
	renewal  renewal
	untaken  [][]byte // CAs that are to be trusted and could not be taken yet

	renewNow Bell        // another CA signs by now
	ousted   atomic.Bool // none of the CAs that are trusted by now signed the certificate
}

// New makes Sessions. It fails when two rooms are registered for one kind of message.
func New(c Config) (*Sessions, error) {
	s := &Sessions{Config: c, renewal: renewal{fraction: rand.Float64()}, renewNow: NewBell()}
	handlers := []Handler{On(s.beat)}
	for _, r := range c.Rooms {
		handlers = append(handlers, r.Handlers...)
	}
	var err error
	s.handlers, err = registered(handlers)
	s.place = agentrpc.Place_PLACE_ANYWHERE
	return s, err
}

// Takes reports whether a room is registered for a kind of message, such as *agentrpc.Down_Full.
func (s *Sessions) Takes(kind any) bool {
	_, ok := s.handlers[reflect.TypeOf(kind)]
	return ok
}

// LastHeard is when a scheduler was heard last; the zero time: never.
func (s *Sessions) LastHeard() time.Time {
	if ns := s.lastHeard.Load(); ns > 0 {
		return time.Unix(0, ns)
	}
	return time.Time{}
}

// Moves tells whether the sessions get on, however long no scheduler answers.
func (s *Sessions) Moves() bool { return s.busy.lasts(time.Now()) < workAtMost }

// Run connects again and again until ctx ends. A scheduler that names another one is believed at once, but
// only once without a pause: two that each name the other must not be asked in a circle.
func (s *Sessions) Run(ctx context.Context) {
	defer s.closing.Wait()
	defer s.busy.waits()
	var pace pacing
	followed := false
	for ctx.Err() == nil {
		addr := s.Where.next()
		sent := followed
		s.busy.works()
		stood, err := s.once(ctx, addr)
		if ctx.Err() != nil {
			return
		}
		switch {
		case stood > 0:
			s.place = agentrpc.Place_PLACE_ANYWHERE
			if !s.between || !errors.Is(err, errSilence) {
				s.Where.try(addr) // it is there still, unless it says otherwise
			}
		case sent && leaderOf(err) == "":
			s.place = agentrpc.Place_PLACE_STAYING
		}
		switch {
		case errors.Is(err, errSilence), stood > 0 && unconfirming(err):
			s.lossy = lossyTries
		case stood > 0 || leaderOf(err) != "":
			s.lossy = 0
		case s.lossy > 0:
			s.lossy--
		}
		pace.stood(stood, s.Where.count())
		leader := leaderOf(err)
		if followed = leader != "" && (!followed || stood > stoodLeast); followed {
			s.Where.try(leader)
			s.Log.Info("sent to another scheduler", "asked", addr, "sent_to", leader)
			continue
		}
		if status.Code(err) == codes.NotFound {
			s.Log.Error("the control plane does not know this host: it joined after the copy that the control plane was restored from, or was removed; it has to join again", "addr", addr)
		}
		wait := pace.next(s.Where.count())
		s.Log.Warn("no session with a scheduler", "addr", addr, "stood", stood, "err", err, "again_in", wait)
		s.busy.waits()
		_ = sleep.For(ctx, wait)
	}
}

// unconfirming reports whether a connection broke because what was sent was not confirmed. gRPC keeps the words of such an error alone.
func unconfirming(err error) bool { return strings.Contains(err.Error(), unix.ETIMEDOUT.Error()) }

// once holds sessions on one connection until it breaks, and tells how long the last one stood. The next one begins when the scheduler
// at its other end has come to follow another leader, or to lead.
func (s *Sessions) once(ctx context.Context, addr string) (stood time.Duration, err error) {
	var conn *grpc.ClientConn
	if s.lossy > 0 {
		conn, err = connectLossy(ctx, addr, s.Store, s.Dial)
	} else {
		conn, err = connect(addr, s.Store, s.Dial)
	}
	if err != nil {
		return 0, err
	}
	defer s.closing.Go(func() { _ = conn.Close() }) // which may wait for a dead network
	place := s.place
	for {
		stood, err = s.session(ctx, addr, conn, place)
		if stood < stoodLeast || leaderOf(err) != addr {
			return stood, err
		}
		s.Log.Info("the leader changed", "addr", addr)
		place = agentrpc.Place_PLACE_CONNECTED
	}
}

// session holds one session until it breaks, and tells how long it stood.
func (s *Sessions) session(ctx context.Context, addr string, conn *grpc.ClientConn, place agentrpc.Place) (stood time.Duration, err error) {
	hello := s.Hello()
	s.attempts++
	hello.Attempt, hello.Place = s.attempts, place
	if s.Metrics != nil {
		s.Metrics.Attempt()
	}
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
	// Calls beside the session go to the leader, to which a connection is made when there is the first.
	leader := conn
	s.between = welcome.GetLeader() != ""
	if a := welcome.GetLeader(); isAddress(a) {
		if leader, err = connect(a, s.Store, s.Dial); err != nil {
			return 0, err
		}
		defer s.closing.Go(func() { _ = leader.Close() })
	}
	s.Log.Info("session with the scheduler", "addr", addr, "leader", welcome.GetLeader(), "epoch", welcome.GetEpoch(), "set_kept", welcome.GetKeepSet())
	if s.Metrics != nil {
		defer s.Metrics.Session()()
	}
	began := time.Now()
	err = s.serve(ctx, cancel, leader, stream, welcome, hello.GetInventory())
	return time.Since(began), err
}

// follow takes what the scheduler says of itself, unless a room refuses it.
func (s *Sessions) follow(w *agentrpc.Welcome) error {
	for _, r := range s.Rooms {
		if r.Welcome == nil {
			continue
		}
		if err := r.Welcome(w); err != nil {
			return err
		}
	}
	s.learn(w.GetSchedulers())
	s.trust(w.GetCas())
	return nil
}

func (s *Sessions) learn(members []string) {
	if err := s.Where.learn(members); err != nil {
		s.Log.Error("keep where the schedulers are", "err", err)
	}
}

// serve runs the session's two directions; conn is the connection to the leader. Only one goroutine sends. What a room does for a
// message is told of the session's end, which does not wait for it: some takes long, and the host cannot be reached meanwhile.
func (s *Sessions) serve(ctx context.Context, end context.CancelCauseFunc, conn *grpc.ClientConn, stream agentrpc.Link_SessionClient, welcome *agentrpc.Welcome, told *agentrpc.Inventory) error {
	group, ctx := errgroup.WithContext(ctx)
	// Whatever ends one direction ends the stream, on which the other one waits.
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	defer stop()
	up := make(chan *agentrpc.Up, upQueue)
	group.Go(func() error { return s.tellInventory(ctx, told, up) })
	defer s.begin(conn)()
	group.Go(func() error { return s.sendAll(ctx, stream, up) })
	group.Go(func() error { return s.renewInTime(ctx, conn) })
	beat := time.Duration(welcome.GetHeartbeatMs()) * time.Millisecond
	group.Go(func() error { return s.heartbeats(ctx, beat, up) })
	group.Go(func() error {
		var joined agentrpc.Parts
		quiet := newHeartbeatTimeout(time.Duration(welcome.GetSilenceMs())*time.Millisecond, end)
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
			if err := s.receive(ctx, msg, up); err != nil {
				return err
			}
			quiet.begin()
		}
	})
	return group.Wait()
}

// begin tells the rooms that a session begins; the function that it returns tells of its end.
func (s *Sessions) begin(conn *grpc.ClientConn) (ended func()) {
	var ends []func()
	for _, r := range s.Rooms {
		if r.Begin != nil {
			ends = append(ends, r.Begin(conn))
		}
	}
	return func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
}

// tellInventory tells the scheduler what the host has, whenever that is another than told.
func (s *Sessions) tellInventory(ctx context.Context, told *agentrpc.Inventory, up chan<- *agentrpc.Up) error {
	for {
		select {
		case <-s.Changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now := s.Inventory()
		if proto.Equal(now, told) {
			continue
		}
		if err := push(ctx, up, &agentrpc.Up{Kind: &agentrpc.Up_Inventory{Inventory: now}}); err != nil {
			return err
		}
		told = now
	}
}

func (s *Sessions) sendAll(ctx context.Context, stream agentrpc.Link_SessionClient, up <-chan *agentrpc.Up) error {
	for {
		for _, r := range s.Rooms {
			if r.Next == nil {
				continue
			}
			if msg := r.Next(); msg != nil {
				if err := send(stream, msg); err != nil {
					return err
				}
			}
		}
		select {
		case <-s.News:
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
func send(stream agentrpc.Link_SessionClient, msg *agentrpc.Up) error {
	if err := stream.Send(msg); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// heartbeats sends what is live of the pods, to which the scheduler answers. While it does not, there are
// some more: of two packets of which the first is lost the second tells, and nobody waits for a clock.
func (s *Sessions) heartbeats(ctx context.Context, every time.Duration, up chan<- *agentrpc.Up) error {
	if every <= 0 {
		return errors.New("the scheduler named no heartbeat interval")
	}
	tick, again := time.NewTicker(every), time.NewTicker(nudgeEvery)
	defer tick.Stop()
	defer again.Stop()
	for nudges := 0; ; {
		sent := time.Now()
		if err := push(ctx, up, &agentrpc.Up{Kind: &agentrpc.Up_Heartbeat{Heartbeat: s.Heartbeat()}}); err != nil {
			return err
		}
		again.Reset(nudgeEvery)
		for due := false; !due; {
			select {
			case <-tick.C:
				due, nudges = true, 0
			case <-s.Hurry:
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

func push(ctx context.Context, up chan<- *agentrpc.Up, msg *agentrpc.Up) error {
	select {
	case up <- msg:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receive hands a message to the room that is registered for its kind, and sends the answer. A kind that nobody takes is one of a
// later release.
func (s *Sessions) receive(ctx context.Context, msg *agentrpc.Down, up chan<- *agentrpc.Up) error {
	h, ok := s.handlers[reflect.TypeOf(msg.GetKind())]
	if !ok {
		return nil
	}
	answer, err := h.take(ctx, msg.GetKind())
	if err != nil || answer == nil {
		return err
	}
	return push(ctx, up, answer)
}

// beat takes what a heartbeat of the scheduler says.
func (s *Sessions) beat(_ context.Context, m *agentrpc.Down_Beat) (*agentrpc.Up, error) {
	s.learn(m.Beat.GetSchedulers())
	s.trust(m.Beat.GetCas())
	return nil, nil
}
