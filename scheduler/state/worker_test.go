package state

import (
	"testing"

	"gantry/fleet"
)

// TestAWorkerCostsNothingBeforeItIsReady, nor after a reboot of its host until it is again; and its endpoint has it until it is terminated.
func TestAWorkerCostsNothingBeforeItIsReady(t *testing.T) {
	const endpoint, hour = fleet.EndpointID("endpoint000001"), 3600
	w := newWorld(t).priced()
	pod := podOn("pod-1", "host-a", 0)
	pod.Owner, pod.Release = endpoint.Owner(), 3
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	cost := func(when int) fleet.Money {
		return sum(w.usage("acme", fleet.ChargeKind(fleet.OwnerEndpoint), string(endpoint), at(when))).GPU
	}
	ready := func(when, want int) {
		t.Helper()
		if n := w.must(ReadyWorkers{Pods: []fleet.PodID{"pod-1", "pod-2"}, At: at(when)}); n != want {
			t.Errorf("%v are ready, want %d", n, want)
		}
	}
	workers := func() (out int) {
		w.view(func(v *View) { out = len(v.WorkersOf(endpoint)) + len(v.Worked()) })
		return out
	}
	w.must(w.report("pod-1", fleet.EventRunning))
	if got := cost(10 + 5*hour); got != 0 || workers() != 2 || w.pod("pod-1").Release != 3 {
		t.Errorf("before: %d; %+v", got, w.pod("pod-1"))
	}
	ready(10+5*hour, 1)
	ready(10+6*hour, 0)
	if got := cost(10 + 6*hour); got != fleet.Dollar {
		t.Errorf("an hour after it was ready: %d", got)
	}
	reboot := w.report("pod-1", fleet.EventReboot)
	reboot.At, reboot.Reports[0].At = at(10+6*hour), at(10+6*hour)
	w.must(reboot)
	if got := cost(10 + 8*hour); got != fleet.Dollar {
		t.Errorf("after a reboot: %d", got)
	}
	ready(10+8*hour, 1)
	act := w.act("pod-1", fleet.ActionTerminate)
	act.At, act.Owner = at(10+9*hour), endpoint.Owner()
	w.must(act)
	if got := cost(10 + 99*hour); got != 2*fleet.Dollar || workers() != 0 {
		t.Errorf("in the end: %d, %d workers", got, workers())
	}
	ready(10+9*hour, 0)
	w.refused(fleet.CodeInvalid, ReadyWorkers{Pods: make([]fleet.PodID, MaxPods+1), At: at(9)})
	w.refused(fleet.CodeInvalid, ReadyWorkers{Pods: []fleet.PodID{"pod-1"}})
}

// frozenWorker makes a worker of an endpoint on GPU 0 of host-a that is frozen since the second 3,640.
func frozenWorker(w *world, id fleet.PodID) {
	w.t.Helper()
	pod := podOn(id, "host-a", 0)
	pod.Owner, pod.Release = fleet.EndpointID("endpoint000001").Owner(), 3
	w.must(CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}})
	w.must(w.report(id, fleet.EventRunning))
	w.refused(fleet.CodeNotAllowed, FreezeWorker{Pod: id, At: at(20)})
	w.must(ReadyWorkers{Pods: []fleet.PodID{id}, At: at(40)})
	w.refused(fleet.CodeNotAllowed, FreezeWorker{Pod: id, Thaw: true, At: at(20)})
	w.must(FreezeWorker{Pod: id, At: at(3640)})
}

// TestAFrozenWorkerCostsNothing, does not count for what its account may run, and goes on where it was: its host learns of each change.
func TestAFrozenWorkerCostsNothing(t *testing.T) {
	const hour = 3600
	w := newWorld(t).priced()
	w.refused(fleet.CodeNotFound, FreezeWorker{Pod: "pod-1", At: at(40 + hour)})
	w.refused(fleet.CodeInvalid, FreezeWorker{Pod: "pod-1"})
	frozenWorker(w, "pod-1")
	cost := func(when int) fleet.Money {
		return sum(w.usage("acme", fleet.ChargeKind(fleet.OwnerEndpoint), "endpoint000001", at(when))).GPU
	}
	w.refused(fleet.CodeNotAllowed, FreezeWorker{Pod: "pod-1", At: at(40 + hour)})
	before := w.pod("pod-1")
	if got := cost(40 + 3*hour); got != fleet.Dollar || !before.Frozen.Equal(at(40+hour)) {
		t.Errorf("after two hours frozen: %d", got)
	}
	used := func() (out fleet.Counts) {
		w.view(func(v *View) { out = v.tb.tallies["acme"].used() })
		return out
	}
	if u := used(); u[fleet.LimitRunning] != 0 || u[fleet.LimitGPUs] != 0 || u[fleet.LimitPods] != 1 {
		t.Errorf("frozen, it counts as %v", u)
	}
	w.must(SetLimits{Limits: map[string]*int64{"gpus": ptr(int64(0))}})
	w.refused(fleet.CodeQuota, FreezeWorker{Pod: "pod-1", Thaw: true, At: at(40 + 3*hour)})
	w.must(SetLimits{Limits: map[string]*int64{"gpus": ptr(int64(1))}})
	w.must(FreezeWorker{Pod: "pod-1", Thaw: true, At: at(40 + 3*hour)})
	if got, p := cost(40+4*hour), w.pod("pod-1"); got != 2*fleet.Dollar || p.Generation <= before.Generation || !p.Frozen.IsZero() || !p.Ready.Equal(at(40)) {
		t.Errorf("an hour after it was thawed: %d, %+v", got, p)
	}
	if u := used(); u[fleet.LimitRunning] != 1 || u[fleet.LimitGPUs] != 1 {
		t.Errorf("thawed, it counts as %v", u)
	}
	w.must(FreezeWorker{Pod: "pod-1", At: at(40 + 4*hour)})
	reboot := w.report("pod-1", fleet.EventReboot)
	reboot.At, reboot.Reports[0].At = at(40+5*hour), at(40+5*hour)
	w.must(reboot)
	if got, p := cost(40+6*hour), w.pod("pod-1"); got != 2*fleet.Dollar || !p.Frozen.IsZero() || !p.Ready.IsZero() {
		t.Errorf("after a reboot: %d, %+v", got, p)
	}
}

// TestAPodTakesThePlaceOfAFrozenWorker in the command that makes it, and no other's.
func TestAPodTakesThePlaceOfAFrozenWorker(t *testing.T) {
	w := newWorld(t).settle()
	frozenWorker(w, "pod-1")
	create := func(id fleet.PodID, evict ...fleet.PodID) CreatePods {
		return CreatePods{Pods: []NewPod{{Pod: podOn(id, "host-a", 0, 1, 2, 3), HostEpoch: 1, Evict: evict}}}
	}
	w.refused(fleet.CodeStale, create("pod-2"))
	w.must(CreatePods{Pods: []NewPod{{Pod: podOn("pod-b", "host-b", 0), HostEpoch: 1}}})
	w.refused(fleet.CodeStale, create("pod-2", "pod-b"))
	w.refused(fleet.CodeStale, create("pod-2", "nobody"))
	w.refused(fleet.CodeInvalid, create("pod-2", make([]fleet.PodID, MaxPods+1)...))
	w.must(FreezeWorker{Pod: "pod-1", Thaw: true, At: at(3700)})
	w.refused(fleet.CodeStale, create("pod-2", "pod-1"))
	w.must(FreezeWorker{Pod: "pod-1", At: at(3800)})
	w.must(create("pod-2", "pod-1"))
	if p := w.pod("pod-1"); p.Status != fleet.StatusTerminated || p.Goal != fleet.GoalGone || !p.Held || len(p.GPUs) != 0 || p.Need != (fleet.Resources{}) {
		t.Errorf("the frozen one: %+v", p)
	}
	if p := w.pod("pod-2"); len(p.GPUs) != 4 {
		t.Errorf("the other: %+v", p)
	}
	w.view(func(v *View) {
		if n := len(v.Frozen()); n != 0 {
			t.Errorf("%d hosts have frozen workers", n)
		}
	})
	w.refused(fleet.CodeStale, create("pod-3", "pod-1"))
	gone := w.report("pod-1", ReportGone)
	w.must(gone)
	if w.pod("pod-1").Held {
		t.Error("it is held after its host said that it is gone")
	}
}
