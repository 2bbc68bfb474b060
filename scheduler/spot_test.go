package scheduler

import (
	"context"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

func bids(usd float64) fleet.PodRequest {
	r := gpuPod(1)
	r.Interruptible, r.Bid = true, fleet.MoneyUSD(usd)
	return r
}

// TestBids are from the minimum bid to the price on demand, and of interruptible GPU pods alone.
func TestBids(t *testing.T) {
	w, ctx, me := stocked(t), context.Background(), member(acme)
	put := func(secure, spot float64) {
		w.must(state.PutGPUType{Type: fleet.GPUType{
			ID: h100, Name: "H100", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: fleet.MoneyUSD(secure), SecureSpot: fleet.MoneyUSD(spot),
		}})
	}
	put(2, 0)
	_, err := w.svc.CreatePod(ctx, me, bids(1))
	refused(t, err, fleet.CodeConflictRule, "not offered")
	put(2, 1)
	later := gpuPod(1)
	later.StopAfter = w.svc.Now().Add(-time.Second)
	ends := gpuPod(1)
	ends.TerminateAfter = w.svc.Now()
	plain, back, cpu := gpuPod(1), gpuPod(1), cpuPod(2)
	plain.Bid, back.Return, cpu.Interruptible = 1, true, true
	for text, c := range map[string]struct {
		req  fleet.PodRequest
		code fleet.Code
	}{
		"at least the minimum bid, 1": {bids(0.99), fleet.CodeInvalid}, "at most the price on demand, 2": {bids(2.01), fleet.CodeInvalid},
		"set interruptible": {plain, fleet.CodeConflictRule}, "return is for": {back, fleet.CodeConflictRule}, "for GPU pods": {cpu, fleet.CodeConflictRule},
		"$.stopAfter": {later, fleet.CodeInvalid}, "$.terminateAfter": {ends, fleet.CodeInvalid},
	} {
		_, err := w.svc.CreatePod(ctx, me, c.req)
		refused(t, err, c.code, text)
	}
	v, err := w.svc.CreatePod(ctx, me, bids(0))
	if err != nil || v.Pod.Spec.Spot.Bid != fleet.Dollar || v.Pod.HourlyRate != fleet.Dollar {
		t.Fatalf("without a bid: %+v, %v", v.Pod, err)
	}
	v, err = w.svc.UpdatePod(ctx, me, v.Pod.ID, fleet.PodUpdate{Locked: new(true), Return: new(true)})
	if err != nil || v.Pod.HourlyRate != 2*fleet.Dollar || !v.Pod.Spec.Spot.Return {
		t.Errorf("locked: %+v, %v", v.Pod, err)
	}
}

// TestAPodOnDemandInterrupts those with the lowest bids, of these the fewest and youngest, never a locked one; the interrupted one starts at
// another bid, or comes back by itself, but interrupts none then.
func TestAPodOnDemandInterrupts(t *testing.T) {
	w, ctx, me := stocked(t), context.Background(), member(acme)
	w.must(state.PutGPUType{Type: fleet.GPUType{
		ID: h100, Name: "H100", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: 4 * fleet.Dollar, SecureSpot: fleet.Dollar,
	}})
	create := func(r fleet.PodRequest) fleet.PodID {
		t.Helper()
		v, err := w.svc.CreatePod(ctx, me, r)
		if err != nil {
			t.Fatal(err)
		}
		return v.Pod.ID
	}
	var all []fleet.PodID
	for i := range 4 { // as many as the host has GPUs
		r := bids(2)
		if i == 1 {
			r.Bid, r.Return = fleet.Dollar, true
		}
		all = append(all, create(r))
	}
	if _, err := w.svc.UpdatePod(ctx, me, all[len(all)-1], fleet.PodUpdate{Locked: new(true)}); err != nil {
		t.Fatal(err)
	}
	stops := func(id fleet.PodID) bool { return w.pod(id).Goal == fleet.GoalStop }
	first := create(gpuPod(1))
	for i, id := range all {
		if stops(id) != (i == 1) {
			t.Errorf("pod %d of %d stops: %v", i, len(all), stops(id))
		}
	}
	w.report(all[1], fleet.EventExited)
	if err := w.svc.ReturnPod(ctx, all[1]); fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Errorf("it came back where there is no room: %v", err)
	}
	if _, err := w.svc.StartPod(ctx, me, all[1], fleet.MoneyUSD(2)); fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Errorf("an equal bid: %v", err)
	}
	if _, err := w.svc.StartPod(ctx, me, first, fleet.Dollar); err == nil {
		t.Error("a bid for a pod on demand was taken")
	}
	create(gpuPod(1))
	n := 0
	for i, id := range all {
		if stops(id) && i != 1 {
			n++
		}
	}
	if n != 1 || stops(all[len(all)-1]) {
		t.Errorf("%d more stop; the locked one: %v", n, stops(all[len(all)-1]))
	}
	if _, err := w.svc.ActPod(ctx, me, first, fleet.ActionTerminate); err != nil {
		t.Fatal(err)
	}
	w.report(first, state.ReportGone)
	if err := w.svc.ReturnPod(ctx, all[1]); err != nil {
		t.Fatal(err)
	}
	if p := w.pod(all[1]); p.Status != fleet.StatusProvisioning || !p.Interrupted.IsZero() || p.HourlyRate != fleet.Dollar {
		t.Errorf("returned: %+v", p)
	}
}

// TestNoPodYieldsToAnEqualBid on a host that has GPUs to spare and no public port.
func TestNoPodYieldsToAnEqualBid(t *testing.T) {
	w, ctx, me := newWorld(t), context.Background(), member(acme)
	w.addHost("host-a", "dc-1", h100, 4, publicPorts(30_000, 30_000))
	w.must(state.PutGPUType{Type: fleet.GPUType{
		ID: h100, Name: "H100", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: 4 * fleet.Dollar, SecureSpot: fleet.Dollar,
	}})
	r := bids(2)
	r.Ports = []fleet.Port{tcp(22)}
	if _, err := w.svc.CreatePod(ctx, me, r); err != nil {
		t.Fatal(err)
	}
	if _, err := w.svc.CreatePod(ctx, me, r); fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Errorf("the second: %v", err)
	}
}
