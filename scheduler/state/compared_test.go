package state

import (
	"slices"
	"testing"
	"time"

	"gantry/fleet"
)

// TestWhatAHostSaysTwiceOrMakesUp is ignored when it is compared.
func TestWhatAHostSaysTwiceOrMakesUp(t *testing.T) {
	w := copied(t)
	first := w.pods("run-1", "run-2")
	twice, madeUp := first[0], first[1]
	twice.Incarnation, madeUp.Incarnation = 9, 9<<lineageBits
	w.must(w.back("host-a", first[0], twice, madeUp))
	if p := w.pod("run-1"); p.Incarnation != 1 || p.Status != fleet.StatusRunning {
		t.Errorf("named twice: incarnation %d is %s", p.Incarnation, p.Status)
	}
	if p := w.pod("run-2"); p.Incarnation != 1 || p.Status != fleet.StatusExited {
		t.Errorf("of an incarnation that is made up: incarnation %d is %s", p.Incarnation, p.Status)
	}
	w.check()
}

// TestDataThatWasLetGoIsNotTakenBack: a terminated pod whose data is gone is a leftover where it runs.
func TestDataThatWasLetGoIsNotTakenBack(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("data-1", "host-a", 0), HostEpoch: 1}}})
	w.must(w.act("data-1", fleet.ActionTerminate), w.report("data-1", ReportGone), restore(7))
	w.must(w.back("host-a", HostPod{Pod: "data-1", Incarnation: 1, Goal: fleet.GoalRun}))
	if h, p := w.host("host-a"), w.pod("data-1"); len(h.Leftovers) != 1 || h.Leftovers[0].Pod != "data-1" || p.Held {
		t.Errorf("leftovers %v, held %v", h.Leftovers, p.Held)
	}
	w.check()
}

// TestALeftoverIsNotAdopted by another restore: what was to go goes.
func TestALeftoverIsNotAdopted(t *testing.T) {
	w := newWorld(t).settle()
	w.create("run-1", "host-a", 0)
	w.must(w.report("run-1", fleet.EventRunning))
	runs := w.runs("run-1")
	w.lose("host-a")
	w.must(FenceHost{Host: "host-a", At: at(60)}, w.back("host-a", runs))
	if h := w.host("host-a"); len(h.Leftovers) != 1 || h.Leftovers[0].Pod != "run-1" {
		t.Fatalf("leftovers of a fenced host: %v", h.Leftovers)
	}
	w.must(restore(7), w.back("host-a", runs))
	if h, p := w.host("host-a"), w.pod("run-1"); len(h.Leftovers) != 1 || p.Held || p.Status.Active() {
		t.Errorf("leftovers %v; the pod is %s, held %v", h.Leftovers, p.Status, p.Held)
	}
	w.check()
}

// TestAPodMovesOnlyToWhereItsVolumeIs, also in the eyes of a control plane that was restored.
func TestAPodMovesOnlyToWhereItsVolumeIs(t *testing.T) {
	w := newWorld(t).settle().furnish()
	pod := podOn("pod-1", "host-b")
	pod.Incarnation = 1
	with := func(volume fleet.VolumeID) *fleet.Pod {
		p := pod
		p.Spec.Network = &fleet.NetworkMount{Volume: volume}
		return &p
	}
	ended, keeps := pod, pod
	ended.Status, keeps.Spec.Persistent = fleet.StatusTerminated, &fleet.PersistentMount{SizeGB: 1}
	w.inTxn(at(70), func(txn *txn) {
		for name, c := range map[string]struct {
			pod    *fleet.Pod
			center fleet.DataCenterID
			want   bool
		}{
			"without a volume": {&pod, "dc-9", true}, "with it": {with("vol-1"), "dc-1", true},
			"away from it": {with("vol-1"), "dc-9", false}, "with one that is gone": {with("gone"), "dc-1", false},
			"that is terminated": {&ended, "dc-9", false}, "with data": {&keeps, "dc-9", false},
		} {
			x := comparison{
				t: txn, host: &fleet.Host{ID: "host-a", DataCenter: c.center}, runs: map[fleet.PodID]*HostPod{"pod-1": {Pod: "pod-1", Incarnation: 2}},
			}
			if got := x.movedHere(c.pod); got != c.want {
				t.Errorf("%s: moved %v", name, got)
			}
		}
	})
}

// TestWhenACopyWasMade is not after it was restored, nor unknown.
func TestWhenACopyWasMade(t *testing.T) {
	copied := func(w *world) (out time.Time) {
		w.inTxn(at(90), func(txn *txn) { out = (&comparison{t: txn, at: at(80)}).copied() })
		return out
	}
	if got := copied(newWorld(t)); !got.Equal(at(80)) {
		t.Errorf("without a cluster: %s", got)
	}
	for made, want := range map[time.Time]time.Time{{}: at(70), at(60): at(60), at(70): at(70), at(75): at(70)} {
		w := newWorld(t).settle()
		cmd := restore(7)
		cmd.SnapshotAt = made
		w.must(cmd)
		if got := copied(w); !got.Equal(want) {
			t.Errorf("made at %s: %s", made, got)
		}
	}
}

// TestAStopKeepsWhyAPodMoves.
func TestAStopKeepsWhyAPodMoves(t *testing.T) {
	for moving, want := range map[bool]string{true: reasonMoving, false: reasonStopping} {
		pod := fleet.Pod{Status: fleet.StatusRunning, Moving: moving, Reason: reasonMoving}
		if (&comparison{at: at(80)}).stop(&pod); pod.Reason != want || pod.Goal != fleet.GoalStop || !pod.EndedAt.Equal(at(80)) {
			t.Errorf("moving %v: %q, ended at %s", moving, pod.Reason, pod.EndedAt)
		}
	}
}

// TestAHostGetsNoMoreThanItHas for a pod, and nothing twice: then it does not hold all that its container has.
func TestAHostGetsNoMoreThanItHas(t *testing.T) {
	w := newWorld(t).settle()
	host := w.host("host-a")
	gpus := []string{"host-a-gpu-0", "host-a-gpu-1"}
	for name, c := range map[string]struct {
		gpus     []string
		mappings []fleet.PortMapping
		gets     int // GPUs
		public   []int
		full     bool
	}{
		"all":                      {gpus, []fleet.PortMapping{{Private: 22, Public: 30_000}}, 2, []int{30_000}, true},
		"one that it has not":      {[]string{gpus[0], "GPU-none"}, nil, 1, nil, false},
		"one that it had":          {[]string{gpus[0], "GPU-broken"}, nil, 2, nil, true},
		"one twice":                {[]string{gpus[0], gpus[0]}, nil, 1, nil, false},
		"another pod's":            {[]string{gpus[0], "host-a-gpu-3"}, nil, 1, nil, false},
		"the least and most":       {nil, []fleet.PortMapping{{Private: 22, Public: minPublicPort}, {Private: 23, Public: maxPublicPort}}, 0, []int{minPublicPort, maxPublicPort}, true},
		"less and more":            {nil, []fleet.PortMapping{{Private: 22, Public: minPublicPort - 1}, {Private: 23, Public: maxPublicPort + 1}}, 0, nil, false},
		"one port twice":           {nil, []fleet.PortMapping{{Private: 22, Public: 30_000}, {Private: 22, Public: 30_001}}, 0, []int{30_000}, false},
		"one public port twice":    {nil, []fleet.PortMapping{{Private: 22, Public: 30_000}, {Private: 23, Public: 30_000}}, 0, []int{30_000}, false},
		"another pod's public one": {nil, []fleet.PortMapping{{Private: 22, Public: 30_009}}, 0, nil, false},
		"one of no tcp port":       {nil, []fleet.PortMapping{{Private: 80, Public: 30_000}}, 0, nil, false},
	} {
		pod, other := podOn("pod-1", "host-a"), podOn("pod-2", "host-a", 3)
		pod.Held, other.Held = true, true
		pod.Spec.Ports = []fleet.Port{{Number: 22, Protocol: "tcp"}, {Number: 23, Protocol: "tcp"}, {Number: 80, Protocol: "http"}}
		other.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_009}}
		was := pod
		was.GPUs = []string{"GPU-broken"}
		x := &comparison{host: &host, on: []*fleet.Pod{&pod, &other}}
		full := x.grant(&pod, &was, &HostPod{Pod: "pod-1", Need: pod.Need, GPUs: c.gpus, Mappings: c.mappings})
		var public []int
		for _, m := range pod.Mappings {
			public = append(public, m.Public)
		}
		if full != c.full || len(pod.GPUs) != c.gets || !slices.Equal(public, c.public) {
			t.Errorf("%s: all of it: %v, GPUs %v, ports %v", name, full, pod.GPUs, public)
		}
	}
}

// TestOnlyWhatReturnsByItselfIsKeptFromIt after a restore.
func TestOnlyWhatReturnsByItselfIsKeptFromIt(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.report("pod-1", fleet.EventExited))
	for name, c := range map[string]struct {
		change func(*fleet.Pod)
		left   bool
	}{
		"interrupted":     {func(*fleet.Pod) {}, true},
		"not interrupted": {func(p *fleet.Pod) { p.Interrupted = time.Time{} }, false},
		"on demand":       {func(p *fleet.Pod) { p.Spec.Spot = nil }, false},
		"for good":        {func(p *fleet.Pod) { p.Spec.Spot.Return = false }, false},
		"terminated":      {func(p *fleet.Pod) { p.Status = fleet.StatusTerminated }, false},
	} {
		pod := w.pod("pod-1")
		rev := pod.Rev
		pod.Interrupted, pod.Spec.Spot = at(30), &fleet.Spot{Bid: 5, Return: true}
		c.change(&pod)
		w.inTxn(at(70), func(txn *txn) { txn.leaveReturn(pod) })
		got := w.pod("pod-1")
		if (got.Rev != rev) != c.left || c.left && (got.Spec.Spot.Return || got.Spec.Spot.Bid != 5) {
			t.Errorf("%s: revision %d, before %d, %+v", name, got.Rev, rev, got.Spec.Spot)
		}
	}
}
