package state

import (
	"errors"
	"strings"
	"testing"

	"gantry/fleet"
)

// A host that names an incarnation which no copy of the control plane can have given out is not believed: nothing would be left to
// count on to. What is below that is, and the pod starts elsewhere all the same.
func TestAnIncarnationThatNobodyGaveOutIsIgnored(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	for _, made := range []uint64{1<<lineageBits + 1, maxGeneration - 1, maxGeneration} {
		r := w.report("pod-1", fleet.EventExited)
		r.Reports[0].Incarnation = made
		w.must(r)
		if p := w.pod("pod-1"); p.Incarnation != 1 || p.Status != fleet.StatusRunning {
			t.Fatalf("incarnation %d made it %d, %s", made, p.Incarnation, p.Status)
		}
	}
	highest := w.report("pod-1", fleet.EventRunning)
	highest.Reports[0].Incarnation = 1 << lineageBits
	w.must(highest)
	w.must(w.act("pod-1", fleet.ActionRestart))
	w.must(w.report("pod-1", fleet.EventRunning))
	if p := w.pod("pod-1"); p.Incarnation != 1<<lineageBits+1 || p.Status != fleet.StatusRunning {
		t.Errorf("incarnation %d, %s", p.Incarnation, p.Status)
	}
	w.check()
}

// A host that is ahead of a control plane whose files were put back by hand runs nothing a second time: what it does not know of has ended.
func TestAHostThatIsAheadStartsNothingAgain(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	w.create("pod-2", "host-a", 1)
	runs := w.runs("pod-2")
	c := w.back("host-a", runs)
	c.Generation += 5
	brief := c
	brief.Brief, brief.Pods, brief.Inventory = true, nil, fleet.Inventory{Digest: c.Inventory.Digest}
	if err := w.do(brief).Err; !errors.Is(err, ErrBrief) {
		t.Errorf("in brief: %v", err)
	}
	w.must(c)
	gone, kept := w.pod("pod-1"), w.pod("pod-2")
	if gone.Status.Active() || gone.Held || gone.Goal != fleet.GoalStop || !strings.Contains(gone.Reason, "older state") {
		t.Errorf("what it does not know is %s, %s: %q", gone.Status, gone.Goal, gone.Reason)
	}
	if !kept.Status.Active() || !kept.Held {
		t.Errorf("what it knows is %s", kept.Status)
	}
	if told, generation := w.orders("host-a"); told["pod-1"] != "" || told["pod-2"] != fleet.GoalRun || generation <= c.Generation {
		t.Errorf("it is told of %v, generation %d after %d", told, generation, c.Generation)
	}
	w.check()
}
