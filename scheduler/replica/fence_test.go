package replica

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// A read is answered only in the term in which all of before was applied: whoever led, lost it and leads again has to settle first.
func TestABarrierOfAnotherTermIsRefused(t *testing.T) {
	m := one(t, nil)
	m.put(t, 1)
	if err := m.Barrier(within(t)); err != nil {
		t.Fatal(err)
	}
	lead, _ := m.leading()
	m.setLead(&leadership{ctx: context.Background(), term: lead.term - 1})
	if err := m.Barrier(within(t)); !errors.Is(err, ErrNotLeader) {
		t.Errorf("got %v", err)
	}
	m.setLead(lead)
	if err := m.Barrier(within(t)); err != nil {
		t.Errorf("in its own term again: %v", err)
	}
	m.setLead(nil) // it leads, and has not applied all of before yet
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Barrier(ctx); !errors.Is(err, ErrBusy) || errors.Is(err, ErrNotLeader) {
		t.Errorf("before it has settled: %v", err)
	}
}

// Only what surely did not happen is said not to have: that may be repeated.
func TestWhatRaftsErrorsSayOfAnEntry(t *testing.T) {
	for _, c := range []struct {
		err     error
		is      error
		nothing bool
	}{
		{raft.ErrNotLeader, ErrNotLeader, true},
		{raft.ErrLeadershipTransferInProgress, ErrNotLeader, true},
		{raft.ErrEnqueueTimeout, ErrBusy, true},
		{raft.ErrLeadershipLost, ErrUnknown, false},
		{raft.ErrRaftShutdown, ErrUnknown, false},
		{raft.ErrAbortedByRestore, ErrUnknown, false},
		{errors.New("another"), ErrUnknown, false},
	} {
		err := raftError(c.err)
		var e *fleet.Error
		if !errors.As(err, &e) || e.Code != fleet.CodeUnavailable || e.NothingDone != c.nothing || !errors.Is(err, c.is) || !errors.Is(err, c.err) {
			t.Errorf("%v: %v, nothing done: %v", c.err, err, e != nil && e.NothingDone)
		}
		for _, other := range []error{ErrNotLeader, ErrBusy, ErrUnknown} {
			if !errors.Is(c.is, other) && errors.Is(err, other) {
				t.Errorf("%v is %v", c.err, other)
			}
		}
	}
}

// TestRaftRefusesToLoseItsLastVoter with words that are known, should a change come to it all the same.
func TestRaftRefusesToLoseItsLastVoter(t *testing.T) {
	m := one(t, nil)
	for _, future := range []raft.IndexFuture{m.raft.RemoveServer("a", 0, time.Minute), m.raft.DemoteVoter("a", 0, time.Minute)} {
		if err := changeError(future.Error()); fleet.CodeOf(err) != fleet.CodeConflictRule {
			t.Errorf("got %v", err)
		}
	}
	if err := changeError(nil); err != nil {
		t.Error(err)
	}
}

// hung is a future that nobody answers, and over one of what failed at once, which has no end to be told.
type (
	hung struct{ ShutdownCh chan struct{} }
	over struct{ err error }
)

func (h *hung) Error() error { <-h.ShutdownCh; return raft.ErrRaftShutdown }
func (o over) Error() error  { return o.err }

// TestAWaitEndsWithRaft, whatever it is for: each kind of Raft's futures can be told.
func TestAWaitEndsWithRaft(t *testing.T) {
	n := &Node{stopped: make(chan struct{})}
	for _, future := range []raft.Future{over{raft.ErrNotLeader}, &over{raft.ErrNotLeader}} {
		if err := n.wait(future); !errors.Is(err, raft.ErrNotLeader) {
			t.Errorf("of what failed at once: %v", err)
		}
	}
	close(n.stopped)
	if err := n.wait(&hung{}); !errors.Is(err, raft.ErrRaftShutdown) {
		t.Error(err)
	}
	m := one(t, nil)
	for _, future := range []raft.Future{
		m.raft.VerifyLeader(), m.raft.Barrier(time.Minute), m.raft.ApplyLog(raft.Log{Data: []byte{0x80}}, time.Minute),
		m.raft.AddNonvoter("b", "127.0.0.1:1", 0, time.Minute), m.raft.LeadershipTransferToServer("b", "127.0.0.1:1"),
	} {
		_ = m.wait(future) // it is of what it says that is asked
		if told := reflect.ValueOf(future).Elem().FieldByName("ShutdownCh"); told.Interface() != m.stopped {
			t.Errorf("%T would be waited for after Raft has shut down", future)
		}
	}
}

// slow is a state machine each of whose entries takes a time of its own, as the entry's first byte says in seconds.
func slow(entries []entry.Entry) ([][]entry.Result, error) {
	out := make([][]entry.Result, len(entries))
	for i, e := range entries {
		time.Sleep(time.Duration(e.Data[0]) * time.Second)
		out[i] = []entry.Result{{Value: e.Index}}
	}
	return out, nil
}

// A batch may take as long as it likes while it goes on; one entry that does not come to its end ends the process.
func TestTheWatchdogWatchesProgress(t *testing.T) {
	for name, c := range map[string]struct {
		seconds []byte
		fatal   bool
	}{
		"many that take their time": {[]byte(strings.Repeat("\x02", 64)), false},
		"one that hangs":            {[]byte{1, 9, 1}, true},
		"none that hangs":           {[]byte{4}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fatal := false
				n := &Node{cfg: Config{Fatal: func(error) { fatal = true }}, log: slog.New(slog.DiscardHandler)}
				n.applied.init()
				n.watch = newWatchdog(5*time.Second, n.fatal)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); n.watch.run(ctx) }()
				var logs []*raft.Log
				for i, s := range c.seconds {
					data := make([]byte, stepBytes/2+1) // no two of them in a step
					data[0] = s
					logs = append(logs, &raft.Log{Index: uint64(i + 1), Type: raft.LogCommand, Data: data})
				}
				out := (&fsm{n, slow}).ApplyBatch(logs)
				cancel()
				<-done
				if fatal != c.fatal {
					t.Errorf("the process ends: %v", fatal)
				}
				for i, r := range out {
					if got, ok := r.([]entry.Result); !ok || got[0].Value != uint64(i+1) {
						t.Errorf("entry %d was answered with %v", i+1, r)
					}
				}
				if at := n.applied.at(); at != uint64(len(logs)) {
					t.Errorf("applied up to %d", at)
				}
			})
		})
	}
}

// A batch is applied in steps: small entries together, and what fails ends it there.
func TestABatchIsAppliedInSteps(t *testing.T) {
	var steps []int
	n := &Node{cfg: Config{Fatal: func(error) {}}, log: slog.New(slog.DiscardHandler), watch: newWatchdog(time.Hour, nil)}
	n.applied.init()
	f := &fsm{n, func(entries []entry.Entry) ([][]entry.Result, error) {
		if steps = append(steps, len(entries)); len(steps) == 3 {
			return nil, errors.New("broken")
		}
		return make([][]entry.Result, len(entries)), nil
	}}
	var logs []*raft.Log
	for i, size := range []int{10, 20, 2 * stepBytes, stepBytes - 10, 10, 1, 5} {
		logs = append(logs, &raft.Log{Index: uint64(i + 1), Type: raft.LogCommand, Data: make([]byte, size)})
	}
	logs[1].Type = raft.LogNoop
	out := f.ApplyBatch(logs)
	if len(steps) != 3 || steps[0] != 1 || steps[1] != 1 || steps[2] != 2 {
		t.Errorf("steps of %v entries", steps)
	}
	for i, r := range out {
		_, failed := r.(error)
		if failed != (i >= 3) {
			t.Errorf("entry %d: %v", i+1, r)
		}
	}
	if n.applied.at() != 3 {
		t.Errorf("applied up to %d", n.applied.at())
	}
}
