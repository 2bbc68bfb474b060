package state

import (
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
)

// cordonWorld is a world whose host-a has four GPUs that are free.
func cordonWorld(t *testing.T) *world {
	t.Helper()
	return newWorld(t).settle()
}

func (w *world) freeGPUs(id fleet.HostID) (out []string) {
	w.t.Helper()
	w.view(func(v *View) {
		for _, c := range v.Candidates() {
			if c.Host.ID == id {
				for _, g := range c.FreeGPUs {
					out = append(out, g.UUID)
				}
			}
		}
	})
	return out
}

func TestACordonedGPUIsBoundToNoNewPod(t *testing.T) {
	w := cordonWorld(t)
	w.create("pod-1", "host-a", 0)
	gpu := "host-a-gpu-0"
	h := w.must(CordonGPU{Host: "host-a", GPU: gpu, Reason: "RMA 4711", At: at(5)}).(fleet.Host)
	if h.Inventory.GPUs[0].Cordoned != "RMA 4711" || len(h.GPUCordons) != 1 || !h.GPUCordons[0].At.Equal(at(5)) || h.GPUCordons[0].Type != h100 {
		t.Errorf("%+v", h.GPUCordons)
	}
	if p := w.pod("pod-1"); len(p.GPUs) != 1 || !p.Status.Active() {
		t.Errorf("the pod that has it: %+v", p)
	}
	w.must(CordonGPU{Host: "host-a", GPU: "host-a-gpu-1", Reason: "fan", At: at(6)})
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 1), HostEpoch: w.host("host-a").Epoch}}})
	// One that is taken is not replaced by one that is cordoned.
	w.create("pod-3", "host-a", 2)
	w.create("pod-4", "host-a", 3)
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("pod-5", "host-a", 2), HostEpoch: w.host("host-a").Epoch}}})
	if free := w.freeGPUs("host-a"); len(free) != 0 {
		t.Errorf("free for picks: %v", free)
	}
	w.must(OpenGPU{Host: "host-a", GPU: "host-a-gpu-1"})
	if free := w.freeGPUs("host-a"); !slices.Equal(free, []string{"host-a-gpu-1"}) {
		t.Errorf("free for picks: %v", free)
	}
	w.create("pod-6", "host-a", 1)
}

func TestACordonStaysOverSessionsAndReplacements(t *testing.T) {
	w := cordonWorld(t)
	gpu := "host-a-gpu-3"
	w.must(CordonGPU{Host: "host-a", GPU: gpu, Reason: "row remapping failed", At: at(5)})
	w.connect("host-a")
	if h := w.host("host-a"); h.Inventory.GPUs[3].Cordoned == "" {
		t.Errorf("after a session: %+v", h.Inventory.GPUs)
	}
	same := UpdateInventory{Host: "host-a", Epoch: w.host("host-a").Epoch, Inventory: inventory("host-a"), At: at(9)}
	rev := w.host("host-a").Rev
	w.must(same)
	if h := w.host("host-a"); h.Rev != rev {
		t.Error("an inventory that is what it was is written anew because of a cordon")
	}
	without := same
	without.Inventory = inventory("host-a")
	without.Inventory.GPUs = slices.Clone(without.Inventory.GPUs[:3])
	w.must(without)
	h := w.host("host-a")
	if gone := h.GoneGPUs(); len(gone) != 1 || gone[0].UUID != gpu || gone[0].Reason != "row remapping failed" || gone[0].Type != h100 {
		t.Errorf("gone: %+v", gone)
	}
	w.refused(fleet.CodeConflictRule, OpenGPU{Host: "host-a", GPU: gpu})
	w.must(same) // it is back, and still cordoned
	if h := w.host("host-a"); h.Inventory.GPUs[3].Cordoned == "" || len(h.GoneGPUs()) != 0 {
		t.Errorf("back: %+v", h.Inventory.GPUs[3])
	}
	w.must(without, OpenGPU{Host: "host-a", GPU: gpu, Forget: true}, same)
	if h := w.host("host-a"); h.Inventory.GPUs[3].Cordoned != "" || h.GPUCordons != nil {
		t.Errorf("cleared: %+v", h.GPUCordons)
	}
	w.must(CordonGPU{Host: "host-a", GPU: "host-a-gpu-2", Reason: "fan", At: at(12)})
	if err := w.s.Close(); err != nil {
		t.Fatal(err)
	}
	w.open("boot-1")
	if h := w.host("host-a"); len(h.GPUCordons) != 1 || h.GPUCordons[0].UUID != "host-a-gpu-2" {
		t.Errorf("after a restart: %+v", h.GPUCordons)
	}
}

// The slices of a GPU that is cordoned are cordoned.
func TestACordonHoldsForTheSlicesOfAGPU(t *testing.T) {
	w := cordonWorld(t)
	inv := inventory("host-a")
	inv.GPUs = slices.Clone(inv.GPUs)
	inv.GPUs[0].Parent, inv.GPUs[1].Parent = "GPU-parent", "GPU-parent"
	w.must(UpdateInventory{Host: "host-a", Epoch: w.host("host-a").Epoch, Inventory: inv, At: at(9)})
	w.must(CordonGPU{Host: "host-a", GPU: "GPU-parent", Reason: "RMA", At: at(10)})
	h := w.host("host-a")
	if g := h.Inventory.GPUs; g[0].Cordoned == "" || g[1].Cordoned == "" || g[2].Cordoned != "" || len(h.GoneGPUs()) != 0 {
		t.Errorf("%+v", g)
	}
	if free := w.freeGPUs("host-a"); len(free) != 2 {
		t.Errorf("free: %v", free)
	}
}

func TestCordonsAreChecked(t *testing.T) {
	w := cordonWorld(t)
	w.refused(fleet.CodeNotFound, CordonGPU{Host: "none", GPU: "host-a-gpu-0", Reason: "r", At: at(1)})
	for _, gpu := range []string{"", "none", "host-b-gpu-0"} {
		w.refused(fleet.CodeNotFound, CordonGPU{Host: "host-a", GPU: gpu, Reason: "r", At: at(1)})
		w.refused(fleet.CodeNotFound, OpenGPU{Host: "host-a", GPU: gpu, Forget: true})
	}
	for _, reason := range []string{"", strings.Repeat("r", 1025), "\xff"} {
		w.refused(fleet.CodeInvalid, CordonGPU{Host: "host-a", GPU: "host-a-gpu-0", Reason: reason, At: at(1)})
	}
	w.refused(fleet.CodeNotFound, OpenGPU{Host: "host-a", GPU: "host-a-gpu-0"})
	w.must(CordonGPU{Host: "host-a", GPU: "host-a-gpu-0", Reason: "one", At: at(1)}, CordonGPU{Host: "host-a", GPU: "host-a-gpu-0", Reason: "two", At: at(2)})
	if h := w.host("host-a"); len(h.GPUCordons) != 1 || h.Inventory.GPUs[0].Cordoned != "two" {
		t.Errorf("said twice: %+v", h.GPUCordons)
	}
	var counts Counts
	w.view(func(v *View) { counts = v.Counts(at(1)) })
	if counts.CordonedGPUs != 1 || counts.SickGPUs != 0 {
		t.Errorf("%+v", counts)
	}
}
