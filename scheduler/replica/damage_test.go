package replica

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"gantry/fleet"
)

// damageSeeds is how many folders TestDamageIsNoticed damages; GANTRY_DAMAGE_SEEDS sets another number.
const damageSeeds = 100

// contentOf is what a member holds: its state and the entries behind the newest snapshot but one.
type content struct {
	hash    string
	entries map[uint64]string
}

func contentOf(t testing.TB, m *member) content {
	t.Helper()
	c := content{hash: m.hash(t), entries: map[uint64]string{}}
	first, err := m.logs.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := m.logs.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	for i := first; i <= last && i > 0; i++ {
		var e raft.Log
		if err := m.logs.GetLog(i, &e); err != nil {
			t.Fatal(err)
		}
		c.entries[i] = fmt.Sprintf("%d %s %x %x", e.Term, e.Type, e.Data, e.Extensions)
	}
	return c
}

// damagedSource is the folder of a member with log, two snapshots and a state.
func damagedSource(t *testing.T) (string, content) {
	t.Helper()
	m := one(t, func(c *Config) { c.TrailingLogs = 15; c.SnapshotThreshold = 1_000_000 })
	for i := range 60 {
		m.put(t, i)
		if i == 40 || i == 50 {
			if err := m.Snapshot(within(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := contentOf(t, m)
	m.stop(t)
	return m.cfg.Dir, want
}

// harm flips bytes of one file, cuts it off, or takes it away, and says what it did.
func harm(t *testing.T, r *rand.Rand, dir string) string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
			if filepath.Base(path) == logFile { // it is where most is at stake
				files = append(files, path, path, path, path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	path := files[r.IntN(len(files))]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(path, dir)
	switch kind := r.IntN(10); {
	case kind == 0:
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		return "remove " + name
	case kind <= 2 && len(data) > 0:
		size := r.IntN(len(data))
		if err := os.Truncate(path, int64(size)); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("cut %s at %d", name, size)
	}
	done := "flip " + name
	for range min(len(data), 1+r.IntN(8)) {
		at := r.IntN(len(data))
		data[at] ^= 1 << r.IntN(8)
		done += fmt.Sprintf(" %d", at)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return done
}

// A member whose files were damaged refuses to start, or has lost nothing.
func TestDamageIsNoticed(t *testing.T) {
	seeds := damageSeeds
	if s := os.Getenv("GANTRY_DAMAGE_SEEDS"); s != "" {
		var err error
		if seeds, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	source, want := damagedSource(t)
	var refused atomic.Int64
	t.Run("seed", func(t *testing.T) {
		for seed := range seeds {
			t.Run(strconv.Itoa(seed), func(t *testing.T) {
				t.Parallel()
				dir := copyDir(t, source)
				what := harm(t, rand.New(rand.NewPCG(1, uint64(seed))), dir)
				if err := openDamaged(t, dir, want); err != nil {
					refused.Add(1)
					if !strings.Contains(err.Error(), "damaged") {
						t.Errorf("the error does not say what to do: %v", err)
					}
				}
				if t.Failed() {
					t.Log(what)
				}
			})
		}
	})
	t.Logf("%d of %d were refused", refused.Load(), seeds)
	if n := int(refused.Load()); n < seeds/25 || n > seeds*9/10 {
		t.Errorf("%d of %d were refused: the test shows little", n, seeds)
	}
}

// openDamaged opens a damaged folder; without an error it finds all in it that was there before.
func openDamaged(t *testing.T, dir string, want content) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	snaps, err := os.ReadDir(filepath.Join(dir, snapshotDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var said words
	m, err := tryStart(t, dir, "a", l, func(c *Config) {
		c.TrailingLogs, c.SnapshotThreshold = 15, 1_000_000
		c.HeartbeatTimeout = 20 * time.Millisecond
		c.Log = slog.New(slog.NewTextHandler(&said, nil))
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer m.stop(t)
	for _, e := range snaps {
		if _, err := os.Stat(filepath.Join(dir, snapshotDir, e.Name())); err != nil && !strings.HasSuffix(e.Name(), snapSuffix) && !strings.Contains(said.all(), e.Name()) {
			t.Errorf("snapshot %s is removed, and nobody is told", e.Name())
		}
	}
	m.ready(t)
	got := contentOf(t, m)
	if got.hash != want.hash {
		t.Errorf("another state: %d accounts", m.accounts())
	}
	for i, e := range want.entries {
		if got.entries[i] != e {
			t.Errorf("entry %d is another one: %s", i, got.entries[i])
		}
	}
	select {
	case err := <-m.fatal:
		t.Errorf("it started and then failed: %v", err)
	default:
	}
	return nil
}

// damageNewest flips a byte in a member's newest snapshot.
func damageNewest(t *testing.T, dir, file string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, snapshotDir, "*", file))
	if err != nil || len(files) == 0 {
		t.Fatalf("snapshots %v, %v", files, err)
	}
	path := files[len(files)-1] // the names begin with term and index
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestThePreviousSnapshotIsUsed(t *testing.T) {
	for _, file := range []string{"state.bin", metaFile} {
		for _, lost := range []bool{false, true} {
			source, want := damagedSource(t)
			damageNewest(t, source, file)
			if lost {
				if err := os.Remove(filepath.Join(source, StateFile)); err != nil {
					t.Fatal(err)
				}
			}
			if err := openDamaged(t, source, want); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

func TestALogThatIsGoneIsRefused(t *testing.T) {
	source, _ := damagedSource(t)
	if err := os.Remove(filepath.Join(source, logFile)); err != nil {
		t.Fatal(err)
	}
	refusedToOpen(t, source, "gantry-scheduler rebuild")
	if err := os.Remove(filepath.Join(source, StateFile)); err != nil {
		t.Fatal(err)
	}
	refusedToOpen(t, source, "raft.db is missing")
	if err := os.RemoveAll(filepath.Join(source, snapshotDir)); err != nil {
		t.Fatal(err)
	}
	refusedToOpen(t, source, "gantry-scheduler rebuild")
}

// After a power cut the state is begun anew from the log; with neither, and no snapshot yet, the member is no new one.
func TestAPowerCutThatTookTheLogIsRefused(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"missing": os.Remove,
		"empty":   func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			m := one(t, nil)
			m.put(t, 1)
			m.stop(t)
			if err := os.WriteFile(filepath.Join(m.cfg.Dir, StateFile+".mark"), []byte("open other-boot\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := change(filepath.Join(m.cfg.Dir, logFile)); err != nil {
				t.Fatal(err)
			}
			refusedToOpen(t, m.cfg.Dir, "gantry-scheduler rebuild")
		})
	}
}

// Create makes the log of a new member once, and of nothing that was a member.
func TestCreateMakesOnlyWhatIsNew(t *testing.T) {
	dir := t.TempDir()
	refusedToOpen(t, dir, "raft.db is missing")
	if err := Create(dir); !errors.Is(err, ErrDamaged) { // the state is there since
		t.Errorf("got %v", err)
	}
	m := one(t, nil)
	m.put(t, 1)
	want := m.hash(t)
	m.stop(t)
	if err := Create(m.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	again := start(t, m.cfg.Dir, "a", "127.0.0.1:0", nil)
	again.ready(t)
	if again.hash(t) != want {
		t.Error("another state")
	}
}

// A folder of before there were sums opens, and has sums from then on.
func TestALogWithoutSumsOpens(t *testing.T) {
	m := one(t, nil)
	for i := range 5 {
		m.put(t, i)
	}
	want, last := m.hash(t), m.LastIndex()
	m.stop(t)
	logs, err := openLog(m.cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= last; i++ {
		var e raft.Log
		if err := logs.GetLog(i, &e); err != nil {
			t.Fatal(err)
		}
		if err := logs.BoltStore.StoreLog(&e); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{keyTerm, keyVoteTerm, keyVote} {
		value, err := logs.Get([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		if err := logs.BoltStore.Set([]byte(key), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(logs.Close(), dropKey(m.cfg.Dir, keySums)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		again := startAgain(t, m)
		again.ready(t)
		if again.hash(t) != want {
			t.Error("another state")
		}
		again.stop(t)
	}
}

// A disk that is full refuses commands, and with another voter there this node does not lead.
func TestAFullDisk(t *testing.T) {
	used := make(map[string]*diskUse)
	members := three(t, func(c *Config) {
		used[c.ID] = &diskUse{}
		used[c.ID].set(50)
		c.DiskUsed = used[c.ID].get
	})
	first := leader(t, members)
	first.put(t, 1)
	used[first.cfg.ID].set(95)
	eventually(t, "it knows", first.DiskFull)
	if _, err := first.Propose(within(t), account(2)); err == nil || !errors.Is(err, ErrDiskFull) && !errors.Is(err, ErrNotLeader) {
		t.Errorf("got %v", err)
	}
	eventually(t, "it leads no more", func() bool { return !first.IsLeader() })
	second := leader(t, others(members, first))
	second.put(t, 3)
	alike(t, members, 2)
	used[first.cfg.ID].set(94)
	for _, m := range others(members, first) {
		used[m.cfg.ID].set(100)
	}
	eventually(t, "all know", func() bool { return members[0].DiskFull() && members[1].DiskFull() && members[2].DiskFull() })
	for _, d := range used {
		d.set(92)
	}
	eventually(t, "there is room", func() bool {
		return !members[0].DiskFull() && !members[1].DiskFull() && !members[2].DiskFull()
	})
	leader(t, members).put(t, 4)
}

func TestAFullDiskOfTheOnlyMember(t *testing.T) {
	var used diskUse
	used.set(99)
	m := one(t, func(c *Config) { c.DiskUsed = used.get })
	eventually(t, "it knows", m.DiskFull)
	_, err := m.Propose(within(t), account(2))
	if !errors.Is(err, ErrDiskFull) || fleet.CodeOf(err) != fleet.CodeUnavailable || !m.IsLeader() {
		t.Errorf("got %v", err)
	}
	if _, err := m.Append(within(t), 1, []byte{0x80}); !errors.Is(err, ErrDiskFull) {
		t.Errorf("of a group of another kind: %v", err)
	}
	if err := m.Barrier(within(t)); err != nil {
		t.Errorf("a read was refused: %v", err)
	}
	if _, err := usedShare(m.cfg.Dir); err != nil {
		t.Error(err)
	}
}

// diskUse is a disk whose use can be set.
type diskUse struct{ percent atomic.Int64 }

func (d *diskUse) set(percent int64) { d.percent.Store(percent) }
func (d *diskUse) get() (int, error) { return int(d.percent.Load()), nil }

// dropKey takes a key out of the stable store, as if it had never been there.
func dropKey(dir, key string) error {
	db, err := bbolt.Open(filepath.Join(dir, logFile), 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("conf")).Delete([]byte(key)) })
	return errors.Join(err, db.Close())
}
