package state

import (
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
