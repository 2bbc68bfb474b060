package scheduler

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// movable asks for what drains may move.
func movable(req fleet.PodRequest) fleet.PodRequest {
	req.Movable = ptr(true)
	return req
}

func (w *world) drain(id fleet.HostID, req fleet.DrainRequest) {
	w.t.Helper()
	if _, err := w.svc.DrainHost(context.Background(), id, req); err != nil {
		w.t.Fatal(err)
	}
}

// told returns what operators hear of the pods of a host-a, by pod: where it goes, or why a drain waits.
func (w *world) told(of func(context.Context) ([]fleet.HeldPod, error)) map[fleet.PodID]string {
	w.t.Helper()
	out := map[fleet.PodID]string{}
	pods, err := of(context.Background())
	if err != nil || !slices.IsSortedFunc(pods, func(a, b fleet.HeldPod) int { return strings.Compare(string(a.ID), string(b.ID)) }) {
		w.t.Fatalf("got %+v, %v", pods, err)
	}
	for _, p := range pods {
		if out[p.ID] = p.Waits; p.To != "" {
			out[p.ID] = "to " + string(p.To) + p.Waits
		}
		if p.Stops {
			out[p.ID] += " [stops]"
		}
	}
	return out
}

func TestHostPodsTellWhyADrainWaits(t *testing.T) {
	w, ctx := newWorld(t), context.Background()
	w.addHost("host-a", "dc-1", h100, 4)
	data := gpuPod(1)
	data.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
	ids := []fleet.PodID{
		w.create(movable(cpuPod(2))).ID, w.create(movable(cpuPod(2))).ID, w.create(movable(data)).ID, w.create(cpuPod(2)).ID, w.create(cpuPod(2)).ID,
		w.create(cpuPod(2)).ID, w.create(cpuPod(2)).ID, w.create(movable(data)).ID,
	}
	if _, err := w.svc.UpdatePod(ctx, member(acme), ids[1], fleet.PodUpdate{Locked: ptr(true)}); err != nil {
		t.Fatal(err)
	}
	for i, action := range map[int]fleet.Trigger{3: fleet.ActionStop, 4: fleet.ActionTerminate, 6: fleet.ActionStop, 7: fleet.ActionStop} {
		if _, err := w.svc.ActPod(ctx, member(acme), ids[i], action); err != nil {
			t.Fatal(err)
		}
	}
	w.report(ids[6], fleet.EventExited) // holds nothing
	w.report(ids[7], fleet.EventExited) // keeps data
	held := func(ctx context.Context) ([]fleet.HeldPod, error) { return w.svc.HostPods(ctx, "host-a") }
	want := map[fleet.PodID]string{ids[0]: "", ids[1]: "", ids[2]: "", ids[3]: "", ids[4]: "", ids[5]: "", ids[7]: ""}
	if d := cmp.Diff(want, w.told(held)); d != "" {
		t.Errorf("without a drain: %s", d)
	}
	const runs = "it runs on: "
	want = map[fleet.PodID]string{
		ids[0]: runs + "no room elsewhere [stops]", ids[1]: runs + "it is locked [stops]", ids[2]: runs + "it keeps data on this host [stops]",
		ids[3]: "it is being stopped", ids[4]: "what it left is being removed", ids[5]: runs + "its owner did not allow it to be moved [stops]",
		ids[7]: "it keeps data on this host",
	}
	plan := func(ctx context.Context) ([]fleet.HeldPod, error) { return w.svc.PlanDrain(ctx, "host-a", false) }
	if d := cmp.Diff(want, w.told(plan)); d != "" {
		t.Errorf("planned: %s", d)
	}
	if h := w.hostShown("host-a"); h != fleet.HostReady {
		t.Errorf("the plan made the host %s", h)
	}
	w.drain("host-a", fleet.DrainRequest{})
	if d := cmp.Diff(want, w.told(held)); d != "" {
		t.Errorf("with a drain: %s", d)
	}
	w.drain("host-a", fleet.DrainRequest{KeepRunning: true})
	want[ids[0]] = runs + "the drain moves no pods [stops]"
	if d := cmp.Diff(want, w.told(held)); d != "" {
		t.Errorf("with a drain that moves nothing: %s", d)
	}
	_, err := w.svc.HostPods(ctx, "host-z")
	refused(t, err, fleet.CodeNotFound, "host")
	_, err = w.svc.PlanDrain(ctx, "host-z", false)
	refused(t, err, fleet.CodeNotFound, "host")
}

func (w *world) hostShown(id fleet.HostID) (shown fleet.HostState) {
	w.view(func(v *state.View) { h, _ := v.Host(id); shown = h.Shown() })
	return shown
}

// The plan counts what pods before would get: it does not promise one place twice.
func TestADrainsPlanGivesEachPlaceOnce(t *testing.T) {
	w := dutiful(t)
	a, b := w.create(movable(gpuPod(1))), w.create(movable(gpuPod(1)))
	w.addHost("host-b", "dc-1", h100, 1)
	got := w.told(func(ctx context.Context) ([]fleet.HeldPod, error) { return w.svc.PlanDrain(ctx, "host-a", false) })
	first, second := a.ID, b.ID
	if second < first {
		first, second = second, first
	}
	if got[first] != "to host-b" || !strings.HasPrefix(got[second], "it runs on: no room elsewhere (1 host: ") {
		t.Errorf("got %v", got)
	}
}

func TestAPodIsMovedToItsReservedPlace(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	pod := w.create(movable(gpuPod(2)))
	if err := w.svc.MovePod(ctx, pod.ID); fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Fatalf("without another host: %v", err)
	}
	w.drain("host-a", fleet.DrainRequest{Reason: "new fans"})
	refused(t, w.svc.MovePod(ctx, pod.ID), fleet.CodeNoCapacity, "")
	if p := w.pod(pod.ID); p.Stopping() {
		t.Fatalf("stopped without a place: %+v", p)
	}
	if v, err := w.svc.Pod(ctx, member(acme), pod.ID); err != nil || v.Drain == nil || v.Drain.Reason != "new fans" {
		t.Errorf("its owner sees %+v, %v", v.Drain, err)
	}
	w.addHost("host-b", "dc-1", h100, 2)
	if err := w.svc.MovePod(ctx, pod.ID); err != nil {
		t.Fatal(err)
	}
	if p := w.pod(pod.ID); !p.Moving || p.Target == nil || p.Target.Host != "host-b" || len(p.Target.GPUs) != 2 {
		t.Fatalf("got %+v", p)
	}
	_, err := w.svc.CreatePod(ctx, member(acme), gpuPod(1))
	refused(t, err, fleet.CodeNoCapacity, "")
	if err := w.svc.StartMoved(ctx, pod.ID); err != nil || w.pod(pod.ID).Status != fleet.StatusProvisioning || !w.pod(pod.ID).Moving {
		t.Errorf("what has not ended was started: %v", err)
	}
	w.report(pod.ID, fleet.EventExited)
	if err := w.svc.StartMoved(ctx, pod.ID); err != nil {
		t.Fatal(err)
	}
	if p := w.pod(pod.ID); p.Host != "host-b" || p.Moving || p.Target != nil || len(p.GPUs) != 2 {
		t.Errorf("got %+v", p)
	}
	if v, err := w.svc.Pod(ctx, member(acme), pod.ID); err != nil || v.Drain != nil {
		t.Errorf("its owner still sees %+v, %v", v.Drain, err)
	}
}

func TestWhatIsNotAllowedIsNotMoved(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	w.addHost("host-b", "dc-1", h100, 2)
	pod := w.create(gpuPod(2))
	w.drain(pod.Host, fleet.DrainRequest{})
	for _, do := range []func(context.Context, fleet.PodID) error{w.svc.MovePod, w.svc.StartMoved} {
		if err := do(ctx, pod.ID); err != nil {
			t.Fatal(err)
		}
		if err := do(ctx, "nobody"); err != nil {
			t.Fatal(err)
		}
	}
	if p := w.pod(pod.ID); p.Rev != pod.Rev {
		t.Errorf("got %+v", p)
	}
	// An owner may allow it later, and no longer.
	for _, allowed := range []bool{true, false, true} {
		if _, err := w.svc.UpdatePod(ctx, member(acme), pod.ID, fleet.PodUpdate{Movable: ptr(allowed)}); err != nil {
			t.Fatal(err)
		}
		if p := w.pod(pod.ID); p.Spec.Movable != allowed || p.Incarnation != pod.Incarnation || p.MayMove() != allowed {
			t.Errorf("got %+v", p)
		}
	}
	if err := w.svc.MovePod(ctx, pod.ID); err != nil || !w.pod(pod.ID).Moving {
		t.Errorf("it is not moved: %v", err)
	}
}

func TestAnInstallationLetsPodsBeMoved(t *testing.T) {
	w := dutiful(t)
	w.svc.Movable = true
	no := gpuPod(1)
	no.Movable = ptr(false)
	if yes, no := w.create(gpuPod(1)), w.create(no); !yes.Spec.Movable || no.Spec.Movable {
		t.Errorf("by default %t, against it %t", yes.Spec.Movable, no.Spec.Movable)
	}
}

// A destination can be lost while the pod stops. Then it goes wherever there is room, or back.
func TestAMoveWhoseDestinationIsLost(t *testing.T) {
	begun := func(t *testing.T, other bool) (*world, fleet.PodID) {
		w := dutiful(t)
		id := w.create(movable(gpuPod(2))).ID
		w.drain("host-a", fleet.DrainRequest{})
		w.addHost("host-b", "dc-1", h100, 2)
		w.begin(id)
		if other {
			w.addHost("host-c", "dc-1", h100, 2)
		}
		return w, id
	}
	fence := func(w *world) {
		w.lose("host-b")
		w.must(state.FenceHost{Host: "host-b", At: w.clock()})
	}
	for name, c := range map[string]struct {
		other bool
		lost  func(w *world)
		want  fleet.HostID
	}{
		"fenced, another has room": {true, fence, "host-c"},
		"fenced, none has room":    {false, fence, "host-a"},
		"unreachable":              {false, func(w *world) { w.lose("host-b") }, "host-a"},
		"its GPUs are sick": {true, func(w *world) {
			var h fleet.Host
			w.view(func(v *state.View) { h, _ = v.Host("host-b") })
			h.Inventory.GPUs[0].Sick = "XID 79"
			w.must(state.UpdateInventory{Host: "host-b", Epoch: h.Epoch, Inventory: h.Inventory, At: w.clock()})
		}, "host-c"},
		"cordoned: it is promised": {true, func(w *world) {
			w.must(state.SetHostEligibility{Host: "host-b", Eligibility: fleet.EligibilityCordoned, At: w.clock()})
		}, "host-b"},
	} {
		t.Run(name, func(t *testing.T) {
			w, id := begun(t, c.other)
			c.lost(w)
			if err := w.svc.StartMoved(context.Background(), id); err != nil {
				t.Fatal(err)
			}
			if p := w.pod(id); p.Host != c.want || p.Moving || p.Target != nil || len(p.GPUs) != 2 {
				t.Errorf("got %+v", p)
			}
		})
	}
}

func TestOwnersAreQuickerThanMoves(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	id := w.create(movable(gpuPod(2))).ID
	w.addHost("host-b", "dc-1", h100, 2)
	w.drain("host-a", fleet.DrainRequest{})
	w.begin(id)
	w.before = func() { w.must(state.ActPod{Account: acme, Pod: id, Action: fleet.ActionStop, At: w.clock()}) }
	if err := w.svc.StartMoved(ctx, id); err != nil {
		t.Fatal(err)
	}
	if p := w.pod(id); p.Status != fleet.StatusExited || p.Moving || p.Target != nil {
		t.Errorf("got %+v", p)
	}
}

func TestDrainRequests(t *testing.T) {
	w, ctx := dutiful(t), context.Background()
	now := w.clock()
	for _, req := range []fleet.DrainRequest{
		{Force: true, Deadline: now.Add(time.Hour)}, {Force: true, KeepRunning: true}, {Deadline: now.Add(-time.Hour)},
	} {
		_, err := w.svc.DrainHost(ctx, "host-a", req)
		refused(t, err, fleet.CodeConflictRule, "")
	}
	pod := w.create(gpuPod(1))
	w.drain("host-a", fleet.DrainRequest{Deadline: now.Add(time.Hour)})
	pods, err := w.svc.HostPods(ctx, "host-a")
	if err != nil || len(pods) != 1 || !strings.Contains(pods[0].Waits, "; it is stopped at ") {
		t.Errorf("got %+v, %v", pods, err)
	}
	w.drain("host-a", fleet.DrainRequest{Force: true})
	w.must(state.EvictPod{Pod: pod.ID, Rev: w.pod(pod.ID).Rev, At: w.clock()})
	if p := w.pod(pod.ID); !p.Stopping() {
		t.Errorf("got %+v", p)
	}
	_, err = w.svc.DrainHost(ctx, "host-z", fleet.DrainRequest{})
	refused(t, err, fleet.CodeNotFound, "host")
}

// A GPU that is sick, cordoned or gone is no place to which a pod is moved.
func TestAPlaceIsWellWhileItsGPUsAreInService(t *testing.T) {
	for name, c := range map[string]struct {
		gpu  fleet.GPU
		want bool
	}{
		"in service": {fleet.GPU{UUID: "g"}, true}, "sick": {fleet.GPU{UUID: "g", Sick: "Xid 79"}, false},
		"cordoned": {fleet.GPU{UUID: "g", Cordoned: "RMA 4711"}, false}, "another": {fleet.GPU{UUID: "h"}, false},
	} {
		host := &fleet.Host{State: fleet.HostReady, Eligibility: fleet.EligibilityOpen, Inventory: fleet.Inventory{GPUs: []fleet.GPU{c.gpu}}}
		if got := well(host, []string{"g"}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
