package state

import (
	"fmt"
	"testing"

	"gantry/fleet"
)

// orders returns what a host is told of its pods.
func (w *world) orders(host fleet.HostID) (out map[fleet.PodID]fleet.Goal, generation uint64) {
	w.t.Helper()
	out = map[fleet.PodID]fleet.Goal{}
	w.view(func(v *View) {
		for _, p := range v.HostPods(host) {
			out[p.ID] = p.Goal
		}
	})
	return out, w.host(host).Generation
}

// A stopped pod that keeps nothing is none of its host's any more, from the report of its end on, however it ended. Its host hears
// it, and it can be started anywhere.
func TestAStoppedPodLeavesItsHost(t *testing.T) {
	for _, c := range []struct {
		name  string
		event fleet.Trigger
		stop  bool
	}{{"stopped", fleet.EventExited, true}, {"ended", fleet.EventExited, false}, {"failed", fleet.EventFailed, false}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t).settle()
			w.podIn(fleet.StatusRunning, fleet.GoalRun)
			if c.stop {
				w.must(w.act("pod-1", fleet.ActionStop))
			}
			told, before := w.orders("host-a")
			if len(told) != 1 {
				t.Fatalf("while it runs, its host is told of %v", told)
			}
			w.must(w.report("pod-1", c.event))
			told, after := w.orders("host-a")
			if len(told) != 0 || after <= before {
				t.Errorf("its host is told of %v, generation %d after %d", told, after, before)
			}
			w.view(func(v *View) {
				if on, _ := v.HostUsage("host-a"); on.Pods != 0 || on.Used != (fleet.Resources{}) {
					t.Errorf("its host counts %d, %v", on.Pods, on.Used)
				}
			})
			if p := w.pod("pod-1"); p.Status.Active() || p.Host != "host-a" {
				t.Errorf("the record is %s on %s", p.Status, p.Host)
			}
			w.check()
			start := w.act("pod-1", fleet.ActionStart)
			start.Bind.Host, start.Bind.HostEpoch, start.Bind.GPUs = "host-b", w.host("host-b").Epoch, podOn("x", "host-b", 0).GPUs
			w.must(start)
			if told, _ := w.orders("host-b"); told["pod-1"] != fleet.GoalRun {
				t.Errorf("its new host is told of %v", told)
			}
			if told, _ := w.orders("host-a"); len(told) != 0 {
				t.Errorf("its old host is told of %v", told)
			}
			w.check()
		})
	}
}

// A stopped pod that keeps data stays one of its host's, and so does one that is being moved.
func TestAPodWithDataStaysItsHosts(t *testing.T) {
	w := newWorld(t).settle()
	w.exited()
	if told, _ := w.orders("host-a"); told["pod-1"] != fleet.GoalStop {
		t.Errorf("its host is told of %v", told)
	}
	w.must(CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a"), HostEpoch: 1}}})
	w.must(w.report("pod-2", fleet.EventRunning))
	w.allow("pod-2")
	w.must(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining})
	w.must(w.moveTo("pod-2", at(45)))
	w.must(w.report("pod-2", fleet.EventExited))
	if told, _ := w.orders("host-a"); told["pod-2"] != fleet.GoalStop {
		t.Errorf("while it moves, its host is told of %v", told)
	}
	_, before := w.orders("host-a")
	w.must(w.act("pod-2", fleet.ActionStop)) // its owner wants it stopped
	if told, after := w.orders("host-a"); told["pod-2"] != "" || after <= before {
		t.Errorf("after the move its host is told of %v, generation %d after %d", told, after, before)
	}
	w.check()
}

// The log of a stopped pod goes with the pod: its host is told once more, and says when nothing is left.
func TestTheLogOfAStoppedPodGoesWithIt(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusExited, fleet.GoalStop)
	w.must(w.act("pod-1", fleet.ActionTerminate))
	told, _ := w.orders("host-a")
	p := w.pod("pod-1")
	if told["pod-1"] != fleet.GoalGone || !p.Held || p.Need != (fleet.Resources{}) || len(p.GPUs) != 0 {
		t.Errorf("its host is told of %v; it holds %v, %v", told, p.Need, p.GPUs)
	}
	w.must(w.report("pod-1", ReportGone))
	if told, _ := w.orders("host-a"); len(told) != 0 || w.pod("pod-1").Held {
		t.Errorf("after it is gone, its host is told of %v", told)
	}
	w.check()
}

// A host takes no more pods than it has addresses for, and again when one has left.
func TestAHostWithoutAddressesTakesNoPods(t *testing.T) {
	w := newWorld(t).settle()
	w.inTxn(at(3), func(tx *txn) {
		for i := range fleet.MostPods {
			p := podOn(fleet.PodID(fmt.Sprintf("held-%05d", i)), "host-a")
			p.Status, p.Goal, p.Held, p.Incarnation, p.Need, p.Steps = fleet.StatusRunning, fleet.GoalRun, true, 1, fleet.Resources{}, firstStep(at(2))
			tx.putPod(&p)
		}
	})
	w.must(limit(fleet.LimitPods, fleet.MaxLimit), limit(fleet.LimitRunning, fleet.MaxLimit))
	more := CreatePods{Pods: []NewPod{{Pod: podOn("more", "host-a"), HostEpoch: 1}}}
	w.refused(fleet.CodeStale, more)
	w.view(func(v *View) {
		h, _ := v.Host("host-a")
		if ok, why := h.Takes(); ok || why != "no network address left" {
			t.Errorf("it takes pods: %v, %q", ok, why)
		}
	})
	w.must(w.act("held-00007", fleet.ActionStop))
	w.must(w.report("held-00007", fleet.EventExited))
	w.must(more)
}
