package state

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

func (w *world) catalog() (c fleet.Catalog) {
	w.view(func(v *View) { c = v.Catalog() })
	return c
}

func TestCatalogIsChangedPieceByPiece(t *testing.T) {
	w := newWorld(t).settle()
	a40 := fleet.GPUType{ID: "NVIDIA A40", Name: "A40", Manufacturer: "NVIDIA", MemoryGB: 48, Secure: 1, Contributed: true}
	w.refused(fleet.CodeInvalid, PutGPUType{fleet.GPUType{Name: "no id"}})
	w.refused(fleet.CodeInvalid, PutCPUFlavor{fleet.CPUFlavor{Name: "no id"}})
	w.refused(fleet.CodeNotFound, DeleteGPUType{ID: "NVIDIA A40"})
	w.refused(fleet.CodeNotFound, DeleteCPUFlavor{ID: "cpu9x"})
	index := w.s.Index()
	w.must(PutGPUType{a40}, PutCPUFlavor{fleet.CPUFlavor{ID: "cpu9x", MaxVCPU: 4}}, PutStoragePrices{samplePrices()})
	if evs, _, _ := w.s.Events(index); len(evs) != 3 || evs[0].Kind != KindCatalog || evs[2].Kind != KindCatalog {
		t.Errorf("events %v", evs)
	}
	a40.Contributed = false // an operator has put it there
	want, prices := catalog(), samplePrices()
	want.GPUs = append(want.GPUs, a40)
	want.CPUs = append(want.CPUs, fleet.CPUFlavor{ID: "cpu9x", MaxVCPU: 4})
	want.Storage = &prices
	if d := cmp.Diff(want, w.catalog()); d != "" {
		t.Error(d)
	}
	a40.Name = "renamed"
	w.must(PutGPUType{a40}, PutCPUFlavor{fleet.CPUFlavor{ID: "cpu9x", MaxVCPU: 8}}, PutStoragePrices{})
	if got := w.catalog(); len(got.GPUs) != 2 || got.GPUs[1].Name != "renamed" || len(got.CPUs) != 2 || got.CPUs[1].MaxVCPU != 8 ||
		*got.Storage != (fleet.StoragePrices{}) {
		t.Errorf("got %+v", got)
	}

	w.refused(fleet.CodeInUse, DeleteGPUType{ID: h100})
	if msg := w.message(DeleteGPUType{ID: h100}); msg != "the GPU type is in use: 2 hosts have it" {
		t.Errorf("message %q", msg)
	}
	w.create("pod-1", "host-a") // of the flavor cpu3c, and keeps it
	w.must(DeleteGPUType{ID: a40.ID}, DeleteCPUFlavor{ID: "cpu3c"})
	if got := w.catalog(); len(got.GPUs) != 1 || len(got.CPUs) != 1 || got.CPUs[0].ID != "cpu9x" {
		t.Errorf("got %+v", got)
	}
	w.check()
}

func TestHostsContributeGPUTypes(t *testing.T) {
	w := newWorld(t).settle()
	inv := inventory("host-a")
	inv.GPUs[1].Type, inv.GPUs[1].MemoryMB = "NVIDIA L4", 24_499
	inv.GPUs[2].Type, inv.GPUs[2].MemoryMB, inv.GPUs[2].Sick = "Custom 1", 15_500, "XID 79"
	inv.GPUs[3].Type = "NVIDIA L4"
	connect := ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inv, At: at(3)}
	index := w.s.Index()
	w.must(connect)
	evs, _, _ := w.s.Events(index)
	if !slices.Contains(evs, Event{Index: index + 1, Kind: KindCatalog}) {
		t.Errorf("events %v", evs)
	}
	want := catalog().GPUs
	want = append(want,
		fleet.GPUType{ID: "NVIDIA L4", Name: "L4", Manufacturer: "NVIDIA", MemoryGB: 24, Contributed: true},
		fleet.GPUType{ID: "Custom 1", Name: "Custom 1", Manufacturer: "NVIDIA", MemoryGB: 16, Contributed: true},
	)
	if d := cmp.Diff(want, w.catalog().GPUs); d != "" {
		t.Error(d)
	}
	index = w.s.Index()
	w.must(connect)
	if evs, _, _ := w.s.Events(index); slices.ContainsFunc(evs, func(e Event) bool { return e.Kind == KindCatalog }) {
		t.Errorf("nothing new, events %v", evs)
	}
	// What an operator has made of it stays.
	w.must(PutGPUType{fleet.GPUType{ID: "NVIDIA L4", Name: "named", Secure: 5}}, connect)
	if got := w.catalog().GPUs[1]; got.Name != "named" || got.Secure != 5 || got.Contributed {
		t.Errorf("got %+v", got)
	}
	w.check()
}

func TestTheCatalogDoesNotGrowWithoutEnd(t *testing.T) {
	w := newWorld(t).settle()
	full := fleet.Catalog{GPUs: make([]fleet.GPUType, maxGPUTypes-1)}
	w.must(PutCatalog{full})
	inv := inventory("host-a")
	inv.GPUs[0].Type, inv.GPUs[1].Type, inv.GPUs[2].Type = "", "one", "two"
	w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inv, At: at(3)})
	if got := w.catalog().GPUs; len(got) != maxGPUTypes || got[maxGPUTypes-1].ID != "one" {
		t.Errorf("%d types, the last is %+v", len(got), got[len(got)-1])
	}
}

// A host that never says the same does not keep others from bringing their GPUs along.
func TestTypesThatNobodyHasMakeWay(t *testing.T) {
	w := newWorld(t).settle()
	kept := w.catalog().GPUs
	for round := range 20 {
		w.must(w.says(func(inv *fleet.Inventory) {
			inv.GPUs = nil
			for i := range 100 {
				name := fmt.Sprintf("made up %d-%d", round, i)
				inv.GPUs = append(inv.GPUs, fleet.GPU{UUID: name, Type: name})
			}
		}))
	}
	w.must(w.says(func(inv *fleet.Inventory) { inv.GPUs[0].Type = "NVIDIA B300" }))
	got := w.catalog().GPUs
	place := func(id string) int { return slices.IndexFunc(got, func(g fleet.GPUType) bool { return g.ID == id }) }
	if len(got) > maxGPUTypes || place("NVIDIA B300") < 0 || place("made up 19-63") < 0 || place("made up 19-64") >= 0 || place(kept[0].ID) < 0 {
		t.Errorf("%d types, the last is %+v", len(got), got[len(got)-1])
	}
	w.check()
}

func TestDeleteDataCenter(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.refused(fleet.CodeNotFound, DeleteDataCenter{ID: "dc-8"})
	w.refused(fleet.CodeInUse, DeleteDataCenter{ID: "dc-1"})
	if msg := w.message(DeleteDataCenter{ID: "dc-1"}); msg != "the data center is in use: 2 hosts and 1 network volume and 2 storage backends have it" {
		t.Errorf("message %q", msg)
	}
	w.must(DeleteDataCenter{ID: "dc-9"})
	w.view(func(v *View) {
		if d := v.DataCenters(); len(d) != 1 || d[0].ID != "dc-1" {
			t.Errorf("data centers %+v", d)
		}
	})
	w.check()
}

func TestSetHostCloud(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.refused(fleet.CodeNotFound, SetHostCloud{Host: "host-z", Cloud: fleet.CloudSecure})
	w.refused(fleet.CodeInvalid, SetHostCloud{Host: "host-a", Cloud: "best"})
	before := w.host("host-a")
	got := w.must(SetHostCloud{Host: "host-a", Cloud: fleet.CloudCommunity}).(fleet.Host)
	if got.Cloud != fleet.CloudCommunity || got.Rev != before.Rev+1 || got.Generation != before.Generation || got.Epoch != before.Epoch {
		t.Errorf("got %+v after %+v", got, before)
	}
	w.view(func(v *View) {
		if c := v.Candidates(); c[0].Host.Cloud != fleet.CloudCommunity || c[0].Pods != 1 {
			t.Errorf("candidate %+v", c[0])
		}
	})
	w.check()
}

func TestConnectHostChecksWhatItPublishes(t *testing.T) {
	for _, tc := range []struct {
		rule     string
		ip       string
		from, to int
		ok       bool
	}{
		{"nothing", "", 0, 0, true},
		{"a range", "192.0.2.1", 30_000, 39_999, true},
		{"one port", "2001:db8::1", 1024, 1024, true},
		{"the last ports", "192.0.2.1", 65_000, 65_535, true},
		{"an address that is not known", "", 30_000, 39_999, true},
		{"a name", "host.example", 30_000, 39_999, false},
		{"an address with a port", "192.0.2.1:80", 0, 0, false},
		{"a system port", "192.0.2.1", 1023, 2000, false},
		{"no such port", "192.0.2.1", 2000, 65_536, false},
		{"the wrong way round", "192.0.2.1", 3000, 2000, false},
		{"no first port", "192.0.2.1", 0, 2000, false},
		{"no last port", "192.0.2.1", 2000, 0, false},
		{"below zero", "192.0.2.1", -5, -1, false},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			w := newWorld(t).settle()
			inv := inventory("host-a")
			inv.PublicIP, inv.PortFrom, inv.PortTo = tc.ip, tc.from, tc.to
			cmd := ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inv, At: at(3)}
			if !tc.ok {
				w.refused(fleet.CodeInvalid, cmd)
				return
			}
			if got := w.must(cmd).(fleet.Host); got.Inventory.PortFrom != tc.from || got.Inventory.PublicIP != tc.ip {
				t.Errorf("got %+v", got.Inventory)
			}
		})
	}
}

// A data center that comes with a host is of a region that clients know.
func TestJoinMakesADataCenter(t *testing.T) {
	w := newWorld(t).settle()
	w.view(func(v *View) {
		if dc := v.DataCenters(); len(dc) != 1 || dc[0].ID != "dc-1" || dc[0].Name != "dc-1" || dc[0].Region != "UNKNOWN" {
			t.Errorf("got %+v", dc)
		}
	})
}
