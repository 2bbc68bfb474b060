package place

import "gantry/fleet"

// Beside returns what a pod that takes so many of the free GPUs can have of a host's free resources: all but what is kept for
// the other free GPUs. Of processors and memory that is, for each, Keep percent of its fair share of the host, as far as it is
// free. Of disks nothing is kept.
func (c *Candidate) Beside(gpus int) fleet.Resources {
	free := c.Free
	others, all := int64(len(c.FreeGPUs)-gpus), int64(len(c.Host.Inventory.GPUs))
	if others <= 0 || c.Keep <= 0 {
		return free
	}
	total, percent := &c.Host.Inventory.Total, int64(c.Keep)
	free.MilliCPU -= keepable(total.MilliCPU*percent/(100*all)*others, free.MilliCPU)
	free.MemoryMB -= keepable(total.MemoryMB*percent/(100*all)*others, free.MemoryMB)
	return free
}

// keepable returns how much of what is to be kept is free.
func keepable(kept, free int64) int64 { return max(0, min(kept, free)) }

// reach returns what is free for a request: a pod with GPUs may have all of it, one without what is not kept for GPUs.
func (c *Candidate) reach(req *Request) fleet.Resources {
	if req.GPU != nil {
		return c.Free
	}
	return c.Beside(0)
}

// keeps reports whether a host keeps something from a request for its GPUs.
func (c *Candidate) keeps(req *Request) bool {
	return req.GPU == nil && c.Keep > 0 && len(c.FreeGPUs) > 0
}
