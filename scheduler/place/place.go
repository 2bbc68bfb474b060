// Package place picks a host for a pod. It is pure: it reads candidates and a request and returns a
// choice; it starts nothing, stores nothing, reads no clock, draws nothing at random and does not
// know that Raft exists. Equal arguments give equal answers on every machine.
//
// A pick is a proposal, not a reservation: whoever commits it checks again that what was picked is
// still free.
package place

import (
	"math"
	"slices"

	"gantry/fleet"
)

// Candidate is a host with what is free on it. Candidates are read-only.
type Candidate struct {
	Host     *fleet.Host
	FreeGPUs []fleet.GPU     // healthy and not held by a pod
	Free     fleet.Resources // what no pod holds
	Pods     int             // pods that hold something
	Fabrics  int             // of those, members of clusters that have the host's fabric
	Keep     int             // percent of what falls to each free GPU that pods without GPUs leave to it; see Beside

	sum *summary // nil: not worked out
}

// Less returns the candidate without some of its free GPUs, by their UUIDs, and other resources, which so many
// pods more hold.
func (c *Candidate) Less(gpus []string, need fleet.Resources, pods int) Candidate {
	out := *c
	out.FreeGPUs = make([]fleet.GPU, 0, len(c.FreeGPUs))
	for i := range c.FreeGPUs {
		if !slices.Contains(gpus, c.FreeGPUs[i].UUID) {
			out.FreeGPUs = append(out.FreeGPUs, c.FreeGPUs[i])
		}
	}
	out.Free.MilliCPU -= need.MilliCPU
	out.Free.MemoryMB -= need.MemoryMB
	out.Free.DiskGB -= need.DiskGB
	out.Pods += pods
	out.sum = out.summarize(c)
	return out
}

// More returns the candidate with GPUs that are in service, by their UUIDs, and other resources, which so many pods have given up.
func (c *Candidate) More(gpus []string, free fleet.Resources, pods int) Candidate {
	out := *c
	out.FreeGPUs = nil
	for _, gpu := range c.Host.Inventory.GPUs {
		had := slices.ContainsFunc(c.FreeGPUs, func(g fleet.GPU) bool { return g.UUID == gpu.UUID })
		if had || gpu.Out() == "" && slices.Contains(gpus, gpu.UUID) {
			out.FreeGPUs = append(out.FreeGPUs, gpu)
		}
	}
	out.Free.MilliCPU += free.MilliCPU
	out.Free.MemoryMB += free.MemoryMB
	out.Free.DiskGB += free.DiskGB
	out.Pods -= pods
	out.sum = out.summarize(c)
	return out
}

// Request is what a pod needs of its host.
type Request struct {
	GPU     *fleet.GPURequest // nil: none; otherwise Count is at least 1
	Need    fleet.Resources   // shares, each at least 0
	Cloud   fleet.Cloud
	Centers []fleet.DataCenterID // empty: any
	Image   string               // reference; hosts that have it are preferred
	Model   string               // reference; in the place of the image, which is smaller: hosts that have it are preferred
	Prefer  fleet.HostID         // preferred among equals
	Pinned  fleet.HostID         // the only host that will do; empty: any

	// What the host must be, whatever is free on it. A host without a CUDA version fails any range that
	// states something.
	CUDA        *fleet.CUDARange // nil or zero: any
	MinMemoryMB int64            // of the host's total; 0: any
	MinMilliCPU int64            // of the host's total; 0: any
	// VolumeKind is the kind of backend of network volumes that the host must be able to mount; empty: none.
	VolumeKind fleet.BackendKind
	// Networked says that the host must have an end of the tunnel to other hosts.
	Networked bool
	// Fabric is the name of the fabric that the host must have, with room for another member of a cluster; empty: any, or none.
	Fabric string
}

// Choice is where a pod goes.
type Choice struct {
	Host       fleet.HostID
	GPUs       []string // UUIDs, as many as were asked for
	DataCenter fleet.DataCenterID
}

// NoCapacity is the public message of wire-facts 3.1.
const NoCapacity = "There are no longer any instances available with the requested specifications. " +
	"Please refresh and try again."

// Shortage tells whether a host that has free left can give need more: nil, or an error of code
// no_capacity like that of Pick.
func Shortage(need, free fleet.Resources) error {
	why := shortOf(&need, &free)
	if why == passes {
		return nil
	}
	return &fleet.Error{
		Code: fleet.CodeNoCapacity, Msg: NoCapacity,
		Excluded: []fleet.Exclusion{{Reason: shortage(why, &need, refused{most: leftOf(why, &free)}, false), Hosts: 1}},
	}
}

// Room returns how many pods like req a host takes now, one beside the other. Where it takes none because it has too little of
// a shared resource, it names that.
func Room(req Request, c *Candidate) (pods int, short fleet.Shortage) {
	q := ask(&req)
	switch firstRefusal(&q, c) {
	case passes:
		return fits(&req, c), ""
	case refusedCPU:
		return 0, fleet.ShortOfCPU
	case refusedMemory:
		return 0, fleet.ShortOfMemory
	case refusedDisk:
		return 0, fleet.ShortOfDisk
	}
	return 0, ""
}

// fits returns how many pods like req go on a host that passed the filters; it is at least 1 and at
// most MaxInt32, the answer for a request that needs nothing.
func fits(req *Request, c *Candidate) int {
	most, free := int64(math.MaxInt32), c.reach(req)
	for _, share := range [...][2]int64{
		{free.MilliCPU, req.Need.MilliCPU},
		{free.MemoryMB, req.Need.MemoryMB},
		{free.DiskGB, req.Need.DiskGB},
	} {
		if share[1] > 0 {
			most = min(most, share[0]/share[1])
		}
	}
	if req.GPU != nil {
		most = min(most, int64(c.summary().kind(req.GPU.Type).free/req.GPU.Count))
	}
	return int(most)
}
