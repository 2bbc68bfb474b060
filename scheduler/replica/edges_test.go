package replica

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// TestADiskIsFullFromItsLimitOn, until it is clearly below, and says so once.
func TestADiskIsFullFromItsLimitOn(t *testing.T) {
	var said bytes.Buffer
	n := &Node{cfg: Config{DiskLimit: 95}, log: slog.New(slog.NewTextHandler(&said, nil))}
	for i, c := range []struct {
		used int
		err  error
		full bool
		says string
	}{
		{94, nil, false, ""},
		{95, nil, true, "the disk is full"},
		{96, nil, true, ""},
		{93, nil, true, ""},
		{99, errors.New("no answer"), true, "read the disk"},
		{92, nil, false, "has room again"},
		{50, nil, false, ""},
	} {
		said.Reset()
		n.setDisk(c.used, c.err)
		if n.diskFull.Load() != c.full || (said.Len() == 0) != (c.says == "") || !strings.Contains(said.String(), c.says) {
			t.Errorf("step %d: full %v, said %q", i, n.diskFull.Load(), said.String())
		}
	}
	if n.diskUsed.Load() != 50 {
		t.Errorf("%d %% are used", n.diskUsed.Load())
	}
}

func TestAFileSystemWithoutASizeIsNoEmptyOne(t *testing.T) {
	if used, err := usedShare("/proc"); err == nil {
		t.Errorf("%d %% of /proc are used", used)
	}
	if used, err := usedShare(t.TempDir()); err != nil || used < 1 || used > 100 {
		t.Errorf("%d %%, %v", used, err)
	}
}

func TestEachKindOfFullIsExplained(t *testing.T) {
	for err, explained := range map[error]bool{syscall.ENOSPC: true, syscall.EDQUOT: true, syscall.EIO: false} {
		if got := fullHint(err); !errors.Is(got, err) || strings.Contains(got.Error(), "when there is room") != explained {
			t.Errorf("%v: %v", err, got)
		}
	}
}

func TestAReplayEndsAtItsFirstError(t *testing.T) {
	good, err := state.Encode(account(7))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []bool{true, false} {
		store, err := state.Open(filepath.Join(t.TempDir(), StateFile), state.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f := &replayFSM{machine: storeMachine{store}}
		if bad {
			f.Apply(&raft.Log{Index: 1, Term: 1, Data: []byte("no command")})
		}
		first := f.err
		f.Apply(&raft.Log{Index: 1, Term: 1, Data: good})
		if _, err := f.Snapshot(); (first != nil) != bad || !errors.Is(err, first) || (store.Index() == 1) == bad {
			t.Errorf("bad %v: %v, then %v; index %d", bad, first, err, store.Index())
		}
		f.release()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestASnapshotEndsWhatTheLogHasGrownBy, and says nothing when all is well.
func TestASnapshotEndsWhatTheLogHasGrownBy(t *testing.T) {
	var said words
	m := one(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	for i := range 20 {
		m.put(t, i)
	}
	if m.size.grown() == 0 {
		t.Fatal("the log did not grow")
	}
	if err := m.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	if grown := m.size.grown(); grown != 0 {
		t.Errorf("%d bytes behind the newest snapshot", grown)
	}
	m.stop(t)
	if strings.Contains(said.all(), "snapshot") {
		t.Errorf("said %q", said.all())
	}
}

// words keeps what is logged.
type words struct {
	mu sync.Mutex
	b  []byte
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	return len(p), nil
}

func (w *words) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}

func TestALogThatBeginsBehindItsSnapshotIsRefused(t *testing.T) {
	m := one(t, func(c *Config) { c.TrailingLogs = 1 })
	for i := range 20 {
		m.put(t, i)
	}
	if err := m.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	m.put(t, 20)
	m.stop(t)
	if err := os.RemoveAll(filepath.Join(m.cfg.Dir, snapshotDir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.cfg.Dir, StateFile)); err != nil {
		t.Fatal(err)
	}
	refusedToOpen(t, m.cfg.Dir, "the log begins at entry")
}

func TestTheLastVoterStays(t *testing.T) {
	m := one(t, nil)
	for what, change := range map[string]func(context.Context, string) error{"demote": m.Demote, "remove": m.Remove} {
		err := change(within(t), m.cfg.ID)
		if e := new(fleet.Error); !errors.As(err, &e) || e.Code != fleet.CodeConflictRule || !strings.Contains(e.Msg, "last scheduler") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestAFollowerChangesNoMembers(t *testing.T) {
	members := three(t, nil)
	lead := leader(t, members)
	for _, m := range others(members, lead) {
		before := voters(lead)
		if err := m.Demote(within(t), lead.cfg.ID); !errors.Is(err, ErrNotLeader) {
			t.Errorf("demote: %v", err)
		}
		if err := m.Transfer(within(t), m.cfg.ID); !errors.Is(err, ErrNotLeader) {
			t.Errorf("transfer: %v", err)
		}
		for what, change := range map[string]func(context.Context, string) error{"demote": m.Demote, "remove": m.Remove} {
			if err := change(within(t), "nobody"); !errors.Is(err, ErrNotLeader) { // the leader may know of one
				t.Errorf("%s who is not there, as far as a follower knows: %v", what, err)
			}
		}
		m.diskFull.Store(true)
		if !m.leaveLead(time.Time{}).IsZero() {
			t.Error("a follower with a full disk hands leadership on")
		}
		if after := voters(lead); len(after) != len(before) {
			t.Errorf("voters %v, before %v", after, before)
		}
	}
}

// TestAFullLeaderHandsOnNowAndThen, and never to itself.
func TestAFullLeaderHandsOnNowAndThen(t *testing.T) {
	var said words
	members := three(t, func(c *Config) {
		c.MayLead = func(string) bool { return true }
		c.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	lead := leader(t, members)
	if heirs := lead.heirs(); len(heirs) != 2 || heirs[0] == lead.cfg.ID || heirs[1] == lead.cfg.ID {
		t.Errorf("the heirs of %s are %v", lead.cfg.ID, heirs)
	}
	lead.diskFull.Store(true)
	defer lead.diskFull.Store(false)
	if last := time.Now(); lead.leaveLead(last) != last || !lead.IsLeader() {
		t.Error("leadership was handed on twice within a moment")
	}
	said.mu.Lock()
	said.b = nil
	said.mu.Unlock()
	if lead.leaveLead(time.Time{}).IsZero() {
		t.Error("leadership was not handed on")
	}
	if strings.Contains(said.all(), "transfer leadership") {
		t.Errorf("it went on when leadership was with another: %s", said.all())
	}
}

func TestWhileLeaderTellsThatItsCallerLeft(t *testing.T) {
	m := one(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	err := m.WhileLeader(ctx, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return errors.New("the work was left")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestACallOnRaftThatTakesTooLongIsOfUnknownOutcome(t *testing.T) {
	m := one(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release := make(chan struct{})
	err := m.bounded(ctx, func() error { <-release; return nil })
	close(release)
	if !errors.Is(err, ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestAClusterOfOneNeedsNoConnections: it starts, takes commands and ends without any.
func TestAClusterOfOneNeedsNoConnections(t *testing.T) {
	dir := t.TempDir()
	if err := Create(dir); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	m, err := tryStart(t, dir, "a", l, func(c *Config) { c.Streams = nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Bootstrap(within(t)); err != nil {
		t.Fatal(err)
	}
	m.ready(t)
	m.put(t, 1)
	m.stop(t)
}

// TestWhatBecomesOfAProposal that its caller gave up: before it was taken nothing happens, afterwards nobody knows.
func TestWhatBecomesOfAProposal(t *testing.T) {
	early, late := &proposal{}, &proposal{}
	n := &Node{queue: make(chan *proposal, 3)}
	n.queue <- early
	n.queue <- late
	if err := early.giveUp(ErrBusy, context.Canceled); !errors.Is(err, ErrBusy) || errors.Is(err, ErrUnknown) {
		t.Errorf("before it was taken: %v", err)
	}
	if got := n.dequeue(false); got != late {
		t.Fatalf("dequeued %v", got)
	}
	if err := late.giveUp(ErrBusy, context.Canceled); !errors.Is(err, ErrUnknown) || errors.Is(err, ErrBusy) {
		t.Errorf("afterwards: %v", err)
	}
	if got := n.dequeue(false); got != nil {
		t.Errorf("dequeued %v", got)
	}
}

// TestOneLargeProposalIsTakenByItself: the bound on what waits is for many.
func TestOneLargeProposalIsTakenByItself(t *testing.T) {
	n := &Node{queue: make(chan *proposal, 3)}
	large := &proposal{data: make([]byte, maxQueuedBytes)}
	if err := errors.Join(n.enqueue(&proposal{data: make([]byte, 1)}), n.enqueue(large)); err != nil {
		t.Error(err)
	}
	if err := n.enqueue(&proposal{data: make([]byte, 1)}); !errors.Is(err, ErrBusy) {
		t.Errorf("a small one behind it: %v", err)
	}
}

func TestEntriesBeforeAnIndex(t *testing.T) {
	s := newLogSize(1 << 20)
	s.stored(entriesOf(5, 7, 1))
	for index, want := range map[uint64]int{0: 0, 4: 0, 5: 1, 7: 3, 9: 3} {
		if got := s.past(index); got != want {
			t.Errorf("%d entries are not after %d, want %d", got, index, want)
		}
	}
}

// TestOnlyWhatTakesTheirPlaceEndsOldEntries: one before the cut leaves what was cut off.
func TestOnlyWhatTakesTheirPlaceEndsOldEntries(t *testing.T) {
	log := &tailLog{Log: raft.NewInmemStore()}
	for _, err := range []error{log.StoreLogs(entriesOf(1, 9, 1)), log.DeleteRange(5, 9), log.StoreLogs(entriesOf(4, 4, 2))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if last, err := log.LastIndex(); err != nil || last != 9 {
		t.Errorf("the log ends at %d: %v", last, err)
	}
}

func TestTheSlowestOfManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatchdog(time.Hour, nil)
		for _, name := range []string{"first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"} {
			w.begin(name)
			time.Sleep(time.Second)
		}
		for range 20 {
			if name, took := w.slowest(time.Now()); name != "first" || took != 8*time.Second {
				t.Fatalf("%s takes %v", name, took)
			}
		}
	})
}

func TestTheTimeOfEachWriteIsTold(t *testing.T) {
	var told atomic.Int64
	m := one(t, func(c *Config) { c.Wrote = func(time.Duration) { told.Add(1) } })
	m.put(t, 1)
	m.stop(t)
	if told.Load() == 0 {
		t.Error("nobody was told how long a write took")
	}
}

// TestAMemberWithoutAVote can lose none, inherit no leadership, and does not make up for the last one that has a vote.
func TestAMemberWithoutAVote(t *testing.T) {
	m := one(t, calm)
	b := join(t, m, "b", calm)
	before := m.LastIndex()
	for _, id := range []string{"b", "nobody"} {
		if err := m.Demote(within(t), id); err != nil {
			t.Errorf("demote %s: %v", id, err)
		}
	}
	if after := m.LastIndex(); after != before {
		t.Errorf("the log grew from %d to %d", before, after)
	}
	if err := m.Demote(within(t), "a"); fleet.CodeOf(err) != fleet.CodeConflictRule {
		t.Errorf("demote the last voter: %v", err)
	}
	if heirs := m.heirs(); len(heirs) != 0 {
		t.Errorf("leadership may go to %v", heirs)
	}
	eventually(t, "it has the whole log", func() bool { return m.Acked("b") == m.LastIndex() })
	for _, id := range []string{"", "b", "a", "nobody"} {
		if to, err := m.upToDate(id, m.LastIndex()); !errors.Is(err, errBehind) {
			t.Errorf("leadership may go to %v, asked for %q", to, id)
		}
	}
	eventually(t, "it knows both members", func() bool { return len(b.Servers()) == 2 })
	if b.onlyVoter() || !m.onlyVoter() {
		t.Error("the one without a vote is taken for the one that elects the leader")
	}
	for range 2 { // once it is gone there is nothing to do
		if err := m.Remove(within(t), "b"); err != nil || len(m.Servers()) != 1 {
			t.Errorf("removed: %v, left %v", err, m.Servers())
		}
	}
}

func TestAnEmptySnapshotIsNotInstalled(t *testing.T) {
	store, err := state.Open(filepath.Join(t.TempDir(), StateFile), state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	snap, err := store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := snap.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if err := snap.Release(); err != nil {
		t.Fatal(err)
	}
	if err := Install(t.TempDir(), Member{ID: "z", Address: "127.0.0.1:1"}, &b); err == nil || !strings.Contains(err.Error(), "snapshot is empty") {
		t.Errorf("got %v", err)
	}
}

// TestWhileLeaderOutlivesWhatItCalls: work that ended without an error is not called again under the same leadership.
func TestWhileLeaderOutlivesWhatItCalls(t *testing.T) {
	m := one(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	calls := make(chan struct{}, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- m.WhileLeader(ctx, func(context.Context) error { calls <- struct{}{}; return nil })
	}()
	<-calls
	m.put(t, 1) // time passes under the same leadership
	select {
	case err := <-ended:
		t.Errorf("it ended with %v", err)
	default:
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || len(calls) != 0 {
		t.Errorf("%v, and %d more calls", err, len(calls))
	}
}

func TestACallOnAClosedNodeIsOfUnknownOutcome(t *testing.T) {
	m := one(t, nil)
	m.stop(t)
	if err := m.bounded(t.Context(), func() error { return nil }); !errors.Is(err, ErrUnknown) || !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
}

// TestInspectAfterASnapshot: what it covers is told by it, with no time of an entry.
func TestInspectAfterASnapshot(t *testing.T) {
	m := one(t, func(c *Config) { c.TrailingLogs = 1 })
	for i := range 5 {
		m.put(t, i)
	}
	if err := m.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	last := m.LastIndex()
	m.stop(t)
	if h, err := Inspect(m.cfg.Dir); err != nil || h.Index != last || !h.At.IsZero() {
		t.Errorf("%+v, %v; the snapshot ends at %d", h, err, last)
	}
}

// TestASnapshotUnderAnotherName is not taken for what its name says.
func TestASnapshotUnderAnotherName(t *testing.T) {
	m := one(t, nil)
	m.put(t, 1)
	if err := m.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	m.stop(t)
	snaps, err := openSnapshots(m.cfg.Dir, newLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	list, err := snaps.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("%d snapshots, %v", len(list), err)
	}
	if _, err := snaps.checkOne(list[0].ID); err != nil {
		t.Fatal(err)
	}
	path, sum := filepath.Join(snaps.dir, list[0].ID, metaFile), filepath.Join(snaps.dir, list[0].ID, metaSumFile)
	meta, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"Term", "Index"} {
		other := bytes.Replace(meta, []byte(`"`+field+`":`), []byte(`"`+field+`":9`), 1)
		if err := errors.Join(os.WriteFile(path, other, 0o600), os.WriteFile(sum, metaSum(other), 0o600)); err != nil || bytes.Equal(meta, other) {
			t.Fatal(err, string(meta))
		}
		if _, err := snaps.checkOne(list[0].ID); err == nil || !strings.Contains(err.Error(), "another one's") {
			t.Errorf("another %s: %v", field, err)
		}
	}
	_, rest, _ := strings.Cut(list[0].ID, "-")
	other := "99-" + rest
	if err := os.Rename(filepath.Join(snaps.dir, list[0].ID), filepath.Join(snaps.dir, other)); err != nil {
		t.Fatal(err)
	}
	if _, err := snaps.checkOne(other); err == nil || !strings.Contains(err.Error(), "another one's") {
		t.Errorf("got %v", err)
	}
}

func TestAFileThatCannotBeMadeIsNotWritten(t *testing.T) {
	if err := writeSynced(filepath.Join(t.TempDir(), "none", "file"), []byte("x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
