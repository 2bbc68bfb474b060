package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/storage"
)

// fakeVolumes are network volumes in memory. They outlive the machines, as mounts do.
type fakeVolumes struct {
	mu       sync.Mutex
	attached map[fleet.PodID]storage.Volume
	calls    []string
	fail     map[string]error // by call
	hang     bool             // Attach waits for its deadline
}

func newFakeVolumes() *fakeVolumes {
	return &fakeVolumes{attached: map[fleet.PodID]storage.Volume{}, fail: map[string]error{}}
}

func (v *fakeVolumes) call(what string) error {
	v.calls = append(v.calls, what)
	name, _, _ := strings.Cut(what, " ")
	return v.fail[name]
}

func (v *fakeVolumes) Attach(ctx context.Context, id fleet.PodID, vol storage.Volume) (string, error) {
	v.mu.Lock()
	hang := v.hang
	v.mu.Unlock()
	if hang {
		<-ctx.Done()
		return "", &storage.Error{Sentence: "the storage of the network volume does not answer", Err: ctx.Err()}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.call(fmt.Sprintf("attach %v", vol.ReadOnly)); err != nil {
		return "", err
	}
	v.attached[id] = vol
	return "/attached/" + string(id), nil
}

func (v *fakeVolumes) SetReadOnly(_ context.Context, id fleet.PodID, pid int, vol storage.Volume) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.call(fmt.Sprintf("access %d %v", pid, vol.ReadOnly))
}

func (v *fakeVolumes) Ending(fleet.PodID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_ = v.call("ending")
}

func (v *fakeVolumes) Detach(_ context.Context, id fleet.PodID) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.call("detach")
	if err == nil {
		delete(v.attached, id)
	}
	return err
}

func (v *fakeVolumes) Attached() (out []fleet.PodID, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for id := range v.attached {
		out = append(out, id)
	}
	return out, nil
}

func (v *fakeVolumes) set(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f()
}

// said returns the calls since it was asked last.
func (v *fakeVolumes) said() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := v.calls
	v.calls = nil
	return out
}

func (v *fakeVolumes) want(t *testing.T, calls ...string) {
	t.Helper()
	if diff := cmp.Diff(calls, v.said()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

const volumeBase = 0x8003_0000

func withVolume(inc uint64, goal fleet.Goal) Assignment {
	a := assignment(inc, goal)
	a.Volume = &storage.Volume{ID: "vol1", Backend: storage.Backend{ID: "b1"}, Dir: "abc", IDBase: volumeBase, Ready: true}
	a.VolumePath = "/workspace"
	return a
}

// volumeLife is agentLife on a host that has network volumes, and user namespaces.
func volumeLife(t *testing.T, f *fakeHost, v *fakeVolumes, boot string) (*Pods, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	deps := f.deps(boot)
	deps.Volumes = v
	deps.IDBase = func(netip.Addr) uint32 { return 0x1000_0000 }
	pods := NewPods(ctx, deps)
	stop := func() { cancel(); pods.Wait() }
	t.Cleanup(stop)
	return pods, stop
}

// TestAWorkerHasItsNetworkVolumeUnderBothNames that images expect.
func TestAWorkerHasItsNetworkVolumeUnderBothNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"] = true
		ctx, cancel := context.WithCancel(t.Context())
		deps := f.deps(boot1)
		deps.Volumes, deps.Gate = v, &fakeGate{}
		pods := NewPods(ctx, deps)
		t.Cleanup(func() { cancel(); pods.Wait() })
		a := withVolume(1, fleet.GoalRun)
		a.Endpoint, a.VolumePath = "endpoint000001", fleet.WorkerVolumePath
		pods.Set(f.order(a))
		settle(time.Second)
		want := []Mount{{Source: "/attached/p1", Target: "/gantry-volume", AsIs: true}, {Source: "/attached/p1", Target: "/runpod-volume", AsIs: true}}
		if diff := cmp.Diff(want, f.specs[0].Mounts); diff != "" {
			t.Errorf("mounts (-want +got):\n%s", diff)
		}
	})
}

func TestAPodHasItsNetworkVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"] = true
		pods, _ := volumeLife(t, f, v, boot1)
		pods.Set(f.order(withVolume(1, fleet.GoalRun)))
		settle(time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
		v.want(t, "attach false")
		spec := f.specs[0]
		if diff := cmp.Diff([]Mount{{Source: "/attached/p1", Target: "/workspace", AsIs: true}}, spec.Mounts); diff != "" {
			t.Errorf("mounts (-want +got):\n%s", diff)
		}
		if spec.IDBase != volumeBase || f.bases["p1"] != volumeBase {
			t.Errorf("root is %x in the container and %x in its network", spec.IDBase, f.bases["p1"])
		}
		if spec.Env["RUNPOD_VOLUME_ID"] != "vol1" || spec.Env["GANTRY_VOLUME_ID"] != "vol1" {
			t.Errorf("environment %v", spec.Env)
		}
		// A restart has it again, at the path of the newest order.
		next := withVolume(2, fleet.GoalRun)
		next.VolumePath = "/elsewhere"
		pods.Set(f.order(next))
		settle(time.Minute)
		v.want(t, "ending", "ending", "attach false")
		if got := f.specs[1].Mounts[0].Target; got != "/elsewhere" {
			t.Errorf("after a restart it is at %s", got)
		}
		pods.Set(f.order(withVolume(2, fleet.GoalStop)))
		settle(time.Minute)
		v.want(t, "ending", "ending", "detach")
		if len(v.attached)+len(f.nets) != 0 {
			t.Errorf("left: %v, %v", v.attached, f.nets)
		}
	})
}

// TestAPathChangeWaitsForTheNextStart: and so does nothing else that an order says of the volume.
func TestAPathChangeWaitsForTheNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"] = true
		pods, _ := volumeLife(t, f, v, boot1)
		a := withVolume(1, fleet.GoalRun)
		pods.Set(f.order(a))
		settle(time.Second)
		a.VolumePath, a.Generation = "/elsewhere", a.Generation+1
		pods.Set(f.order(a))
		settle(time.Minute)
		if len(f.specs) != 1 || f.starts[1] != 1 {
			t.Errorf("made %d times, started %d times", len(f.specs), f.starts[1])
		}
	})
}

func TestAPodWaitsForItsNetworkVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"] = true
		pods, _ := volumeLife(t, f, v, boot1)
		a := withVolume(1, fleet.GoalRun)
		a.Volume.Ready = false
		pods.Set(f.order(a))
		settle(2 * volumeLimit) // its storage host may be away for longer than a server
		if doing := f.activity(); !strings.HasPrefix(doing, preparing) || len(f.specs) != 0 {
			t.Errorf("its owner is told %q", doing)
		}
		a = withVolume(1, fleet.GoalRun)
		a.Generation++
		pods.Set(f.order(a))
		settle(time.Second)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
	})
}

// TestAVolumeThatCannotBeMounted: the pod says why, and gives up after a while; one whose server comes back runs.
func TestAVolumeThatCannotBeMounted(t *testing.T) {
	dead := &storage.Error{Sentence: "the storage of the network volume does not answer", Err: errors.New("ETIMEDOUT")}
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"], v.fail["attach"] = true, dead
		pods, _ := volumeLife(t, f, v, boot1)
		pods.Set(f.order(withVolume(1, fleet.GoalRun)))
		settle(volumeLimit - time.Second)
		if doing := f.activity(); doing != again(dead.Sentence) {
			t.Errorf("its owner is told %q", doing)
		}
		wantEvents(t, f)
		settle(retryMost * 2)
		last := f.last()
		if last.Event != fleet.EventFailed || last.Reason != dead.Sentence+"; it was tried for 5 minutes" {
			t.Errorf("last report %+v", last)
		}
		if len(f.nets) != 0 {
			t.Errorf("networks are left: %v", f.nets)
		}
		said := slices.DeleteFunc(slices.Clone(f.lines), func(l string) bool { return !strings.Contains(l, "mounting the network volume") })
		if len(said) != 1 {
			t.Errorf("the log says it %d times", len(said))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"], v.fail["attach"] = true, dead
		pods, _ := volumeLife(t, f, v, boot1)
		pods.Set(f.order(withVolume(1, fleet.GoalRun)))
		settle(volumeLimit - time.Minute)
		v.set(func() { clear(v.fail) })
		settle(retryMost * 2)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
	})
}

// TestOthersDoNotWaitForADeadVolume: not even where few containers are made at once.
func TestOthersDoNotWaitForADeadVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"], v.hang = true, true
		pods, _ := volumeLife(t, f, v, boot1)
		for i := range 20 {
			a := withVolume(1, fleet.GoalRun)
			a.Pod = fleet.PodID(fmt.Sprintf("dead%d", i))
			pods.Set(f.order(a))
		}
		settle(time.Second)
		began := time.Now()
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		synctest.Wait()
		if !f.runs("p1") || time.Since(began) > time.Second {
			t.Error("another pod waits")
		}
		gone := withVolume(1, fleet.GoalGone)
		gone.Pod, gone.Generation = "dead0", 100
		pods.Set(f.order(gone))
		settle(time.Second) // its order ends the wait
		if last := f.last(); last.Pod != "dead0" || last.Event != EventGone {
			t.Errorf("one that is removed: %+v", last)
		}
	})
}

func TestAVolumeThatHoldsTooMuchIsReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"] = true
		pods, stop := volumeLife(t, f, v, boot1)
		a := withVolume(1, fleet.GoalRun)
		a.Volume.ReadOnly = true
		pods.Set(f.order(a))
		settle(time.Second)
		v.want(t, "attach false", "access 100 true") // writable as a mount, or it never could be
		order := func(readOnly bool) {
			vol := *a.Volume
			vol.ReadOnly = readOnly
			a.Volume, a.Generation = &vol, a.Generation+1
			pods.Set(f.order(a))
		}
		order(false)
		settle(time.Second)
		v.want(t, "access 100 false")
		order(false)
		settle(time.Second)
		v.want(t)
		v.set(func() { v.fail["access"] = errors.New("busy") })
		order(true)
		settle(2*accessAgain + time.Second)
		v.want(t, "access 100 true", "access 100 true", "access 100 true")
		v.set(func() { clear(v.fail) })
		settle(accessAgain)
		v.want(t, "access 100 true")
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning)
		// The next agent does not know what the container has.
		stop()
		pods, _ = volumeLife(t, f, v, boot1)
		pods.Set(a)
		settle(time.Second)
		v.want(t, "access 100 true")
		if f.starts[1] != 1 {
			t.Errorf("started %d times", f.starts[1])
		}
		if lines := strings.Join(f.lines, "\n"); strings.Count(lines, "read-only until") != 2 || strings.Count(lines, "writable again") != 1 {
			t.Errorf("the log says\n%s", lines)
		}
	})
}

// TestNothingStaysAttached: whatever an agent had begun when it died.
func TestNothingStaysAttached(t *testing.T) {
	for _, goal := range []fleet.Goal{fleet.GoalStop, fleet.GoalGone} {
		synctest.Test(t, func(t *testing.T) {
			f, v := newFakeHost(t), newFakeVolumes()
			a := withVolume(1, goal)
			f.order(a)
			v.attached["p1"] = *a.Volume // and no container any more
			pods, _ := volumeLife(t, f, v, boot1)
			pods.Set(a)
			settle(time.Second)
			if len(v.attached) != 0 {
				t.Errorf("%s: %v", goal, v.attached)
			}
		})
	}
}

// TestAVolumeThatCannotBeLetGoOfHoldsNobody: it is tried again as long as the pod is here.
func TestAVolumeThatCannotBeLetGoOfHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"], v.fail["detach"] = true, errors.New("stuck")
		pods, _ := volumeLife(t, f, v, boot1)
		pods.Set(f.order(withVolume(1, fleet.GoalRun)))
		settle(time.Second)
		pods.Set(f.order(withVolume(1, fleet.GoalStop)))
		settle(time.Minute / 2)
		wantEvents(t, f, fleet.EventStarting, fleet.EventRunning, fleet.EventExited)
		if len(f.nets) != 0 {
			t.Error("its network is left")
		}
		v.set(func() { clear(v.fail) })
		settle(detachLater)
		if len(v.attached) != 0 {
			t.Error("it is not let go of when it could be")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"], v.fail["detach"] = true, errors.New("stuck")
		pods, _ := volumeLife(t, f, v, boot1)
		pods.Set(f.order(withVolume(1, fleet.GoalRun)))
		settle(time.Second)
		gone := withVolume(1, fleet.GoalGone)
		gone.Generation = 100
		pods.Set(f.order(gone))
		settle(time.Minute / 2)
		if f.last().Event != EventGone {
			t.Errorf("last report %+v", f.last())
		}
	})
}

// TestARebootAttachesAgain: the container of before is there and its mounts are not.
func TestARebootAttachesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, v := newFakeHost(t), newFakeVolumes()
		f.images["web"] = true
		a := withVolume(1, fleet.GoalRun)
		f.order(a)
		f.boxes["p1"] = &fakeBox{Container: Container{Exists: true, Incarnation: 1}, done: make(chan struct{})}
		f.nets["p1"], f.bases["p1"] = true, volumeBase
		pods, _ := volumeLife(t, f, v, boot2)
		pods.Set(a)
		settle(time.Second)
		v.want(t, "attach false")
		if !f.runs("p1") {
			t.Error("it does not run")
		}
	})
}

func TestAnOrderThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _ := volumeLife(t, f, newFakeVolumes(), boot1)
		a := assignment(1, fleet.GoalRun)
		a.Refused = "the order names what is not"
		pods.Set(f.order(a))
		settle(time.Second)
		if last := f.last(); last.Event != fleet.EventFailed || last.Reason != a.Refused || len(f.specs)+len(f.nets) != 0 {
			t.Errorf("last report %+v, networks %v", last, f.nets)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1) // has no network volumes
		pods.Set(f.order(withVolume(1, fleet.GoalRun)))
		settle(time.Second)
		if last := f.last(); last.Event != fleet.EventFailed || !strings.Contains(last.Reason, "cannot mount") {
			t.Errorf("last report %+v", last)
		}
	})
}
