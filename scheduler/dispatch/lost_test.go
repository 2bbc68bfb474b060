package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// between does something before a proposal of a store of its own, and may refuse it.
type between struct {
	*alone
	before func() error
	asked  atomic.Int32
}

func (b *between) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	b.asked.Add(1)
	if b.before != nil {
		if err := b.before(); err != nil {
			return nil, err
		}
	}
	return b.alone.Propose(ctx, cmds...)
}

// connects begins a session of the host in the state.
func (a *alone) connects() {
	a.t.Helper()
	a.must(state.ConnectHost{Host: "host", MachineID: "m", BootID: "b", At: time.Now()})
}

func (a *alone) host() (out fleet.Host) {
	a.t.Helper()
	check(a.t, a.store.View(func(v *state.View) error { out, _ = v.Host("host"); return nil }))
	return out
}

// newBetween returns a leading server of one host that is ready, and what it says.
func newBetween(t *testing.T) (*between, *Server, *safeBuffer) {
	t.Helper()
	b, said := &between{alone: newAlone(t)}, &safeBuffer{}
	b.connects()
	s := New(Config{Store: b.store, Node: b, Log: slog.New(slog.NewTextHandler(said, nil))})
	s.lead = t.Context()
	return b, s, said
}

// TestWhoIsMarkedUnreachable: a host that is ready in the state, has no session, and did not come back meanwhile.
func TestWhoIsMarkedUnreachable(t *testing.T) {
	failed := errors.New("disk")
	for name, c := range map[string]struct {
		prepare func(*between, *Server)
		before  func(*between) error
		marked  bool
		says    string
		asked   int32
		waits   bool // it is still looked for
	}{
		"it is lost":      {marked: true, says: "host is unreachable", asked: 1, waits: true},
		"it has come":     {prepare: func(_ *between, s *Server) { s.sessions["host"] = &session{} }, waits: true},
		"it is marked":    {prepare: func(b *between, s *Server) { s.markAbsent(b.t.Context(), []fleet.HostID{"host"}) }, marked: true, says: "host is unreachable", asked: 1},
		"it is removed":   {prepare: func(b *between, _ *Server) { b.must(state.RemoveHost{Host: "host", At: time.Now()}) }},
		"it comes now":    {before: func(b *between) error { b.connects(); return nil }, asked: 1, waits: true},
		"nothing is kept": {before: func(*between) error { return failed }, says: "mark hosts unreachable", asked: 1, waits: true},
	} {
		b, s, said := newBetween(t)
		s.absent["host"], s.absent["nobody"] = time.Time{}, time.Time{}
		if c.prepare != nil {
			c.prepare(b, s)
		}
		if c.before != nil {
			b.before = func() error { return c.before(b) }
		}
		s.markAbsent(t.Context(), []fleet.HostID{"nobody", "host"})
		if marked := b.host().State == fleet.HostUnreachable; marked != c.marked || b.asked.Load() != c.asked {
			t.Errorf("%s: it is %s, asked %d times", name, b.host().State, b.asked.Load())
		}
		text := said.String()
		if c.says == "" && text != "" || c.says != "" && strings.Count(text, c.says) != 1 || strings.Contains(text, "host=nobody") {
			t.Errorf("%s: said %q", name, text)
		}
		_, waits := s.absent["host"]
		if _, nobody := s.absent["nobody"]; waits != c.waits || nobody {
			t.Errorf("%s: looked for are %v", name, s.absent)
		}
	}
}

// A host that does not come back is marked when its time is over, no sooner, and one mark that failed is made later.
func TestAHostThatStaysAwayIsMarkedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s, _ := newBetween(t)
		fail := true
		b.before = func() error {
			if fail = !fail; !fail {
				return errors.New("disk")
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		until := time.Now().Add(10 * time.Second)
		s.absent["host"] = until
		s.pending.Go(func() { s.watchAbsent(ctx) })
		time.Sleep(10*time.Second - time.Millisecond)
		synctest.Wait()
		if b.asked.Load() != 0 {
			t.Errorf("marked %v early", time.Until(until))
		}
		time.Sleep(time.Millisecond + 2*fraction(s.HostTimeout))
		synctest.Wait()
		if b.host().State != fleet.HostUnreachable || b.asked.Load() != 2 {
			t.Errorf("it is %s, asked %d times", b.host().State, b.asked.Load())
		}
		time.Sleep(time.Minute)
		cancel()
		s.pending.Wait()
		if _, waits := s.absent["host"]; waits || b.asked.Load() != 2 {
			t.Errorf("asked %d times, looked for are %v", b.asked.Load(), s.absent)
		}
	})
}

// The watch ends sessions of hosts that are silent, has those hear a beat whose words are worked on, and leaves the others.
func TestTheWatchOverSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Schedulers: func() []string { return []string{"b", "a", "b"} }, Store: newAlone(t).store, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := map[fleet.HostID]error{}
		for _, id := range []fleet.HostID{"silent", "working", "busy", "new"} {
			s.sessions[id] = newSession(s, id, &agentrpc.Hello{}, func(err error) { ended[id] = err })
			s.sessions[id].welcomed.Store(id != "new")
			s.sessions[id].working.Store(id == "working" || id == "busy")
		}
		s.pending.Go(func() { s.watchSessions(ctx) })
		for at := time.Duration(0); at < s.HeartbeatTimeout; at += s.Heartbeat / 4 {
			time.Sleep(s.Heartbeat / 4)
			s.sessions["busy"].lastSent.Store(time.Now().UnixNano())
		}
		s.mu.Lock() // sessions are ended under it
		if len(ended) != 0 {
			t.Errorf("ended early: %v", ended)
		}
		s.mu.Unlock()
		time.Sleep(2 * fraction(s.HeartbeatTimeout))
		cancel()
		s.pending.Wait()
		if len(ended) != 1 || !errors.Is(ended["silent"], errSilent) {
			t.Errorf("ended: %v", ended)
		}
		for id, want := range map[fleet.HostID]bool{"silent": false, "working": true, "busy": false, "new": false} {
			x := s.sessions[id]
			if x.beatDue.Load() != want || len(x.wake) > 0 != want {
				t.Errorf("%s: a beat is due: %v", id, x.beatDue.Load())
			}
		}
		if got := strings.Join(*s.members.Load(), " "); got != "a b" {
			t.Errorf("hosts are told of %q", got)
		}
	})
}

// TestAnAlarmIsRecordedOnce, of a host that is there, and again when recording it failed or an operator has seen to it.
func TestAnAlarmIsRecordedOnce(t *testing.T) {
	b, s, said := newBetween(t)
	raise := func(what string, a alarm, asked int32, text string) {
		t.Helper()
		b.asked.Store(0)
		if s.raise(t.Context(), a); b.asked.Load() != asked || b.host().Alarm != text {
			t.Errorf("%s: asked %d times, the alarm is %q", what, b.asked.Load(), b.host().Alarm)
		}
	}
	one, two := alarm{"host", "one"}, alarm{"host", "two"}
	b.before = func() error { return errors.New("disk") }
	raise("it cannot be recorded", one, 1, "")
	if len(s.alarmed) != 0 || !strings.Contains(said.String(), "record the alarm of a host") {
		t.Errorf("remembered are %v, said %q", s.alarmed, said.String())
	}
	b.before = nil
	raise("now it can", one, 1, "one")
	s.alarmed[one] = time.Now().Add(-2 * alarmEvery)
	raise("it is there", one, 0, "one")
	raise("another", two, 1, "two")
	b.must(state.AlarmHost{Host: "host", At: time.Now()})
	raise("seen to a moment ago", two, 0, "")
	s.alarmed[two] = time.Now().Add(-alarmEvery)
	raise("seen to a while ago", two, 1, "two")
	raise("nobody's", alarm{"nobody", "one"}, 0, "two")
	b.must(state.RemoveHost{Host: "host", At: time.Now()})
	raise("of a host that is gone", alarm{"host", "three"}, 0, b.host().Alarm)
}
