package pod

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// fakeGate notes what it is asked for.
type fakeGate struct {
	mu    sync.Mutex
	calls []string
	fault error // of Open
}

func (g *fakeGate) note(format string, args ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if line := fmt.Sprintf(format, args...); len(g.calls) == 0 || g.calls[len(g.calls)-1] != line {
		g.calls = append(g.calls, line)
	}
}

func (g *fakeGate) Open(_ fleet.PodID, incarnation uint64, begins bool) error {
	g.note("open %d %v", incarnation, begins)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault
}
func (g *fakeGate) Drain(fleet.PodID)  { g.note("drain") }
func (g *fakeGate) Close(fleet.PodID)  { g.note("close") }
func (g *fakeGate) Forget(fleet.PodID) { g.note("forget") }
func (g *fakeGate) Freeze(fleet.PodID) { g.note("freeze") }
func (g *fakeGate) Thaw(fleet.PodID)   { g.note("thaw") }

func (g *fakeGate) wants(t *testing.T, want ...string) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.calls, want) {
		t.Errorf("the gate was asked for %q, want %q", g.calls, want)
	}
	g.calls = nil
}

func workerOrder(f *fakeHost, goal fleet.Goal) Assignment {
	a := assignment(1, goal)
	a.Endpoint = "abcdefghijklmn"
	return f.order(a)
}

// TestAWorkerHasItsGate: from before it runs until it is gone, and from a new agent.
func TestAWorkerHasItsGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := newFakeHost(t), &fakeGate{}
		f.images["web"], f.gate = true, g
		pods, _, stop := agentLife(t, f, boot1)
		pods.Set(workerOrder(f, fleet.GoalRun))
		settle(time.Second)
		g.wants(t, "open 1 true", "open 1 false")
		stop()
		g.calls = nil
		pods, _, _ = agentLife(t, f, boot1)
		pods.Set(workerOrder(f, fleet.GoalRun))
		settle(time.Second)
		g.wants(t, "open 1 false")
		pods.Set(workerOrder(f, fleet.GoalStop))
		settle(time.Minute)
		g.wants(t, "open 1 false", "drain", "close")
		pods.Set(workerOrder(f, fleet.GoalGone))
		settle(time.Minute)
		g.wants(t, "forget")
	})
}

// TestAWorkerStandsStillAndGoesOn: the gate stops giving it jobs before it stands still, and gives it some again after it goes on. A new
// agent leaves it as it is, also one whose ledger was lost, and what is frozen is killed without being asked.
func TestAWorkerStandsStillAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := newFakeHost(t), &fakeGate{}
		f.images["web"], f.gate = true, g
		frozen := func(want bool) {
			t.Helper()
			if c, _ := f.Look(t.Context(), "p1"); c.Frozen != want || c.Task != TaskRunning {
				t.Errorf("the container is %+v", c)
			}
		}
		pods, _, stop := agentLife(t, f, boot1)
		order := workerOrder(f, fleet.GoalRun)
		pods.Set(order)
		settle(time.Second)
		g.calls = nil
		order.Frozen = true
		order.Generation++
		pods.Set(f.order(order))
		settle(time.Second)
		frozen(true)
		g.wants(t, "open 1 false", "freeze", "open 1 false")
		stop()
		pods, _, _ = agentLife(t, f, boot1)
		pods.Set(order)
		settle(time.Second)
		frozen(true)
		c, _ := f.Look(t.Context(), "p1")
		c.Kept = kept(order, netip.MustParseAddr("10.0.0.9"))
		if rec, err := Adopted("p1", c, boot1); err != nil || !rec.Assignment.Frozen {
			t.Errorf("adopted %+v, %v", rec, err)
		}
		g.calls = nil
		order.Frozen = false
		order.Generation++
		pods.Set(f.order(order))
		settle(time.Second)
		frozen(false)
		g.wants(t, "open 1 false", "thaw", "open 1 false")
		order.Frozen = true
		order.Generation++
		pods.Set(f.order(order))
		settle(time.Second)
		order.Goal = fleet.GoalGone
		order.Generation++
		f.signals, f.freezer1 = nil, true
		pods.Set(f.order(order))
		settle(time.Second)
		if f.runs("p1") || !slices.Equal(f.signals, []int{9}) {
			t.Errorf("it runs: %t, after the signals %v", f.runs("p1"), f.signals)
		}
	})
}

// TestAPlainPodHasNoUseForGateOrVolumes: the gate is asked for nothing but its end, which does nothing to what is no worker.
func TestAPlainPodHasNoUseForGateOrVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g, v := newFakeHost(t), &fakeGate{}, newFakeVolumes()
		f.images["web"], f.gate = true, g
		pods, _ := volumeLife(t, f, v, boot1)
		for _, goal := range []fleet.Goal{fleet.GoalRun, fleet.GoalStop, fleet.GoalGone} {
			pods.Set(f.order(assignment(1, goal)))
			settle(time.Minute)
		}
		g.wants(t, "drain", "close", "forget")
		v.want(t)
	})
}

// TestAHostThatLostGateAndVolumesKeepsItsPods: one that runs with them goes on, stands still and ends as any other.
func TestAHostThatLostGateAndVolumesKeepsItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"], f.gate = true, &fakeGate{}
		pods, stop := volumeLife(t, f, newFakeVolumes(), boot1)
		order := withVolume(1, fleet.GoalRun)
		order.Endpoint, order.VolumePath = "abcdefghijklmn", fleet.WorkerVolumePath
		pods.Set(f.order(order))
		settle(time.Second)
		stop()
		f.gate = nil
		pods, _, _ = agentLife(t, f, boot1)
		for _, frozen := range []bool{false, true, false} {
			order.Frozen = frozen
			order.Generation++
			pods.Set(f.order(order))
			settle(time.Second)
			if c, _ := f.Look(t.Context(), "p1"); c.Frozen != frozen || c.Task != TaskRunning {
				t.Errorf("the container is %+v", c)
			}
		}
		order.Goal = fleet.GoalStop
		order.Generation++
		pods.Set(f.order(order))
		settle(time.Minute)
		if f.runs("p1") || f.last().Event != fleet.EventExited {
			t.Errorf("it runs: %t, last report %+v", f.runs("p1"), f.last())
		}
	})
}

// TestAPodWaitsForTheGPUOfAFrozenWorker that ends: two have it at no time.
func TestAPodWaitsForTheGPUOfAFrozenWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := newFakeHost(t), &fakeGate{}
		f.images["web"], f.gate = true, g
		pods, _, _ := agentLife(t, f, boot1)
		order := workerOrder(f, fleet.GoalRun)
		order.GPUs = []string{"GPU-1"}
		pods.Set(f.order(order))
		settle(time.Second)
		order.Frozen = true
		order.Generation++
		pods.Set(f.order(order))
		settle(time.Second)
		next := assignment(1, fleet.GoalRun)
		next.Pod, next.GPUs, next.Generation = "p2", order.GPUs, order.Generation+1
		pods.Set(f.order(next))
		settle(time.Minute)
		if f.runs("p2") || !f.runs("p1") {
			t.Error("the other runs before the frozen one is ordered to end")
		}
		order.Goal = fleet.GoalGone
		order.Generation += 2
		pods.Set(f.order(order))
		settle(time.Second)
		if !f.runs("p2") || f.runs("p1") {
			t.Error("the other does not run after the frozen one has ended")
		}
	})
}

// TestAWorkerThatCannotAskIsNotStarted: it waits for its gate, and fails on a host without.
func TestAWorkerThatCannotAskIsNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := newFakeHost(t), &fakeGate{fault: errors.New("no such namespace")}
		f.images["web"], f.gate = true, g
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(workerOrder(f, fleet.GoalRun))
		settle(time.Minute)
		if len(f.starts) != 0 {
			t.Errorf("starts %v", f.starts)
		}
		g.mu.Lock()
		g.fault = nil
		g.mu.Unlock()
		settle(time.Minute)
		if f.starts[1] != 1 {
			t.Errorf("starts %v", f.starts)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(workerOrder(f, fleet.GoalRun))
		settle(time.Minute)
		if f.last().Event != fleet.EventFailed || !strings.Contains(f.last().Reason, "runs no workers of serverless endpoints") {
			t.Errorf("%+v", f.last())
		}
	})
}

// TestTheEndpointGoesWithTheContainer: an agent that lost its ledger listens again.
func TestTheEndpointGoesWithTheContainer(t *testing.T) {
	want := assignment(1, fleet.GoalRun)
	want.Endpoint = "abcdefghijklmn"
	got, err := Adopted("p1", Container{Incarnation: 1, Task: TaskRunning, Kept: kept(want, netip.MustParseAddr("10.88.0.2"))}, boot1)
	if err != nil || got.Assignment.Endpoint != want.Endpoint {
		t.Errorf("%+v, %v", got, err)
	}
}
