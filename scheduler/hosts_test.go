package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	w.must(state.MovePod{Pod: id, Rev: w.pod(id).Rev, At: w.clock()})
	w.report(id, fleet.EventExited)
}

func TestHostDuties(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	view, err := w.svc.SetHostDuty(ctx, "host-a", fleet.DutyCordoned, false)
	if err != nil || view.Host.Shown() != fleet.HostCordoned {
		t.Fatalf("got %+v, %v", view.Host, err)
	}
	_, err = w.svc.CreatePod(ctx, member(acme), gpuPod(1))
	refused(t, err, fleet.CodeNoCapacity, "")
	if _, err := w.svc.SetHostDuty(ctx, "host-a", fleet.DutyOpen, false); err != nil {
		t.Fatal(err)
	}
	w.create(gpuPod(1))
	_, err = w.svc.SetHostDuty(ctx, "host-a", "asleep", false)
	refused(t, err, fleet.CodeInvalid, "duty")
	_, err = w.svc.SetHostDuty(ctx, "host-z", fleet.DutyOpen, false)
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

func TestHostPodsTellWhyADrainWaits(t *testing.T) {
	w, ctx := newWorld(t), context.Background()
	w.addHost("host-a", "dc-1", h100, 4)
	free, locked, data := cpuPod(2), w.create(cpuPod(2)), gpuPod(1)
	data.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
	ids := []fleet.PodID{
		w.create(free).ID, locked.ID, w.create(data).ID, w.create(free).ID, w.create(free).ID, w.create(free).ID, w.create(free).ID,
	}
	if _, err := w.svc.UpdatePod(ctx, member(acme), locked.ID, fleet.PodUpdate{Locked: ptr(true)}); err != nil {
		t.Fatal(err)
	}
	for i, action := range map[int]fleet.Trigger{3: fleet.ActionStop, 4: fleet.ActionTerminate, 6: fleet.ActionStop} {
		if _, err := w.svc.ActPod(ctx, member(acme), ids[i], action); err != nil {
			t.Fatal(err)
		}
	}
	w.report(ids[6], fleet.EventExited) // holds nothing
	waits := func() map[fleet.PodID]string {
		t.Helper()
		out := map[fleet.PodID]string{}
		pods, err := w.svc.HostPods(ctx, "host-a")
		if err != nil || !slices.IsSortedFunc(pods, func(a, b fleet.HeldPod) int { return strings.Compare(string(a.ID), string(b.ID)) }) {
			t.Fatalf("got %+v, %v", pods, err)
		}
		for _, p := range pods {
			out[p.ID] = p.Waits
		}
		return out
	}
	want := map[fleet.PodID]string{ids[0]: "", ids[1]: "", ids[2]: "", ids[3]: "", ids[4]: "", ids[5]: ""}
	if d := cmp.Diff(want, waits()); d != "" {
		t.Errorf("without a drain: %s", d)
	}
	w.must(state.SetHostDuty{Host: "host-a", Duty: fleet.DutyDraining, At: w.clock()})
	w.begin(ids[5])
	want[ids[1]], want[ids[2]] = "it is locked", "it keeps data on this host"
	want[ids[3]], want[ids[4]], want[ids[5]] = "it is being stopped", "what it left is being removed", "no room elsewhere"
	if d := cmp.Diff(want, waits()); d != "" {
		t.Errorf("with a drain: %s", d)
	}
	w.must(state.SetHostDuty{Host: "host-a", Duty: fleet.DutyDraining, KeepRunning: true, At: w.clock()})
	want[ids[0]] = "it still runs and the drain keeps running pods"
	if d := cmp.Diff(want, waits()); d != "" {
		t.Errorf("with a drain that moves nothing: %s", d)
	}
	_, err := w.svc.HostPods(ctx, "host-z")
	refused(t, err, fleet.CodeNotFound, "host")
}

func TestStartMoved(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	pod := w.create(gpuPod(2))
	if err := w.svc.StartMoved(ctx, pod.ID); err != nil {
		t.Fatal(err)
	}
	if p := w.pod(pod.ID); p.Rev != pod.Rev {
		t.Errorf("a pod that is not moved was changed: %+v", p)
	}
	w.must(state.SetHostDuty{Host: "host-a", Duty: fleet.DutyDraining, At: w.clock()})
	w.must(state.MovePod{Pod: pod.ID, Rev: w.pod(pod.ID).Rev, At: w.clock()})
	if err := w.svc.StartMoved(ctx, pod.ID); err != nil || w.pod(pod.ID).Status != fleet.StatusProvisioning {
		t.Errorf("what has not ended was started: %v", err)
	}
	w.report(pod.ID, fleet.EventExited)
	refused(t, w.svc.StartMoved(ctx, pod.ID), fleet.CodeNoCapacity, "")
	if p := w.pod(pod.ID); !p.Moving || p.Status != fleet.StatusExited {
		t.Errorf("got %+v", p)
	}
	w.addHost("host-b", "dc-1", h100, 2)
	if err := w.svc.StartMoved(ctx, pod.ID); err != nil {
		t.Fatal(err)
	}
	if p := w.pod(pod.ID); p.Host != "host-b" || p.Moving || len(p.GPUs) != 2 {
		t.Errorf("got %+v", p)
	}
	// Its owner is quicker.
	w.must(state.SetHostDuty{Host: "host-b", Duty: fleet.DutyDraining, At: w.clock()}, state.SetHostDuty{Host: "host-a", At: w.clock()})
	w.begin(pod.ID)
	w.before = func() { w.must(state.ActPod{Account: acme, Pod: pod.ID, Action: fleet.ActionStop, At: w.clock()}) }
	if err := w.svc.StartMoved(ctx, pod.ID); err != nil {
		t.Fatal(err)
	}
	if p := w.pod(pod.ID); p.Status != fleet.StatusExited || p.Moving {
		t.Errorf("got %+v", p)
	}
}
