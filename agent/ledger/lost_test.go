package ledger

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gantry/agent/pod"
	"gantry/fleet"
)

// TestWhatALedgerRefuses asks for everything that a host must refuse by itself, whatever its scheduler checks.
func TestWhatALedgerRefuses(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	order := func(incarnation, generation uint64, goal fleet.Goal) pod.Assignment {
		a := want("p1", generation)
		a.Incarnation, a.Goal = incarnation, goal
		return a
	}
	set := func(generation uint64, a pod.Assignment) {
		t.Helper()
		if _, err := l.SetFull(generation, []pod.Assignment{a}, allocator); err != nil {
			t.Fatal(err)
		}
	}
	set(5, order(3, 5, fleet.GoalRun))
	for name, a := range map[string]pod.Assignment{
		"a lower generation of the incarnation": order(3, 4, fleet.GoalStop), "a lower incarnation": order(2, 6, fleet.GoalRun),
		"a higher incarnation of a lower generation": order(4, 4, fleet.GoalRun),
	} {
		changed, err := l.Apply(l.Generation(), l.Generation()+1, []pod.Assignment{a}, nil, allocator)
		if rec, _ := l.Record("p1"); err != nil || len(changed) != 0 || rec.Assignment.Incarnation != 3 || rec.Assignment.Generation != 5 || rec.Assignment.Goal != fleet.GoalRun {
			t.Errorf("%s is taken: %+v, %v", name, rec.Assignment, err)
		}
	}
	if err := l.Begin(order(3, 5, fleet.GoalRun), "boot"); err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]pod.Assignment{"an older incarnation": order(2, 5, fleet.GoalRun), "a pod that is not assigned": want("p2", 5)} {
		if err := l.Begin(a, "later"); !errors.Is(err, ErrNotOrdered) {
			t.Errorf("%s begins: %v", name, err)
		}
	}
	if rec, _ := l.Record("p1"); rec.Begun != 3 || rec.BegunBoot != "boot" {
		t.Errorf("begun %d under %s", rec.Begun, rec.BegunBoot)
	}
	if err := l.Begin(order(3, 5, fleet.GoalRun), "later"); err != nil {
		t.Errorf("the same incarnation once more: %v", err)
	}
	if err := errors.Join(l.SetLineage(4), l.SetLineage(3)); err != nil || l.Lineage() != 4 {
		t.Errorf("lineage %d, %v", l.Lineage(), err)
	}
	if err := l.Adopt(pod.Record{Assignment: order(9, 0, fleet.GoalRun)}); err != nil {
		t.Fatal(err)
	}
	if rec, _ := l.Record("p1"); rec.Assignment.Incarnation != 3 {
		t.Error("what the ledger knows was adopted from a container")
	}
	if err := l.Forget("p1"); err != nil {
		t.Fatal(err)
	}
	if _, known := l.Record("p1"); !known {
		t.Error("a pod that is assigned was forgotten")
	}
}

// TestDamageIsNoticed damages a ledger at every place and in every way. No damage is a panic, and none passes for what was written.
func TestDamageIsNoticed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger.db")
	l := open(t, path)
	if _, err := l.SetFull(7, []pod.Assignment{want("p1", 7), want("p2", 7)}, allocator); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.SetLineage(2), l.Close()); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	noticed := 0
	try := func(what string, at int, data []byte) {
		t.Helper()
		file := filepath.Join(dir, "damaged")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Open(file)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s at %d: %v", what, at, err)
			}
			noticed++
			return
		}
		defer func() { _ = got.Close() }()
		rec, ok := got.Record("p1")
		same, _ := l.Record("p1")
		// The page that held the state of before may have become the newest again.
		if got.Generation() == 0 && len(got.Records()) == 0 {
			return
		}
		if !ok || rec.Assignment.Generation != same.Assignment.Generation || got.Generation() != 7 || len(got.Records()) != 2 {
			t.Errorf("%s at %d passes: generation %d, %d records, %+v", what, at, got.Generation(), len(got.Records()), rec)
		}
	}
	for at := 0; at < len(whole); at += len(whole) / 97 {
		if at > 0 {
			try("cut", at, whole[:at])
		}
		flipped := bytes.Clone(whole)
		for i := at; i < min(at+20, len(flipped)); i++ {
			flipped[i] ^= 0x55
		}
		try("flipped", at, flipped)
		zeroed := bytes.Clone(whole)
		clear(zeroed[at:min(at+4096, len(zeroed))])
		try("zeroed", at, zeroed)
	}
	if noticed < 50 {
		t.Errorf("%d damages were noticed", noticed)
	}
}
