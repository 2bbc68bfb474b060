package pod

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
)

// fakeFabric gives one pod at a time the only adapter of a fakeHost.
type fakeFabric struct {
	f *fakeHost

	mu    sync.Mutex
	has   fleet.PodID
	made  []bool // of what Give was asked
	taken int
	early bool // it was taken from a pod whose container or network was gone or still there
}

func (x *fakeFabric) Give(_ context.Context, id fleet.PodID, _ uint64, made bool) (Devices, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.has != "" && x.has != id {
		return Devices{}, &Error{Class: Retry, Sentence: "waits for a part of the host's fabric to be free"}
	}
	x.has, x.made = id, append(x.made, made)
	return Devices{
		Env: []string{"NCCL_IB_HCA==mlx5_0:1"}, Adapters: []Adapter{{"mlx5_0", "uverbs0"}},
		Nodes: []DeviceNode{{Host: "/dev/infiniband/uverbs0", Path: "/dev/infiniband/uverbs0", Major: 231, Minor: 192}},
	}, nil
}

func (x *fakeFabric) Take(_ context.Context, id fleet.PodID) error {
	x.f.mu.Lock()
	box := x.f.boxes[id] != nil
	x.f.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.has == id {
		x.has, x.taken, x.early = "", x.taken+1, x.early || box
	}
	return nil
}

func (x *fakeFabric) holder() fleet.PodID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.has
}

func withFabric(t *testing.T, f *fakeHost, x Fabric) *Pods {
	t.Helper()
	f.images["web"] = true
	ctx, cancel := context.WithCancel(t.Context())
	deps := f.deps(boot1)
	deps.Fabric = x
	pods := NewPods(ctx, deps)
	t.Cleanup(func() {
		cancel()
		pods.Wait()
	})
	return pods
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// memberOf is an order of a cluster's member.
func memberOf(id fleet.PodID, fabric bool) Assignment {
	out := orderOf(id, 10, "", 0)
	out.Member = &MemberSetup{Hostname: "node-0", Fabric: fabric}
	return out
}

// TestMembersAloneGetTheFabric, and of them those whose order says so.
func TestMembersAloneGetTheFabric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		x := &fakeFabric{f: f}
		pods := withFabric(t, f, x)
		own := memberOf("own", true)
		own.Env = map[string]string{"NCCL_IB_HCA": "mlx5_7"}
		for _, order := range []Assignment{memberOf("yes", true), memberOf("no", false), orderOf("lone", 10, "", 0)} {
			pods.Set(f.order(order))
			settle(time.Minute)
		}
		for _, s := range f.specs {
			if got := len(s.Devices.Nodes) + len(s.Devices.Adapters) + len(s.Env["NCCL_IB_HCA"]); (got > 0) != (s.Pod == "yes") {
				t.Errorf("%s gets %+v, and %q", s.Pod, s.Devices, s.Env["NCCL_IB_HCA"])
			}
			if s.Pod == "yes" && (s.Env["NCCL_IB_HCA"] != "=mlx5_0:1" || !strings.Contains(readText(t, s.Profile), "export NCCL_IB_HCA='=mlx5_0:1'")) {
				t.Errorf("its environment: %v", s.Env)
			}
		}
		if len(f.specs) != 3 || !slices.Equal(x.made, []bool{false, true}) { // for its container, and for its process
			t.Errorf("%d containers, it was given %v", len(f.specs), x.made)
		}
		pods.Set(f.order(own))
		settle(time.Minute)
		if f.runs("own") || f.activity() != again("waits for a part of the host's fabric to be free") {
			t.Errorf("without a free part it is told %q", f.activity())
		}
		f.exit("yes", 0)
		settle(time.Minute)
		if !f.runs("own") || f.specs[3].Env["NCCL_IB_HCA"] != "mlx5_7" || x.early {
			t.Errorf("it has what the other had: %v, as its owner set it: %q, before that had ended: %v", f.runs("own"), f.specs[3].Env["NCCL_IB_HCA"], x.early)
		}
		gone := own
		gone.Goal, gone.Generation = fleet.GoalGone, 20
		pods.Set(f.order(gone))
		settle(time.Minute)
		if x.holder() != "" || x.taken != 2 {
			t.Errorf("at the end %q has it, taken back %d times", x.holder(), x.taken)
		}
	})
}

// TestAHostWithoutAFabricStartsNoMemberThatIsToHaveOne: the others of the cluster would wait for it in vain.
func TestAHostWithoutAFabricStartsNoMemberThatIsToHaveOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		pods := withFabric(t, f, nil)
		pods.Set(f.order(memberOf("m", true)))
		pods.Set(f.order(memberOf("n", false)))
		settle(time.Minute)
		if f.runs("m") || !f.runs("n") {
			t.Errorf("it runs: %v, another member: %v", f.runs("m"), f.runs("n"))
		}
	})
}

// TestWhatIsLeftOfAFabricIsTakenBack when the network went without this agent, such as by a reboot.
func TestWhatIsLeftOfAFabricIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		x := &fakeFabric{f: f, has: "m"}
		order := memberOf("m", true)
		f.order(order)
		f.records["m"] = Record{
			Assignment: order, Addr: f.records["m"].Addr, Begun: order.Incarnation, BegunBoot: "earlier",
			Ended: &Ended{Incarnation: order.Incarnation, Event: fleet.EventReboot},
		}
		pods := withFabric(t, f, x)
		pods.Set(order)
		settle(time.Minute)
		if x.holder() != "" {
			t.Errorf("%q has it", x.holder())
		}
	})
}
