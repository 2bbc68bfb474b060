package pod

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

// noted makes a pod's data with a file of that name.
func noted(t *testing.T, dir string, id fleet.PodID, name string) string {
	t.Helper()
	path, err := MakeData(dir, id)
	must(t, err)
	writeTree(t, path, name)
	return path
}

// setAside sets the data of the pod p1 aside.
func setAside(t *testing.T, dir string, at int64) string {
	t.Helper()
	path, err := SetAside(t.Context(), dir, "p1", time.Unix(at, 0))
	must(t, err)
	return path
}

func exists(t *testing.T, path string, want bool) {
	t.Helper()
	if _, err := os.Lstat(path); (err == nil) != want || err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v, want it there: %v", path, err, want)
	}
}

func TestSetAsideAndBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "persistent")
	if path := setAside(t, dir, 1); path != "" {
		t.Errorf("nothing was moved to %q", path)
	}
	place := noted(t, dir, "p1", "old")
	if path := setAside(t, dir, 1000); path != filepath.Join(dir, ".lost", "p1-1000") {
		t.Errorf("moved to %q", path)
	}
	exists(t, place, false)
	must(t, os.Mkdir(place, 0o755))
	writeTree(t, place, "new")
	if path := setAside(t, dir, 1000); path != filepath.Join(dir, ".lost", "p1-1001") { // in the same second
		t.Errorf("moved to %q", path)
	}
	if ids, err := DataOf(dir); err != nil || len(ids) != 0 {
		t.Errorf("data of %v, %v", ids, err)
	}
	all, err := LostData(dir)
	must(t, err)
	if len(all) != 2 || all[0].Pod != "p1" || all[0].At != time.Unix(1000, 0) || all[1].At != time.Unix(1001, 0) {
		t.Errorf("aside: %+v", all)
	}
	for range 2 { // the newest comes back, and what is there stays
		_, err = MakeData(dir, "p1")
		must(t, err)
		exists(t, filepath.Join(place, "new"), true)
		exists(t, filepath.Join(all[0].Path, "old"), true)
	}
	if _, err := MakeData(dir, "p2"); err != nil {
		t.Error(err)
	}
	must(t, RemoveLost(t.Context(), dir, all[0]))
	if all, err := LostData(dir); err != nil || len(all) != 0 {
		t.Errorf("aside: %+v, %v", all, err)
	}
}

func TestRemoveDataTakesWhatWasSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "persistent")
	for _, name := range []string{"p1-10", "p1-11", "p2-12", "p1-1-13"} {
		must(t, os.MkdirAll(filepath.Join(dir, ".lost", name, "folder"), 0o700))
	}
	place := noted(t, dir, "p1", "note") // brings one of them back
	must(t, RemoveData(t.Context(), dir, "p1"))
	exists(t, place, false)
	all, err := LostData(dir)
	must(t, err)
	if len(all) != 2 || all[0].Pod != "p2" || all[1].Pod != "p1-1" {
		t.Errorf("left: %+v", all)
	}
}

// TestAHalfRemovedFolderNeverComesBack interrupts the removal of data that was set aside.
func TestAHalfRemovedFolderNeverComesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "persistent")
	noted(t, dir, "p1", "note")
	setAside(t, dir, 1)
	all, err := LostData(dir)
	must(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RemoveLost(ended, dir, all[0]); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	place, err := MakeData(dir, "p1")
	must(t, err)
	exists(t, filepath.Join(place, "note"), false)
	setAside(t, dir, 2) // finishes it
	exists(t, filepath.Join(dir, removed+"p1"), false)
}

func TestNamesThatAreNoPodsAreLeftAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "persistent")
	for _, name := range []string{"lost+found", ".snapshot", "-x", ".lost/p1", ".lost/p1-", ".lost/p1-x", ".lost/-1", ".lost/a b-1", ".lost/p1--1"} {
		must(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	if ids, err := DataOf(dir); err != nil || len(ids) != 0 {
		t.Errorf("data of %v, %v", ids, err)
	}
	all, err := LostData(dir)
	must(t, err)
	for _, l := range all {
		if l.Path != filepath.Join(dir, ".lost", "p1--1") { // of a pod "p1-"
			t.Errorf("aside: %+v", l)
		}
	}
}

// orphan marks a pod as one that the scheduler does not list any more, as the ledger does.
func (f *fakeHost) orphan(id fleet.PodID) Assignment {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.records[id]
	rec.Assignment.Goal, rec.Orphan = fleet.GoalGone, true
	f.records[id] = rec
	return rec.Assignment
}

// TestDataOfAPodThatIsForgottenIsSetAside plays a control plane that was restored from an older copy, and
// then from a newer one.
func TestDataOfAPodThatIsForgottenIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		dir := filepath.Join(f.dir, "persistent")
		order := func(inc uint64, goal fleet.Goal) Assignment {
			a := assignment(inc, goal)
			a.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/workspace"}
			return f.order(a)
		}
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(order(1, fleet.GoalRun))
		settle(time.Second)
		note := filepath.Join(dir, "p1", "note")
		must(t, os.WriteFile(note, nil, 0o600))
		pods.Set(f.orphan("p1"))
		settle(time.Minute)
		exists(t, note, false)
		all, err := LostData(dir)
		must(t, err)
		if len(all) != 1 || all[0].Pod != "p1" || len(f.boxes) != 0 || len(f.records) != 0 {
			t.Fatalf("aside: %+v; containers %v", all, f.boxes)
		}
		exists(t, filepath.Join(all[0].Path, "note"), true)

		pods.Set(order(2, fleet.GoalRun))
		settle(time.Second)
		exists(t, note, true)
		if f.starts[2] != 1 {
			t.Errorf("starts %v", f.starts)
		}
		pods.Set(f.orphan("p1"))
		settle(time.Minute)
		pods.Set(order(3, fleet.GoalStop))
		settle(time.Minute)
		pods.Set(order(3, fleet.GoalGone))
		settle(time.Minute)
		if ids, err := DataOf(dir); err != nil || len(ids) != 0 || f.last().Event != EventGone {
			t.Errorf("data of %v, %v, last report %+v", ids, err, f.last())
		}
		if all, err := LostData(dir); err != nil || len(all) != 0 {
			t.Errorf("an order to go leaves %+v, %v", all, err)
		}
	})
}

// TestWhoseDataIsDropped: what a scheduler ordered to go goes, what is wanted again stays, and all else is set aside, also that of a
// pod which the ledger does not know.
func TestWhoseDataIsDropped(t *testing.T) {
	for name, c := range map[string]struct {
		known, orphan bool
		goal          fleet.Goal
		here, aside   bool
	}{
		"ordered to go": {true, false, fleet.GoalGone, false, false}, "wanted again": {true, false, fleet.GoalStop, true, false},
		"not listed": {true, true, fleet.GoalGone, false, true}, "not known": {false, false, "", false, true},
	} {
		f, m, want := stepper(t, nil)
		place := noted(t, m.Data, want.Pod, "note")
		rec := f.records[want.Pod]
		rec.Orphan, rec.Assignment.Goal = c.orphan, c.goal
		if f.records[want.Pod] = rec; !c.known {
			delete(f.records, want.Pod)
		}
		if err := m.dropData(t.Context()); (err != nil) != c.here || c.here && !errors.Is(err, errSuperseded) {
			t.Errorf("%s: %v", name, err)
		}
		exists(t, filepath.Join(place, "note"), c.here)
		if all, err := LostData(m.Data); err != nil || (len(all) == 1) != c.aside {
			t.Errorf("%s: set aside %+v, %v", name, all, err)
		}
	}
}

// TestDataInAFolderThatDoesNotComeBackIsNotReplaced: here it is on another file system, from which no name can be moved.
func TestDataInAFolderThatDoesNotComeBackIsNotReplaced(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	must(t, unix.Mount("tmpfs", other, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(other, unix.MNT_DETACH)) })
	must(t, os.Mkdir(filepath.Join(other, "p1-7"), 0o700))
	must(t, os.Symlink(other, filepath.Join(dir, lost)))
	if path, err := MakeData(dir, "p1"); !errors.Is(err, unix.EXDEV) {
		t.Errorf("%q, %v", path, err)
	}
	exists(t, filepath.Join(dir, "p1"), false)
	exists(t, filepath.Join(other, "p1-7"), true)
}
