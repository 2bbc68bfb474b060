package state

import (
	"testing"
	"time"

	"gantry/fleet"
)

// TestWhatIsRecordedIsNotProposedAgain, and everything that would change a record is.
func TestWhatIsRecordedIsNotProposedAgain(t *testing.T) {
	w := newWorld(t).settle()
	w.create("starts", "host-a", 0)
	w.create("waits", "host-a", 1)
	w.create("ended", "host-a", 2)
	w.create("other", "host-b", 0)
	begun := w.report("starts", fleet.EventStarting)
	begun.Reports[0].Steps = map[fleet.Step]time.Time{fleet.StepReceived: at(20)}
	w.must(begun, w.report("waits", fleet.EventStarting), w.report("waits", fleet.EventWaiting), w.report("ended", fleet.EventExited))
	recorded := func(host fleet.HostID, id fleet.PodID, event fleet.Trigger, change func(*PodReport)) (is bool) {
		r := PodReport{Pod: id, Incarnation: 1, Event: event, At: at(45)}
		if change != nil {
			change(&r)
		}
		w.view(func(v *View) { is = v.Recorded(host, &r) })
		return is
	}
	step := func(when time.Time) func(*PodReport) {
		return func(r *PodReport) { r.Steps = map[fleet.Step]time.Time{fleet.StepReceived: when} }
	}
	for name, c := range map[string]struct {
		host   fleet.HostID
		pod    fleet.PodID
		event  fleet.Trigger
		change func(*PodReport)
		want   bool
	}{
		"of a host that is not known": {"host-z", "starts", fleet.EventStarting, nil, false},
		"of a pod that is not known":  {"host-a", "nobody", fleet.EventRunning, nil, true},
		"of another host's pod":       {"host-a", "other", fleet.EventExited, nil, true},
		"the same":                    {"host-a", "starts", fleet.EventStarting, nil, true},
		"the same step":               {"host-a", "starts", fleet.EventStarting, step(at(20)), true},
		"another time of a step":      {"host-a", "starts", fleet.EventStarting, step(at(21)), false},
		"another status":              {"host-a", "starts", fleet.EventRunning, nil, false},
		"of a pod that waited":        {"host-a", "waits", fleet.EventStarting, nil, false},
		"that it waits":               {"host-a", "waits", fleet.EventWaiting, nil, true},
		"of a pod that ended":         {"host-a", "ended", fleet.EventExited, nil, true},
		"of a newer incarnation":      {"host-a", "ended", fleet.EventExited, func(r *PodReport) { r.Incarnation = 2 }, false},
		"of an older incarnation":     {"host-a", "starts", fleet.EventRunning, func(r *PodReport) { r.Incarnation = 0 }, true},
	} {
		if got := recorded(c.host, c.pod, c.event, c.change); got != c.want {
			t.Errorf("a report %s: recorded %v", name, got)
		}
	}
	w.must(restore(7), w.back("host-a", HostPod{Pod: "late", Incarnation: 1, Goal: fleet.GoalRun}))
	if recorded("host-a", "nobody", fleet.EventExited, nil) {
		t.Error("a host that has leftovers says nothing new")
	}
}

// TestAPodStopsWaiting with the next word of its start, and waits anew in a newer incarnation.
func TestAPodStopsWaiting(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.report("pod-1", fleet.EventStarting), w.report("pod-1", fleet.EventWaiting), w.report("pod-1", fleet.EventStarting))
	if p := w.pod("pod-1"); !p.Waiting.IsZero() || p.Status != fleet.StatusStarting {
		t.Errorf("%s, waits since %s", p.Status, p.Waiting)
	}
	w.must(w.report("pod-1", fleet.EventWaiting))
	newer := w.report("pod-1", fleet.EventWaiting)
	newer.At, newer.Reports[0].At, newer.Reports[0].Incarnation = at(43), at(42), 2
	w.must(newer)
	if p := w.pod("pod-1"); p.Incarnation != 2 || !p.Waiting.Equal(at(42)) {
		t.Errorf("incarnation %d waits since %s", p.Incarnation, p.Waiting)
	}
	w.check()
}

// TestTimesOfReports are the host's, as far as they can be.
func TestTimesOfReports(t *testing.T) {
	c := ReportPods{At: at(50)}
	for said, want := range map[time.Time]time.Time{{}: at(50), at(40): at(40), at(50): at(50), at(60): at(50)} {
		if got := c.when(&PodReport{At: said}); !got.Equal(want) {
			t.Errorf("%s is taken for %s", said, got)
		}
	}
	pod := fleet.Pod{Steps: firstStep(at(10))}
	steps := map[fleet.Step]time.Time{fleet.StepReceived: at(20), fleet.StepPulling: at(5), "dance": at(30)}
	if !c.mergeSteps(&pod, steps) || len(pod.Steps) != 3 || !pod.Steps[fleet.StepPulling].Equal(at(10)) {
		t.Errorf("steps %v", pod.Steps)
	}
	if c.mergeSteps(&pod, steps) {
		t.Error("the same steps are news")
	}
}

// TestAnEndDoesNotMoveTheStart that was recorded.
func TestAnEndDoesNotMoveTheStart(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.report("pod-1", fleet.EventRunning))
	started := w.pod("pod-1").StartedAt
	end := w.report("pod-1", fleet.EventExited)
	end.Reports[0].Steps = map[fleet.Step]time.Time{fleet.StepStarted: at(15)}
	w.must(end)
	if p := w.pod("pod-1"); !p.StartedAt.Equal(started) || !p.Steps[fleet.StepStarted].Equal(at(15)) {
		t.Errorf("started at %s, before %s", p.StartedAt, started)
	}
}

// TestARebootLeavesATerminatedPodItsDataAlone, whatever else it held.
func TestARebootLeavesATerminatedPodItsDataAlone(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(CreatePods{Pods: []NewPod{{Pod: rich("pod-1", "host-a", 0, 0), HostEpoch: 1}}}, w.act("pod-1", fleet.ActionTerminate))
	for name, holds := range map[string]func(*fleet.Pod){
		"CPU":    func(p *fleet.Pod) { p.Need.MilliCPU = 1 },
		"memory": func(p *fleet.Pod) { p.Need.MemoryMB = 1 },
		"a GPU":  func(p *fleet.Pod) { p.GPUs = []string{"host-a-gpu-0"} },
	} {
		pod := w.pod("pod-1")
		pod.Need, pod.GPUs, pod.Held = fleet.Resources{DiskGB: 120}, nil, true
		holds(&pod)
		w.inTxn(at(60), func(txn *txn) { ReportPods{}.gone(txn, &pod, fleet.EventReboot) })
		if !pod.Held || pod.Need != (fleet.Resources{DiskGB: 100}) || len(pod.GPUs) != 0 {
			t.Errorf("%s: it holds %+v and %v", name, pod.Need, pod.GPUs)
		}
	}
}
