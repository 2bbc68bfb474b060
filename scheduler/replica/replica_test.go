package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"gantry/fleet"
	"gantry/scheduler/state"
)

func TestMain(m *testing.M) {
	// What Raft never ends; see TestAHandoverThatDoesNotEnd.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*Raft).leadershipTransfer"),
		goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*Raft).leaderLoop.func2"))
}

func TestProposeAnswersEveryCommand(t *testing.T) {
	m := one(t, nil)
	res, err := m.Propose(within(t), account(1), state.DeleteKey{Account: "x", Key: "y"}, account(2))
	if err != nil || len(res) != 3 {
		t.Fatalf("got %v, %v", res, err)
	}
	if res[0].Err != nil || fleet.CodeOf(res[1].Err) != fleet.CodeNotFound || res[2].Err != nil {
		t.Errorf("got %v", res)
	}
	if m.accounts() != 2 {
		t.Errorf("%d accounts right after the answer", m.accounts())
	}
}

func TestBootstrapOnlyWhatIsEmpty(t *testing.T) {
	dir := t.TempDir()
	m := start(t, dir, "a", "127.0.0.1:0", nil)
	if !m.Empty() {
		t.Fatal("a new folder holds a cluster")
	}
	if _, err := m.Propose(within(t), account(1)); !errors.Is(err, ErrNotLeader) || fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Fatalf("got %v", err)
	}
	if err := m.Bootstrap(within(t)); err != nil {
		t.Fatal(err)
	}
	m.ready(t)
	if err := m.Bootstrap(within(t)); fleet.CodeOf(err) != fleet.CodeExists {
		t.Fatalf("got %v", err)
	}
	if m.Empty() {
		t.Fatal("a cluster is taken for none")
	}
	m.stop(t)
	m = start(t, dir, "a", "127.0.0.1:0", nil)
	if m.Empty() {
		t.Fatal("a cluster is taken for none after a restart")
	}
	m.ready(t)
}

// copyDir copies a running member's folder, as a kill would leave it.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestAcknowledgedCommandsSurviveAKill(t *testing.T) {
	m := one(t, nil)
	for i := range 50 {
		m.put(t, i)
	}
	want := m.hash(t)
	for name, change := range map[string]func(dir string){
		"killed":         func(string) {},
		"lost its state": func(dir string) { _ = os.Remove(filepath.Join(dir, StateFile)) },
		"lost power":     func(dir string) { _ = os.WriteFile(filepath.Join(dir, StateFile+".mark"), []byte("open other"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyDir(t, m.cfg.Dir)
			change(dir)
			again := start(t, dir, "a", "127.0.0.1:0", nil)
			again.ready(t)
			if again.accounts() != 50 || again.hash(t) != want {
				t.Errorf("%d of 50 accounts are left", again.accounts())
			}
			again.put(t, 50)
		})
	}
}

func TestSnapshotRestartRestore(t *testing.T) {
	few := func(c *Config) { c.TrailingLogs = 1; c.SnapshotThreshold = 1_000_000 }
	m := one(t, few)
	for i := range 40 {
		m.put(t, i)
	}
	if err := m.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	m.put(t, 40)
	if err := m.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	m.put(t, 41)
	want, dir := m.hash(t), m.cfg.Dir
	if first, err := m.logs.FirstIndex(); err != nil || first < 40 {
		t.Fatalf("the log still begins at %d, %v", first, err)
	}
	m.stop(t)

	again := start(t, dir, "a", "127.0.0.1:0", few)
	again.ready(t)
	if again.hash(t) != want {
		t.Error("another state after a restart")
	}
	again.stop(t)

	// Without the state file, snapshot and log give it all back.
	if err := os.Remove(filepath.Join(dir, StateFile)); err != nil {
		t.Fatal(err)
	}
	again = start(t, dir, "a", "127.0.0.1:0", few)
	again.ready(t)
	if again.hash(t) != want {
		t.Error("another state from snapshot and log")
	}
	again.stop(t)

	// And without its log a state is refused.
	if err := os.Remove(filepath.Join(dir, "raft.db")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "snapshots")); err != nil {
		t.Fatal(err)
	}
	refusedToOpen(t, dir, "raft.db is missing")
}

func refusedToOpen(t *testing.T, dir, why string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m, err := tryStart(t, dir, "a", l, nil)
	if err == nil {
		m.stop(t)
	}
	if err == nil || !strings.Contains(err.Error(), why) {
		t.Fatalf("got %v, want %q", err, why)
	}
	_ = l.Close()
}

func TestDamagedSnapshotIsRefused(t *testing.T) {
	few := func(c *Config) { c.TrailingLogs = 1; c.SnapshotThreshold = 1_000_000 }
	m := one(t, few)
	m.put(t, 1)
	m.put(t, 2)
	if err := m.Snapshot(within(t)); err != nil {
		t.Fatal(err)
	}
	m.stop(t)
	files, err := filepath.Glob(filepath.Join(m.cfg.Dir, "snapshots", "*", "state.bin"))
	if err != nil || len(files) != 1 {
		t.Fatalf("snapshots %v, %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(files[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.cfg.Dir, StateFile)); err != nil {
		t.Fatal(err)
	}
	refusedToOpen(t, m.cfg.Dir, "snapshot")
}

func TestADirectoryInUseIsRefused(t *testing.T) {
	m := one(t, nil)
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(m.cfg.Dir, "raft.db"), filepath.Join(dir, "raft.db")); err != nil {
		t.Fatal(err)
	}
	refusedToOpen(t, dir, "open log")
}

func TestConcurrentProposalsShareEntries(t *testing.T) {
	m := one(t, nil)
	before := m.raft.LastIndex()
	const callers, each = 64, 20
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				res, err := m.Propose(within(t), account(c*each+i))
				if err != nil || res[0].Err != nil {
					t.Errorf("got %v, %v", res, err)
				}
			}
		})
	}
	wg.Wait()
	entries := m.raft.LastIndex() - before
	t.Logf("%d commands in %d entries", callers*each, entries)
	if m.accounts() != callers*each {
		t.Errorf("%d accounts", m.accounts())
	}
	if entries >= callers*each/2 {
		t.Errorf("%d commands took %d entries", callers*each, entries)
	}
}

// Results go to those who asked, also where one entry holds many commands.
func TestPackedProposalsGetTheirOwnResults(t *testing.T) {
	m := one(t, nil)
	var wg sync.WaitGroup
	for c := range 32 {
		wg.Go(func() {
			for i := range 10 {
				bad := state.DeleteKey{Account: "x", Key: fleet.KeyID(fmt.Sprint(c))}
				res, err := m.Propose(within(t), account(c*10+i), bad)
				if err != nil || len(res) != 2 || res[0].Err != nil || fleet.CodeOf(res[1].Err) != fleet.CodeNotFound {
					t.Errorf("got %v, %v", res, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestLimitsOfAnEntry(t *testing.T) {
	n := &Node{queue: make(chan *proposal, maxQueue)}
	add := func(cmds, size int) {
		if err := n.enqueue(&proposal{cmds: cmds, data: make([]byte, size)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range [][2]int{{200, 10}, {56, 10}, {1, 10}, {1, maxPackedBytes - 10}, {1, 1}, {1, 2 * maxPackedBytes}, {1, 1}} {
		add(p[0], p[1])
	}
	var sizes []int
	for next := n.dequeue(false); next != nil; {
		var batch []*proposal
		batch, next = n.pack(next)
		sizes = append(sizes, len(batch))
	}
	if fmt.Sprint(sizes) != "[2 2 1 1 1]" {
		t.Errorf("entries of %v proposals", sizes)
	}
	if n.queued.Load() != 0 {
		t.Errorf("%d bytes are counted in an empty queue", n.queued.Load())
	}
}

func TestAFullQueueRefuses(t *testing.T) {
	n := &Node{queue: make(chan *proposal, 2)}
	for range 2 {
		if err := n.enqueue(&proposal{data: make([]byte, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.enqueue(&proposal{data: make([]byte, 1)}); !errors.Is(err, ErrBusy) || fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	n = &Node{queue: make(chan *proposal, 10)}
	if err := n.enqueue(&proposal{data: make([]byte, maxQueuedBytes-1)}); err != nil {
		t.Fatal(err)
	}
	if err := n.enqueue(&proposal{data: make([]byte, 2)}); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
}

func TestWhileLeaderRunsUnderLeadership(t *testing.T) {
	m := one(t, nil)
	m.put(t, 1)
	started, ended, done := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	go func() {
		done <- m.WhileLeader(within(t), func(ctx context.Context) error {
			if m.accounts() != 1 {
				t.Error("it begins before everything is applied")
			}
			close(started)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return ctx.Err()
		})
	}()
	<-started
	m.stop(t)
	if err := <-ended; err == nil {
		t.Error("no cause")
	}
	if err := <-done; !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
}

func TestWhileLeaderEndsWithItsContextOrItsError(t *testing.T) {
	m := one(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	calls := 0
	err := m.WhileLeader(ctx, func(ctx context.Context) error {
		calls++
		cancel()
		<-ctx.Done()
		return nil
	})
	if !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("got %v after %d calls", err, calls)
	}
	if err := m.WhileLeader(within(t), func(context.Context) error { return io.ErrNoProgress }); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v", err)
	}
}

func TestAFatalErrorOfTheStateIsReported(t *testing.T) {
	m := one(t, nil)
	m.put(t, 1)
	// An entry that a newer version could have written.
	_ = m.raft.Apply([]byte{0x82, 0x18, 0x63, 0xa0}, time.Second).Error()
	select {
	case err := <-m.fatal:
		if !strings.Contains(err.Error(), "unknown type 99") {
			t.Errorf("got %v", err)
		}
	case <-within(t).Done():
		t.Fatal("nothing was reported")
	}
	if _, err := m.Propose(within(t), account(2)); !errors.Is(err, ErrUnknown) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// gatedLog is a log whose writes stop when the gate is shut.
type gatedLog struct {
	Log
	mu   sync.Mutex
	gate chan struct{}
	held atomic.Bool // a write waits
}

func (g *gatedLog) shut() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gate := make(chan struct{})
	g.gate = gate
	return func() { close(gate) }
}

func (g *gatedLog) StoreLogs(logs []*raft.Log) error {
	g.mu.Lock()
	gate := g.gate
	g.mu.Unlock()
	if gate != nil {
		g.held.Store(true)
		<-gate
	}
	return g.Log.StoreLogs(logs)
}

func TestAHungDiskEndsTheProcess(t *testing.T) {
	var gate *gatedLog
	m := one(t, func(c *Config) {
		c.HangLimit = 200 * time.Millisecond
		c.RequestTimeout = time.Second
		c.WrapLog = func(l Log) Log {
			gate = &gatedLog{Log: l}
			return gate
		}
	})
	m.put(t, 1)
	open := gate.shut()
	defer open()
	begun := time.Now()
	if _, err := m.Propose(within(t), account(2)); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("the caller waited %s", took)
	}
	select {
	case err := <-m.fatal:
		if !strings.Contains(err.Error(), "write log hangs") {
			t.Errorf("got %v", err)
		}
	case <-within(t).Done():
		t.Fatal("nobody noticed")
	}
	if m.Stalled() < 200*time.Millisecond {
		t.Errorf("stalled for %s", m.Stalled())
	}
}

func TestWatchdogForgetsWhatEnded(t *testing.T) {
	w := newWatchdog(time.Second, nil)
	end := w.begin("a")
	if name, d := w.slowest(time.Now().Add(time.Minute)); name != "a" || d < time.Minute {
		t.Errorf("got %q, %s", name, d)
	}
	end()
	if name, d := w.slowest(time.Now().Add(time.Minute)); name != "" || d != 0 {
		t.Errorf("got %q, %s", name, d)
	}
}

func TestAPausedProcessHasNoHungDisk(t *testing.T) {
	const limit = 5 * time.Second
	w, now := newWatchdog(limit, nil), time.Now()
	w.begin("write log")
	for _, after := range []time.Duration{time.Millisecond, time.Minute, limit / 10, time.Hour, 2 * limit} {
		now = now.Add(after)
		if err := w.look(now); err != nil {
			t.Errorf("%s after the last look: %v", after, err)
		}
	}
	var err error
	for range 10 {
		now = now.Add(limit / 10)
		err = w.look(now)
	}
	if err == nil || !strings.Contains(err.Error(), "write log hangs since") {
		t.Errorf("it hangs, and nobody says so: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := Open(Config{}); err == nil || !strings.Contains(err.Error(), "must be set") {
		t.Errorf("an empty config was taken: %v", err)
	}
}

func TestRaftsLogIsOneLevelLower(t *testing.T) {
	var out bytes.Buffer
	l := newLogger(slog.New(slog.NewTextHandler(&out, nil))).Named("x").With("k", "v")
	l.Info("hidden")
	l.Debug("hidden")
	l.Warn("election")
	for range 3 {
		l.Error("member is away", "error", io.EOF)
	}
	got := out.String()
	if strings.Contains(got, "hidden") || !strings.Contains(got, `level=INFO msg=raft k=v what=election`) ||
		!strings.Contains(got, `level=WARN msg=raft k=v what="member is away" error=EOF`) ||
		strings.Count(got, "away") != 1 {
		t.Error(got)
	}
}
