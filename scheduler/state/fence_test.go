package state

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

// A change of labels leaves those alone that it does not name.
func TestLabelsAreMerged(t *testing.T) {
	w := newWorld(t).settle()
	w.must(
		SetHostLabels{Host: "host-a", Set: map[string]string{"rack": "7", "owner": "lab"}},
		SetHostLabels{Host: "host-a", Set: map[string]string{"row": "b", "rack": "8"}, Unset: []string{"owner", "never"}},
	)
	if d := cmp.Diff(map[string]string{"rack": "8", "row": "b"}, w.host("host-a").Labels); d != "" {
		t.Error(d)
	}
	w.check()
	w.must(SetHostLabels{Host: "host-a", Unset: []string{"rack", "row"}}, SetHostLabels{Host: "host-a"})
	if labels := w.host("host-a").Labels; labels != nil {
		t.Errorf("got %v", labels)
	}
	w.check()
}

// A record that says nothing is no reason to refuse the host with all that runs there.
func TestAPodOfIncarnationZeroIsIgnored(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.report("pod-1", fleet.EventRunning))
	w.must(restore(7))
	w.must(w.back("host-a", w.runs("pod-1"), HostPod{Pod: "pod-0", Goal: fleet.GoalRun}))
	if h, p := w.host("host-a"), w.pod("pod-1"); len(h.Leftovers) != 0 || p.Status != fleet.StatusRunning || !p.Held {
		t.Errorf("leftovers %v, pod %+v", h.Leftovers, p)
	}
	w.check()
}

// The data of a pod may still be there after its container has ended.
func TestAFencedHostStaysClosedUntilDataOfTerminatedPodsIsGone(t *testing.T) {
	w := newWorld(t).settle().furnish()
	ids := []fleet.PodID{"before", "let-go", "during"}
	for i, id := range ids {
		w.must(CreatePods{Pods: []NewPod{{Pod: rich(id, "host-b", 0, i), HostEpoch: 1}}})
		w.must(w.report(id, fleet.EventRunning))
	}
	w.must(w.report("let-go", fleet.EventExited), w.act("let-go", fleet.ActionTerminate), w.act("before", fleet.ActionTerminate))
	w.must(w.report("during", fleet.EventExited))
	w.lose("host-b")
	w.must(FenceHost{Host: "host-b", At: at(70)}, w.act("during", fleet.ActionTerminate))
	for _, id := range ids {
		if w.pod(id).Held {
			t.Errorf("%s holds something of a fenced host", id)
		}
	}
	w.must(PurgePods{Pods: ids, Before: at(99)})
	w.check()
	h := w.must(w.back("host-b", HostPod{Pod: "before", Incarnation: 1, Goal: fleet.GoalRun},
		HostPod{Pod: "let-go", Incarnation: 1, Goal: fleet.GoalGone, Ended: true})).(fleet.Host)
	for i, id := range ids {
		if p := w.ordered("host-b", id); p.Goal != fleet.GoalGone || p.Status != fleet.StatusTerminated {
			t.Errorf("ordered %+v", p)
		}
		report := func(event fleet.Trigger) ReportPods {
			return ReportPods{Host: "host-b", Epoch: h.Epoch, At: at(82), Reports: []PodReport{{Pod: id, Incarnation: 1, Event: event, At: at(82)}}}
		}
		w.must(report(fleet.EventExited), report(fleet.EventReboot))
		w.refused(fleet.CodeNotAllowed, SetHostEligibility{Host: "host-b", At: at(83)})
		w.must(report(ReportGone))
		if left := len(w.host("host-b").Leftovers); left != len(ids)-1-i {
			t.Errorf("%d leftovers", left)
		}
		w.check()
	}
	w.must(SetHostEligibility{Host: "host-b", At: at(84)})
}

// A pod that keeps its data stays bound to the fenced host; terminated there, it leaves something after all.
func TestAPodThatIsTerminatedDuringAFenceIsALeftover(t *testing.T) {
	w := fenced(t)
	w.must(w.act("data-1", fleet.ActionTerminate))
	want := []fleet.Leftover{
		{Pod: "data-1", Incarnation: 1, Gone: true},
		{Pod: "pod-1", Incarnation: 1},
		{Pod: "pod-2", Incarnation: 1},
		{Pod: "pod-3", Incarnation: 1, Gone: true},
		{Pod: "pod-4", Incarnation: 1},
	}
	if d := cmp.Diff(want, w.host("host-a").Leftovers); d != "" {
		t.Error(d)
	}
	w.check()
}
