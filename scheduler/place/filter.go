package place

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

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
	refusedVolume
	refusedTunnel
	refusedFabric
	refusedHostMemory
	refusedHostCPU
	refusedStanding
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
	case req.VolumeKind != "" && c.summary().volumes&bitOf(req.VolumeKind) == 0:
		return refusedVolume
	case req.Networked && !c.summary().networked:
		return refusedTunnel
	case req.Fabric != "" && c.summary().fabric != q.fabric:
		return refusedFabric
	case host.Inventory.Total.MemoryMB < req.MinMemoryMB:
		return refusedHostMemory
	case host.Inventory.Total.MilliCPU < req.MinMilliCPU:
		return refusedHostCPU
	}
	if takes, _ := host.Takes(); !takes {
		return refusedStanding
	}
	if req.GPU != nil && (req.GPU.Count < 1 || c.summary().kind(req.GPU.Type).free < req.GPU.Count) {
		return refusedGPUCount
	}
	free := c.reach(req)
	return shortOf(&req.Need, &free)
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

// exclusion is what hosts are counted by: the filter with, for the count of GPUs, its figures, for a host that
// takes no pods, why it does not, for one that cannot mount the network volume, its kind, and for one that has too little
// free, whether it keeps some of it for GPUs.
type exclusion struct {
	why         refusal
	free, total int
	standing    string
	kind        fleet.BackendKind
	keeps       bool
}

// words are the reasons as people read them; three are made where they are needed.
var words = [...]string{
	refusedPinned:     "the pod's data is on another host",
	refusedCenter:     "data center",
	refusedCloud:      "cloud tier",
	refusedGPUType:    "GPU type",
	refusedCUDA:       "CUDA version",
	refusedTunnel:     "no tunnel to other hosts",
	refusedFabric:     "not of the cluster's fabric",
	refusedHostMemory: "host memory",
	refusedHostCPU:    "host vCPUs",
	refusedCPU:        "CPU",
	refusedMemory:     "memory",
	refusedDisk:       "container disk",
	passes:            "",
}

// shortage says in words how much of a shared resource is needed, how much the best of the refused hosts has free, and how
// much all of them keep for GPUs. A GPU pod is refused for it only by hosts whose GPUs would do.
func shortage(why refusal, need *fleet.Resources, r refused, gpus bool) string {
	var needed, free, kept string
	switch most := max(0, r.most); why {
	case refusedCPU:
		needed, free, kept = plural(need.MilliCPU, 1000, "core"), amount(most, 1000), plural(r.kept, 1000, "core")
	case refusedMemory:
		needed, free, kept = amount(need.MemoryMB, 1000)+" GB", amount(most, 1000)+" GB", amount(r.kept, 1000)+" GB"
	case refusedDisk:
		needed, free = amount(need.DiskGB, 1)+" GB", amount(most, 1)+" GB"
	}
	text := fmt.Sprintf("%s: needs %s, at most %s free", words[why], needed, free)
	if r.kept > 0 {
		text += "; " + kept + " kept for GPUs"
	}
	if gpus {
		text += "; the GPUs are free"
	}
	return text
}

// amount writes a number of units; plural names them, too.
func amount(n, unit int64) string { return strconv.FormatFloat(float64(n)/float64(unit), 'f', -1, 64) }

func plural(n, unit int64, name string) string {
	if n == unit {
		return "1 " + name
	}
	return amount(n, unit) + " " + name + "s"
}

// leftOf is how much a host has free of the resource that a filter asks for; 0 for any other filter.
func leftOf(why refusal, free *fleet.Resources) int64 {
	switch why {
	case refusedCPU:
		return free.MilliCPU
	case refusedMemory:
		return free.MemoryMB
	case refusedDisk:
		return free.DiskGB
	}
	return 0
}

// String says in words why a host was refused.
func (e exclusion) String() string {
	switch e.why {
	case refusedStanding:
		return e.standing
	case refusedGPUCount:
		return fmt.Sprintf("%d of %d GPUs free", e.free, e.total)
	case refusedVolume:
		return fmt.Sprintf("cannot mount %s volumes", e.kind)
	}
	return words[e.why]
}

// excluded tells what a host is counted by.
func excluded(q *question, c *Candidate) exclusion {
	e := exclusion{why: firstRefusal(q, c)}
	switch e.why {
	case refusedStanding:
		_, e.standing = c.Host.Takes()
	case refusedGPUCount:
		k := c.summary().kind(q.GPU.Type)
		e.free, e.total = k.free, k.total
	case refusedVolume:
		e.kind = q.VolumeKind
	case refusedCPU, refusedMemory:
		e.keeps = c.keeps(q.Request)
	}
	return e
}

// tally counts refused hosts by reason.
type tally map[exclusion]refused

// refused is a number of hosts, how much the best of them has free of what is short, and how much of it they keep for GPUs.
type refused struct {
	hosts      int
	most, kept int64
}

// nothing is less than any host has free.
const nothing = math.MinInt64

// add counts hosts more, or less; most is nothing when what they have free does not count.
func (t tally) add(e exclusion, more refused) {
	r, known := t[e]
	if !known {
		r.most = nothing
	}
	t[e] = refused{r.hosts + more.hosts, max(r.most, more.most), r.kept + more.kept}
}

// host counts a host.
func (t tally) host(q *question, c *Candidate) {
	e := excluded(q, c)
	r := refused{hosts: 1, kept: e.keptBy(c)}
	free := c.reach(q.Request)
	r.most = leftOf(e.why, &free)
	t.add(e, r)
}

// keptBy is how much a host keeps for GPUs of what is short on it.
func (e exclusion) keptBy(c *Candidate) int64 {
	if !e.keeps {
		return 0
	}
	open := c.Beside(0)
	return leftOf(e.why, &c.Free) - leftOf(e.why, &open)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// error lists the reasons in the order of the filters. Hosts that pass are not told of.
func (t tally) error(q *question) error {
	order := slices.SortedFunc(maps.Keys(t), func(a, b exclusion) int {
		return cmp.Or(int(a.why-b.why), a.free-b.free, a.total-b.total, cmp.Compare(a.standing, b.standing), bit(a.keeps)-bit(b.keeps))
	})
	out := &fleet.Error{Code: fleet.CodeNoCapacity, Msg: NoCapacity}
	for _, e := range order {
		if e.why == passes || t[e].hosts <= 0 {
			continue
		}
		reason := e.String()
		if e.why == refusedCPU || e.why == refusedMemory || e.why == refusedDisk {
			reason = shortage(e.why, &q.Need, t[e], q.GPU != nil)
		}
		out.Excluded = append(out.Excluded, fleet.Exclusion{Reason: reason, Hosts: t[e].hosts})
	}
	return out
}
