package place

import (
	"cmp"

	"gantry/fleet"
)

// rank orders hosts that passed the filters. Fields are compared from the top, lower is better; the
// last one is the host's id, so that two hosts are never equal.
//
// A pod with GPUs goes where it fills what is already broken up: first as few NVLink islands and
// NUMA nodes as possible, then the island and the host on which the fewest GPUs stay free, so that
// whole islands and hosts stay whole for those who need them. A pod without GPUs goes to a host
// without GPUs, else to the one with the fewest free GPUs: its shares are the least missed there.
// After that: the image is there (the model, where one is needed), the host is preferred, the host is the least loaded.
type rank struct {
	grade
	c *Candidate

	// Looked up only when the grades are equal.
	known bool
	image bool
	load  int64
}

// grade is what GPUs alone decide; hosts of one shape have the same.
type grade struct {
	islands    int // that the chosen GPUs span
	nodes      int // NUMA nodes that they span
	islandLeft int // GPUs left free on those islands
	hostLeft   int // GPUs left free on the host
}

func (g grade) compare(other grade) int {
	return cmp.Or(g.islands-other.islands, g.nodes-other.nodes, g.islandLeft-other.islandLeft, g.hostLeft-other.hostLeft)
}

// question is a request with what asking and comparing hosts needs of it, worked out once.
type question struct {
	*Request
	image  uint64 // hash of the model or the image; 0: none
	fabric uint64 // hash; 0: any

	statesCUDA bool
	allowed    []cudaVersion
	min        cudaVersion
}

// ask prepares a request.
func ask(req *Request) question {
	q := question{Request: req, fabric: hashOf(req.Fabric)}
	if req.Model != "" {
		q.image = hashOf(req.Model)
	} else if req.Image != "" {
		full, _ := fleet.ImageName(req.Image)
		q.image = hashOf(full)
	}
	if req.CUDA == nil || len(req.CUDA.Allowed) == 0 && req.CUDA.Min == "" {
		return q
	}
	q.statesCUDA, q.min = true, parseCUDA(req.CUDA.Min)
	for _, version := range req.CUDA.Allowed {
		q.allowed = append(q.allowed, parseCUDA(version))
	}
	return q
}

// rankOf ranks a host that passed the filters.
func rankOf(req *Request, c *Candidate) rank {
	if req.GPU == nil {
		return rank{c: c, grade: gradeWithout(c)}
	}
	return rank{c: c, grade: gradeFor(req.GPU.Count, c.summary().kind(req.GPU.Type).groups, len(c.FreeGPUs))}
}

// gradeWithout is the grade of a host for pods without GPUs.
func gradeWithout(c *Candidate) grade {
	g := grade{hostLeft: len(c.FreeGPUs)}
	if len(c.Host.Inventory.GPUs) > 0 {
		g.islands = 1 // any GPU host comes after every host without
	}
	return g
}

// gradeFor is the grade of a host of which so many GPUs are free, of any type, for count of those in groups.
func gradeFor(count int, groups []group, free int) grade {
	var p plan
	p.make(count, groups)
	return grade{islands: p.islands, nodes: p.nodes, islandLeft: p.left, hostLeft: free - count}
}

// betterThan reports whether r comes before other.
func (r *rank) betterThan(other *rank, q *question) bool {
	if d := r.compare(other.grade); d != 0 {
		return d < 0
	}
	r.lookUp(q)
	other.lookUp(q)
	if r.image != other.image {
		return r.image
	}
	a, b := r.c.Host, other.c.Host
	if a.ID == q.Prefer || b.ID == q.Prefer {
		return a.ID == q.Prefer
	}
	if r.load != other.load {
		return r.load < other.load
	}
	if r.c.Pods != other.c.Pods {
		return r.c.Pods < other.c.Pods
	}
	return a.ID < b.ID
}

// lookUp works out, once, what is compared last.
func (r *rank) lookUp(q *question) {
	if !r.known {
		r.known = true
		r.image = q.image != 0 && r.c.summary().hasImage(q.image)
		r.load = load(r.c, &q.Need)
	}
}

// load is the share of the host's scarcest resource that is in use once the pod is there, in
// millionths.
func load(c *Candidate, need *fleet.Resources) int64 {
	total := c.Host.Inventory.Total
	most := int64(0)
	for _, share := range [...][3]int64{
		{total.MilliCPU, c.Free.MilliCPU, need.MilliCPU},
		{total.MemoryMB, c.Free.MemoryMB, need.MemoryMB},
		{total.DiskGB, c.Free.DiskGB, need.DiskGB},
	} {
		if share[0] > 0 {
			most = max(most, (share[0]-share[1]+share[2])*1_000_000/share[0])
		}
	}
	return most
}
