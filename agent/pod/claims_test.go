package pod

import (
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// orderOf is an order of a pod for GPUs and public ports.
func orderOf(id fleet.PodID, generation uint64, gpu string, port int) Assignment {
	a := assignment(1, fleet.GoalRun)
	a.Pod, a.Generation = id, generation
	if gpu != "" {
		a.GPUs = []string{gpu}
	}
	if port != 0 {
		a.Mappings = []fleet.PortMapping{{Private: 22, Public: port}}
	}
	return a
}

func (f *fakeHost) runs(id fleet.PodID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boxes[id] != nil && f.boxes[id].Task == TaskRunning
}

// orphaned takes a pod off the list of what is wanted.
func (f *fakeHost) orphaned(id fleet.PodID) Assignment {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.records[id]
	rec.Assignment.Goal, rec.Orphan = fleet.GoalGone, true
	f.records[id] = rec
	return rec.Assignment
}

func TestAPodWaitsForWhatAnotherStillHas(t *testing.T) {
	for name, x := range map[string]struct {
		first, second Assignment
	}{
		"a GPU":         {orderOf("old", 10, "GPU-1", 0), orderOf("new", 20, "GPU-1", 0)},
		"a public port": {orderOf("old", 10, "", 30_001), orderOf("new", 20, "", 30_001)},
	} {
		t.Run(name, func(t *testing.T) {
			for way, end := range map[string]func(f *fakeHost, pods *Pods){
				"stopped": func(f *fakeHost, pods *Pods) {
					stop := x.first
					stop.Goal, stop.Generation = fleet.GoalStop, 30
					pods.Set(f.order(stop))
				},
				"ended": func(f *fakeHost, _ *Pods) { f.exit("old", 0) },
				"gone": func(f *fakeHost, pods *Pods) {
					gone := x.first
					gone.Goal, gone.Generation = fleet.GoalGone, 30
					pods.Set(f.order(gone))
				},
				"an orphan": func(f *fakeHost, pods *Pods) { pods.Set(f.orphaned("old")) },
			} {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeHost(t)
					f.images["web"], f.stubborn = true, true
					pods, _, _ := agentLife(t, f, boot1)
					pods.Set(f.order(x.first))
					settle(time.Second)
					pods.Set(f.order(x.second))
					settle(time.Minute)
					if !f.runs("old") || f.runs("new") || len(f.specs) != 1 {
						t.Fatalf("%s: both run, or none", way)
					}
					end(f, pods)
					settle(5 * time.Second) // of its grace period
					if way != "ended" && f.runs("new") {
						t.Errorf("%s: the second one did not wait for the end", way)
					}
					settle(time.Minute)
					if f.runs("old") || !f.runs("new") {
						t.Errorf("%s: the second one does not run", way)
					}
				})
			}
		})
	}
}

// What a newer order names says nothing of what the container of before still has.
func TestAPodWaitsForWhatAnotherHasNotForWhatItIsOrdered(t *testing.T) {
	for name, change := range map[string]func(f *fakeHost, old *Assignment){
		"a stop that names nothing": func(_ *fakeHost, old *Assignment) { old.Goal, old.GPUs, old.Mappings = fleet.GoalStop, nil, nil },
		"a later incarnation elsewhere": func(f *fakeHost, old *Assignment) {
			f.registry["other"] = &Error{Class: Retry, Sentence: "no such luck"} // it never begins
			old.Incarnation, old.Image, old.GPUs = 2, "other", []string{"GPU-2"}
			old.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_002}}
		},
	} {
		for thing, second := range map[string]Assignment{
			"GPU": orderOf("new", 40, "GPU-1", 0), "port": orderOf("new", 40, "", 30_001),
		} {
			t.Run(name+", "+thing, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeHost(t)
					f.images["web"], f.stubborn = true, true
					pods, _, _ := agentLife(t, f, boot1)
					old := orderOf("old", 10, "GPU-1", 30_001)
					pods.Set(f.order(old))
					settle(time.Second)
					change(f, &old)
					old.Generation = 30
					pods.Set(f.order(old))
					pods.Set(f.order(second))
					settle(5 * time.Second) // of its grace period
					if !f.runs("old") || f.runs("new") {
						t.Error("the second one did not wait for the end")
					}
					settle(time.Minute)
					if f.runs("old") || !f.runs("new") {
						t.Error("the second one does not run")
					}
				})
			})
		}
	}
}

func TestALedgerOfBeforeNamesWhatIsHeldByItsOrder(t *testing.T) {
	old := Record{Assignment: orderOf("old", 10, "GPU-1", 30_001), Begun: 1}
	if taken([]Record{old}, orderOf("new", 40, "GPU-1", 0)) == "" || taken([]Record{old}, orderOf("new", 40, "", 30_001)) == "" {
		t.Error("what it has is given away")
	}
	old.Ended = &Ended{Incarnation: 1}
	if thing := taken([]Record{old}, orderOf("new", 40, "GPU-1", 30_001)); thing != "" {
		t.Errorf("it has ended, and has %s", thing)
	}
}

func TestOfTwoPodsThatWantOneThingTheEarlierOrderHasIt(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.images["web"] = true
			pods, deps, _ := agentLife(t, f, boot1)
			deps.Heard.Store(false)
			pods.Set(f.order(orderOf("b", 20, "GPU-1", 0)))
			pods.Set(f.order(orderOf("a", 10, "GPU-1", 30_001)))
			pods.Set(f.order(orderOf("c", 30, "GPU-2", 30_001)))
			pods.Set(f.order(orderOf("d", 40, "GPU-3", 30_002)))
			deps.Heard.Store(true)
			pods.Poke()
			settle(time.Minute)
			if !f.runs("a") || f.runs("b") || f.runs("c") || !f.runs("d") {
				t.Error("it is not the earlier one that runs, or one that is in nobody's way does not")
			}
		})
	}
}

func TestAPodThatIsNotListedAnyMoreIsReportedGoneOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		pods.Set(f.orphaned("p1"))
		settle(time.Minute)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, EventGone)
		if len(f.records) != 0 || f.last().Incarnation != 1 {
			t.Errorf("left: %v, last report %+v", f.records, f.last())
		}
		// One that was ordered to go has said so before.
		pods.Set(f.order(assignment(2, fleet.GoalGone)))
		settle(time.Second)
		pods.Set(f.orphaned("p1"))
		settle(time.Minute)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, EventGone, EventGone)
	})
}
