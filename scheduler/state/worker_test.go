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
