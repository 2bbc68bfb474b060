package state

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// A command without a level could be proposed while older members are there, and stop them.
func TestEveryCommandHasALevel(t *testing.T) {
	for _, cmd := range commandTypes() {
		if n := LevelOf(cmd); n == 0 || n > Level {
			t.Errorf("%T has level %d", cmd, n)
		}
	}
}

// leveled opens a store of a program that understands level, with a state at path.
func leveled(t *testing.T, path string, level uint64) (*Store, error) {
	t.Helper()
	s, err := Open(path, Options{BootID: "boot-1", Level: level})
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s, err
}

// older checks that an error says that the program is older than the cluster.
func older(t *testing.T, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "older than the cluster") {
		t.Errorf("got %v", err)
	}
}

func TestALevelThatIsNotUnderstoodStopsTheReplica(t *testing.T) {
	w := newWorld(t)
	first := w.entry(Bootstrap{ClusterID: "c", At: at(0), Level: 2}, PutMember{member("m1")})
	raise := w.entry(RaiseLevel{Level: 3})
	again := w.entry(RaiseLevel{Level: 2}, RaiseLevel{Level: 3}, PutAccount{fleet.Account{ID: "a"}})

	path := filepath.Join(t.TempDir(), "new.db")
	newer, err := Open(path, Options{BootID: "boot-1", Level: 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newer.Apply([]entry.Entry{first, raise, again}); err != nil {
		t.Fatal(err)
	}
	if got := levelOf(t, newer); got != 3 {
		t.Errorf("the level is %d", got)
	}
	old, err := leveled(t, filepath.Join(t.TempDir(), "old.db"), 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Apply([]entry.Entry{first}); err != nil {
		t.Fatal(err)
	}
	for _, e := range []entry.Entry{raise, again} { // also what comes later
		_, err = old.Apply([]entry.Entry{e})
		older(t, err)
	}
	if got := levelOf(t, old); got != 2 || old.Index() != 1 {
		t.Errorf("the level is %d at index %d", got, old.Index())
	}
	oldest, err := leveled(t, filepath.Join(t.TempDir(), "oldest.db"), 1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = oldest.Apply([]entry.Entry{first})
	older(t, err)

	// Nor is such a state opened or restored; its file is kept.
	snap := snapshotOf(t, newer)
	if err := newer.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = leveled(t, path, 2)
	older(t, err)
	fresh, err := leveled(t, filepath.Join(t.TempDir(), "fresh.db"), 2)
	if err != nil {
		t.Fatal(err)
	}
	older(t, fresh.Restore(bytes.NewReader(snap)))
	if fresh.Index() != 0 {
		t.Errorf("restored up to %d", fresh.Index())
	}
	reopened, err := Open(path, Options{BootID: "boot-2", Level: 3})
	if err != nil || reopened.Index() != 3 || reopened.Discarded() != "" {
		t.Fatalf("the file is lost: %v", err)
	}
	if err := reopened.Close(); err != nil {
		t.Error(err)
	}
}

func levelOf(t *testing.T, s *Store) (level uint64) {
	t.Helper()
	if err := s.View(func(v *View) error { c, _ := v.Cluster(); level = c.Level; return nil }); err != nil {
		t.Fatal(err)
	}
	return level
}

func snapshotOf(t *testing.T, s *Store) []byte {
	t.Helper()
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := snap.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if err := snap.Release(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestNoLevelWithoutACluster(t *testing.T) {
	newWorld(t).refused(fleet.CodeNotFound, RaiseLevel{Level: 1})
}
