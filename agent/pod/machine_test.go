package pod

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

const boot1, boot2 = "boot-1", "boot-2"

func assignment(inc uint64, goal fleet.Goal) Assignment {
	return Assignment{
		Pod: "p1", Account: "a1", Incarnation: inc, Goal: goal, Generation: 10*inc + uint64(len(goal)), Image: "web",
		Limits: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000}, Grace: 10 * time.Second,
	}
}

// agentLife runs machines on the host as one agent process would, until the returned stop.
func agentLife(t *testing.T, f *fakeHost, boot string) (*Pods, Deps, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	deps := f.deps(boot)
	pods := NewPods(ctx, deps)
	stop := func() { cancel(); pods.Wait() }
	t.Cleanup(stop)
	return pods, deps, stop
}

// settle lets virtual time pass until every machine waits.
func settle(d time.Duration) { time.Sleep(d); synctest.Wait() }

func wantEvents(t *testing.T, f *fakeHost, want ...fleet.Trigger) {
	t.Helper()
	if d := cmp.Diff(want, f.events()); d != "" {
		t.Fatalf("reports (-want +got):\n%s", d)
	}
}

func TestPodRunsStopsAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
		steps := f.last().Steps
		for _, s := range []fleet.Step{fleet.StepReceived, fleet.StepNetworked, fleet.StepDefined, fleet.StepTasked, fleet.StepStarted} {
			if steps[s].IsZero() {
				t.Errorf("step %s has no time", s)
			}
		}

		pods.Set(f.order(assignment(1, fleet.GoalStop)))
		settle(time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited)
		if f.last().Reason != "" || len(f.boxes) != 0 || len(f.nets) != 0 {
			t.Errorf("after a stop: reason %q, containers %v, networks %v", f.last().Reason, f.boxes, f.nets)
		}

		pods.Set(f.order(assignment(2, fleet.GoalGone)))
		settle(time.Second)
		if f.last().Event != EventGone {
			t.Fatalf("last report %v, want gone", f.last())
		}
		rec := f.records["p1"]
		rec.Orphan = true
		f.records["p1"] = rec
		pods.Set(rec.Assignment)
		settle(time.Second)
		if len(f.records) != 0 {
			t.Errorf("the ledger still has %v", f.records)
		}
	})
}

// A pod that is started again while its host lets it go keeps its log: what is removed is never what came back.
func TestAPodThatComesBackWhileItLeavesKeepsItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		f.exit("p1", 0)
		settle(time.Second)
		again := sync.OnceFunc(func() { pods.Set(f.order(assignment(2, fleet.GoalRun))) })
		f.removing = again
		f.mu.Lock()
		rec := f.records["p1"]
		rec.Assignment.Goal, rec.Orphan, rec.KeepLog = fleet.GoalGone, true, true
		f.records["p1"] = rec
		f.mu.Unlock()
		pods.Set(rec.Assignment)
		settle(time.Minute)
		if slices.Contains(f.lines, "log removed") || f.boxes["p1"] == nil || f.starts[2] != 1 {
			t.Errorf("its log: %q, containers %v, starts %v", f.lines, f.boxes, f.starts)
		}
	})
}

// A stopped pod that leaves its host leaves its log there, is not reported gone, and comes back as if it had never left.
func TestAPodLeavesItsLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		f.exit("p1", 0)
		settle(time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited)
		rec := f.records["p1"]
		rec.Assignment.Goal, rec.Orphan, rec.KeepLog = fleet.GoalGone, true, true
		f.records["p1"] = rec
		pods.Set(rec.Assignment)
		settle(time.Second)
		if len(f.records) != 0 || len(f.nets) != 0 || len(f.boxes) != 0 {
			t.Errorf("left are %v, %v, %v", f.records, f.nets, f.boxes)
		}
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited)
		if !slices.Contains(f.lines, "log left") || slices.Contains(f.lines, "log removed") {
			t.Errorf("its log: %q", f.lines)
		}
		pods.Set(f.order(assignment(2, fleet.GoalRun)))
		settle(time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited, fleet.EventStarting, fleet.EventRunning)
	})
}

func TestStopKillsAfterTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"], f.stubborn = true, true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		pods.Set(f.order(assignment(1, fleet.GoalStop)))
		settle(9 * time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
		settle(2 * time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited)
		if code := f.last().ExitCode; code == nil || *code != 137 {
			t.Errorf("exit code %v, want 137", code)
		}
	})
}

func TestTerminateDoesNotRestartTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"], f.stubborn = true, true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		pods.Set(f.order(assignment(1, fleet.GoalStop)))
		settle(6 * time.Second)
		gone := assignment(1, fleet.GoalGone)
		gone.Generation = 50
		pods.Set(f.order(gone))
		settle(5 * time.Second)
		if f.last().Event != EventGone {
			t.Errorf("11 s after the stop: %v, want gone", f.events())
		}
	})
}

func TestExitOfTheProcess(t *testing.T) {
	for _, c := range []struct {
		name   string
		code   int
		oom    bool
		event  fleet.Trigger
		reason string
	}{
		{"zero", 0, false, fleet.EventExited, ""},
		{"three", 3, false, fleet.EventFailed, "the container ended with exit code 3"},
		{"signal", 139, false, fleet.EventFailed, "the container was ended by signal 11 (exit code 139)"},
		{"memory", 137, true, fleet.EventFailed, "the container was killed for lack of memory (limit 1000 MB, peak 999 MB)"},
		{
			"memory of a child", 1, true, fleet.EventFailed,
			"a process of the container was killed for lack of memory (limit 1000 MB, peak 999 MB); the container ended with exit code 1",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeHost(t)
				f.images["web"] = true
				pods, _, _ := agentLife(t, f, boot1)
				pods.Set(f.order(assignment(1, fleet.GoalRun)))
				settle(time.Second)
				f.mu.Lock()
				f.boxes["p1"].OOMKilled, f.boxes["p1"].MemoryPeak = c.oom, 999_400_000
				f.mu.Unlock()
				f.exit("p1", c.code)
				settle(time.Second)
				got := f.last()
				if got.Event != c.event || got.Reason != c.reason || got.ExitCode == nil || *got.ExitCode != c.code {
					t.Errorf("report %+v", got)
				}
				if c.event == fleet.EventFailed && got.LogTail != "last words" {
					t.Errorf("log tail %q", got.LogTail)
				}
				settle(time.Hour)
				if f.starts[1] != 1 {
					t.Errorf("started %d times", f.starts[1])
				}
			})
		})
	}
}

func TestRestartIsANewIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		pods.Set(f.order(assignment(2, fleet.GoalRun)))
		settle(time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventStarting, fleet.EventRunning)
		if f.last().Incarnation != 2 || f.starts[1] != 1 || f.starts[2] != 1 {
			t.Errorf("last %+v, starts %v", f.last(), f.starts)
		}
	})
}

func TestOlderOrderIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(2, fleet.GoalRun)))
		settle(time.Second)
		pods.Set(assignment(1, fleet.GoalStop))
		settle(time.Minute)
		if b := f.boxes["p1"]; b == nil || b.Task != TaskRunning || b.Incarnation != 2 {
			t.Errorf("container %+v", b)
		}
	})
}

func TestAgentDeathIsNotNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, stop := agentLife(t, f, boot1)
		a := f.order(assignment(1, fleet.GoalRun))
		pods.Set(a)
		settle(time.Second)
		stop()
		if f.boxes["p1"].Task != TaskRunning {
			t.Fatal("the container did not outlive the agent")
		}
		next, deps, _ := agentLife(t, f, boot1)
		deps.Heard.Store(false)
		next.Set(a)
		settle(time.Second)
		if f.last().Event != fleet.EventRunning || f.starts[1] != 1 {
			t.Errorf("after the restart: %v, %d starts", f.events(), f.starts[1])
		}
		f.exit("p1", 7)
		settle(time.Second)
		if code := f.last().ExitCode; code == nil || *code != 7 {
			t.Errorf("exit code after the restart: %+v", f.last())
		}
	})
}

func TestNothingStartsBeforeASchedulerWasHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, deps, _ := agentLife(t, f, boot1)
		deps.Heard.Store(false)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Hour)
		wantEvents(t, f)
		deps.Heard.Store(true)
		pods.Poke()
		settle(time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
	})
}

func TestHostReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, stop := agentLife(t, f, boot1)
		a := f.order(assignment(1, fleet.GoalRun))
		pods.Set(a)
		settle(time.Second)
		stop()
		f.boxes["p1"].Container = Container{Exists: true, Incarnation: 1} // the record is left, the process is not
		clear(f.nets)

		next, _, _ := agentLife(t, f, boot2)
		next.Set(a)
		settle(time.Second)
		if f.last().Event != fleet.EventReboot || f.starts[1] != 1 {
			t.Fatalf("after the reboot: %v, starts %v", f.events(), f.starts)
		}
		next.Set(f.order(assignment(2, fleet.GoalRun)))
		settle(time.Second)
		if f.last().Event != fleet.EventRunning || f.starts[2] != 1 {
			t.Errorf("new incarnation: %v, starts %v", f.events(), f.starts)
		}
	})
}

func TestRuntimeAwayIsNotAnExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		f.mu.Lock()
		f.away = errAway
		f.mu.Unlock()
		pods.Poke()
		settle(2 * time.Minute)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
		f.mu.Lock()
		f.away = nil
		f.mu.Unlock()
		f.exit("p1", 0)
		settle(time.Minute)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited)
	})
}

func TestPullErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.registry["web"] = &Error{Class: Retry, Sentence: "the registry is busy"}
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Minute)
		wantEvents(t, f, fleet.EventWaiting)
		f.mu.Lock()
		f.registry["web"] = &Error{Class: Fatal, Sentence: "image web does not exist"}
		f.mu.Unlock()
		settle(time.Minute)
		wantEvents(t, f, fleet.EventWaiting, fleet.EventFailed)
		if f.last().Reason != "image web does not exist" || !slices.Contains(f.lines, "error pulling image: image web does not exist") {
			t.Errorf("report %+v, lines %q", f.last(), f.lines)
		}
	})
}

func TestStopEndsAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		pods.Set(f.order(assignment(1, fleet.GoalStop)))
		settle(10 * time.Second)
		wantEvents(t, f, fleet.EventExited)
		if len(f.starts) != 0 {
			t.Errorf("starts %v", f.starts)
		}
	})
}

func TestStartIsGivenUpAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.registry["web"] = &Error{Class: Retry, Sentence: "the registry is busy"}
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(59 * time.Minute)
		wantEvents(t, f, fleet.EventWaiting)
		settle(2 * time.Minute)
		wantEvents(t, f, fleet.EventWaiting, fleet.EventFailed)
		if want := "the registry is busy; it was tried for an hour"; f.last().Reason != want {
			t.Errorf("reason %q, want %q", f.last().Reason, want)
		}
	})
}

func TestWhatTheRuntimeSaysIsMadeReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.registry["web"] = &Error{Class: Fatal, Sentence: strings.Repeat("é", MaxReason) + "\xc3 was not found"}
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Minute)
		wantEvents(t, f, fleet.EventFailed)
		if r := f.last().Reason; !utf8.ValidString(r) || len(r) > MaxReason || len(r) < MaxReason-4 {
			t.Errorf("reason of %d bytes, valid: %v", len(r), utf8.ValidString(r))
		}
	})
}

func TestTheHourOfAStartBeginsWhenItMayBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		pods, deps, _ := agentLife(t, f, boot1)
		deps.Heard.Store(false)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(3 * time.Hour)
		deps.Heard.Store(true)
		pods.Poke()
		settle(time.Minute)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
	})
}

func TestLostProcessHasNoExitCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		f.exit("p1", 255)
		f.mu.Lock()
		f.boxes["p1"].Lost, f.boxes["p1"].ExitedAt = true, time.Time{}
		f.mu.Unlock()
		settle(time.Second)
		if r := f.last(); r.Event != fleet.EventFailed || r.ExitCode != nil || time.Since(r.At) > time.Minute {
			t.Errorf("report %+v", r)
		}
	})
}

// TestWhileAPullIsTriedAgainItsOwnerSeesWhy also while the registry does not answer the next try.
func TestWhileAPullIsTriedAgainItsOwnerSeesWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.registry["web"], f.silent = &Error{Class: Retry, Sentence: "the registry cannot be reached"}, true
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		doing := func() string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.doing
		}
		settle(time.Second)
		if got := doing(); got != "pulling image" {
			t.Errorf("at first: %q", got)
		}
		for range 200 {
			settle(500 * time.Millisecond)
			if got := doing(); got != "the registry cannot be reached, trying again" && got != "pulling image" {
				t.Fatalf("meanwhile: %q", got)
			}
		}
		if got := doing(); got != "the registry cannot be reached, trying again" {
			t.Errorf("after a while: %q", got)
		}
		if got := f.events(); !slices.Equal(got, []fleet.Trigger{fleet.EventWaiting}) {
			t.Errorf("it was reported %v", got)
		}
		f.mu.Lock()
		f.silent = false
		f.mu.Unlock()
		seen := false
		for range 100 {
			settle(500 * time.Millisecond)
			seen = seen || doing() == "pulling image"
		}
		if !seen {
			t.Error("that bytes come is not told")
		}
	})
}
