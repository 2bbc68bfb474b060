package pod

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/storage"
)

// TestAnOlderOrderIsRefused sends a machine what it was to do before its newest order, in every form: neither the running
// container nor what the machine does later heeds it.
func TestAnOlderOrderIsRefused(t *testing.T) {
	for _, older := range []Assignment{
		{Goal: fleet.GoalStop, Incarnation: 2},
		{Goal: fleet.GoalGone, Incarnation: 2},
		{Goal: fleet.GoalRun, Incarnation: 1},
		{Goal: fleet.GoalRun, Incarnation: 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.images["web"] = true
			pods, _, _ := agentLife(t, f, boot1)
			newest := assignment(2, fleet.GoalRun)
			newest.Generation = 50
			pods.Set(f.order(newest))
			settle(time.Second)
			old := assignment(older.Incarnation, older.Goal)
			old.Generation = 49
			pods.Set(old)
			settle(time.Minute)
			wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
			if f.boxes["p1"].Task != TaskRunning || f.starts[2] != 1 || len(f.starts) != 1 {
				t.Errorf("after %v of incarnation %d: task %v, starts %v", older.Goal, older.Incarnation, f.boxes["p1"].Task, f.starts)
			}
			// One of the same generation is the same order, sent again, and the next one counts.
			pods.Set(newest)
			settle(time.Minute)
			next := assignment(2, fleet.GoalStop)
			next.Generation = 51
			pods.Set(f.order(next))
			settle(time.Minute)
			wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited)
		})
	}
}

// TestANewerContainerIsLeftAlone: an order for an incarnation below that of the container touches nothing, whatever it
// wants; it is a scheduler's of before.
func TestANewerContainerIsLeftAlone(t *testing.T) {
	for _, goal := range []fleet.Goal{fleet.GoalRun, fleet.GoalStop, fleet.GoalGone} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.images["web"] = true
			f.boxes["p1"] = &fakeBox{Container: Container{Exists: true, Incarnation: 3, Task: TaskRunning, PID: 100}, done: make(chan struct{})}
			pods, _, _ := agentLife(t, f, boot1)
			pods.Set(f.order(assignment(2, goal)))
			settle(time.Minute)
			if b := f.boxes["p1"]; b == nil || b.Task != TaskRunning || len(f.events()) != 0 || len(f.starts) != 0 {
				t.Errorf("%s: container %+v, reports %v", goal, b, f.events())
			}
		})
	}
}

// TestAnEndedIncarnationIsNotStartedAgain, whichever order of it comes once more, also after a restart of the agent.
func TestAnEndedIncarnationIsNotStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, stop := agentLife(t, f, boot1)
		a := assignment(2, fleet.GoalRun)
		pods.Set(f.order(a))
		settle(time.Second)
		f.exit("p1", 0)
		settle(time.Second)
		for _, incarnation := range []uint64{2, 1} {
			again := a
			again.Incarnation, again.Generation = incarnation, a.Generation+10
			pods.Set(f.order(again))
			settle(time.Minute)
		}
		stop()
		pods, _, _ = agentLife(t, f, boot1)
		pods.Set(f.order(a))
		settle(time.Minute)
		if f.starts[2] != 1 || len(f.starts) != 1 {
			t.Errorf("starts %v", f.starts)
		}
	})
}

// TestAHangingStartEndsWithItsGoal: a container whose process is never made keeps nothing once the order is another.
func TestAHangingStartEndsWithItsGoal(t *testing.T) {
	for _, change := range []func(*Assignment){
		func(a *Assignment) { a.Goal = fleet.GoalStop },
		func(a *Assignment) { a.Goal = fleet.GoalGone },
		func(a *Assignment) { a.Incarnation++ },
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.images["web"], f.hangs = true, true
			pods, _, _ := agentLife(t, f, boot1)
			a := assignment(1, fleet.GoalRun)
			a.GPUs = []string{"GPU-1"}
			pods.Set(f.order(a))
			settle(30 * time.Second)
			wantEvents(t, f, fleet.EventStarting)
			f.mu.Lock()
			f.hangs = false
			f.mu.Unlock()
			change(&a)
			a.Generation++
			pods.Set(f.order(a))
			settle(time.Second)
			if a.Goal == fleet.GoalRun {
				if f.starts[2] != 1 {
					t.Errorf("the next incarnation has not begun: %v", f.starts)
				}
				return
			}
			if len(f.boxes) != 0 || len(f.starts) != 0 || f.last().Event == fleet.EventStarting {
				t.Errorf("%s: containers %v, starts %v, reports %v", a.Goal, f.boxes, f.starts, f.events())
			}
		})
	}
}

// TestAStartGoesOnWhenItsOrderOnlyChanges: what a running pod may do with its volume breaks off no start.
func TestAStartGoesOnWhenItsOrderOnlyChanges(t *testing.T) {
	f := newFakeHost(t)
	m := newMachine(f.deps(boot1), assignment(1, fleet.GoalRun))
	ctx, done := m.starting(t.Context(), m.want)
	defer done()
	a := m.want
	a.Generation, a.Volume = a.Generation+1, &storage.Volume{ReadOnly: true}
	m.set(a)
	if ctx.Err() != nil {
		t.Errorf("the start ends: %v", ctx.Err())
	}
	a.Generation, a.Goal = a.Generation+1, fleet.GoalStop
	m.set(a)
	if !errors.Is(context.Cause(ctx), ErrUnwanted) {
		t.Error("the start goes on after a stop")
	}
	// One that begins only then has ended.
	late, done := m.starting(t.Context(), assignment(1, fleet.GoalRun))
	defer done()
	if !errors.Is(context.Cause(late), ErrUnwanted) {
		t.Error("a start of an order of before goes on")
	}
}

// TestWhatCannotHearSIGTERMIsKilledAtOnce, and what can has its grace; both end with the same report.
func TestWhatCannotHearSIGTERMIsKilledAtOnce(t *testing.T) {
	for _, deaf := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.images["web"], f.stubborn, f.deaf = true, true, deaf
			pods, _, _ := agentLife(t, f, boot1)
			pods.Set(f.order(assignment(1, fleet.GoalRun)))
			settle(time.Second)
			pods.Set(f.order(assignment(1, fleet.GoalStop)))
			settle(time.Second)
			ended := slices.Contains(f.events(), fleet.EventExited)
			if ended != deaf {
				t.Errorf("deaf %v: ended after a second: %v", deaf, ended)
			}
			settle(10 * time.Second)
			wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited)
			if said := slices.Contains(f.lines, "the container's process does not catch SIGTERM: it is killed"); said != deaf {
				t.Errorf("deaf %v: the log says %q", deaf, f.lines)
			}
		})
	}
}
