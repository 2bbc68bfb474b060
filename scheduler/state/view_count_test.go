package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func (w *world) counts(s int) (c Counts) {
	w.t.Helper()
	w.view(func(v *View) { c = v.Counts(at(s)) })
	return c
}

// TestStockOfGPUs: host-a has four GPUs.
func TestStockOfGPUs(t *testing.T) {
	w := newWorld(t).settle()
	before := w.counts(1).GPUs[h100]
	if before.AllOnHost != 4 || before.Free != before.All || before.FreeOnHost != 4 {
		t.Fatalf("%+v", before)
	}
	w.create("pod-1", "host-a", 0)
	w.must(CordonGPU{Host: "host-a", GPU: "host-a-gpu-3", Reason: "fan", At: at(2)})
	after := w.counts(3).GPUs[h100]
	want := before
	want.All, want.Free = before.All-1, before.Free-2 // one is held, one is out
	if before.All == 4 {
		want.AllOnHost, want.FreeOnHost = 3, 2
	}
	if diff := cmp.Diff(want, after); diff != "" {
		t.Error(diff)
	}
	// What takes no pods has no stock.
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityCordoned, At: at(4)})
	if got := w.counts(5).GPUs[h100]; got.All != before.All-4 {
		t.Errorf("a cordoned host's GPUs count: %+v", got)
	}
}

func TestDrainsThatHavePodsLeft(t *testing.T) {
	w := newWorld(t).settle()
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(5), Deadline: at(20)})
	if d := w.counts(30).Drains; d != (Drains{}) {
		t.Errorf("an empty host's drain: %+v", d)
	}
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityOpen, At: at(6)})
	w.create("pod-1", "host-a", 0)
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(7), Deadline: at(20)})
	for s, overdue := range map[int]int{19: 0, 20: 0, 21: 1} {
		if d := w.counts(s).Drains; d.Overdue != overdue || d.Oldest != at(s).Sub(at(7)) {
			t.Errorf("at %d: %+v", s, d)
		}
	}
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityCordoned, At: at(25)})
	if d := w.counts(30).Drains; d != (Drains{}) {
		t.Errorf("a cordoned host: %+v", d)
	}
}
