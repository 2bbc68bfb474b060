package pod

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/storage"
)

// TestWhatAnOwnerIsTold follows a pod from its first order until it is gone: what is being done, its log's lines and when each step
// of the start was reached.
func TestWhatAnOwnerIsTold(t *testing.T) {
	for _, pulled := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.slow, f.images["web"] = time.Second, pulled
			pods, _, _ := agentLife(t, f, boot1)
			began := time.Now()
			pods.Set(f.order(assignment(1, fleet.GoalRun)))
			settle(time.Minute)
			steps := map[fleet.Step]time.Duration{}
			for s, at := range f.last().Steps {
				steps[s] = at.Sub(began)
			}
			want := map[fleet.Step]time.Duration{
				fleet.StepReceived: 0, fleet.StepPulling: 0, fleet.StepDownloaded: 2 * time.Second, fleet.StepPulled: 3 * time.Second,
				fleet.StepNetworked: 4 * time.Second,
				fleet.StepDefined:   5 * time.Second, fleet.StepTasked: 6 * time.Second, fleet.StepStarted: 6 * time.Second,
			}
			lines, did := []string{"pull image web"}, []string{"pulling image"}
			if pulled {
				want = map[fleet.Step]time.Duration{
					fleet.StepReceived: 0, fleet.StepPulled: 0, fleet.StepNetworked: time.Second,
					fleet.StepDefined: 2 * time.Second, fleet.StepTasked: 3 * time.Second, fleet.StepStarted: 3 * time.Second,
				}
				lines, did = nil, nil
			}
			if d := cmp.Diff(want, steps); d != "" {
				t.Errorf("steps (-want +got):\n%s", d)
			}
			if r := f.last(); r.Digest != "sha256:web" || !r.At.Equal(began.Add(want[fleet.StepStarted])) {
				t.Errorf("running: %+v", r)
			}
			pods.Set(f.order(assignment(1, fleet.GoalStop)))
			settle(time.Minute)
			if r := f.last(); r.LogTail != "" || r.ExitCode == nil || *r.ExitCode != 143 || !slices.Equal(f.signals, []int{15}) {
				t.Errorf("stopped by signals %v: %+v", f.signals, r)
			}
			pods.Set(f.order(assignment(2, fleet.GoalGone)))
			settle(time.Minute)
			pods.Set(f.orphan("p1"))
			settle(time.Minute)
			lines = append(append([]string{"run 1"}, lines...), "create container web", "start container for web: begin", "stop container p1", "container ended with exit code 143", "remove container p1",
				"log removed", "log removed") // when it goes, and when it is forgotten
			if d := cmp.Diff(lines, f.lines); d != "" {
				t.Errorf("log (-want +got):\n%s", d)
			}
			did = append(did, "making the network", "creating the container", "", "stopping the container", "")
			if d := cmp.Diff(did, f.did); d != "" {
				t.Errorf("activities (-want +got):\n%s", d)
			}
			// The end of incarnation 1, and once more that 2 runs no more; forgotten and told gone once.
			if len(f.ends) != 2 || f.forgot != 1 || len(f.records) != 0 {
				t.Errorf("ends %+v, forgotten %d times, records %v", f.ends, f.forgot, f.records)
			}
			wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited, EventGone)
		})
	}
}

// TestARunningPodIsLeftInPeace: what cannot matter is not asked, and an agent that finds it running tells when it began, and nothing
// of a start that it has not made.
func TestARunningPodIsLeftInPeace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, stop := agentLife(t, f, boot1)
		a := f.order(assignment(1, fleet.GoalRun))
		began := time.Now()
		pods.Set(a)
		settle(time.Second)
		networks, images := f.asked["network"], f.asked["image"]
		for range 5 {
			a.Generation++
			pods.Set(f.order(a))
			pods.Poke()
			settle(time.Second)
		}
		if f.asked["network"] != networks || f.asked["image"] != images || images != 1 {
			t.Errorf("asked %v, before %d and %d", f.asked, networks, images)
		}
		stop()
		time.Sleep(time.Hour)
		next, _, stop := agentLife(t, f, boot1)
		next.Set(a)
		settle(time.Second)
		if r := f.last(); r.Event != fleet.EventRunning || !r.At.Equal(began) || len(r.Steps) != 0 {
			t.Errorf("found running: %+v", r)
		}
		stop()
		f.exit("p1", 0)
		ended := time.Now()
		time.Sleep(time.Hour)
		last, _, _ := agentLife(t, f, boot1)
		last.Set(a)
		settle(time.Second)
		if r := f.last(); r.Event != fleet.EventExited || !r.At.Equal(ended) || r.LogTail != "" {
			t.Errorf("found ended: %+v", r)
		}
	})
}

func TestAStartThatNobodyTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"], f.untimed = true, true
		pods, _, _ := agentLife(t, f, boot1)
		began := time.Now()
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		if r := f.last(); r.Event != fleet.EventRunning || !r.At.Equal(began) || !r.Steps[fleet.StepStarted].Equal(began) {
			t.Errorf("%+v", r)
		}
	})
}

// TestGrace: a process has what its order says, and ten seconds where that says nothing; an order in between kills nothing.
func TestGrace(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{0: defaultGrace, -1: defaultGrace, time.Minute: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.images["web"], f.stubborn = true, true
			pods, _, _ := agentLife(t, f, boot1)
			a := assignment(1, fleet.GoalRun)
			a.Grace = grace
			pods.Set(f.order(a))
			settle(time.Second)
			a.Goal, a.Generation = fleet.GoalStop, a.Generation+1
			pods.Set(f.order(a))
			settle(want / 2)
			a.Goal, a.Generation = fleet.GoalGone, a.Generation+1
			pods.Set(f.order(a))
			settle(want/2 - time.Second)
			if !slices.Equal(f.signals, []int{15}) || !f.runs("p1") {
				t.Errorf("grace %v: signals %v before its end", grace, f.signals)
			}
			settle(2 * time.Second)
			if !slices.Equal(f.signals, []int{15, 9}) || f.runs("p1") {
				t.Errorf("grace %v: signals %v after its end", grace, f.signals)
			}
		})
	}
}

func TestWhatNeverRanHasNoExitCode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Second)
		pods.Set(f.order(assignment(1, fleet.GoalStop)))
		settle(time.Minute)
		if r := f.last(); r.Event != fleet.EventExited || r.ExitCode != nil || len(f.signals) != 0 {
			t.Errorf("%+v, signals %v", r, f.signals)
		}
	})
}

// TestWhatCannotStartSaysWhy, at once, and leaves nothing.
func TestWhatCannotStartSaysWhy(t *testing.T) {
	for want, spoil := range map[string]func(*fakeHost, *Assignment){
		"this host cannot": func(_ *fakeHost, a *Assignment) { a.Refused = "this host cannot" },
		"the host has no network address left for the pod": func(*fakeHost, *Assignment) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			pods, _, _ := agentLife(t, f, boot1)
			a := assignment(1, fleet.GoalRun)
			spoil(f, &a)
			f.order(a)
			if a.Refused == "" {
				rec := f.records["p1"]
				rec.Addr = netip.Addr{}
				f.records["p1"] = rec
			}
			pods.Set(a)
			settle(time.Minute)
			r := f.last()
			if r.Event != fleet.EventFailed || r.Reason != want || r.LogTail != "last words" || !slices.Contains(f.lines, "error: "+want) {
				t.Errorf("reported %+v, lines %q", r, f.lines)
			}
			if len(f.boxes)+len(f.nets) != 0 || (a.Refused != "" && len(f.auths) != 0) {
				t.Errorf("made: containers %v, networks %v, %d pulls", f.boxes, f.nets, len(f.auths))
			}
		})
	}
}

// TestAPullWaitsForTheHostsArchives until they are loaded, or the order is another.
func TestAPullWaitsForTheHostsArchives(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			imported := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			deps := f.deps(boot1)
			deps.Imported = imported
			pods := NewPods(ctx, deps)
			defer pods.Wait()
			defer cancel()
			pods.Set(f.order(assignment(1, fleet.GoalRun)))
			settle(time.Minute)
			if f.doing != "waits until the host has loaded its image archives" || len(f.auths) != 0 {
				t.Errorf("it does %q, after %d pulls", f.doing, len(f.auths))
			}
			if stopped {
				pods.Set(f.order(assignment(1, fleet.GoalStop)))
				settle(time.Minute)
				wantEvents(t, f, fleet.EventExited)
				return
			}
			f.mu.Lock()
			f.images["web"] = true // it was in an archive
			f.mu.Unlock()
			close(imported)
			settle(time.Minute)
			if len(f.auths) != 0 || f.starts[1] != 1 {
				t.Errorf("%d pulls, starts %v", len(f.auths), f.starts)
			}
		})
	}
}

// TestSlots: a container that takes long to make keeps its slot, one with a network volume for a while only.
func TestSlots(t *testing.T) {
	for _, volume := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			deps := newFakeHost(t).deps(boot1)
			deps.Slots = make(chan struct{}, 1)
			want := assignment(1, fleet.GoalRun)
			if volume {
				want.Volume = &storage.Volume{}
			}
			m := newMachine(deps, want)
			gone := errors.New("gone")
			ended := make(chan error, 1)
			go func() { ended <- m.inSlot(t.Context(), want, func() error { time.Sleep(time.Minute); return gone }) }()
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), slotMost-time.Second)
			defer cancel()
			var e *Error
			err := m.inSlot(ctx, want, func() error { return nil })
			if !errors.As(err, &e) || e.Class != Retry || !strings.Contains(err.Error(), "busy starting other pods") {
				t.Errorf("at first: %v", err)
			}
			settle(2 * time.Second)
			if held := len(deps.Slots) == 1; held == volume {
				t.Errorf("with a volume %v: held after a while: %v", volume, held)
			}
			if err := <-ended; !errors.Is(err, gone) || len(deps.Slots) != 0 {
				t.Errorf("%v, %d slots held", err, len(deps.Slots))
			}
		})
	}
}

func TestAnEndedHostTakesNoOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, deps, stop := agentLife(t, f, boot1)
		stop()
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(time.Minute)
		if len(pods.machines) != 0 || len(f.boxes) != 0 {
			t.Errorf("machines %v, containers %v", pods.machines, f.boxes)
		}
		m := newMachine(deps, assignment(1, fleet.GoalRun))
		if err := m.do(t.Context(), t.Context(), "dance", m.want, Seen{}); err == nil || !strings.Contains(err.Error(), "dance") {
			t.Errorf("an unknown step: %v", err)
		}
	})
}
