package ledger

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

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
			writes := 0
			l.WhenWritten(func(time.Duration) { writes++ })
			err := l.Begin(pod.Assignment{Pod: c.pod, Incarnation: c.incarnation, GPUs: []string{"g"}}, "now")
			after, has := l.Record(c.pod)
			if c.allowed {
				if err != nil || after.Begun != c.incarnation || after.BegunBoot != "now" || after.Held == nil || len(after.Held.GPUs) != 1 {
					t.Errorf("%v, holds %+v", err, after)
				}
			} else if d := cmp.Diff(before, after, compare); !errors.Is(err, ErrNotOrdered) || had != has || d != "" || writes != 0 {
				t.Errorf("%v, %d writes, changed (-before +after):\n%s", err, writes, d)
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

func TestOnlyALaterEndReplacesAnEarlierOne(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		end          uint64
		reason, want string
	}{{2, "first of 2", "first of 2"}, {2, "second of 2", "first of 2"}, {1, "of 1", "first of 2"}, {3, "of 3", "of 3"}} {
		if err := l.End("p1", pod.Ended{Incarnation: c.end, Reason: c.reason}); err != nil {
			t.Fatal(err)
		}
		if rec, _ := l.Record("p1"); rec.Ended.Reason != c.want {
			t.Errorf("after %q the ledger has %q", c.reason, rec.Ended.Reason)
		}
	}
}

// TestWhatIsKnownIsNotAdopted nor what was adopted once.
func TestWhatIsKnownIsNotAdopted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, path)
	if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1)}, allocator); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id         fleet.PodID
		begun, has uint64
	}{{"p1", 9, 0}, {"p2", 3, 3}, {"p2", 4, 3}} {
		if err := l.Adopt(pod.Record{Assignment: want(c.id, 0), Begun: c.begun}); err != nil {
			t.Fatal(err)
		}
		if rec, _ := l.Record(c.id); rec.Begun != c.has {
			t.Errorf("%s has begun %d, not %d", c.id, rec.Begun, c.has)
		}
	}
	sameOnDisk(t, path, l)
}

func TestRecordThatIsNotWhatItsKeySaysIsNotOpened(t *testing.T) {
	put := func(bucket, key, value []byte) func(*bbolt.Tx) error {
		return func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(key, value) }
	}
	p1 := []byte("p1")
	for name, c := range map[string]struct {
		spoil func(*bbolt.Tx) error
		says  string
	}{
		"record of another pod": {func(tx *bbolt.Tx) error {
			b := tx.Bucket(bucketPods)
			return b.Put([]byte("p9"), summed([]byte("p9"), checked(p1, b.Get(p1))))
		}, "pod p9: holds the record of another"},
		"record that is none":      {put(bucketPods, p1, summed(p1, []byte{0xff})), "pod p1: cbor"},
		"record without checksum":  {put(bucketPods, p1, []byte{0xff}), `the checksum of "p1" is wrong`},
		"checksum of another key":  {put(bucketPods, p1, summed([]byte("p2"), []byte{0xa0})), `the checksum of "p1" is wrong`},
		"generation that is none":  {put(bucketMeta, keyGeneration, summed(keyGeneration, []byte("x"))), "the generation is no number"},
		"lineage with a wrong sum": {put(bucketMeta, keyLineage, []byte("123456789012")), `the checksum of "lineage" is wrong`},
		"subnet that is none":      {put(bucketMeta, keySubnet, summed(keySubnet, []byte("x"))), "subnet: "},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.db")
			l := open(t, path)
			if _, err := l.SetFull(1, []pod.Assignment{want("p1", 1)}, allocator); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(l.db.Update(c.spoil), l.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("opened: %v; want %q in it", err, c.says)
			}
		})
	}
}

// TestAWriteThatFailsChangesNothing: every call says so, and answers as before.
func TestAWriteThatFailsChangesNothing(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.db"))
	if _, err := l.SetFull(4, []pod.Assignment{want("p1", 4), want("p2", 4)}, allocator); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(4, 5, nil, []fleet.PodID{"p2"}, allocator); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.SetLineage(1), l.SetForeignDisk(7), l.SetSubnet(netip.MustParsePrefix("10.0.0.0/20"))); err != nil {
		t.Fatal(err)
	}
	before := l.Records()
	writes := 0
	l.WhenWritten(func(time.Duration) { writes++ })
	if err := l.Close(); err != nil { // which no write gets past
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"write the lineage":         func() error { return l.SetLineage(2) },
		"database not open":         func() error { return l.SetSubnet(netip.MustParsePrefix("10.9.0.0/20")) },
		"write the use of the disk": func() error { return l.SetForeignDisk(8) },
		"write assignments": func() error {
			_, err := l.SetFull(6, []pod.Assignment{want("p3", 6)}, allocator)
			return err
		},
		"write pod p1":  func() error { return l.Begin(want("p1", 4), "boot") },
		"write pod p4":  func() error { return l.Adopt(pod.Record{Assignment: want("p4", 0)}) },
		"forget pod p2": func() error { return l.Forget("p2") },
	}
	for says, call := range calls {
		if err := call(); !errors.Is(err, bbolterrors.ErrDatabaseNotOpen) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v; want %q in it", err, says)
		}
	}
	if writes != len(calls) {
		t.Errorf("%d writes were measured, of %d", writes, len(calls))
	}
	byPod := cmpopts.SortSlices(func(a, b pod.Record) bool { return a.Assignment.Pod < b.Assignment.Pod })
	if d := cmp.Diff(before, l.Records(), compare, byPod); d != "" {
		t.Errorf("records (-before +after):\n%s", d)
	}
	disk, _ := l.ForeignDisk()
	if l.Lineage() != 1 || l.Generation() != 5 || disk != 7 || l.Subnet().String() != "10.0.0.0/20" {
		t.Errorf("lineage %d, generation %d, disk %d, subnet %s", l.Lineage(), l.Generation(), disk, l.Subnet())
	}
}

// TestAnAgentThatEndsMayHaveTheLedgerStill for a moment: the next one waits for it.
func TestAnAgentThatEndsMayHaveTheLedgerStill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	first := open(t, path)
	closed := make(chan error, 1)
	time.AfterFunc(lockTimeout/8, func() { closed <- first.Close() })
	second, err := Open(path)
	if err := errors.Join(err, <-closed); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
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
