package state

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// bidding is an interruptible pod on host-a that costs two dollars an hour.
func bidding(id fleet.PodID, bid fleet.Money, gpus ...int) fleet.Pod {
	p := podOn(id, "host-a", gpus...)
	p.Spec.Spot, p.HourlyRate = &fleet.Spot{Bid: bid}, 2*fleet.Dollar
	return p
}

// TestAnInterruptiblePodGivesItsPlace in the command that makes the other pod: to one on demand or with a higher bid, never when it is locked.
// It is charged to the second of that, the other from when its host has begun to make it.
func TestAnInterruptiblePodGivesItsPlace(t *testing.T) {
	const hour = 3600
	w := newWorld(t).settle()
	w.must(CreatePods{Pods: []NewPod{{Pod: bidding("pod-1", 5, 0, 1), HostEpoch: 1}, {Pod: podOn("pod-d", "host-a", 2, 3), HostEpoch: 1}}})
	w.must(w.report("pod-1", fleet.EventRunning))
	create := func(p fleet.Pod, evict ...fleet.PodID) CreatePods {
		p.CreatedAt = at(hour)
		return CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1, Evict: evict}}}
	}
	for name, cmd := range map[string]Command{
		"without": create(podOn("pod-2", "host-a", 0, 1)), "one on demand": create(podOn("pod-2", "host-a", 2, 3), "pod-d"),
		"an equal bid": create(bidding("pod-2", 5, 0, 1), "pod-1"), "a lower bid": create(bidding("pod-2", 4, 0, 1), "pod-1"),
		"one twice": create(podOn("pod-2", "host-a", 0, 1), "pod-1", "pod-1"), "another host": create(podOn("pod-2", "host-b", 0), "pod-1"),
	} {
		t.Run(name, func(*testing.T) { w.refused(fleet.CodeStale, cmd) })
	}
	lock := func(locked bool, rate fleet.Money) {
		p := w.pod("pod-1")
		w.must(UpdatePod{Account: p.Account, Pod: p.ID, Rev: p.Rev, Spec: p.Spec, Locked: locked, Need: p.Need, Mappings: p.Mappings, HourlyRate: rate, At: at(hour)})
	}
	lock(true, 3*fleet.Dollar)
	if rate := w.pod("pod-1").HourlyRate; rate != 3*fleet.Dollar {
		t.Errorf("locked, it costs %d", rate)
	}
	w.refused(fleet.CodeStale, create(podOn("pod-2", "host-a", 0, 1), "pod-1"))
	lock(false, 2*fleet.Dollar)
	w.must(create(bidding("pod-2", 6, 0, 1), "pod-1"))
	victim, other := w.pod("pod-1"), w.pod("pod-2")
	if victim.Goal != fleet.GoalStop || !victim.Held || len(victim.GPUs) != 0 || victim.Need != (fleet.Resources{}) || !victim.Interrupted.Equal(at(hour)) ||
		victim.Notice != 30*time.Second || !victim.EndedAt.Equal(at(hour)) || victim.Reason != reasonInterrupted {
		t.Errorf("the interrupted one: %+v", victim)
	}
	if len(other.GPUs) != 2 || other.Waiting.IsZero() {
		t.Errorf("the other: %+v", other)
	}
	var rates [2]fleet.Money
	w.view(func(v *View) {
		for i, id := range []fleet.PodID{"pod-1", "pod-2"} {
			if m := v.tb.meters.Rows[MeterID{fleet.ChargePod, string(id)}.key()]; m != nil {
				rates[i] = m.Rates.GPU
			}
		}
		if n := len(v.Yielding()["host-a"]); n != 1 {
			t.Errorf("%d pods yield", n)
		}
	})
	if rates != [2]fleet.Money{} {
		t.Errorf("while one ends and the other waits they cost %v", rates)
	}
	exited := w.report("pod-1", fleet.EventExited)
	w.must(exited)
	if p := w.pod("pod-1"); p.Status != fleet.StatusExited || p.Reason != reasonInterrupted || p.Held {
		t.Errorf("ended: %+v", p)
	}
	w.must(w.report("pod-2", fleet.EventStarting))
	if p := w.pod("pod-2"); !p.Waiting.IsZero() {
		t.Errorf("begun: %+v", p)
	}
}

// TestPodsEndAtTheirTimes once, locked ones are only terminated, and nothing ends while the log's time is uncertain.
func TestPodsEndAtTheirTimes(t *testing.T) {
	w := newWorld(t).settle()
	timed := func(id fleet.PodID, gpu int, stop, terminate int, locked bool) NewPod {
		p := podOn(id, "host-a", gpu)
		p.Locked = locked
		if p.Spec.StopAfter = at(stop); stop == 0 {
			p.Spec.StopAfter = time.Time{}
		}
		if p.Spec.TerminateAfter = at(terminate); terminate == 0 {
			p.Spec.TerminateAfter = time.Time{}
		}
		return NewPod{Pod: p, HostEpoch: 1}
	}
	w.must(CreatePods{Pods: []NewPod{timed("pod-1", 0, 100, 0, false), timed("pod-2", 1, 0, 200, true), timed("pod-3", 2, 100, 0, true)}})
	end := func(second int) Command {
		return EndPods{Pods: []fleet.PodID{"pod-1", "pod-2", "pod-3", "nobody"}, At: at(second)}
	}
	status := func(id fleet.PodID) (fleet.Goal, string) { p := w.pod(id); return p.Goal, p.Reason }
	w.refused(fleet.CodeInvalid, EndPods{})
	w.refused(fleet.CodeInvalid, EndPods{Pods: make([]fleet.PodID, MaxPods+1), At: at(1)})
	for _, c := range []struct {
		second, changed int
		goals           [3]fleet.Goal
	}{
		{99, 0, [3]fleet.Goal{fleet.GoalRun, fleet.GoalRun, fleet.GoalRun}},
		{100, 1, [3]fleet.Goal{fleet.GoalStop, fleet.GoalRun, fleet.GoalRun}},
		{150, 0, [3]fleet.Goal{fleet.GoalStop, fleet.GoalRun, fleet.GoalRun}},
		{200, 1, [3]fleet.Goal{fleet.GoalStop, fleet.GoalGone, fleet.GoalRun}},
	} {
		if n := w.must(end(c.second)); n != c.changed {
			t.Errorf("at %d it changed %v", c.second, n)
		}
		for i, id := range []fleet.PodID{"pod-1", "pod-2", "pod-3"} {
			if goal, why := status(id); goal != c.goals[i] {
				t.Errorf("at %d %s is to %s (%s)", c.second, id, goal, why)
			}
		}
	}
	if _, why := status("pod-2"); why != reasonTerminateAfter {
		t.Error(why)
	}
	p := w.pod("pod-3")
	w.must(UpdatePod{Account: p.Account, Pod: p.ID, Rev: p.Rev, Spec: p.Spec, Need: p.Need, Mappings: p.Mappings, At: at(300)})
	if n := w.must(end(300)); n != 1 {
		t.Errorf("unlocked, %v ended", n)
	}
	w.must(TickClock{At: at(300), Leap: time.Minute})
	w.must(CreatePods{Pods: []NewPod{func() NewPod { n := timed("pod-4", 3, 310, 0, false); n.Pod.CreatedAt = at(300); return n }()}})
	w.refused(fleet.CodeNotAllowed, EndPods{Pods: []fleet.PodID{"pod-4"}, At: at(1000)})
}

// TestARestoreLeavesReturns: an interrupted pod of the copy may have returned since, and have been ended after that.
func TestARestoreLeavesReturns(t *testing.T) {
	for name, ended := range map[string]bool{"ending": false, "ended": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).settle()
			victim := bidding("pod-1", 5, 0, 1)
			victim.Spec.Spot.Return = true
			w.must(CreatePods{Pods: []NewPod{{Pod: victim, HostEpoch: 1}}})
			w.must(w.report("pod-1", fleet.EventRunning))
			w.must(CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 0, 1), HostEpoch: 1, Evict: []fleet.PodID{"pod-1"}}}})
			if ended {
				w.must(w.report("pod-1", fleet.EventExited))
				w.view(func(v *View) {
					if len(v.Returning()) != 1 {
						t.Error("it does not return")
					}
				})
			}
			w.must(restore(7), w.back("host-a"))
			w.view(func(v *View) {
				if got := v.Returning(); len(got) != 0 {
					t.Errorf("%+v returns", got[0])
				}
			})
			if p := w.pod("pod-1"); p.Status != fleet.StatusExited || p.Spec.Spot.Bid != 5 || ended && !strings.Contains(p.Reason, "restored from a copy") {
				t.Errorf("got %+v", p)
			}
			w.check()
		})
	}
}
