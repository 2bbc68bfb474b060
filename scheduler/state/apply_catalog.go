package state

import (
	"slices"
	"strings"

	"gantry/fleet"
)

const (
	maxGPUTypes  = 1000 // that the catalog may have before hosts add no more to it
	maxHostTypes = 64   // that one host may bring along
)

// catalog returns a copy of the catalog to change; it is empty before Bootstrap.
func (t *txn) catalog() fleet.Catalog {
	if c := t.base.catalog.Get(t.Txn, onlyKey); c != nil {
		return cloneCatalog(c)
	}
	return fleet.Catalog{}
}

func (t *txn) putCatalog(c fleet.Catalog) {
	t.base.catalog.Put(t.Txn, onlyKey, &c)
	t.Note(KindCatalog, "")
}

// placeOf returns where a GPU type is in the catalog, -1 when it is not there.
func placeOf(c *fleet.Catalog, id string) int {
	return slices.IndexFunc(c.GPUs, func(g fleet.GPUType) bool { return g.ID == id })
}

func (c PutGPUType) apply(t *txn) (any, error) {
	in := c.Type
	if err := checkID("$.id", in.ID); err != nil {
		return nil, err
	}
	in.Contributed = false // an operator has named it now
	cat := t.catalog()
	if i := placeOf(&cat, in.ID); i >= 0 {
		cat.GPUs[i] = in
	} else {
		cat.GPUs = append(cat.GPUs, in)
	}
	t.putCatalog(cat)
	return nil, nil
}

func (c DeleteGPUType) apply(t *txn) (any, error) {
	cat := t.catalog()
	i := placeOf(&cat, c.ID)
	if i < 0 {
		return nil, fleet.NotFound("GPU type")
	}
	hosts := t.base.hosts.Count(t.Txn, func(h *fleet.Host) bool {
		return h.State != fleet.HostGone && slices.ContainsFunc(h.Inventory.GPUs, func(g fleet.GPU) bool { return g.Type == c.ID })
	})
	if err := inUse("the GPU type", uses{n: hosts, thing: "host"}); err != nil {
		return nil, err
	}
	cat.GPUs = slices.Delete(cat.GPUs, i, i+1)
	t.putCatalog(cat)
	return nil, nil
}

// contribute adds the GPU types of a host that the catalog lacks, without a price. When the catalog is full, those go
// that no host has any more.
func (t *txn) contribute(gpus []fleet.GPU) {
	cat := t.catalog()
	seen := map[string]bool{}
	changed := false
	for _, gpu := range gpus {
		if seen[gpu.Type] || len(seen) >= maxHostTypes || checkID("", gpu.Type) != nil {
			continue
		}
		seen[gpu.Type] = true
		if placeOf(&cat, gpu.Type) >= 0 || len(cat.GPUs) >= maxGPUTypes && !t.tidyTypes(&cat, gpus) {
			continue
		}
		changed = true
		cat.GPUs = append(cat.GPUs, fleet.GPUType{
			ID: gpu.Type, Name: strings.TrimPrefix(gpu.Type, "NVIDIA "), Manufacturer: "NVIDIA",
			MemoryGB: int((gpu.MemoryMB + 500) / 1000), Contributed: true,
		})
	}
	if changed {
		t.putCatalog(cat)
	}
}

// tidyTypes drops types that hosts brought along and none has any more, beside a host with those GPUs, and reports
// whether there were any.
func (t *txn) tidyTypes(cat *fleet.Catalog, gpus []fleet.GPU) bool {
	had := map[string]bool{}
	note := func(gpus []fleet.GPU) {
		for i := range gpus {
			had[gpus[i].Type] = true
		}
	}
	note(gpus)
	t.base.hosts.Count(t.Txn, func(h *fleet.Host) bool {
		if h.State != fleet.HostGone {
			note(h.Inventory.GPUs)
		}
		return false
	})
	before := len(cat.GPUs)
	cat.GPUs = slices.DeleteFunc(cat.GPUs, func(g fleet.GPUType) bool { return g.Contributed && !had[g.ID] })
	return len(cat.GPUs) < before
}

func (c PutCPUFlavor) apply(t *txn) (any, error) {
	if err := checkID("$.id", c.Flavor.ID); err != nil {
		return nil, err
	}
	cat := t.catalog()
	if i := slices.IndexFunc(cat.CPUs, func(f fleet.CPUFlavor) bool { return f.ID == c.Flavor.ID }); i >= 0 {
		cat.CPUs[i] = c.Flavor
	} else {
		cat.CPUs = append(cat.CPUs, c.Flavor)
	}
	t.putCatalog(cat)
	return nil, nil
}

func (c DeleteCPUFlavor) apply(t *txn) (any, error) {
	cat := t.catalog()
	i := slices.IndexFunc(cat.CPUs, func(f fleet.CPUFlavor) bool { return f.ID == c.ID })
	if i < 0 {
		return nil, fleet.NotFound("CPU flavor")
	}
	cat.CPUs = slices.Delete(cat.CPUs, i, i+1)
	t.putCatalog(cat)
	return nil, nil
}

func (c PutStoragePrices) apply(t *txn) (any, error) {
	cat := t.catalog()
	cat.Storage = &c.Prices
	t.putCatalog(cat)
	return nil, nil
}

func (c DeleteDataCenter) apply(t *txn) (any, error) {
	if t.base.centers.Get(t.Txn, c.ID) == nil {
		return nil, fleet.NotFound("data center")
	}
	hosts := t.base.hosts.Count(t.Txn, func(h *fleet.Host) bool { return h.DataCenter == c.ID && h.State != fleet.HostGone })
	volumes := t.base.volumesIn.Count(t.Txn, c.ID)
	backends := t.base.backends.Count(t.Txn, func(b *fleet.Backend) bool { return b.DataCenter == c.ID })
	err := inUse("the data center", uses{n: hosts, thing: "host"}, uses{n: volumes, thing: "network volume"}, uses{n: backends, thing: "storage backend"})
	if err != nil {
		return nil, err
	}
	t.base.centers.Drop(t.Txn, c.ID)
	t.Note(KindCatalog, string(c.ID))
	return nil, nil
}
