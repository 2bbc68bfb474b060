package scheduler

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// A host of 64 cores and 256 GB has 8 GPUs: 4 cores and 16 GB are kept for each that is free.
func TestGPUPodsLeaveEachOtherTheirShare(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8)
	w.create(cpuPod(32))
	_, err := w.svc.CreatePod(context.Background(), member(acme), cpuPod(2))
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeNoCapacity {
		t.Fatalf("one more pod without GPUs: %v", err)
	}
	want := []fleet.Exclusion{{Reason: "CPU: needs 2 cores, at most 0 free; 32 cores kept for GPUs", Hosts: 1}}
	if d := cmp.Diff(want, e.Excluded); d != "" {
		t.Error(d)
	}
	for range 8 {
		if p := w.create(gpuPod(1)); p.Need.MilliCPU != 4000 || p.Need.MemoryMB != 16_000 {
			t.Errorf("a pod of one GPU holds %+v", p.Need)
		}
	}
}

func TestAGPUPodHasItsWholeShareOfAnEmptyHost(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8)
	for _, n := range []int{1, 3, 4} {
		if p := w.create(gpuPod(n)); p.Need.MilliCPU != int64(n)*8000 || p.Need.MemoryMB != int64(n)*32_000 {
			t.Errorf("a pod of %d GPUs holds %+v", n, p.Need)
		}
	}
}

func TestCapacityTellsWhatIsStranded(t *testing.T) {
	w, ctx := newWorld(t), context.Background()
	w.addHost("host-a", "dc-1", h100, 8)
	w.addHost("host-b", "dc-1", h100, 4)
	w.addHost("host-c", "dc-1", h100, 2)
	w.addHost("host-d", "dc-1", prototype, 1, total(4, 16, 10))
	w.must(
		state.SetHostEligibility{Host: "host-b", Eligibility: fleet.EligibilityCordoned, At: w.clock()}, state.SetHostEligibility{Host: "host-c", Eligibility: fleet.EligibilityCordoned, At: w.clock()},
		state.SetHostEligibility{Host: "host-d", Eligibility: fleet.EligibilityCordoned, At: w.clock()},
	)
	if p, err := w.svc.PutPlacement(ctx, fleet.Placement{}); err != nil || p.KeepPercent != 0 {
		t.Fatal(p, err)
	}
	w.create(gpuPod(1)) // has its share: it is not in the way
	small, large := w.create(cpuPod(16)), w.create(cpuPod(32))
	w.must(
		state.SetHostEligibility{Host: "host-c", Eligibility: fleet.EligibilityOpen, At: w.clock()}, state.SetHostEligibility{Host: "host-d", Eligibility: fleet.EligibilityOpen, At: w.clock()},
	)
	got, err := w.svc.Capacity(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := fleet.Capacity{
		GPUs: []fleet.GPUCapacity{
			{
				Type: h100, Total: 14, Free: 9, Most: 7, Fit: map[int]int{8: 0, 4: 1, 2: 3, 1: 6},
				Stranded: map[fleet.Shortage]int{fleet.ShortOfCPU: 3},
			},
			{
				Type: prototype, Total: 1, Free: 1, Most: 1, Fit: map[int]int{8: 0, 4: 0, 2: 0, 1: 0},
				Stranded: map[fleet.Shortage]int{fleet.ShortOfDisk: 1},
			},
		},
		Stranded: []fleet.StrandedGPUs{
			{Host: "host-a", Name: "host-a", Type: h100, GPUs: 3, Short: fleet.ShortOfCPU, Pods: []fleet.PodID{large.ID, small.ID}},
			{Host: "host-d", Name: "host-d", Type: prototype, GPUs: 1, Short: fleet.ShortOfDisk},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
