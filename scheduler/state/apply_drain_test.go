package state

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// use returns what is held of host-b, and how many GPUs and ports of it are free.
func (w *world) use() (used fleet.Resources, gpus, ports int) {
	w.t.Helper()
	const id fleet.HostID = "host-b"
	w.view(func(v *View) {
		h, _ := v.HostUsage(id)
		used = h.Used
		gpus = len(v.Fleet().Get(id, nil).FreeGPUs)
		free, _ := v.FreePorts(id, 100, 0)
		ports = len(free)
	})
	return used, gpus, ports
}

func TestAMoveReservesItsDestination(t *testing.T) {
	w := drained(t)
	w.publish("host-b")
	p := w.move()
	if to := p.Target; to == nil || to.Host != "host-b" || to.Need != p.Need || !slices.Equal(to.GPUs, []string{"host-b-gpu-0"}) {
		t.Fatalf("reserved is %+v", p.Target)
	}
	if used, gpus, _ := w.use(); used != p.Need || gpus != 3 {
		t.Errorf("of the destination %+v is used, %d GPUs are free", used, gpus)
	}
	other := podOn("all", "host-b", 0, 1, 2, 3)
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: other, HostEpoch: w.host("host-b").Epoch}}})
	big := podOn("big", "host-b")
	big.Need.MilliCPU = w.host("host-b").Inventory.Total.MilliCPU
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: big, HostEpoch: w.host("host-b").Epoch}}})
	w.lose("host-b")
	w.refused(fleet.CodeConflictRule, RemoveHost{Host: "host-b", At: at(46)})
	w.publish("host-b")
	if got := w.create("one", "host-b", 0); slices.Contains(got.GPUs, "host-b-gpu-0") {
		t.Errorf("a create got what is reserved: %v", got.GPUs)
	}
	w.check()
	w.must(w.report("pod-1", fleet.EventExited))
	w.must(w.startElsewhere("pod-1", 0))
	p = w.pod("pod-1")
	if p.Target != nil || p.Moving || !slices.Equal(p.GPUs, []string{"host-b-gpu-0"}) {
		t.Errorf("it started as %+v", p)
	}
	if used, gpus, _ := w.use(); used.MilliCPU != 2*p.Need.MilliCPU || gpus != 2 {
		t.Errorf("after the start %+v is used, %d GPUs are free", used, gpus)
	}
	w.check()
}

func TestPublicPortsAreReserved(t *testing.T) {
	w := newWorld(t).settle()
	w.publish("host-b")
	p := podOn("pod-1", "host-a")
	p.Spec.Ports, p.Spec.Movable = []fleet.Port{{Number: 22, Protocol: "tcp"}}, true
	w.must(CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: w.host("host-a").Epoch}}}, SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(44)})
	move := w.moveTo("pod-1", at(45))
	w.refused(fleet.CodeStale, move)
	move.To.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_002}}
	w.must(move)
	if _, _, ports := w.use(); ports != 4 {
		t.Errorf("%d ports are free", ports)
	}
	w.check()
}

// Whatever would refuse the start refuses the move: nothing is stopped that could not start again.
func TestNothingIsStoppedWithoutAPlace(t *testing.T) {
	for name, c := range map[string]struct {
		code fleet.Code
		do   func(w *world, move *MovePod)
	}{
		"no destination":    {fleet.CodeInvalid, func(_ *world, move *MovePod) { move.To = nil }},
		"no need":           {fleet.CodeInvalid, func(_ *world, move *MovePod) { move.To.Need = nil }},
		"its own host":      {fleet.CodeInvalid, func(_ *world, move *MovePod) { move.To.Host = "host-a" }},
		"unknown host":      {fleet.CodeStale, func(_ *world, move *MovePod) { move.To.Host = "host-z" }},
		"another session":   {fleet.CodeStale, func(_ *world, move *MovePod) { move.To.HostEpoch++ }},
		"too few GPUs":      {fleet.CodeInvalid, func(_ *world, move *MovePod) { move.To.GPUs = nil }},
		"more than is free": {fleet.CodeStale, func(_ *world, move *MovePod) { move.To.Need = &fleet.Resources{MilliCPU: 1 << 30} }},
		"cordoned": {fleet.CodeStale, func(w *world, _ *MovePod) {
			w.must(SetHostEligibility{Host: "host-b", Eligibility: fleet.EligibilityCordoned, At: at(45)})
		}},
		"lost": {fleet.CodeStale, func(w *world, _ *MovePod) { w.lose("host-b") }},
		"full": {fleet.CodeStale, func(w *world, _ *MovePod) {
			w.create("full", "host-b", 0, 1, 2, 3)
		}},
		"no credit": {fleet.CodeNoCredit, func(w *world, _ *MovePod) {
			w.must(UpdateAccount{Account: "acme", Prepaid: ptr(true)})
		}},
		"moves nothing": {fleet.CodeNotAllowed, func(w *world, _ *MovePod) {
			w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, KeepRunning: true, At: at(45)})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := drained(t)
			move := w.moveTo("pod-1", at(50))
			c.do(w, &move)
			w.refused(c.code, move)
			if p := w.pod("pod-1"); p.Stopping() || p.Target != nil {
				t.Errorf("got %+v", p)
			}
		})
	}
}

func TestAReservationIsGivenBack(t *testing.T) {
	for name, c := range map[string]struct {
		ended bool
		do    func(w *world) Command
	}{
		"its owner stops it":       {false, func(w *world) Command { return w.act("pod-1", fleet.ActionStop) }},
		"its owner terminates it":  {false, func(w *world) Command { return w.act("pod-1", fleet.ActionTerminate) }},
		"its owner starts it":      {true, func(w *world) Command { w.connect("host-c"); return w.startAt("pod-1", "host-c") }},
		"it goes back":             {true, func(w *world) Command { return w.startAt("pod-1", "host-a") }},
		"its destination is gone":  {false, func(w *world) Command { w.lose("host-b"); return FenceHost{Host: "host-b", At: at(70)} }},
		"a copy is restored":       {false, func(*world) Command { return restore(7) }},
		"its owner lets it change": {true, func(w *world) Command { return w.restarted("pod-1") }},
	} {
		t.Run(name, func(t *testing.T) {
			w := drained(t)
			w.join("host-c", "machine-c")
			w.move()
			if c.ended {
				w.must(w.report("pod-1", fleet.EventExited))
			}
			w.must(c.do(w))
			if p := w.pod("pod-1"); p.Target != nil {
				t.Errorf("reserved is %+v", p.Target)
			}
			if used, _, _ := w.use(); used != (fleet.Resources{}) {
				t.Errorf("still used is %+v", used)
			}
			w.check()
		})
	}
}

func (w *world) startAt(id fleet.PodID, host fleet.HostID) ActPod {
	return ActPod{Account: "acme", Pod: id, Action: fleet.ActionStart, At: at(60), Bind: &Binding{
		Host: host, HostEpoch: w.host(host).Epoch, HourlyRate: fleet.Dollar, GPUs: podOn(id, host, 0).GPUs,
	}}
}

func (w *world) restarted(id fleet.PodID) UpdatePod {
	p := w.pod(id)
	return UpdatePod{Account: "acme", Pod: id, Rev: p.Rev, Spec: p.Spec, Need: p.Need, Restart: true, At: at(61)}
}

// What happens to hosts and to its account meanwhile does not keep a pod on the move from its place.
func TestAMoveIsFinished(t *testing.T) {
	for name, do := range map[string]func(w *world){
		"cordoned": func(w *world) {
			w.must(SetHostEligibility{Host: "host-b", Eligibility: fleet.EligibilityCordoned, At: at(46)})
		},
		"drained": func(w *world) {
			w.must(SetHostEligibility{Host: "host-b", Eligibility: fleet.EligibilityDraining, At: at(46)})
		},
		"opened": func(w *world) { w.must(SetHostEligibility{Host: "host-a", At: at(46)}) },
		"credit": func(w *world) { w.must(UpdateAccount{Account: "acme", Prepaid: ptr(true)}) },
		"back":   func(w *world) { w.lose("host-b"); w.connect("host-b") },
	} {
		t.Run(name, func(t *testing.T) {
			w := drained(t)
			w.move()
			do(w)
			w.must(w.report("pod-1", fleet.EventExited))
			w.must(w.startElsewhere("pod-1", 0))
			if p := w.pod("pod-1"); p.Host != "host-b" || p.Moving {
				t.Errorf("got %+v", p)
			}
			w.check()
		})
	}
	// Others get nothing on a host that is out of service.
	w := drained(t)
	w.must(SetHostEligibility{Host: "host-b", Eligibility: fleet.EligibilityCordoned, At: at(46)})
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("new", "host-b"), HostEpoch: w.host("host-b").Epoch}}})
}

func TestADrainStopsAtItsDeadline(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("data", "host-a", 0), HostEpoch: 1}}})
	locked := podOn("locked", "host-a")
	locked.Locked = true
	w.must(CreatePods{Pods: []NewPod{{Pod: locked, HostEpoch: 1}}})
	w.create("pod-1", "host-a")
	w.must(w.report("pod-1", fleet.EventRunning))
	evict := func(id fleet.PodID, when time.Time) EvictPod { return EvictPod{Pod: id, Rev: w.pod(id).Rev, At: when} }
	w.refused(fleet.CodeNotAllowed, evict("pod-1", at(44)))
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(44)})
	w.refused(fleet.CodeNotAllowed, evict("pod-1", at(1_000_000)))
	host := w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(45), Reason: "new fans", Deadline: at(60)}).(fleet.Host)
	if d := host.Drain; d == nil || !d.Since.Equal(at(44)) || !d.Deadline.Equal(at(60)) || d.Reason != "new fans" {
		t.Fatalf("the drain is %+v", host.Drain)
	}
	w.refused(fleet.CodeNotAllowed, evict("pod-1", at(59)))
	w.refused(fleet.CodeNotFound, EvictPod{Pod: "nobody", At: at(60)})
	w.refused(fleet.CodeStale, EvictPod{Pod: "pod-1", Rev: 99, At: at(60)})
	for _, id := range []fleet.PodID{"data", "locked", "pod-1"} {
		w.must(evict(id, at(60)))
		w.refused(fleet.CodeNotAllowed, evict(id, at(61)))
		w.must(w.report(id, fleet.EventFailed))
		if p := w.pod(id); p.Status != fleet.StatusExited || p.Moving || !p.EndedAt.Equal(at(60)) || p.Reason != reasonDrained+": new fans" {
			t.Errorf("%s is %+v", id, p)
		}
	}
	w.check()
	w.must(SetHostEligibility{Host: "host-a", At: at(70)}, w.act("pod-1", fleet.ActionStart))
	if p := w.pod("pod-1"); p.Reason != "" || w.host("host-a").Drain != nil {
		t.Errorf("after the drain: %+v, %+v", p, w.host("host-a").Drain)
	}
	w.refused(fleet.CodeInvalid, SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityCordoned, At: at(71), Deadline: at(80)})
	w.refused(fleet.CodeInvalid, SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, At: at(71), Reason: strings.Repeat("x", maxDrainReason+1)})
}
