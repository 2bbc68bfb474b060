// Package place picks a host for a pod. It is pure: it reads candidates and a request and returns a
// choice; it starts nothing, stores nothing, reads no clock, draws nothing at random and does not
// know that Raft exists. Equal arguments give equal answers on every machine.
//
// A pick is a proposal, not a reservation: whoever commits it checks again that what was picked is
// still free.
package place

import (
	"math"

	"gantry/fleet"
)

// Candidate is a host with what is free on it. Candidates are read-only and may be shared between
// any number of concurrent picks. NewCandidate makes one that is quick to pick from; one that is
// written out gives the same answers.
type Candidate struct {
	Host     *fleet.Host
	FreeGPUs []fleet.GPU     // healthy and not held by a pod
	Free     fleet.Resources // what no pod holds
	Pods     int             // pods that hold something

	sum *summary // nil: not worked out
}

// NewCandidate returns a candidate with what picking looks at worked out. The arguments must not be
// changed afterwards.
func NewCandidate(host *fleet.Host, freeGPUs []fleet.GPU, free fleet.Resources, pods int) Candidate {
	c := Candidate{Host: host, FreeGPUs: freeGPUs, Free: free, Pods: pods}
	c.sum = c.summarize()
	return c
}

// Request is what a pod needs of its host.
type Request struct {
	GPU     *fleet.GPURequest // nil: none; otherwise Count is at least 1
	Need    fleet.Resources   // shares, each at least 0
	Cloud   fleet.Cloud
	Centers []fleet.DataCenterID // empty: any
	Image   string               // reference; hosts that have it are preferred
	Prefer  fleet.HostID         // preferred among equals
	Pinned  fleet.HostID         // the only host that will do; empty: any

	// What the host must be, whatever is free on it. A host without a CUDA version fails any range that
	// states something.
	CUDA        *fleet.CUDARange // nil or zero: any
	MinMemoryMB int64            // of the host's total; 0: any
	MinMilliCPU int64            // of the host's total; 0: any
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

// Pick chooses the best host for req. It fails only with a *fleet.Error of code no_capacity, whose
// Excluded counts every candidate once, under the first filter that refused it.
func Pick(req Request, candidates []Candidate) (Choice, error) {
	q := ask(&req)
	var best rank
	found := -1
	for i := range candidates {
		c := &candidates[i]
		if firstRefusal(&q, c) != passes {
			continue
		}
		r := rankOf(&req, c)
		if found < 0 || r.betterThan(&best, &q) {
			best, found = r, i
		}
	}
	if found < 0 {
		return Choice{}, explain(&q, candidates)
	}
	host := candidates[found].Host
	return Choice{Host: host.ID, GPUs: chooseGPUs(req.GPU, &candidates[found]), DataCenter: host.DataCenter}, nil
}

// Stock returns how many pods like req the candidates could take now, one beside the other. It uses
// the filters of Pick: it is 0 exactly when Pick fails.
func Stock(req Request, candidates []Candidate) int {
	q, total := ask(&req), 0
	for i := range candidates {
		if firstRefusal(&q, &candidates[i]) != passes {
			continue
		}
		total += fits(&req, &candidates[i])
		if total > math.MaxInt32 {
			return math.MaxInt32
		}
	}
	return total
}

// Shortage tells whether a host that has free left can give need more: nil, or an error of code
// no_capacity like that of Pick.
func Shortage(need, free fleet.Resources) error {
	why := shortOf(&need, &free)
	if why == passes {
		return nil
	}
	return &fleet.Error{
		Code: fleet.CodeNoCapacity, Msg: NoCapacity,
		Excluded: []fleet.Exclusion{{Reason: exclusion{why: why}.String(), Hosts: 1}},
	}
}

// fits returns how many pods like req go on a host that passed the filters; it is at least 1 and at
// most MaxInt32, the answer for a request that needs nothing.
func fits(req *Request, c *Candidate) int {
	most := int64(math.MaxInt32)
	for _, share := range [...][2]int64{
		{c.Free.MilliCPU, req.Need.MilliCPU},
		{c.Free.MemoryMB, req.Need.MemoryMB},
		{c.Free.DiskGB, req.Need.DiskGB},
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
