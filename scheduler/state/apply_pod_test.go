package state

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func TestCreatePod(t *testing.T) {
	w := newWorld(t).settle()
	in := podOn("pod-1", "host-a", 1, 2)
	in.Status, in.Rev, in.Incarnation, in.Goal, in.Reason = fleet.StatusRunning, 9, 9, fleet.GoalGone, "made up"
	index := w.s.Index()
	got := w.must(CreatePods{Pods: []NewPod{{Pod: in, HostEpoch: 1}}}).([]fleet.Pod)[0]
	want := podOn("pod-1", "host-a", 1, 2)
	want.Status, want.Goal, want.Held, want.Incarnation, want.Rev, want.Generation = fleet.StatusProvisioning, fleet.GoalRun, true, 1, 1, 1
	want.DataCenter, want.Steps, want.Image = "dc-1", map[fleet.Step]time.Time{fleet.StepCreated: at(10)}, want.Spec.Image
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(got, w.pod("pod-1")); d != "" {
		t.Error(d)
	}
	evs, upTo, ok := w.s.Events(index)
	if want := []Event{{Index: index + 1, Kind: KindAssign, ID: "host-a"}, {Index: index + 1, Kind: KindPod, ID: "pod-1"}}; !slices.Equal(evs, want) || !ok || upTo != index+1 {
		t.Errorf("events %v up to %d, %t", evs, upTo, ok)
	}
	w.view(func(v *View) {
		use, _ := v.HostUsage("host-a")
		if use.UsedGPUs != 2 || use.Pods != 1 || use.Used != in.Need || use.Host.Generation != 1 {
			t.Errorf("usage %+v", use)
		}
		c := v.Candidates()
		if len(c) != 2 || len(c[0].FreeGPUs) != 2 || c[0].Free.MilliCPU != 15_000 || c[0].Pods != 1 || len(c[1].FreeGPUs) != 4 {
			t.Errorf("candidates %+v", c)
		}
	})
	w.check()
}

func TestCreatePodIsRefused(t *testing.T) {
	w := newWorld(t).settle()
	for i, id := range []fleet.PodID{"taken", "taken-2", "taken-3"} {
		full := podOn(id, "host-a", i)
		full.Need = fleet.Resources{}
		if id == "taken" {
			full.Need = podOn(id, "host-a").Need
		}
		w.must(CreatePods{Pods: []NewPod{{Pod: full, HostEpoch: 1}}})
	}
	sick := inventory("host-b")
	sick.GPUs[1].Sick = "XID 79"
	sick.GPUs[2].Type = "NVIDIA A40"
	w.must(ConnectHost{Host: "host-b", MachineID: "machine-b", BootID: "boot", Inventory: sick, At: at(3)})
	w.join("host-c", "machine-c")
	w.connect("host-c")
	w.must(SetHostState{Host: "host-c", Epoch: 1, State: fleet.HostUnreachable, At: at(4)})
	w.join("host-d", "machine-d")

	pod := func(change func(*NewPod)) CreatePods {
		c := CreatePods{Pods: []NewPod{{Pod: podOn("pod-1", "host-a", 3), HostEpoch: 1}}}
		change(&c.Pods[0])
		return c
	}
	on := func(host fleet.HostID, epoch uint64, gpus ...int) func(*NewPod) {
		return func(c *NewPod) { c.Pod, c.HostEpoch = podOn("pod-1", host, gpus...), epoch }
	}
	for _, tc := range []struct {
		name string
		code fleet.Code
		cmd  CreatePods
	}{
		{"no id", fleet.CodeInvalid, pod(func(c *NewPod) { c.Pod.ID = "" })},
		{"no such account", fleet.CodeNotFound, pod(func(c *NewPod) { c.Pod.Account = "nobody" })},
		{"id used", fleet.CodeExists, pod(func(c *NewPod) { c.Pod.ID = "taken" })},
		{"no such host", fleet.CodeStale, pod(on("host-z", 1))},
		{"old epoch", fleet.CodeStale, pod(on("host-b", 1, 0))},
		{"host unreachable", fleet.CodeStale, pod(on("host-c", 1, 0))},
		{"host joining", fleet.CodeStale, pod(on("host-d", 0))},
		{"one of two GPUs taken, none is free beside", fleet.CodeStale, pod(on("host-a", 1, 3, 0))},
		{"GPU not there", fleet.CodeStale, pod(on("host-a", 1, 7))},
		{"GPU sick", fleet.CodeStale, pod(on("host-b", 2, 1))},
		{"GPU of another type", fleet.CodeStale, pod(on("host-b", 2, 2))},
		{"GPU twice", fleet.CodeInvalid, pod(on("host-a", 1, 3, 3))},
		{"too few GPUs", fleet.CodeInvalid, pod(func(c *NewPod) { c.Pod.GPUs = nil })},
		{"GPUs for a CPU pod", fleet.CodeInvalid, pod(func(c *NewPod) { c.Pod.Spec.GPU = nil })},
		{"CPU", fleet.CodeStale, pod(func(c *NewPod) { c.Pod.Need.MilliCPU = 15_001 })},
		{"memory", fleet.CodeStale, pod(func(c *NewPod) { c.Pod.Need.MemoryMB = 62_001 })},
		{"disk", fleet.CodeStale, pod(func(c *NewPod) { c.Pod.Need.DiskGB = 981 })},
		{"negative need", fleet.CodeInvalid, pod(func(c *NewPod) { c.Pod.Need.DiskGB = -1 })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.t = t
			w.refused(tc.code, tc.cmd)
		})
	}
	w.t = t
	w.must(pod(func(c *NewPod) { c.Pod.Need = fleet.Resources{MilliCPU: 15_000, MemoryMB: 62_000, DiskGB: 980} }))
	w.check()
}

// Every action in every status under every goal does what the fleet's table says.
func TestActPodFollowsTheTable(t *testing.T) {
	for _, status := range fleet.PodStatuses() {
		for _, goal := range goalsOf(status) {
			for _, action := range append(fleet.Actions(), fleet.EventRunning, "dance") {
				t.Run(fmt.Sprintf("%s/%s/%s", status, goal, action), func(t *testing.T) {
					w := newWorld(t).settle()
					w.podIn(status, goal)
					cmd, before := w.act("pod-1", action), w.pod("pod-1")
					if !fleet.Allowed(status, goal, action) {
						w.refused(fleet.CodeNotAllowed, cmd)
						return
					}
					generation := w.host("host-a").Generation
					got := w.must(cmd).(fleet.Pod)
					want, _ := status.Next(action)
					if action == fleet.ActionStop {
						want = status // until the host reports it
					}
					if got.Status != want || got.Rev != before.Rev+1 {
						t.Errorf("got %s rev %d, want %s after rev %d", got.Status, got.Rev, want, before.Rev)
					}
					if g := w.host("host-a").Generation; g <= generation || got.Generation != g {
						t.Errorf("generation %d of the host, %d of the pod, after %d", g, got.Generation, generation)
					}
					w.check()
				})
			}
		}
	}
}

func goalsOf(s fleet.PodStatus) []fleet.Goal {
	switch {
	case s == fleet.StatusTerminated:
		return []fleet.Goal{fleet.GoalGone}
	case s.Active():
		return []fleet.Goal{fleet.GoalRun, fleet.GoalStop}
	}
	return []fleet.Goal{fleet.GoalStop}
}

func TestActPodIsRefused(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	rev := w.pod("pod-1").Rev
	stop := func(account fleet.AccountID, pod fleet.PodID, rev uint64) ActPod {
		return ActPod{Account: account, Pod: pod, Rev: rev, Action: fleet.ActionStop, At: at(50)}
	}
	w.refused(fleet.CodeNotFound, stop("acme", "pod-9", 0))
	w.refused(fleet.CodeNotFound, stop("other", "pod-1", 0))
	w.refused(fleet.CodeStale, stop("acme", "pod-1", rev-1))
	w.refused(fleet.CodeStale, stop("acme", "pod-1", rev+1))
	w.must(stop("acme", "pod-1", rev))
	w.must(w.report("pod-1", fleet.EventExited))

	for i, id := range []fleet.PodID{"taken", "taken-2", "taken-3"} {
		w.create(id, "host-a", i)
	}
	start := ActPod{Account: "acme", Pod: "pod-1", Action: fleet.ActionStart, At: at(50)}
	w.refused(fleet.CodeInvalid, start)
	bind := func(b Binding) ActPod { c := start; c.Bind = &b; return c }
	w.create("taken-4", "host-a", 3)
	w.refused(fleet.CodeStale, bind(Binding{Host: "host-a", HostEpoch: 1, GPUs: []string{"host-a-gpu-0"}}))
	w.must(w.act("taken-4", fleet.ActionTerminate), w.report("taken-4", ReportGone))
	w.refused(fleet.CodeStale, bind(Binding{Host: "host-a", HostEpoch: 2, GPUs: []string{"host-a-gpu-3"}}))
	w.refused(fleet.CodeInvalid, bind(Binding{Host: "host-a", HostEpoch: 1}))
	// One that is taken meanwhile is replaced by the free one.
	got := w.must(bind(Binding{Host: "host-a", HostEpoch: 1, GPUs: []string{"host-a-gpu-1"}})).(fleet.Pod)
	if !slices.Equal(got.GPUs, []string{"host-a-gpu-3"}) {
		t.Errorf("got GPUs %v", got.GPUs)
	}
}

func TestALockedPodIsNeitherStoppedNorRestarted(t *testing.T) {
	w := newWorld(t).settle()
	in := podOn("pod-1", "host-a")
	in.Locked = true
	w.must(CreatePods{Pods: []NewPod{{Pod: in, HostEpoch: 1}}})
	w.must(w.report("pod-1", fleet.EventRunning))
	w.refused(fleet.CodeNotAllowed, w.act("pod-1", fleet.ActionStop))
	w.refused(fleet.CodeNotAllowed, w.act("pod-1", fleet.ActionRestart))
	w.must(w.act("pod-1", fleet.ActionTerminate))
}

func TestStopEndsChargingAtOnceAndTheStatusWhenTheContainerIsGone(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalStop)
	p := w.pod("pod-1")
	if p.Status != fleet.StatusRunning || p.Reason != "stopping" || !p.EndedAt.Equal(at(50)) || !p.Held || len(p.GPUs) != 1 {
		t.Fatalf("got %+v", p)
	}
	generation := p.Generation
	cmd := w.report("pod-1", fleet.EventFailed)
	code := 137
	cmd.Reports[0].ExitCode, cmd.Reports[0].Reason, cmd.Reports[0].LogTail = &code, "killed", "tail"
	w.must(cmd)
	p = w.pod("pod-1")
	if p.Status != fleet.StatusExited || p.Reason != "" || p.Held || p.GPUs != nil || !p.EndedAt.Equal(at(50)) {
		t.Fatalf("got %+v", p)
	}
	if *p.ExitCode != 137 || p.LogTail != "" || p.Generation != generation {
		t.Fatalf("got %+v", p)
	}
}

func TestRestartKeepsGPUsAndBeginsAnIncarnation(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	got := w.must(w.act("pod-1", fleet.ActionRestart)).(fleet.Pod)
	if got.Incarnation != 2 || len(got.GPUs) != 1 || !got.StartedAt.IsZero() || !got.EndedAt.IsZero() || !got.Held {
		t.Errorf("got %+v", got)
	}
	if d := cmp.Diff(map[fleet.Step]time.Time{fleet.StepCreated: at(50)}, got.Steps); d != "" {
		t.Error(d)
	}
	// What the first incarnation still reports is of no interest.
	old := w.report("pod-1", fleet.EventExited)
	old.Reports[0].Incarnation = 1
	before := w.hash()
	w.must(old)
	if string(before) != string(w.hash()) {
		t.Error("a report of an older incarnation changed something")
	}
}

func TestStartOnAnotherHost(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusError, fleet.GoalStop)
	a, b, index := w.host("host-a").Generation, w.host("host-b").Generation, w.s.Index()
	got := w.must(ActPod{Account: "acme", Pod: "pod-1", Action: fleet.ActionStart, At: at(60), Bind: &Binding{
		Host: "host-b", HostEpoch: 1, GPUs: []string{"host-b-gpu-3"}, HourlyRate: 7,
	}}).(fleet.Pod)
	if got.Host != "host-b" || got.HourlyRate != 7 || got.Incarnation != 2 || !got.EndedAt.IsZero() || got.Goal != fleet.GoalRun {
		t.Errorf("got %+v", got)
	}
	if w.host("host-a").Generation != a || w.host("host-b").Generation != b+1 || got.Generation != b+1 {
		t.Errorf("generations %d and %d, pod %d", w.host("host-a").Generation, w.host("host-b").Generation, got.Generation)
	}
	evs, _, _ := w.s.Events(index)
	want := []Event{{Index: index + 1, Kind: KindAssign, ID: "host-b"}, {Index: index + 1, Kind: KindPod, ID: "pod-1"}}
	if !slices.Equal(evs, want) {
		t.Errorf("events %v", evs)
	}
	w.view(func(v *View) {
		if len(v.HostPods("host-a")) != 0 || len(v.HostPods("host-b")) != 1 {
			t.Error("the pod is not an assignment of its new host alone")
		}
	})
	w.check()
}

func TestTerminateHoldsResourcesUntilGone(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	w.must(w.act("pod-1", fleet.ActionTerminate))
	p := w.pod("pod-1")
	if p.Status != fleet.StatusTerminated || !p.Held || p.Goal != fleet.GoalGone || !p.EndedAt.Equal(at(50)) || !p.TerminatedAt.Equal(at(50)) {
		t.Fatalf("got %+v", p)
	}
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 0, 1, 2, 3), HostEpoch: 1}}})
	purge := PurgePods{Pods: []fleet.PodID{"pod-1", "pod-9"}, Before: at(50)}
	if n := w.must(purge); n != 0 {
		t.Fatalf("%v pods were purged that hold something", n)
	}
	for _, event := range fleet.Events()[:4] { // all but reboot
		w.must(w.report("pod-1", event))
		if !w.pod("pod-1").Held {
			t.Fatalf("released by %s", event)
		}
	}
	generation := w.host("host-a").Generation
	w.must(w.report("pod-1", ReportGone))
	if p := w.pod("pod-1"); p.Held || w.host("host-a").Generation != generation+1 {
		t.Fatalf("got %+v", p)
	}
	w.must(w.report("pod-1", ReportGone)) // once more
	w.create("pod-2", "host-a", 0)

	if n := w.must(PurgePods{Pods: []fleet.PodID{"pod-1"}, Before: at(49)}); n != 0 {
		t.Fatalf("%v pods were purged too early", n)
	}
	w.view(func(v *View) {
		got := v.TerminatedRows()
		if len(got) != 1 || got[0].ID != "pod-1" || !Purgeable(got[0], at(50)) || Purgeable(got[0], at(49)) {
			t.Errorf("terminated %v", got)
		}
	})
	if n := w.must(purge); n != 1 {
		t.Fatalf("%v pods were purged", n)
	}
	w.check()
}

func TestTerminateOfAStoppedPodEndsWithItsLog(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusExited, fleet.GoalStop)
	ended := w.pod("pod-1").EndedAt
	w.must(w.act("pod-1", fleet.ActionTerminate))
	if p := w.pod("pod-1"); !p.EndedAt.Equal(ended) || !p.Held {
		t.Errorf("got %+v", p)
	}
	w.must(w.report("pod-1", ReportGone))
	if p := w.pod("pod-1"); !p.EndedAt.Equal(ended) || p.Held {
		t.Errorf("got %+v", p)
	}
	w.view(func(v *View) {
		if n := len(v.HostPods("host-a")); n != 0 {
			t.Errorf("%d assignments", n)
		}
	})
	w.check()
}
