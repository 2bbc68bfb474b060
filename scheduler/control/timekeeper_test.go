package control

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// leader is a leader with a clock of its own, and what it knows of others'.
type leader struct {
	c    *cluster
	log  *lines
	keep time.Duration
	stop func()

	mu     sync.Mutex // guards the fields below
	off    time.Duration
	others []time.Duration // their clocks, from the true time
	voters int
	ntp    bool
	boot   string
}

func (l *leader) set(change func(l *leader)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

func (l *leader) now() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(l.off)
}

// Clocks implements Clocks.
func (l *leader) Clocks() (out []time.Duration, voters int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.others {
		out = append(out, o-l.off)
	}
	return out, l.voters
}

// lines is what was logged.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// kernelBegan is when the kernel of every leader began to run.
var kernelBegan = time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)

// lead runs what a leader runs that can do something final, until it is stopped.
func (l *leader) lead() *Timekeeper {
	log := slog.New(slog.NewTextHandler(l.log, nil))
	k := &Timekeeper{
		Store: l.c.store, Node: l.c, Clocks: l, Leap: 10 * time.Minute, Log: log, Now: l.now,
		Synced: func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.ntp },
		Boot: func() (string, time.Duration) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.boot, time.Since(kernelBegan)
		},
	}
	books := &Accountant{Store: l.c.store, Node: l.c, Keep: l.keep, Every: 5 * time.Second, Log: log, Clock: l.now, Sure: k.Sure}
	purger := &Purger{Store: l.c.store, Node: l.c, Keep: 10 * time.Minute, Every: 10 * time.Second, Log: log, Clock: l.now, Sure: k.Sure}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{k.Run, books.Run, purger.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				l.c.t.Error(err)
			}
		})
	}
	l.stop = func() { cancel(); wg.Wait() }
	return k
}

// newLeader returns one of three schedulers with clocks that are right; it leads.
func newLeader(t *testing.T, credit fleet.Money) (*leader, *Timekeeper) {
	t.Helper()
	c := newCluster(t, 2)
	c.must(state.AddCredit{Account: "acme", Amount: credit, At: time.Now()})
	l := &leader{c: c, log: &lines{}, keep: 400 * 24 * time.Hour, others: []time.Duration{0, 0}, voters: 3, boot: "boot-1"}
	return l, l.lead()
}

// running counts the pods that are not ended.
func (c *cluster) running() (n int) {
	c.view(func(v *state.View) {
		for _, p := range v.PodsOf("acme") {
			if p.Status.Active() {
				n++
			}
		}
	})
	return n
}

func (c *cluster) view(fn func(v *state.View)) {
	c.t.Helper()
	if err := c.store.View(func(v *state.View) error { fn(v); return nil }); err != nil {
		c.t.Error(err)
	}
}

// costs checks what two pods were charged that run since start, by the clock of a leader.
func (l *leader) costs(what string, start time.Time, credit fleet.Money) {
	l.c.t.Helper()
	l.c.view(func(v *state.View) {
		got := float64(credit+6*fleet.Dollar-v.Balance("acme", l.now())) / float64(fleet.Dollar)
		if want := 2 * time.Since(start).Hours(); got < want-0.1 || got > want+0.1 {
			l.c.t.Errorf("%s: $%.2f were charged, want $%.2f", what, got, want)
		}
	})
}

const heldBack = "nothing final is done until the schedulers' clocks are right"

// The wall clock of the leader is put ahead and stays so.
func TestAClockThatStaysAheadEndsNothing(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"more than usage is kept": 401 * 24 * time.Hour, "an hour": time.Hour, "behind": -30 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				l, _ := newLeader(t, 14*fleet.Dollar) // enough for ten hours
				time.Sleep(3*time.Hour + time.Second)
				settled := len(count[state.SettleMeters](l.c))
				hours := len(l.c.usage(start, start.Add(3*time.Hour)))
				l.set(func(l *leader) { l.off = ahead })
				time.Sleep(6 * time.Hour)
				if n := l.c.running(); n != 2 {
					t.Errorf("%d pods are left of 2, with credit for an hour more", n)
				}
				if n := len(count[state.SettleMeters](l.c)); n != settled {
					t.Errorf("%d settlements by a clock that is wrong", n-settled)
				}
				if n := len(l.c.usage(start, start.Add(3*time.Hour))); n != hours || n == 0 {
					t.Errorf("%d hours of usage are left of %d", n, hours)
				}
				for _, p := range count[state.PurgeUsage](l.c) {
					if p.At.After(time.Now()) {
						t.Errorf("usage is purged by a clock that is ahead: %+v", p)
					}
				}
				l.costs("under the wrong clock", start, 14*fleet.Dollar)
				if n := l.log.count(heldBack); n != 1 {
					t.Errorf("it was logged %d times", n)
				}
				l.set(func(l *leader) { l.off = 0 })
				time.Sleep(30 * time.Second)
				l.costs("under the right clock", start, 14*fleet.Dollar)
				if n := l.c.running(); n != 2 {
					t.Errorf("%d pods are left of 2 under the right clock", n)
				}
				time.Sleep(time.Hour)
				if n := l.c.running(); n != 0 {
					t.Errorf("%d pods run without credit", n)
				}
				l.stop()
			})
		})
	}
}

// A leader whose clock was wrong from its first moment does nothing final; the next one, whose clock is right, goes on.
func TestANewLeaderWithAWrongClockEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l, _ := newLeader(t, 14*fleet.Dollar)
		time.Sleep(time.Hour)
		l.stop()
		l.set(func(l *leader) { l.off = 24 * time.Hour })
		k := l.lead()
		time.Sleep(5 * time.Hour)
		if v := k.View(); k.Sure() || v.Held == "" || v.Now.Sub(v.Log).Round(5*time.Minute) != 24*time.Hour {
			t.Errorf("it holds nothing back: %+v", v)
		}
		if n := l.c.running(); n != 2 {
			t.Errorf("%d pods are left of 2", n)
		}
		l.costs("under the wrong leader", start, 14*fleet.Dollar)
		l.stop()
		l.set(func(l *leader) { l.off = 0 })
		k = l.lead()
		time.Sleep(10 * time.Second)
		if v := k.View(); !k.Sure() || v.Held != "" || v.Now.Sub(v.Log).Abs() > time.Minute {
			t.Errorf("under the right leader: %+v", v)
		}
		l.costs("under the right leader", start, 14*fleet.Dollar)
		l.stop()
	})
}

// Schedulers that were switched off go on by themselves where their clocks can be compared with something.
func TestALongSilenceIsNoLeapWhenTheClocksAgree(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(l *leader)
		sure   bool
	}{
		"three that agree":                    {func(*leader) {}, true},
		"three, of which one is off":          {func(l *leader) { l.others[1] = 5 * time.Hour }, true},
		"three, of which one answers":         {func(l *leader) { l.others = l.others[:1] }, true},
		"three, of which none has answered":   {func(l *leader) { l.others = nil }, false},
		"three, and this one is off":          {func(l *leader) { l.off = time.Hour }, false},
		"three that all differ":               {func(l *leader) { l.others = []time.Duration{time.Hour, 2 * time.Hour} }, false},
		"two that differ":                     {func(l *leader) { l.others, l.voters = []time.Duration{time.Hour}, 2 }, false},
		"one on a kernel that ran on":         {func(l *leader) { l.others, l.voters = nil, 1 }, true},
		"one on a kernel that ran, put ahead": {func(l *leader) { l.others, l.voters, l.off = nil, 1, time.Hour }, false},
		"one, started anew, synchronized":     {func(l *leader) { l.others, l.voters, l.boot, l.ntp = nil, 1, "boot-2", true }, true},
		"one, started anew":                   {func(l *leader) { l.others, l.voters, l.boot = nil, 1, "boot-2" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				l, _ := newLeader(t, 1000*fleet.Dollar)
				time.Sleep(time.Hour)
				l.stop()
				time.Sleep(62 * time.Hour)
				l.set(tt.change)
				k := l.lead()
				time.Sleep(10 * time.Second)
				if k.Sure() != tt.sure {
					t.Fatalf("sure: %v, %+v", k.Sure(), k.View())
				}
				if tt.sure {
					l.costs("all of the silence", start, 1000*fleet.Dollar)
				} else if n := len(count[state.PurgeOnce](l.c)); n != 0 && count[state.PurgeOnce](l.c)[n-1].At.After(start.Add(2*time.Hour)) {
					t.Error("it purges")
				}
				l.stop()
			})
		})
	}
}

// An operator's word counts for one that is alone, and only for the time that the operator saw.
func TestAnOperatorConfirmsTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l, _ := newLeader(t, 1000*fleet.Dollar)
		time.Sleep(time.Hour)
		l.stop()
		time.Sleep(62 * time.Hour)
		l.set(func(l *leader) { l.others, l.voters, l.boot = nil, 1, "boot-2" })
		k := l.lead()
		time.Sleep(time.Minute)
		if _, err := k.Confirm(time.Now().Add(-2 * time.Minute)); fleet.CodeOf(err) != fleet.CodeConflictRule {
			t.Errorf("a time that is not shown: %v", err)
		}
		cmd, err := k.Confirm(k.View().Now)
		if err != nil || k.Sure() {
			t.Fatalf("%v, sure: %v", err, k.Sure())
		}
		l.c.must(cmd)
		if !k.Sure() {
			t.Errorf("confirmed: %+v", k.View())
		}
		l.costs("all of the silence", start, 1000*fleet.Dollar)
		time.Sleep(time.Hour)
		if !k.Sure() {
			t.Errorf("an hour later: %+v", k.View())
		}
		l.stop()
	})
}

// A quiet cluster is no silence: the leader tells the log the time, and not more often than it has to.
func TestAQuietClusterKeepsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k := newLeader(t, 1000*fleet.Dollar)
		time.Sleep(10 * time.Hour)
		if n := len(count[state.TickClock](l.c)); n < 590 || n > 610 || !k.Sure() {
			t.Errorf("%d ticks in ten hours, sure: %v", n, k.Sure())
		}
		if n := l.log.count(heldBack); n != 0 {
			t.Errorf("it was held back %d times", n)
		}
		l.stop()
	})
}
