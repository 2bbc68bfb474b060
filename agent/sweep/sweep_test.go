package sweep

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/agent/ledger"
	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/netctl"
)

// containers notes what is removed.
type containers struct {
	pod.Runtime
	removed []fleet.PodID
	err     error
}

func (c *containers) Remove(_ context.Context, id fleet.PodID) error {
	c.removed = append(c.removed, id)
	return c.err
}

func (c *containers) List(context.Context) ([]fleet.PodID, error) { return nil, nil }
func (c *containers) Clean(context.Context, bool) error           { return c.err }

// nothing is a network that has nothing of a pod.
func nothing(context.Context, string) error { return nil }

func makeData(t *testing.T, dir string, ids ...fleet.PodID) {
	t.Helper()
	for _, id := range ids {
		path, err := pod.MakeData(DataDir(dir), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "note"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// loseData makes data of pods that was set aside at a time.
func loseData(t *testing.T, dir string, at time.Time, ids ...fleet.PodID) {
	t.Helper()
	makeData(t, dir, ids...)
	for _, id := range ids {
		if path, err := pod.SetAside(t.Context(), DataDir(dir), id, at); err != nil || path == "" {
			t.Fatal(err)
		}
	}
}

func wantData(t *testing.T, dir string, want ...fleet.PodID) {
	t.Helper()
	got, err := pod.DataOf(DataDir(dir))
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("data (-want +got):\n%s%v", d, err)
	}
}

// wantLost checks of which pods there is data that was set aside, and that it is whole.
func wantLost(t *testing.T, dir string, want ...fleet.PodID) {
	t.Helper()
	all, err := pod.LostData(DataDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	var got []fleet.PodID
	for _, l := range all {
		got = append(got, l.Pod)
		if _, err := os.Stat(filepath.Join(l.Path, "note")); err != nil {
			t.Error(err)
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("set aside (-want +got):\n%s", d)
	}
}

// forgotten writes a set of orders of which the last one does not name the pod "orphan".
func forgotten(t *testing.T, book *ledger.Ledger, orders ...pod.Assignment) {
	t.Helper()
	ledgertest.SetFull(t, book, append(orders, pod.Assignment{Pod: "orphan", Goal: fleet.GoalRun})...)
	ledgertest.SetFull(t, book, orders...)
	if rec, known := book.Record("orphan"); !known || !rec.Orphan || rec.Assignment.Goal != fleet.GoalGone {
		t.Fatalf("no orphan: %+v", rec)
	}
}

func TestCleanRemovesOnlyTheDataThatWasOrderedToGo(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	forgotten(t, book,
		pod.Assignment{Pod: "run", Goal: fleet.GoalRun}, pod.Assignment{Pod: "stop", Goal: fleet.GoalStop},
		pod.Assignment{Pod: "gone", Goal: fleet.GoalGone})
	if err := CleanLost(t.Context(), dir); err == nil {
		t.Error("cleaned while an agent has the ledger")
	}
	if err := book.Close(); err != nil {
		t.Fatal(err)
	}
	loseData(t, dir, time.Now(), "run", "gone", "orphan", "unknown")
	makeData(t, dir, "stop")
	for _, id := range []fleet.PodID{"gone", "orphan", "unknown"} { // data of now beside that of before
		if err := os.MkdirAll(filepath.Join(DataDir(dir), string(id)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	if err := Clean(t.Context(), dir, &containers{err: errors.New("away")}, control, nil); err == nil {
		t.Fatal("no error though containers are left")
	}
	wantData(t, dir, "gone", "orphan", "stop", "unknown")
	results := filepath.Join(dir, Results, "run")
	if err := os.MkdirAll(results, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Clean(t.Context(), dir, &containers{}, control, nil); err != nil {
			t.Fatal(err)
		}
		wantData(t, dir, "orphan", "stop", "unknown")
		wantLost(t, dir, "orphan", "run", "unknown")
		if _, err := os.Stat(filepath.Dir(results)); !os.IsNotExist(err) {
			t.Errorf("results are left: %v", err)
		}
	}
	for range 2 {
		if err := CleanLost(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		wantData(t, dir, "orphan", "stop", "unknown")
		wantLost(t, dir, "run")
	}
}

func TestSweepSetsTheDataOfUnknownPodsAside(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	forgotten(t, book, pod.Assignment{Pod: "known", Goal: fleet.GoalStop})
	makeData(t, dir, "known", "orphan", "unknown")
	rt := &containers{err: errors.New("away")}
	d := New(Config{Dir: dir, Containers: rt, RemovePod: nothing, Ledger: book, Log: slog.New(slog.DiscardHandler)})
	if d.swept(t.Context()) {
		t.Error("swept though a container is left")
	}
	wantData(t, dir, "known", "orphan", "unknown")
	rt.err = nil
	if !d.swept(t.Context()) || !slices.Equal(rt.removed, []fleet.PodID{"unknown", "unknown"}) {
		t.Errorf("removed %v", rt.removed)
	}
	wantData(t, dir, "known", "orphan") // the orphan is its machine's
	wantLost(t, dir, "unknown")
}

func TestWhatWasSetAsideGoesAfterItsTime(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	forgotten(t, book, pod.Assignment{Pod: "back", Goal: fleet.GoalStop}, pod.Assignment{Pod: "gone", Goal: fleet.GoalGone})
	now := time.Unix(2_000_000_000, 0)
	loseData(t, dir, now.Add(-25*time.Hour), "back", "gone", "orphan", "old")
	loseData(t, dir, now.Add(-23*time.Hour), "new")
	d := New(Config{Dir: dir, Containers: &containers{}, RemovePod: nothing, Ledger: book, Log: slog.New(slog.DiscardHandler)})
	if !d.sweptLost(t.Context(), now) { // 7 days unless said otherwise
		t.Error("not swept")
	}
	wantLost(t, dir, "back", "gone", "new", "old", "orphan")
	d.KeepLost = 24 * time.Hour
	for range 2 {
		if !d.sweptLost(t.Context(), now) {
			t.Error("not swept")
		}
		wantLost(t, dir, "back", "new")
	}
	if left, err := os.ReadDir(DataDir(dir)); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}
