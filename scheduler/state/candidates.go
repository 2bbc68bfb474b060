package state

import (
	"gantry/fleet"
	"gantry/scheduler/place"
)

// Fleet returns all hosts but those that are gone, with what is free on them. It and all that it leads to are
// shared, must not be changed, and are what they are only until the view ends.
func (v *View) Fleet() *place.Index {
	// Whoever comes first after an Apply brings the index to the tables. Nothing changes it after that for as
	// long as a view is open, for nothing touches a host.
	tb := v.tb
	tb.candMu.Lock()
	defer tb.candMu.Unlock()
	if tb.candidates == nil {
		tb.candidates = place.NewIndex()
	}
	tb.refresh(tb.candidates)
	return tb.candidates
}

// refresh does those hosts anew that changed. The caller holds mu for reading and candMu.
func (tb *tables) refresh(x *place.Index) {
	keep := placementOf(tb.placement.Rows[onlyKey]).KeepPercent
	for id := range tb.touched {
		if h := tb.host(id); h != nil && h.State != fleet.HostGone {
			x.Put(candidate(h, tb.occupants(id), keep))
		} else {
			x.Remove(id)
		}
	}
	clear(tb.touched)
}

// candidate works out what is free on a host from the pods that hold something there, and how much of it is kept for GPUs.
func candidate(h *fleet.Host, on []*fleet.Pod, keep int) place.Candidate {
	used, _, held := usedBy(on)
	free := make([]fleet.GPU, 0, len(h.Inventory.GPUs))
	for _, gpu := range h.Inventory.GPUs {
		if gpu.Out() == "" && holder(on, gpu.UUID) == nil {
			free = append(free, gpu)
		}
	}
	return place.Candidate{
		Host: h, FreeGPUs: free, Free: minus(h.Inventory.Total, used), Pods: held, Fabrics: fabricsHeld(on), Keep: keep,
	}
}
