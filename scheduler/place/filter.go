package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"gantry/fleet"
)

// refusal is the filter that refused a host. The order of the constants is the order in which the
// filters are asked: first what a host is, then whether it can be used, then what is left on it.
// So the reason that is counted is the one that time or another request changes last.
type refusal int

const (
	refusedPinned refusal = iota
	refusedCenter
	refusedCloud
	refusedGPUType
	refusedCUDA
	refusedHostMemory
	refusedHostCPU
	refusedJoining
	refusedUnreachable
	refusedGPUCount
	refusedCPU
	refusedMemory
	refusedDisk
	passes
)

// firstRefusal returns the first filter that refuses the host, or passes.
func firstRefusal(q *question, c *Candidate) refusal {
	req, host := q.Request, c.Host
	switch {
	case req.Pinned != "" && host.ID != req.Pinned:
		return refusedPinned
	case len(req.Centers) > 0 && !slices.Contains(req.Centers, host.DataCenter):
		return refusedCenter
	case host.Cloud != req.Cloud:
		return refusedCloud
	case req.GPU != nil && c.summary().kind(req.GPU.Type).total == 0:
		return refusedGPUType
	case q.statesCUDA && !q.acceptsCUDA(c.summary().cuda):
		return refusedCUDA
	case host.Inventory.Total.MemoryMB < req.MinMemoryMB:
		return refusedHostMemory
	case host.Inventory.Total.MilliCPU < req.MinMilliCPU:
		return refusedHostCPU
	case host.State == fleet.HostJoining:
		return refusedJoining
	case host.State != fleet.HostReady:
		return refusedUnreachable
	case req.GPU != nil && (req.GPU.Count < 1 || c.summary().kind(req.GPU.Type).free < req.GPU.Count):
		return refusedGPUCount
	}
	return shortOf(&req.Need, &c.Free)
}

// shortOf returns the first of the shared resources of which less is free than needed, or passes.
func shortOf(need, free *fleet.Resources) refusal {
	switch {
	case free.MilliCPU < need.MilliCPU:
		return refusedCPU
	case free.MemoryMB < need.MemoryMB:
		return refusedMemory
	case free.DiskGB < need.DiskGB:
		return refusedDisk
	}
	return passes
}

// exclusion is what hosts are counted by: the filter and, for the count of GPUs, its figures.
type exclusion struct {
	why         refusal
	free, total int
}

// String says in words why a host was refused.
func (e exclusion) String() string {
	switch e.why {
	case refusedPinned:
		return "the pod's data is on another host"
	case refusedCenter:
		return "data center"
	case refusedCloud:
		return "cloud tier"
	case refusedGPUType:
		return "GPU type"
	case refusedCUDA:
		return "CUDA version"
	case refusedHostMemory:
		return "host memory"
	case refusedHostCPU:
		return "host vCPUs"
	case refusedJoining:
		return "not connected yet"
	case refusedUnreachable:
		return "unreachable"
	case refusedGPUCount:
		return fmt.Sprintf("%d of %d GPUs free", e.free, e.total)
	case refusedCPU:
		return "CPU"
	case refusedMemory:
		return "memory"
	}
	return "container disk"
}

// explain counts the refused hosts by reason, in the order of the filters.
func explain(q *question, candidates []Candidate) error {
	counts := map[exclusion]int{}
	for i := range candidates {
		c := &candidates[i]
		e := exclusion{why: firstRefusal(q, c)}
		if e.why == refusedGPUCount {
			k := c.summary().kind(q.GPU.Type)
			e.free, e.total = k.free, k.total
		}
		counts[e]++
	}
	order := slices.SortedFunc(maps.Keys(counts), func(a, b exclusion) int {
		return cmp.Or(int(a.why-b.why), a.free-b.free, a.total-b.total)
	})
	out := &fleet.Error{Code: fleet.CodeNoCapacity, Msg: NoCapacity}
	for _, e := range order {
		out.Excluded = append(out.Excluded, fleet.Exclusion{Reason: e.String(), Hosts: counts[e]})
	}
	return out
}
