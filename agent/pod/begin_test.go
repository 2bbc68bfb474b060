package pod

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// TestNothingStartsThatTheLedgerDoesNotAllow: the process waits until the ledger has the start.
func TestNothingStartsThatTheLedgerDoesNotAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		f.refuses = errors.New("no order")
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Minute)
		wantEvents(t, f, fleet.EventStarting)
		if n := f.starts[1]; n != 0 || f.records["p1"].Begun != 0 {
			t.Fatalf("started %d times, the ledger has %d as begun", n, f.records["p1"].Begun)
		}
		f.mu.Lock()
		f.refuses = nil
		f.mu.Unlock()
		settle(time.Minute)
		if n := f.starts[1]; n != 1 || f.records["p1"].Begun != 1 {
			t.Errorf("once it may: started %d times, the ledger has %d as begun", n, f.records["p1"].Begun)
		}
	})
}
