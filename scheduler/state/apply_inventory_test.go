package state

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
)

// says makes the update of an inventory of host-a by its present session.
func (w *world) says(change func(*fleet.Inventory)) UpdateInventory {
	inv := inventory("host-a")
	change(&inv)
	return UpdateInventory{Host: "host-a", Epoch: w.host("host-a").Epoch, Inventory: inv, At: at(20)}
}

func TestAHostSaysWhatItHasNow(t *testing.T) {
	w := newWorld(t).settle()
	before := w.host("host-a")
	w.must(w.says(func(inv *fleet.Inventory) {
		inv.GPUs = append(inv.GPUs[:3], fleet.GPU{UUID: "MIG-1", Type: "NVIDIA H100 MIG 1g.10gb", MemoryMB: 10_000, Parent: "host-a-gpu-3"})
		inv.GPUs[1].Sick, inv.GPUs[2].PCI = "XID 79", "0000:3b:00.0"
		inv.Images = []string{"b", "a", "b"}
		inv.Models = []string{"n", "m", "n"}
		inv.Conditions = []fleet.Condition{{Code: "runc_old", Text: "x"}, {Code: "disk_unlimited"}, {Code: "runc_old", Text: "x"}}
		inv.RuntimeClass = "kata"
	}))
	h := w.host("host-a")
	if h.Epoch != before.Epoch || h.State != before.State || h.Rev != before.Rev+1 || !h.SeenAt.Equal(before.SeenAt) {
		t.Errorf("the session changed: %+v", h)
	}
	if inv := h.Inventory; len(inv.GPUs) != 4 || inv.GPUs[1].Sick != "XID 79" || inv.GPUs[3].Parent == "" || inv.RuntimeClass != "kata" ||
		!slices.Equal(inv.Images, []string{"a", "b"}) || !slices.Equal(inv.Models, []string{"m", "n"}) ||
		!slices.Equal(inv.Conditions, []fleet.Condition{{Code: "disk_unlimited"}, {Code: "runc_old", Text: "x"}}) {
		t.Errorf("the inventory is %+v", inv)
	}
	i := slices.IndexFunc(w.dump().Catalog.GPUs, func(g fleet.GPUType) bool { return g.ID == "NVIDIA H100 MIG 1g.10gb" })
	if i < 0 || !w.dump().Catalog.GPUs[i].Contributed || w.dump().Catalog.GPUs[i].MemoryGB != 10 {
		t.Errorf("the catalog is %+v", w.dump().Catalog.GPUs)
	}
	w.check()
}

func TestAnEqualInventoryWritesNothing(t *testing.T) {
	w := newWorld(t).settle()
	same := w.says(func(inv *fleet.Inventory) { inv.Images = []string{"alpine", "zebra"} }) // as it connected, in another order
	hash := w.hash()
	w.must(same, same)
	if !bytes.Equal(hash, w.hash()) {
		t.Error("something was written")
	}
}

func TestInventoriesThatAreRefused(t *testing.T) {
	w := newWorld(t).settle()
	many := func(n int) []fleet.Condition {
		out := make([]fleet.Condition, n)
		for i := range out {
			out[i].Code = fmt.Sprintf("n%d", i)
		}
		return out
	}
	w.must(w.says(func(inv *fleet.Inventory) { inv.Conditions = many(maxConditions) }))
	for rule, change := range map[string]func(*fleet.Inventory){
		"too many conditions":      func(inv *fleet.Inventory) { inv.Conditions = many(maxConditions + 1) },
		"a condition without code": func(inv *fleet.Inventory) { inv.Conditions = []fleet.Condition{{Text: "x"}} },
		"a code of two words":      func(inv *fleet.Inventory) { inv.Conditions = []fleet.Condition{{Code: "two words"}} },
		"a long text": func(inv *fleet.Inventory) {
			inv.Conditions = []fleet.Condition{{Code: "a", Text: strings.Repeat("x", 1025)}}
		},
		"an unknown class":    func(inv *fleet.Inventory) { inv.RuntimeClass = "runc" },
		"a GPU twice":         func(inv *fleet.Inventory) { inv.GPUs[1].UUID = inv.GPUs[0].UUID },
		"a long reason":       func(inv *fleet.Inventory) { inv.GPUs[1].Sick = strings.Repeat("x", 1025) },
		"less than nothing":   func(inv *fleet.Inventory) { inv.Total.DiskGB = -1 },
		"ports of the system": func(inv *fleet.Inventory) { inv.PortFrom, inv.PortTo = 22, 80 },
	} {
		t.Run(rule, func(t *testing.T) {
			w.t = t
			cmd := w.says(change)
			w.refused(fleet.CodeInvalid, cmd)
			w.refused(fleet.CodeInvalid, ConnectHost{ // by the same rules
				Host: "host-a", MachineID: w.host("host-a").MachineID, BootID: "boot", Inventory: cmd.Inventory, At: at(21),
			})
		})
	}
	w.t = t
	old := w.says(func(inv *fleet.Inventory) { inv.GPUs = nil })
	w.connect("host-a")
	w.refused(fleet.CodeStale, old)
	old.Epoch++
	old.Host = "nobody"
	w.refused(fleet.CodeNotFound, old)
}

// A GPU that falls ill is nobody's any more, but for the pod that holds it.
func TestASickGPUKeepsItsPod(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.says(func(inv *fleet.Inventory) { inv.GPUs[0].Sick, inv.GPUs[1].Sick = "XID 79", "fell off the bus" }))
	if p := w.pod("pod-1"); !p.Held || !slices.Equal(p.GPUs, []string{"host-a-gpu-0"}) {
		t.Errorf("the pod is %+v", p)
	}
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 1), HostEpoch: 1}}})
	c := w.dump().Candidates[0]
	if c.Host.ID != "host-a" || len(c.FreeGPUs) != 2 {
		t.Errorf("%d GPUs of %s are free", len(c.FreeGPUs), c.Host.ID)
	}
	w.must(w.report("pod-1", fleet.EventExited))
	if c := w.dump().Candidates[0]; len(c.FreeGPUs) != 2 {
		t.Errorf("the sick GPU is free again: %+v", c.FreeGPUs)
	}
	w.check()
}

func TestASevereConditionKeepsPodsAway(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	severe := func(yes bool) UpdateInventory {
		return w.says(func(inv *fleet.Inventory) { inv.Conditions = []fleet.Condition{{Code: "runc_old", Severe: yes}} })
	}
	w.must(severe(true))
	w.refused(fleet.CodeStale, CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 1), HostEpoch: 1}}})
	if ok, why := w.dump().Candidates[0].Host.Takes(); ok || why != "not fit: runc_old" {
		t.Errorf("takes pods: %t, %q", ok, why)
	}
	if p := w.pod("pod-1"); !p.Held {
		t.Error("its pod has to go")
	}
	w.must(severe(false))
	w.create("pod-2", "host-a", 1)
}
