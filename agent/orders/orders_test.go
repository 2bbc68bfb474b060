package orders

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"

	"gantry/agent/ledger"
	"gantry/agent/pod"
	"gantry/internal/agentrpc"
)

// follower is the end of a session that takes what schedulers say.
func follower(t *testing.T) *Orders {
	t.Helper()
	book, err := ledger.Open(filepath.Join(t.TempDir(), "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := book.Close(); err != nil {
			t.Error(err)
		}
	})
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return New(Config{Ledger: book, Heard: &atomic.Bool{}, Log: log, Followed: func(uint64) error { return nil }})
}

// A control plane of a lower lineage than one that was followed is an old copy. It is refused whatever else it says, and
// nothing that is known changes.
func TestALowerLineageIsNotFollowed(t *testing.T) {
	s := follower(t)
	s.holds = true
	for _, step := range []struct {
		lineage       uint64
		keep          bool
		refused, have bool // the set that it holds counts after it
	}{
		{lineage: 0, keep: true, have: true},
		{lineage: 3, have: false}, // restored: everything anew
		{lineage: 3, have: false},
		{lineage: 2, refused: true, have: false},
		{lineage: 0, refused: true, have: false},
		{lineage: 3, keep: true, refused: true, have: false}, // it believes of a set that there is none of
		{lineage: 4, have: false},
		{lineage: 3, refused: true, have: false},
	} {
		before := s.Ledger.Lineage()
		err := s.Follow(&agentrpc.Welcome{Lineage: step.lineage, KeepSet: step.keep, Schedulers: []string{"127.0.0.1:2"}})
		if (err != nil) != step.refused || s.holds != step.have {
			t.Errorf("lineage %d after %d: %v, holds the set: %v", step.lineage, before, err, s.holds)
		}
		if want := max(before, step.lineage); s.Ledger.Lineage() != want {
			t.Errorf("lineage %d after %d: the ledger has %d", step.lineage, before, s.Ledger.Lineage())
		}
	}
}

// order is one for a pod.
func orderOf(id string, generation uint64) *agentrpc.Assignment {
	return &agentrpc.Assignment{PodId: id, Incarnation: 1, Generation: generation, Goal: "stop"}
}

// A set in parts counts when it is whole, and then in one step. A session that breaks off in between changes nothing.
func TestASetInPartsCountsWhenItIsWhole(t *testing.T) {
	s := follower(t)
	next := netip.MustParseAddr("10.0.0.1")
	s.Allocate = func(map[netip.Addr]bool) (netip.Addr, error) { next = next.Next(); return next, nil }
	ended, end := context.WithCancel(t.Context())
	end() // nothing of the orders is carried out here
	s.Pods = pod.NewPods(ended, pod.Deps{Log: s.Log, Heard: s.Heard})
	up := make(chan *agentrpc.Up, 10)
	full := func(part uint32, more bool, ids ...string) *agentrpc.Down {
		set := &agentrpc.FullSet{Generation: 7}
		for _, id := range ids {
			set.Assignments = append(set.Assignments, orderOf(id, 7))
		}
		return &agentrpc.Down{Part: part, More: more, Kind: &agentrpc.Down_Full{Full: set}}
	}
	play := func(msgs ...*agentrpc.Down) {
		t.Helper()
		var parts agentrpc.Parts // of a session
		for _, msg := range msgs {
			msg, err := parts.Add(msg)
			var answer *agentrpc.Up
			if err == nil && msg != nil {
				switch m := msg.GetKind().(type) {
				case *agentrpc.Down_Full:
					answer, err = s.TakeFull(t.Context(), m)
				case *agentrpc.Down_Difference:
					answer, err = s.TakeDifference(t.Context(), m)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if answer != nil {
				up <- answer
			}
		}
	}
	play(full(0, true, "a", "b"), full(1, true, "c"))
	if n, g := len(s.Ledger.Records()), s.Ledger.Generation(); n != 0 || g != 0 || s.holds || s.Heard.Load() || len(up) != 0 {
		t.Errorf("half a set made %d records of generation %d", n, g)
	}
	play(full(0, true, "a"), full(1, true, "b"), full(2, false, "c"))
	if n, g := len(s.Ledger.Records()), s.Ledger.Generation(); n != 3 || g != 7 || !s.holds || !s.Heard.Load() || (<-up).GetApplied().GetGeneration() != 7 {
		t.Errorf("%d records of generation %d", n, g)
	}
	difference := func(part uint32, more bool, put, gone string) *agentrpc.Down {
		return &agentrpc.Down{Part: part, More: more, Kind: &agentrpc.Down_Difference{Difference: &agentrpc.Difference{
			From: 7, To: 9, Put: []*agentrpc.Assignment{orderOf(put, 9)}, Gone: []string{gone},
		}}}
	}
	play(difference(0, true, "d", "a"))
	if n := len(s.Ledger.Records()); n != 3 {
		t.Errorf("half a difference made %d records", n)
	}
	play(difference(0, true, "d", "a"), difference(1, false, "e", "b"))
	gone := 0
	for _, rec := range s.Ledger.Records() {
		if rec.Orphan {
			gone++
		}
	}
	if n, g := len(s.Ledger.Records()), s.Ledger.Generation(); n != 5 || gone != 2 || g != 9 {
		t.Errorf("%d records, %d to be removed, of generation %d", n, gone, g)
	}
}

// What a scheduler says cannot be carried out is not begun, and its sentence is the pod's reason.
func TestAnOrderThatTheSchedulerRefusesIsNotCarriedOut(t *testing.T) {
	s := follower(t)
	if a := s.decode(&agentrpc.Assignment{PodId: "a", Goal: "run", Refused: "too large"}); a.Refused != "too large" {
		t.Errorf("refused: %q", a.Refused)
	}
}
