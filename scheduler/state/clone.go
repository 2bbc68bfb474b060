package state

import (
	"maps"
	"slices"

	"gantry/fleet"
)

// The clones share nothing with their original.

func clonePod(p *fleet.Pod) fleet.Pod {
	out := *p
	out.Spec.Ports = slices.Clone(p.Spec.Ports)
	out.Spec.Env = maps.Clone(p.Spec.Env)
	out.Spec.Centers = slices.Clone(p.Spec.Centers)
	out.Spec.GPU = clonePtr(p.Spec.GPU)
	out.Spec.CPU = clonePtr(p.Spec.CPU)
	out.GPUs = slices.Clone(p.GPUs)
	out.ExitCode = clonePtr(p.ExitCode)
	out.Steps = maps.Clone(p.Steps)
	return out
}

func cloneHost(h *fleet.Host) fleet.Host {
	out := *h
	out.Inventory.GPUs = slices.Clone(h.Inventory.GPUs)
	out.Inventory.Images = slices.Clone(h.Inventory.Images)
	return out
}

func cloneKey(k *fleet.Key) fleet.Key {
	out := *k
	out.Hash = slices.Clone(k.Hash)
	out.Can = maps.Clone(k.Can)
	return out
}

func cloneToken(t *fleet.JoinToken) fleet.JoinToken {
	out := *t
	out.Hash = slices.Clone(t.Hash)
	return out
}

func cloneCatalog(c *fleet.Catalog) fleet.Catalog {
	return fleet.Catalog{GPUs: slices.Clone(c.GPUs), CPUs: slices.Clone(c.CPUs)}
}

func cloneCluster(c *Cluster) Cluster {
	return Cluster{ID: c.ID, CA: slices.Clone(c.CA), SealedCAKey: slices.Clone(c.SealedCAKey)}
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	out := *p
	return &out
}
