package state

import (
	"maps"
	"slices"

	"gantry/fleet"
)

// The clones share nothing with their original.

func clonePod(p *fleet.Pod) fleet.Pod {
	out := *p
	out.Spec.Ports, out.Spec.HTTP = slices.Clone(p.Spec.Ports), slices.Clone(p.Spec.HTTP)
	out.Spec.Env = maps.Clone(p.Spec.Env)
	out.Spec.Centers = slices.Clone(p.Spec.Centers)
	out.Spec.GPU = clonePtr(p.Spec.GPU)
	out.Spec.CPU = clonePtr(p.Spec.CPU)
	out.Spec.Persistent = clonePtr(p.Spec.Persistent)
	out.Spec.Network = clonePtr(p.Spec.Network)
	out.Spec.CUDA = cloneCUDA(p.Spec.CUDA)
	out.Spec.Spot = clonePtr(p.Spec.Spot)
	out.Spec.Models = slices.Clone(p.Spec.Models)
	out.GPUs = slices.Clone(p.GPUs)
	out.Mappings = slices.Clone(p.Mappings)
	out.ExitCode = clonePtr(p.ExitCode)
	out.Steps = maps.Clone(p.Steps)
	out.Overlays = slices.Clone(p.Overlays)
	if out.Target = clonePtr(p.Target); out.Target != nil {
		out.Target.GPUs, out.Target.Mappings = slices.Clone(p.Target.GPUs), slices.Clone(p.Target.Mappings)
	}
	return out
}

func cloneHost(h *fleet.Host) fleet.Host {
	out := *h
	out.Inventory.GPUs = slices.Clone(h.Inventory.GPUs)
	out.GPUCordons = slices.Clone(h.GPUCordons)
	out.Inventory.Images, out.Inventory.Models = slices.Clone(h.Inventory.Images), slices.Clone(h.Inventory.Models)
	out.Inventory.Conditions = slices.Clone(h.Inventory.Conditions)
	out.Inventory.Volumes = slices.Clone(h.Inventory.Volumes)
	out.Inventory.Fabric.Ports = slices.Clone(h.Inventory.Fabric.Ports)
	out.Inventory.Certificate.Trusts = slices.Clone(h.Inventory.Certificate.Trusts)
	out.Roles = slices.Clone(h.Roles)
	out.Labels = maps.Clone(h.Labels)
	out.PastBoots = slices.Clone(h.PastBoots)
	out.Leftovers = slices.Clone(h.Leftovers)
	out.Drain = clonePtr(h.Drain)
	return out
}

func cloneKey(k *fleet.Key) fleet.Key {
	out := *k
	out.Hash = slices.Clone(k.Hash)
	out.Can = maps.Clone(k.Can)
	out.Invoke = slices.Clone(k.Invoke)
	return out
}

func cloneAccount(a *fleet.Account) fleet.Account {
	out := *a
	out.Quotas, out.Limits, out.Suspended = clonePtr(a.Quotas), maps.Clone(a.Limits), clonePtr(a.Suspended)
	out.SpendLimit, out.LowBalance, out.Webhook = clonePtr(a.SpendLimit), clonePtr(a.LowBalance), cloneWebhook(a.Webhook)
	return out
}

func cloneCenter(d *fleet.DataCenter) fleet.DataCenter {
	out := *d
	out.Compliance = slices.Clone(d.Compliance)
	return out
}

func cloneTemplate(t *fleet.Template) fleet.Template {
	out := *t
	out.Ports = slices.Clone(t.Ports)
	out.Env = maps.Clone(t.Env)
	out.Persistent = clonePtr(t.Persistent)
	out.AllowedCUDA = slices.Clone(t.AllowedCUDA)
	return out
}

func cloneCUDA(c *fleet.CUDARange) *fleet.CUDARange {
	if c == nil {
		return nil
	}
	return &fleet.CUDARange{Allowed: slices.Clone(c.Allowed), Min: c.Min}
}

func cloneEndpoint(e *fleet.Endpoint) fleet.Endpoint {
	out := *e
	out.Spec.Ports = slices.Clone(e.Spec.Ports)
	out.Spec.Env = maps.Clone(e.Spec.Env)
	if out.Spec.GPU = clonePtr(e.Spec.GPU); out.Spec.GPU != nil {
		out.Spec.GPU.Pools, out.Spec.GPU.Excluded = slices.Clone(e.Spec.GPU.Pools), slices.Clone(e.Spec.GPU.Excluded)
		out.Spec.GPU.CUDA = cloneCUDA(e.Spec.GPU.CUDA)
	}
	out.Spec.CPU = slices.Clone(e.Spec.CPU)
	out.Spec.Centers = slices.Clone(e.Spec.Centers)
	out.Spec.Volumes, out.Spec.Models = slices.Clone(e.Spec.Volumes), slices.Clone(e.Spec.Models)
	out.Spec.WebhookKey = slices.Clone(e.Spec.WebhookKey)
	out.Releases = slices.Clone(e.Releases)
	for i := range out.Releases {
		out.Releases[i].Changes = slices.Clone(e.Releases[i].Changes)
	}
	return out
}

func cloneRegistry(r *fleet.Registry) fleet.Registry {
	out := *r
	out.Sealed = slices.Clone(r.Sealed)
	return out
}

func cloneSecret(s *fleet.AccountSecret) fleet.AccountSecret {
	out := *s
	out.Sealed = slices.Clone(s.Sealed)
	return out
}

func cloneBackend(b *fleet.Backend) fleet.Backend {
	out := *b
	out.NFS, out.Ceph, out.Local = clonePtr(b.NFS), clonePtr(b.Ceph), clonePtr(b.Local)
	if out.Ceph != nil {
		out.Ceph.Monitors = slices.Clone(b.Ceph.Monitors)
	}
	out.Sealed = slices.Clone(b.Sealed)
	return out
}

func cloneS3Key(k *fleet.S3Key) fleet.S3Key {
	out := *k
	out.Sealed = slices.Clone(k.Sealed)
	return out
}

func cloneNetworkSettings(s *fleet.NetworkSettings) fleet.NetworkSettings {
	out := *s
	out.Aliases = slices.Clone(s.Aliases)
	return out
}

func cloneVolume(v *fleet.Volume) fleet.Volume { return *v }

func cloneToken(t *fleet.JoinToken) fleet.JoinToken {
	out := *t
	out.Hash, out.Request = slices.Clone(t.Hash), slices.Clone(t.Request)
	return out
}

func cloneCatalog(c *fleet.Catalog) fleet.Catalog {
	return fleet.Catalog{GPUs: slices.Clone(c.GPUs), CPUs: slices.Clone(c.CPUs), Storage: clonePtr(c.Storage)}
}

func cloneCluster(c *Cluster) Cluster {
	out := *c
	out.CA, out.SealedCAKey, out.Rotation = slices.Clone(c.CA), slices.Clone(c.SealedCAKey), clonePtr(c.Rotation)
	if r := out.Rotation; r != nil {
		r.Other, r.SealedKey, r.Bridge = slices.Clone(r.Other), slices.Clone(r.SealedKey), slices.Clone(r.Bridge)
	}
	return out
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	out := *p
	return &out
}
