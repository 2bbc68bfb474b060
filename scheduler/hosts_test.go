package scheduler

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// dutiful is a world with one host, of two GPUs.
func dutiful(t *testing.T) *world {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 2)
	return w
}

func (w *world) lose(id fleet.HostID) {
	w.t.Helper()
	var h fleet.Host
	w.view(func(v *state.View) { h, _ = v.Host(id) })
	w.must(state.SetHostState{Host: id, Epoch: h.Epoch, State: fleet.HostUnreachable, At: w.clock()})
}

func (w *world) begin(id fleet.PodID) {
	w.t.Helper()
	if err := w.svc.MovePod(context.Background(), id); err != nil {
		w.t.Fatal(err)
	}
	w.report(id, fleet.EventExited)
}

func TestHostEligibility(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	view, err := w.svc.SetHostEligibility(ctx, "host-a", fleet.EligibilityCordoned)
	if err != nil || view.Host.Shown() != fleet.HostCordoned {
		t.Fatalf("got %+v, %v", view.Host, err)
	}
	_, err = w.svc.CreatePod(ctx, member(acme), gpuPod(1))
	refused(t, err, fleet.CodeNoCapacity, "")
	if _, err := w.svc.SetHostEligibility(ctx, "host-a", fleet.EligibilityOpen); err != nil {
		t.Fatal(err)
	}
	w.create(gpuPod(1))
	_, err = w.svc.SetHostEligibility(ctx, "host-a", "asleep")
	refused(t, err, fleet.CodeInvalid, "eligibility")
	_, err = w.svc.SetHostEligibility(ctx, "host-z", fleet.EligibilityOpen)
	refused(t, err, fleet.CodeNotFound, "host")
}

func TestHostLabelsAndAlarm(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	view, err := w.svc.SetHostLabels(ctx, "host-a", map[string]string{"rack": "7"}, nil)
	if err != nil || view.Host.Labels["rack"] != "7" {
		t.Fatalf("got %+v, %v", view.Host, err)
	}
	_, err = w.svc.SetHostLabels(ctx, "host-a", map[string]string{"no spaces": ""}, nil)
	refused(t, err, fleet.CodeInvalid, "labels")
	w.must(state.AlarmHost{Host: "host-a", Text: "two agents", At: w.clock()})
	view, err = w.svc.ClearHostAlarm(ctx, "host-a")
	if err != nil || view.Host.Alarm != "" {
		t.Errorf("got %+v, %v", view.Host, err)
	}
	_, err = w.svc.ClearHostAlarm(ctx, "host-z")
	refused(t, err, fleet.CodeNotFound, "host")
}

// The CA is opened once; a restore from a copy of another cluster brings another.
func TestTheCAIsOpenedOnceForAllJoins(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	first, err := w.svc.CA(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var each sync.WaitGroup
	for range 8 {
		each.Go(func() {
			if ca, err := w.svc.CA(ctx); err != nil || ca != first {
				t.Errorf("it was opened again: %v", err)
			}
		})
	}
	each.Wait()
	other := newWorld(t)
	w.svc.Store, w.svc.Node, w.svc.Sealer = other.store, other, other.svc.Sealer
	if ca, err := w.svc.CA(ctx); err != nil || ca == first || ca.Digest() == first.Digest() {
		t.Errorf("got %v, %v", ca, err)
	}
}

func TestLabelsThatAreSetAtOnceAllStay(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	const n = 20
	var each sync.WaitGroup
	for i := range n {
		each.Go(func() {
			mine, brief := fmt.Sprintf("label-%d", i), fmt.Sprintf("brief-%d", i)
			_, err := w.svc.SetHostLabels(ctx, "host-a", map[string]string{mine: "x", brief: "y"}, nil)
			if err == nil {
				_, err = w.svc.SetHostLabels(ctx, "host-a", nil, []string{brief})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	each.Wait()
	view, err := w.svc.Host(ctx, "host-a")
	if err != nil || len(view.Host.Labels) != n {
		t.Errorf("%d of %d labels are there, %v: %v", len(view.Host.Labels), n, err, view.Host.Labels)
	}
}

func TestAHostIsFencedAndRemoved(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	pod := w.create(gpuPod(1))
	_, err := w.svc.FenceHost(ctx, "host-a")
	refused(t, err, fleet.CodeNotAllowed, "connected")
	refused(t, w.svc.RemoveHost(ctx, "host-a"), fleet.CodeConflictRule, "pods")
	w.lose("host-a")
	view, err := w.svc.FenceHost(ctx, "host-a")
	if err != nil || view.Host.State != fleet.HostFenced || view.UsedGPUs != 0 {
		t.Fatalf("got %+v, %v", view, err)
	}
	if p := w.pod(pod.ID); p.Status != fleet.StatusError || p.Held {
		t.Errorf("got %+v", p)
	}
	if err := w.svc.RemoveHost(ctx, "host-a"); err != nil {
		t.Fatal(err)
	}
	all, err := w.svc.Hosts(ctx)
	if err != nil || len(all) != 1 || all[0].Host.State != fleet.HostGone {
		t.Errorf("listed %+v, %v", all, err)
	}
	if one, err := w.svc.Host(ctx, "host-a"); err != nil || one.Host.State != fleet.HostGone {
		t.Errorf("got %+v, %v", one.Host, err)
	}
	refused(t, w.svc.RemoveHost(ctx, "host-z"), fleet.CodeNotFound, "host")
}
