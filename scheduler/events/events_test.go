package events

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// log is a store that remembers a few events, one for each index.
type log struct {
	mu      sync.Mutex
	keep    int
	events  []fleet.Event
	index   uint64
	changed chan struct{}
	looked  int // how often Changes was asked
}

func newLog(keep int) *log { return &log{keep: keep, changed: make(chan struct{})} }

func (l *log) add(account fleet.AccountID, kind fleet.EventKind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	l.events = append(l.events, fleet.Event{Place: fleet.EventPlace{Index: l.index, Seq: 1}, Kind: kind, Account: account, Object: fmt.Sprint(l.index)})
	l.events = l.events[max(0, len(l.events)-l.keep):]
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *log) Wait(ctx context.Context, after uint64) error {
	for {
		l.mu.Lock()
		index, changed := l.index, l.changed
		l.mu.Unlock()
		if index > after {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *log) EndOfChanges() fleet.EventPlace {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fleet.EventPlace{Index: l.index, Seq: math.MaxUint32}
}

func (l *log) Changes(after fleet.EventPlace, most int, fn func(fleet.EventPlace, *fleet.Event) bool) (fleet.EventPlace, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked++
	end := fleet.EventPlace{Index: l.index, Seq: math.MaxUint32}
	if len(l.events) > 0 && after.Index+1 < l.events[0].Place.Index {
		return end, true
	}
	for i := range l.events {
		e := &l.events[i]
		if e.Place.Index < after.Index || e.Place.Index == after.Index && e.Place.Seq <= after.Seq {
			continue
		}
		if most--; most < 0 {
			return after, false
		}
		after = e.Place
		if !fn(e.Place, e) {
			return after, false
		}
	}
	return end, false
}

func next(t *testing.T, r fleet.EventReader) []fleet.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := r.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var pods = fleet.EventQuery{Kinds: []fleet.EventKind{fleet.EventPod}}

func TestAWatcherIsWokenByItsOwnAccount(t *testing.T) {
	l := newLog(1000)
	h := New(l)
	mine := h.Watch("a", pods)
	defer mine.Close()
	operator := h.Watch("op", fleet.EventQuery{Kinds: fleet.OperatorEventKinds(), Operator: true})
	defer operator.Close()
	for _, w := range []*Watcher{mine, operator} {
		if first := next(t, w); len(first) != 1 || first[0].Type != fleet.EventReady {
			t.Fatal(first)
		}
	}
	l.add("b", fleet.EventPod)
	l.add("", fleet.EventHost)
	if got := next(t, operator); len(got) != 1 || got[0].Kind != fleet.EventHost {
		t.Error(got)
	}
	if len(mine.wake) != 0 {
		t.Error("what another account did woke the watcher")
	}
	l.add("a", fleet.EventTemplate)
	l.add("a", fleet.EventPod)
	if got := next(t, mine); len(got) != 1 || got[0].Object != "4" || got[0].Place.Index != 4 {
		t.Error(got)
	}
}

func TestASlowWatcherIsTold(t *testing.T) {
	l := newLog(10)
	h := New(l)
	w := h.Watch("a", pods)
	defer w.Close()
	next(t, w)
	for range 30 {
		l.add("a", fleet.EventPod)
	}
	if got := next(t, w); len(got) != 1 || got[0].Type != fleet.EventReset || got[0].Place != l.EndOfChanges() {
		t.Fatal(got)
	}
	l.add("a", fleet.EventPod)
	if got := next(t, w); len(got) != 1 || got[0].Object != "31" {
		t.Error(got)
	}
	old := fleet.EventPlace{Index: 1, Seq: 1}
	late := h.Watch("a", fleet.EventQuery{After: &old, Kinds: pods.Kinds})
	defer late.Close()
	if got := next(t, late); got[0].Type != fleet.EventReset {
		t.Error(got)
	}
}

// TestNextGivesAllInOrderAndFew reads many events behind a place: in pieces, none twice and none left out.
func TestNextGivesAllInOrderAndFew(t *testing.T) {
	l := newLog(1 << 20)
	for range 3 * lookMax {
		l.add("b", fleet.EventPod)
	}
	for range 3 * atOnce {
		l.add("a", fleet.EventPod)
	}
	start := fleet.EventPlace{Index: 1, Seq: 1}
	w := New(l).Watch("a", fleet.EventQuery{After: &start, Kinds: pods.Kinds})
	defer w.Close()
	var got []uint64
	for len(got) < 3*atOnce {
		some := next(t, w)
		if len(some) > atOnce+1 {
			t.Fatalf("%d at once", len(some))
		}
		for _, e := range some {
			if e.Type != fleet.EventReady {
				got = append(got, e.Place.Index)
			}
		}
	}
	if !slices.IsSorted(got) || len(slices.Compact(got)) != 3*atOnce || got[0] != 3*lookMax+1 {
		t.Errorf("%d events from %d on", len(got), got[0])
	}
}

func TestTheLastWatcherEndsTheGoroutine(t *testing.T) {
	l := newLog(10)
	h := New(l)
	for range 3 {
		one, two := h.Watch("a", pods), h.Watch("b", pods)
		one.Close()
		next(t, two)
		l.add("b", fleet.EventPod)
		next(t, two)
		two.Close()
		two.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := h.Watch("a", pods)
	defer w.Close()
	next(t, w)
	if _, err := w.Next(ctx); err == nil {
		t.Error("a reader whose context ended was given events")
	}
}
