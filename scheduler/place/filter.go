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
	refusedJoining
	refusedUnreachable
	refusedGPUCount
	refusedCPU
	refusedMemory
	refusedDisk
	passes
)

// firstRefusal returns the first filter that refuses the host, or passes.
func firstRefusal(req *Request, c *Candidate) refusal {
	host := c.Host
	switch {
	case req.Pinned != "" && host.ID != req.Pinned:
		return refusedPinned
	case len(req.Centers) > 0 && !slices.Contains(req.Centers, host.DataCenter):
		return refusedCenter
	case host.Cloud != req.Cloud:
		return refusedCloud
	case req.GPU != nil && c.summary().kind(req.GPU.Type).total == 0:
		return refusedGPUType
	case host.State == fleet.HostJoining:
		return refusedJoining
	case host.State != fleet.HostReady:
		return refusedUnreachable
	case req.GPU != nil && (req.GPU.Count < 1 || c.summary().kind(req.GPU.Type).free < req.GPU.Count):
		return refusedGPUCount
	case c.Free.MilliCPU < req.Need.MilliCPU:
		return refusedCPU
	case c.Free.MemoryMB < req.Need.MemoryMB:
		return refusedMemory
	case c.Free.DiskGB < req.Need.DiskGB:
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
func explain(req Request, candidates []Candidate) error {
	counts := map[exclusion]int{}
	for i := range candidates {
		c := &candidates[i]
		e := exclusion{why: firstRefusal(&req, c)}
		if e.why == refusedGPUCount {
			k := c.summary().kind(req.GPU.Type)
			e.free, e.total = k.free, k.total
		}
		counts[e]++
	}
	order := slices.SortedFunc(maps.Keys(counts), func(a, b exclusion) int {
		return cmp.Or(int(a.why-b.why), a.free-b.free, a.total-b.total)
	})
	out := &fleet.Error{Code: fleet.CodeNoCapacity, Msg: noCapacity}
	for _, e := range order {
		out.Excluded = append(out.Excluded, fleet.Exclusion{Reason: e.String(), Hosts: counts[e]})
	}
	return out
}
