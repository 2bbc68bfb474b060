package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/internal/agentrpc"
	"gantry/scheduler/feed"
	"gantry/scheduler/state"
)

// lineTo is a session's stream: what the host says comes out of up, what it is told goes into down.
type lineTo struct {
	agentrpc.Link_SessionServer
	up    chan *agentrpc.Up // closed: it is lost
	down  []*agentrpc.Down
	fails bool
}

var errLine = errors.New("the line is cut")

func (l *lineTo) Recv() (*agentrpc.Up, error) {
	if msg, ok := <-l.up; ok {
		return msg, nil
	}
	return nil, errLine
}

func (l *lineTo) Send(msg *agentrpc.Down) error {
	if l.fails {
		return errLine
	}
	if msg.GetKind() == nil {
		panic("a message of nothing is sent")
	}
	l.down = append(l.down, msg)
	return nil
}

func (l *lineTo) Context() context.Context { return context.Background() }

func hello(h *agentrpc.Hello) *agentrpc.Up { return &agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: h}} }

// TestWhatAHelloIs: the first message, within its time and bounds.
func TestWhatAHelloIs(t *testing.T) {
	most := &agentrpc.Hello{Run: strings.Repeat("r", maxRun), MachineId: strings.Repeat("m", maxWord), BootId: strings.Repeat("b", maxWord), Hardware: strings.Repeat("h", maxWord)}
	for name, c := range map[string]struct {
		says *agentrpc.Up
		lost bool
		stop bool
		want error
	}{
		"the longest":     {says: hello(most)},
		"another message": {says: &agentrpc.Up{Kind: &agentrpc.Up_Heartbeat{}}, want: status.Error(codes.InvalidArgument, "")},
		"a long run":      {says: hello(&agentrpc.Hello{Run: strings.Repeat("r", maxRun+1)}), want: status.Error(codes.InvalidArgument, "")},
		"a lost line":     {lost: true, want: errLine},
		"nothing":         {want: status.Error(codes.DeadlineExceeded, "")},
		"the end":         {stop: true, want: errAgain},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			line := &lineTo{up: make(chan *agentrpc.Up, 1)}
			if c.says != nil {
				line.up <- c.says
			}
			if c.lost {
				close(line.up)
			} else {
				defer close(line.up)
			}
			if c.stop {
				cancel(errAgain)
			}
			began := time.Now()
			got, err := recvHello(ctx, line)
			if c.want == nil && (err != nil || got != c.says.GetHello()) {
				t.Errorf("%s: %v", name, err)
			}
			if c.want != nil && (got != nil || !errors.Is(err, c.want) && status.Code(err) != status.Code(c.want) || err == nil) {
				t.Errorf("%s: %v", name, err)
			}
			if waited := time.Since(began); name == "nothing" && waited != helloTimeout || name != "nothing" && waited != 0 {
				t.Errorf("%s: after %v", name, waited)
			}
		})
	}
}

// TestWhoTakesAHostsPlace: one agent's later session, and one that comes after a silence. Nobody else does.
func TestWhoTakesAHostsPlace(t *testing.T) {
	for name, c := range map[string]struct {
		oldRun, run string
		attempt     uint64 // the old one's is 5
		silent      bool
		want        codes.Code
		ends        error // the old one's end
		rival       bool
	}{
		"a later one of the agent":   {oldRun: "r", run: "r", attempt: 6, ends: errAgain},
		"an earlier one":             {oldRun: "r", run: "r", attempt: 4, want: codes.Aborted},
		"the same again":             {oldRun: "r", run: "r", attempt: 5, want: codes.Aborted},
		"another agent":              {oldRun: "r", run: "s", attempt: 6, want: codes.AlreadyExists, rival: true},
		"one without a name":         {attempt: 6, want: codes.AlreadyExists, rival: true},
		"another, after a silence":   {oldRun: "r", run: "s", silent: true, ends: errSilent},
		"an earlier, after silence":  {oldRun: "r", run: "r", attempt: 4, silent: true, want: codes.Aborted},
		"without names, and silence": {silent: true, ends: errSilent},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Config{Log: slog.New(slog.DiscardHandler)})
			s.lead = t.Context()
			var old *session
			var ended error
			old = newSession(s, "h", &agentrpc.Hello{Run: c.oldRun, Attempt: 5}, func(err error) {
				ended = err
				go s.leave(old)
			})
			check(t, s.enter(t.Context(), old))
			old.welcomed.Store(true)
			first := time.Now()
			if c.silent {
				time.Sleep(s.HeartbeatTimeout + 1)
			}
			x := newSession(s, "h", &agentrpc.Hello{Run: c.run, Attempt: c.attempt}, nil)
			err := s.enter(t.Context(), x)
			if status.Code(err) != c.want || !errors.Is(ended, c.ends) || (s.sessions["h"] == x) != (c.want == codes.OK) {
				t.Errorf("%s: %v, the old one ended by %v", name, err, ended)
			}
			if rival := old.rival.Load() != 0; rival != c.rival {
				t.Errorf("%s: a rival: %v", name, rival)
			}
			if !c.rival {
				return
			}
			time.Sleep(time.Second)
			if _ = s.enter(t.Context(), x); old.rival.Load() != first.UnixNano() {
				t.Errorf("%s: the rival came %v later", name, time.Unix(0, old.rival.Load()).Sub(first))
			}
		})
	}
	s := New(Config{})
	if err := s.enter(t.Context(), &session{host: "h"}); !errors.Is(err, errNotYet) || len(s.sessions) != 0 {
		t.Errorf("of one that does not lead: %v", err)
	}
}

// A host that leaves has as long as it may be silent, and its patience; one that never was connected is not waited for.
func TestHowLongAHostThatLeftIsWaitedFor(t *testing.T) {
	for _, connecting := range []bool{true, false} {
		s := New(Config{HeartbeatTimeout: time.Minute, HostTimeout: 5 * time.Second})
		s.lead = t.Context()
		x := newSession(s, "h", &agentrpc.Hello{}, nil)
		check(t, s.enter(t.Context(), x))
		s.absent["h"] = time.Now()
		if s.welcome(x); len(s.absent) != 0 {
			t.Errorf("one that is here is looked for: %v", s.absent)
		}
		x.connecting = connecting
		x.lastSeen.Store(time.Unix(1000, 0).UnixNano())
		s.leave(x)
		until, waits := s.absent["h"]
		if waits != connecting || waits && !until.Equal(time.Unix(1065, 0)) || s.sessions["h"] != nil {
			t.Errorf("connecting %v: until %v", connecting, until)
		}
		<-x.done
	}
}

// A host that is on its way, to another scheduler or to a new leader, and whose session does not come about, has as long as before.
func TestASessionThatFailsLeavesAHostOnItsWay(t *testing.T) {
	left, moves, settled := time.Unix(1065, 0), time.Unix(1090, 0), time.Unix(1070, 0)
	for _, c := range []struct {
		before, want time.Time
		welcomed     bool
	}{{moves, moves, false}, {time.Unix(1010, 0), left, false}, {time.Time{}, settled, false}, {moves, left, true}} {
		s := New(Config{HeartbeatTimeout: time.Minute, HostTimeout: 5 * time.Second})
		s.lead, s.settled.by, s.absent["h"] = t.Context(), settled, c.before
		x := newSession(s, "h", &agentrpc.Hello{}, nil)
		check(t, s.enter(t.Context(), x))
		x.connecting = true
		x.welcomed.Store(c.welcomed)
		x.lastSeen.Store(time.Unix(1000, 0).UnixNano())
		s.leave(x)
		if until := s.absent["h"]; !until.Equal(c.want) {
			t.Errorf("%+v: until %v", c, until)
		}
	}
}

// A beat tells of the members and the CAs when they changed, once, and nothing else otherwise.
func TestABeatTellsWhatChanged(t *testing.T) {
	b, s, _ := newBetween(t)
	x := newSession(s, "host", &agentrpc.Hello{}, nil)
	x.told, x.toldTrust, x.fullNext = s.members.Load(), s.trust.Load(), false
	x.changed.Store(false)
	next := func(what string, due bool, want *agentrpc.Beat) {
		t.Helper()
		x.beatDue.Store(due)
		msg, err := x.next()
		check(t, err)
		if got := msg.GetBeat(); (got == nil) != (want == nil) ||
			!cmp.Equal(got.GetSchedulers(), want.GetSchedulers()) || !cmp.Equal(got.GetCas(), want.GetCas()) {
			t.Errorf("%s: %v", what, msg)
		}
	}
	next("no beat is due", false, nil)
	next("nothing changed", true, &agentrpc.Beat{})
	s.members.Store(&[]string{"a:1"})
	next("the members changed, and no beat is due", false, nil)
	next("the members changed", true, &agentrpc.Beat{Schedulers: []string{"a:1"}})
	s.trust.Store(&trust{cas: [][]byte{{1}}})
	next("the CAs changed", true, &agentrpc.Beat{Cas: [][]byte{{1}}})
	next("it was told", true, &agentrpc.Beat{})
	s.members.Store(&[]string{"b:1"})
	s.trust.Store(&trust{cas: [][]byte{{2}}})
	next("both changed", true, &agentrpc.Beat{Schedulers: []string{"b:1"}, Cas: [][]byte{{2}}})
	set := &agentrpc.Down{Kind: &agentrpc.Down_Storage{Storage: &agentrpc.StorageSet{}}}
	x.lines = []feed.Line{&oneMessage{msg: set}}
	x.Wake()
	if msg, err := x.next(); err != nil || msg != set || len(x.wake) != 1 {
		t.Errorf("of a feed it is told %v, %v", msg, err)
	}
	first, second := &agentrpc.Down{}, &agentrpc.Down{}
	x.lines, x.due = []feed.Line{&oneMessage{msg: set}}, []*agentrpc.Down{first, second}
	x.Wake()
	for i, want := range []*agentrpc.Down{first, second, set, nil} {
		if msg, err := x.next(); err != nil || msg != want {
			t.Errorf("message %d is %v, %v; before something new is looked for, what is due is told", i, msg, err)
		}
	}
	x.fullNext = true
	check(t, x.look())
	x.lines, x.due = []feed.Line{&oneMessage{msg: set}}, nil
	x.Wake()
	if msg, err := x.next(); err != nil || msg.GetFull() == nil {
		t.Errorf("in the middle of orders it is told %v, %v", msg, err)
	}
	if msg, err := x.next(); err != nil || msg != set {
		t.Errorf("after them it is told %v, %v", msg, err)
	}
	b.must(state.RemoveHost{Host: "host", At: time.Now()})
	x.Wake()
	if _, err := x.next(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a host that is gone: %v", err)
	}
}

// oneMessage is a line that tells a host one thing.
type oneMessage struct {
	msg   *agentrpc.Down
	told  bool
	heard []*agentrpc.Up
	err   error
	ended bool
}

func (m *oneMessage) Next(*state.View, *feed.Host) []*agentrpc.Down {
	if m.told {
		return nil
	}
	m.told = true
	return []*agentrpc.Down{m.msg}
}

func (m *oneMessage) Forget() { m.told = false }
func (m *oneMessage) End()    { m.ended = true }

func (m *oneMessage) Heard(_ context.Context, msg *agentrpc.Up) error {
	m.heard = append(m.heard, msg)
	return m.err
}

// Every line hears what is none of the session's own business; an error ends the session, and the end is told.
func TestWhatLinesHear(t *testing.T) {
	_, s, _ := newBetween(t)
	x := newSession(s, "host", &agentrpc.Hello{}, func(error) {})
	x.lastSent.Store(0)
	one, two := &oneMessage{}, &oneMessage{}
	x.lines = []feed.Line{one, two}
	report := &agentrpc.Up{Kind: &agentrpc.Up_Storage{Storage: &agentrpc.StorageReports{}}}
	check(t, x.receive(t.Context(), report))
	check(t, x.receive(t.Context(), &agentrpc.Up{Kind: &agentrpc.Up_Heartbeat{Heartbeat: &agentrpc.Heartbeat{}}}))
	if !x.beatDue.Load() {
		t.Error("a heartbeat is not answered")
	}
	if len(one.heard) != 1 || len(two.heard) != 1 || two.heard[0] != report {
		t.Errorf("heard %v, %v", one.heard, two.heard)
	}
	one.err = errLine
	if err := x.receive(t.Context(), report); !errors.Is(err, errLine) || len(two.heard) != 1 {
		t.Errorf("an error of a line: %v", err)
	}
	s.leave(x)
	if !one.ended || !two.ended {
		t.Error("the end of the session was not told")
	}
}

// What a session has to tell is sent, all of it again when that is asked for, until the line is cut or the session is over.
func TestWhatASessionSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, _ := newBetween(t)
		x := newSession(s, "host", &agentrpc.Hello{}, nil)
		x.told, x.toldTrust, x.gateways = s.members.Load(), s.trust.Load(), s.gateways.Load()
		x.lines = []feed.Line{&oneMessage{msg: &agentrpc.Down{Kind: &agentrpc.Down_Network{Network: &agentrpc.NetworkSet{}}}}}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		line, ended := &lineTo{}, make(chan error, 1)
		go func() { ended <- x.sendAll(ctx, line) }()
		kinds := func() (full, beats, others int) {
			synctest.Wait()
			for _, msg := range line.down {
				switch {
				case msg.GetFull() != nil:
					full++
				case msg.GetBeat() != nil:
					beats++
				default:
					others++
				}
			}
			return full, beats, others
		}
		if full, beats, _ := kinds(); full != 1 || beats != 0 {
			t.Errorf("at first %d full sets, %d beats", full, beats)
		}
		_, _, before := kinds()
		check(t, x.enqueue(ctx, nil))
		full, _, after := kinds()
		if full != 2 || after != 2*before || before == 0 {
			t.Errorf("asked again: %d full sets, %d of networks", full, after)
		}
		time.Sleep(s.Heartbeat)
		x.answer(time.Now())
		if _, beats, _ := kinds(); beats != 1 {
			t.Errorf("%d beats", beats)
		}
		x.answer(time.Now().Add(s.Heartbeat/8 - 1))
		if _, beats, _ := kinds(); beats != 1 {
			t.Errorf("%d beats, a moment after the last", beats)
		}
		x.answer(time.Now().Add(s.Heartbeat / 8))
		if _, beats, _ := kinds(); beats != 2 {
			t.Errorf("%d beats, a while after the last", beats)
		}
		line.fails = true
		x.answer(time.Now().Add(s.Heartbeat))
		if err := <-ended; !errors.Is(err, errLine) {
			t.Errorf("ended by %v", err)
		}
		x.changed.Store(false)
		x.due, x.orders = nil, nil
		check(t, x.enqueue(ctx, plainBeat))
		if err := x.sendAll(ctx, line); !errors.Is(err, errLine) {
			t.Errorf("a message that was queued: %v", err)
		}
		if cancel(errAgain); !errors.Is(x.sendAll(ctx, &lineTo{}), errAgain) {
			t.Error("a session that is over goes on")
		}
		for len(x.down) < downQueue {
			x.down <- plainBeat
		}
		if err := x.enqueue(ctx, plainBeat); !errors.Is(err, errAgain) {
			t.Errorf("of a full queue: %v", err)
		}
	})
}

// TestTwoAgentsAreToldOfOnce, when the host is heard well after the other agent was refused.
func TestTwoAgentsAreToldOfOnce(t *testing.T) {
	b, s, _ := newBetween(t)
	x := newSession(s, "host", &agentrpc.Hello{}, nil)
	now := time.Now()
	for i, c := range []struct {
		rival time.Time
		heard time.Duration
		asked int32
	}{
		{time.Time{}, time.Hour, 0}, {now, s.Heartbeat/2 - 1, 0}, {now, s.Heartbeat / 2, 1}, {time.Time{}, time.Hour, 1},
	} {
		if !c.rival.IsZero() {
			x.rival.Store(c.rival.UnixNano())
		}
		x.heardBesideRival(t.Context(), now.Add(c.heard))
		x.tasks.Wait()
		if b.asked.Load() != c.asked || (b.host().Alarm == twoAgents) != (c.asked > 0) {
			t.Errorf("%d: asked %d times, the alarm is %q", i, b.asked.Load(), b.host().Alarm)
		}
	}
	if x.rival.Load() != 0 {
		t.Error("the rival is not forgotten")
	}
}

// A host is heard when its message has been worked on, and is not silent meanwhile.
func TestAHostIsHeardWhenItsWordsWereWorkedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s, _ := newBetween(t)
		x := newSession(s, "host", &agentrpc.Hello{}, nil)
		x.welcomed.Store(true)
		for len(x.down) < downQueue { // so that the answer waits
			x.down <- plainBeat
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*s.HeartbeatTimeout, errAgain)
		defer cancel()
		line := &lineTo{up: make(chan *agentrpc.Up, 2)}
		line.up <- &agentrpc.Up{Kind: &agentrpc.Up_Heartbeat{Heartbeat: &agentrpc.Heartbeat{}}}
		line.up <- &agentrpc.Up{Kind: &agentrpc.Up_Resync{Resync: &agentrpc.Resync{}}}
		x.rival.Store(time.Now().UnixNano())
		ended := make(chan error, 1)
		go func() { ended <- x.receiveAll(ctx, line) }()
		time.Sleep(2*s.HeartbeatTimeout - 1)
		if x.silent(time.Now(), s.HeartbeatTimeout) || x.rival.Load() == 0 {
			t.Error("it is silent while its words are worked on")
		}
		if err := <-ended; !errors.Is(err, errAgain) {
			t.Errorf("ended by %v", err)
		}
		if x.tasks.Wait(); x.working.Load() || x.silent(time.Now(), 0) || x.rival.Load() != 0 {
			t.Errorf("working %v, seen %v ago", x.working.Load(), time.Since(time.Unix(0, x.lastSeen.Load())))
		}
		close(line.up)
		if err := x.receiveAll(t.Context(), line); !errors.Is(err, errLine) {
			t.Errorf("a line that is cut: %v", err)
		}
	})
	x := newSession(New(Config{}), "h", &agentrpc.Hello{}, nil)
	if x.silent(time.Now().Add(time.Hour), time.Second) {
		t.Error("one that is not welcomed yet is silent")
	}
	if x.welcomed.Store(true); !x.silent(time.Now().Add(time.Hour), time.Second) {
		t.Error("one that says nothing is not silent")
	}
}
