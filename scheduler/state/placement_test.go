package state

import (
	"fmt"
	"testing"

	"gantry/fleet"
)

// beside returns what a pick without GPUs may have of a host.
func (w *world) beside(id fleet.HostID) fleet.Resources {
	w.t.Helper()
	var out fleet.Resources
	w.view(func(v *View) { out = v.Fleet().Get(id, nil).Beside(0) })
	return out
}

// A host of 16 cores and 64 GB has 4 GPUs: half of each one's share is 2 cores and 8 GB.
func TestPodsWithoutGPUsLeaveWhatIsKeptForThem(t *testing.T) {
	w := newWorld(t).settle()
	for i := range 8 {
		w.create(fleet.PodID(fmt.Sprintf("cpu-%d", i)), "host-a")
	}
	if got := w.beside("host-a"); got.MilliCPU != 0 {
		t.Errorf("%d of the processors are open to one more", got.MilliCPU)
	}
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("cpu-8", "host-a"), HostEpoch: w.host("host-a").Epoch}}})
	// A pod with GPUs may have what is kept, and what was kept for its own is nobody's any more.
	gpus := podOn("gpus", "host-a", 0, 1, 2)
	gpus.Need = fleet.Resources{MilliCPU: 6000, MemoryMB: 24_000, DiskGB: 20}
	w.must(CreatePods{Pods: []NewPod{{Pod: gpus, HostEpoch: w.host("host-a").Epoch}}})
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("cpu-8", "host-a"), HostEpoch: w.host("host-a").Epoch}}})
	w.must(PutPlacement{fleet.Placement{KeepPercent: 25}})
	w.create("cpu-8", "host-a")
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("cpu-9", "host-a"), HostEpoch: w.host("host-a").Epoch}}})
	w.must(PutPlacement{fleet.Placement{KeepPercent: 0}})
	w.create("cpu-9", "host-a")
	w.check()
}

func TestKeptMemoryIsRefused(t *testing.T) {
	w := newWorld(t).settle()
	pod := podOn("cpu-0", "host-a")
	pod.Need.MemoryMB = 32_001
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: w.host("host-a").Epoch}}})
	pod.Need.MemoryMB = 32_000
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: w.host("host-a").Epoch}}})
}

func TestPlacementSettingIsBounded(t *testing.T) {
	w := newWorld(t).settle()
	want := func(percent int) {
		t.Helper()
		w.view(func(v *View) {
			if got := v.Placement().KeepPercent; got != percent {
				t.Errorf("%d percent are kept, want %d", got, percent)
			}
		})
	}
	want(50)
	for _, bad := range []int{-1, 101} {
		w.refused(fleet.CodeInvalid, PutPlacement{fleet.Placement{KeepPercent: bad}})
	}
	want(50)
	for _, percent := range []int{100, 0} {
		if got := w.must(PutPlacement{fleet.Placement{KeepPercent: percent}}).(fleet.Placement); got.KeepPercent != percent {
			t.Errorf("answered %d", got.KeepPercent)
		}
		want(percent)
		if got := w.beside("host-b").MilliCPU; got != int64(16_000-160*percent) {
			t.Errorf("at %d percent %d of the processors are open", percent, got)
		}
		w.check()
	}
}

// A pod on the move was promised its place: it starts there also when more is kept by then.
func TestPodOnTheMoveStartsInWhatIsKept(t *testing.T) {
	w := newWorld(t).settle()
	pod := podOn("cpu-0", "host-a")
	pod.Spec.Movable = true
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: w.host("host-a").Epoch}}})
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(11)}, PutPlacement{fleet.Placement{KeepPercent: 100}})
	w.refused(fleet.CodeStale, w.moveTo("cpu-0", at(20)))
	w.must(PutPlacement{fleet.Placement{KeepPercent: 50}})
	w.must(w.moveTo("cpu-0", at(21)), PutPlacement{fleet.Placement{KeepPercent: 100}}, w.report("cpu-0", fleet.EventExited))
	w.must(w.startElsewhere("cpu-0"))
	if p := w.pod("cpu-0"); p.Host != "host-b" || p.Moving {
		t.Errorf("it is on %s, on the move: %t", p.Host, p.Moving)
	}
}
