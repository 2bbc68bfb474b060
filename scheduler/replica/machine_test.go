package replica

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"gantry/scheduler/state"
)

// odd is a state machine of another kind, whose snapshots are exported with a word in front, or not at all.
type odd struct {
	Machine
	err error
}

func (o *odd) Export(snapshot io.ReadCloser, size int64) (io.ReadCloser, int64, error) {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader("word"), snapshot), snapshot}, size + 4, o.err
}

// appendTo has a member of a group of another kind apply a command.
func appendTo(t *testing.T, m *member, i int) {
	t.Helper()
	data, err := state.Encode(account(i))
	if err != nil {
		t.Fatal(err)
	}
	if res, err := m.Append(within(t), 1, data); err != nil || res[0].Err != nil {
		t.Fatal(res, err)
	}
}

// TestAGroupOfAnotherKindTakesNoPropose: which commands are in force is known of the control plane's state alone.
func TestAGroupOfAnotherKindTakesNoPropose(t *testing.T) {
	kind := &odd{}
	m := one(t, func(c *Config) { kind.Machine, c.Store = storeMachine{c.Store}, nil; c.Machine = kind })
	before := m.LastIndex()
	if _, err := m.Propose(within(t), account(1)); err == nil || !strings.Contains(err.Error(), "Append") {
		t.Errorf("got %v", err)
	}
	if after := m.LastIndex(); after != before {
		t.Errorf("the log grew from %d to %d", before, after)
	}
}

// TestAMachineOfAnotherKind is driven as the control plane's state is, and others get its snapshots as it exports them; it
// gets its own as they are.
func TestAMachineOfAnotherKind(t *testing.T) {
	kind := &odd{}
	m := one(t, func(c *Config) { kind.Machine, c.Store = storeMachine{c.Store}, nil; c.Machine = kind })
	appendTo(t, m, 1)
	if err := m.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	list, err := m.exports.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("%d snapshots, %v", len(list), err)
	}
	appendTo(t, m, 2) // the state is newer than the snapshot: that need not be restored
	m.stop(t)
	m = start(t, m.cfg.Dir, "a", m.cfg.Address, func(c *Config) { kind.Machine, c.Store = storeMachine{c.Store}, nil; c.Machine = kind })
	m.ready(t)
	if at := m.trans.newest.Load(); at == nil || at.index != list[0].Index || at.term != list[0].Term {
		t.Errorf("its newest snapshot is %+v, want that at %d", at, list[0].Index)
	}
	if !m.exports.restored.Load() {
		t.Error("it gives out its snapshots as they are, and has all of them in its state")
	}
	for _, c := range []struct {
		restored bool
		err      error
		more     int64
	}{{true, nil, 4}, {false, nil, 0}, {true, errors.New("no room"), 0}, {false, errors.New("no room"), 0}} {
		m.exports.restored.Store(c.restored)
		kind.err = c.err
		meta, r, err := m.exports.Open(list[0].ID)
		if fails := c.restored && c.err != nil; fails || err != nil {
			if !errors.Is(err, c.err) || !fails || r != nil {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		data, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || meta.Size != list[0].Size+c.more || int64(len(data)) != meta.Size {
			t.Errorf("%+v: %d of %d bytes, %v", c, len(data), meta.Size, err)
		}
	}
}

// TestALogWithWhatIsNoneOfItsOwnIsRefused, whether it is a key or an entry.
func TestALogWithWhatIsNoneOfItsOwnIsRefused(t *testing.T) {
	for bucket, says := range map[string]string{"conf": "unknown key", "logs": "a key is of another kind"} {
		dir := t.TempDir()
		if err := Create(dir); err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(filepath.Join(dir, logFile), 0o600, &bbolt.Options{Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte(bucket)).Put([]byte("odd"), []byte("value")) })
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		logs, err := openLog(dir)
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", bucket, err)
		}
		if err == nil {
			_ = logs.Close()
		}
	}
}

// TestWhatAReplicaFindsCountsAgain: after a restart the log is as long as before.
func TestWhatAReplicaFindsCountsAgain(t *testing.T) {
	m := one(t, nil)
	for i := range 5 {
		m.put(t, i)
	}
	m.stop(t)
	before := m.LogBytes()
	if again := startAgain(t, m); before == 0 || again.LogBytes() < before {
		t.Errorf("%d bytes of log, before %d", again.LogBytes(), before)
	}
}

// TestEveryDamagedSnapshotIsRemoved, not the first alone.
func TestEveryDamagedSnapshotIsRemoved(t *testing.T) {
	s := &snapStore{dir: t.TempDir()}
	for _, name := range []string{"1-1-1", "1-2-2", "odd"} {
		if err := os.MkdirAll(filepath.Join(s.dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	good, lost, err := s.check()
	if err != nil || good != 0 || lost != 2 || len(s.damaged) != 3 {
		t.Fatalf("good up to %d, lost up to %d, damaged %v, %v", good, lost, s.damaged, err)
	}
	if err := s.drop(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestANewMemberHasNothingToKeep: a snapshot of nothing is none, and no error.
func TestANewMemberHasNothingToKeep(t *testing.T) {
	m := start(t, t.TempDir(), "a", "127.0.0.1:0", nil)
	if err := m.Snapshot(within(t)); err != nil {
		t.Error(err)
	}
	if list, err := m.exports.List(); err != nil || len(list) != 0 {
		t.Errorf("%d snapshots, %v", len(list), err)
	}
}

// still is a state machine of which no snapshot can be taken.
type still struct{ Machine }

var errStill = errors.New("no page is free")

func (still) Snapshot() (Snapshot, error) { return nil, errStill }

// TestASnapshotThatCannotBeTakenIsTold to who asks for it, also for the size of the log, whose setting stays.
func TestASnapshotThatCannotBeTakenIsTold(t *testing.T) {
	m := one(t, func(c *Config) { c.Machine, c.Store = still{storeMachine{c.Store}}, nil })
	appendTo(t, m, 1)
	for what, err := range map[string]error{"asked for": m.Snapshot(within(t)), "for the size": m.shorten()} {
		if err == nil || !strings.Contains(err.Error(), errStill.Error()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := m.raft.ReloadableConfig().TrailingLogs; got != 2048 {
		t.Errorf("%d entries are kept", got)
	}
}

// TestATransportOfTheCallersIsUsed in place of connections.
func TestATransportOfTheCallersIsUsed(t *testing.T) {
	address, trans := raft.NewInmemTransport("")
	m := one(t, func(c *Config) { c.Streams, c.Address, c.Transport = nil, string(address), trans })
	m.put(t, 1)
	if m.acks.Transport != trans || m.streams != nil {
		t.Errorf("members are reached by %T", m.acks.Transport)
	}
}
