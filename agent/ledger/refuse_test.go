package ledger

import (
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"gantry/agent/pod"
	"gantry/fleet"
)

// TestLowerGenerationOfAnAssignmentIsNotTaken: the set is newer, the order of one pod in it is not.
func TestLowerGenerationOfAnAssignmentIsNotTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	for _, c := range []struct {
		name  string
		order func(*pod.Assignment)
		taken bool
	}{
		{"lower generation", func(a *pod.Assignment) { a.Generation = 8 }, false},
		{"lower generation of a later incarnation", func(a *pod.Assignment) { a.Generation, a.Incarnation = 8, 5 }, false},
		{"lower incarnation", func(a *pod.Assignment) { a.Generation, a.Incarnation = 10, 3 }, false},
		{"the same", func(*pod.Assignment) {}, true},
		{"higher generation", func(a *pod.Assignment) { a.Generation = 10 }, true},
		{"higher incarnation", func(a *pod.Assignment) { a.Incarnation = 5 }, true},
	} {
		for _, way := range []string{"full set", "difference"} {
			t.Run(c.name+", "+way, func(t *testing.T) {
				l := open(t, path+strings.ReplaceAll(c.name+way, " ", "-"))
				have := want("p1", 9)
				have.Incarnation = 4
				if _, err := l.SetFull(9, []pod.Assignment{have}, allocator); err != nil {
					t.Fatal(err)
				}
				order := have
				c.order(&order)
				order.Image = "other"
				var changed []pod.Assignment
				var err error
				if way == "full set" {
					changed, err = l.SetFull(12, []pod.Assignment{order}, allocator)
				} else {
					changed, err = l.Apply(9, 12, []pod.Assignment{order}, nil, allocator)
				}
				expect := have
				if c.taken {
					expect = order
				}
				rec, _ := l.Record("p1")
				if d := cmp.Diff(expect, rec.Assignment, compare); err != nil || d != "" || len(changed) == 1 != c.taken || rec.Orphan {
					t.Errorf("%v, changed %v, orphan %v, holds (-want +got):\n%s", err, changed, rec.Orphan, d)
				}
				if l.Generation() != 12 {
					t.Errorf("generation %d", l.Generation())
				}
			})
		}
	}
}

// TestBeginRefusesWhatMayNotRun: nothing is written, and the caller hears it.
func TestBeginRefusesWhatMayNotRun(t *testing.T) {
	for _, c := range []struct {
		name        string
		prepare     func(*Ledger) error
		pod         fleet.PodID
		incarnation uint64
		allowed     bool
	}{
		{"ordered", nil, "p1", 4, true},
		{"no record", nil, "p2", 4, false},
		{"an incarnation before the one ordered", nil, "p1", 3, false},
		{"a later one has begun", func(l *Ledger) error { return l.Begin(pod.Assignment{Pod: "p1", Incarnation: 6}, "boot") }, "p1", 5, false},
		{"it has begun already", func(l *Ledger) error { return l.Begin(pod.Assignment{Pod: "p1", Incarnation: 4}, "boot") }, "p1", 4, true},
		{"it has ended", func(l *Ledger) error { return l.End("p1", pod.Ended{Incarnation: 4}) }, "p1", 4, false},
		{"a later one has ended", func(l *Ledger) error { return l.End("p1", pod.Ended{Incarnation: 5}) }, "p1", 4, false},
		{"an earlier one has ended", func(l *Ledger) error { return l.End("p1", pod.Ended{Incarnation: 3}) }, "p1", 4, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.db")
			l := open(t, path)
			a := want("p1", 1)
			a.Incarnation = 4
			if _, err := l.SetFull(1, []pod.Assignment{a}, allocator); err != nil {
				t.Fatal(err)
			}
			if c.prepare != nil {
				if err := c.prepare(l); err != nil {
					t.Fatal(err)
				}
			}
			before, had := l.Record(c.pod)
			err := l.Begin(pod.Assignment{Pod: c.pod, Incarnation: c.incarnation, GPUs: []string{"g"}}, "now")
			after, has := l.Record(c.pod)
			if c.allowed {
				if err != nil || after.Begun != c.incarnation || after.BegunBoot != "now" || after.Held == nil || len(after.Held.GPUs) != 1 {
					t.Errorf("%v, holds %+v", err, after)
				}
			} else if d := cmp.Diff(before, after, compare); !errors.Is(err, ErrNotOrdered) || had != has || d != "" {
				t.Errorf("%v, changed (-before +after):\n%s", err, d)
			}
			sameOnDisk(t, path, l)
		})
	}
}

func TestLineageNeverFalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	for _, c := range []struct{ set, want uint64 }{{5, 5}, {4, 5}, {5, 5}, {0, 5}, {6, 6}} {
		if err := l.SetLineage(c.set); err != nil || l.Lineage() != c.want {
			t.Errorf("after %d: %v, lineage %d, want %d", c.set, err, l.Lineage(), c.want)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if again := open(t, path); again.Lineage() != 6 {
		t.Errorf("lineage %d on disk", again.Lineage())
	}
}

func TestSetsOfTheSameGenerationAreTaken(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	for range 2 {
		if _, err := l.SetFull(7, []pod.Assignment{want("p1", 7)}, allocator); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Apply(7, 7, []pod.Assignment{want("p1", 7)}, nil, allocator); err != nil {
		t.Error(err)
	}
	if _, err := l.Apply(8, 9, nil, nil, allocator); !errors.Is(err, ErrGap) {
		t.Errorf("a difference that begins later: %v", err)
	}
}

// TestWhatIsNotKnownIsNotWritten: an end, an orphan or a removal of a pod without a record leaves none.
func TestWhatIsNotKnownIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	if _, err := l.Apply(0, 1, nil, []fleet.PodID{"p1"}, allocator); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.End("p1", pod.Ended{Incarnation: 1}), l.Forget("p1")); err != nil {
		t.Fatal(err)
	}
	if got := l.Records(); len(got) != 0 {
		t.Errorf("records %+v", got)
	}
	sameOnDisk(t, path, l)
}

func TestLaterEndReplacesAnEarlierOne(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ end, want uint64 }{{2, 2}, {1, 2}, {3, 3}} {
		if err := l.End("p1", pod.Ended{Incarnation: c.end}); err != nil {
			t.Fatal(err)
		}
		if rec, _ := l.Record("p1"); rec.Ended.Incarnation != c.want {
			t.Errorf("after the end of %d the ledger has that of %d", c.end, rec.Ended.Incarnation)
		}
	}
}

func TestRecordThatIsNotWhatItsKeySaysIsNotOpened(t *testing.T) {
	for name, spoil := range map[string]func(*bbolt.Tx) error{
		"record of another pod": func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketPods).Put([]byte("p9"), tx.Bucket(bucketPods).Get([]byte("p1")))
		},
		"record that is none": func(tx *bbolt.Tx) error { return tx.Bucket(bucketPods).Put([]byte("p1"), []byte{0xff}) },
		"subnet that is none": func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keySubnet, []byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.db")
			l := open(t, path)
			if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1)}, allocator); err != nil {
				t.Fatal(err)
			}
			if err := l.SetSubnet(netip.MustParsePrefix("10.0.0.0/20")); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(l.db.Update(spoil), l.Close()); err != nil {
				t.Fatal(err)
			}
			if again, err := Open(path); err == nil {
				_ = again.Close()
				t.Error("it was opened")
			}
		})
	}
}
