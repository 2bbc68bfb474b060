package pod

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// fakeGPUs are the GPUs of a fakeHost.
type fakeGPUs struct {
	mu     sync.Mutex
	holder string // who holds GPU-1
	err    error  // what every question is answered with
	asked  int
}

func (g *fakeGPUs) set(holder string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holder, g.err = holder, err
}

func (g *fakeGPUs) Busy(_ context.Context, uuids []string) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	if g.err != nil || !slices.Contains(uuids, "GPU-1") {
		return "", g.err
	}
	return g.holder, nil
}

func (g *fakeGPUs) Devices(_ context.Context, uuids []string) (Devices, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Devices{Env: uuids, NUMA: "0-7"}, g.err
}

// withGPUs gives a fake host GPUs.
func withGPUs(t *testing.T, f *fakeHost, g *fakeGPUs) *Pods {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	deps := f.deps(boot1)
	deps.GPUs = g
	pods := NewPods(ctx, deps)
	t.Cleanup(func() {
		cancel()
		pods.Wait()
	})
	return pods
}

func (f *fakeHost) activity() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.doing
}

func TestAPodWaitsUntilNoProcessHoldsItsGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := newFakeHost(t), &fakeGPUs{holder: "process 4711 (secret-job) still has GPU GPU-1 open"}
		f.images["web"] = true
		pods := withGPUs(t, f, g)
		pods.Set(f.order(orderOf("new", 10, "GPU-1", 0)))
		pods.Set(f.order(orderOf("other", 10, "GPU-2", 0)))
		pods.Set(f.order(orderOf("none", 10, "", 0)))
		settle(time.Minute)
		if f.runs("new") || !f.runs("other") || !f.runs("none") {
			t.Error("it runs, or one that is not concerned does not")
		}
		if doing := f.activity(); doing != held || strings.Contains(doing, "secret") {
			t.Errorf("its owner is told %q", doing)
		}
		for _, spec := range f.specs {
			if spec.Pod == "none" && (spec.CPUs != "" || len(spec.Devices.Env) > 0) {
				t.Errorf("a pod without GPUs has processors %q, devices %+v", spec.CPUs, spec.Devices)
			}
		}
		g.set("", nil)
		settle(2 * busyAgain)
		if !f.runs("new") {
			t.Error("it does not run when the GPU is free")
		}
		if spec := f.specs[len(f.specs)-1]; spec.CPUs != "0-7" || !slices.Equal(spec.Devices.Env, []string{"GPU-1"}) {
			t.Errorf("its container: processors %q, devices %+v", spec.CPUs, spec.Devices)
		}
	})
}

func TestAnOrderEndsTheWaitForAGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := newFakeHost(t), &fakeGPUs{holder: "process 1"}
		f.images["web"] = true
		pods := withGPUs(t, f, g)
		order := orderOf("p1", 10, "GPU-1", 0)
		pods.Set(f.order(order))
		settle(time.Minute)
		order.Goal, order.Generation = fleet.GoalStop, 20
		pods.Set(f.order(order))
		settle(busyAgain / 2)
		if f.last().Event != fleet.EventExited || len(f.specs) != 0 {
			t.Errorf("last report %+v, containers %d", f.last(), len(f.specs))
		}
		asked := g.asked
		settle(time.Minute)
		if g.asked != asked {
			t.Error("it still looks")
		}
	})
}

func TestAGPUThatNeverBecomesFreeEndsTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, g := newFakeHost(t), &fakeGPUs{holder: "process 1"}
		f.images["web"] = true
		pods := withGPUs(t, f, g)
		pods.Set(f.order(orderOf("p1", 10, "GPU-1", 0)))
		settle(startLimit + time.Minute)
		if last := f.last(); last.Event != fleet.EventFailed || !strings.Contains(last.Reason, "GPU was not free within an hour") {
			t.Errorf("last report %+v", last)
		}
	})
}

func TestAStartWaitsForAGPUThatIsOutOfService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		g := &fakeGPUs{err: &Error{Class: Retry, Sentence: "the pod's GPU is out of service"}}
		f.images["web"] = true
		pods := withGPUs(t, f, g)
		pods.Set(f.order(orderOf("p1", 10, "GPU-1", 0)))
		settle(time.Minute)
		if doing := f.activity(); doing != again("the pod's GPU is out of service") || f.runs("p1") {
			t.Errorf("its owner is told %q", doing)
		}
		g.set("", nil)
		settle(time.Minute)
		if !f.runs("p1") {
			t.Error("it does not run when the GPU is well")
		}
	})
}
