package state

import (
	"cmp"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/place"
)

// Candidates returns all hosts, by id, with what is free on them. The slice and all that it points to
// are shared and must not be changed; they stay as they are after the view has ended.
func (v *View) Candidates() []place.Candidate {
	s := v.store
	s.candMu.Lock()
	defer s.candMu.Unlock()
	if len(v.tb.touched) > 0 {
		s.candidates = v.tb.refresh(s.candidates)
	}
	return s.candidates
}

// refresh returns the candidates with those hosts done anew that changed since; the old ones may be
// in use and stay as they are. The caller holds mu for reading and candMu.
func (tb *tables) refresh(old []place.Candidate) []place.Candidate {
	out := make([]place.Candidate, len(old), len(old)+len(tb.touched))
	copy(out, old)
	for _, id := range sortedKeys(tb.touched) {
		i, there := slices.BinarySearchFunc(out, id, func(c place.Candidate, id fleet.HostID) int {
			return cmp.Compare(c.Host.ID, id)
		})
		h := tb.host(id)
		switch {
		case h == nil && there:
			out = slices.Delete(out, i, i+1)
		case h != nil && there:
			out[i] = tb.candidate(h)
		case h != nil:
			out = slices.Insert(out, i, tb.candidate(h))
		}
	}
	clear(tb.touched)
	return out
}

// candidate works out what is free on a host from the pods that hold something there.
func (tb *tables) candidate(h *fleet.Host) place.Candidate {
	on := tb.onHost[h.ID]
	used, _, held := usedBy(on)
	free := make([]fleet.GPU, 0, len(h.Inventory.GPUs))
	for _, gpu := range h.Inventory.GPUs {
		if gpu.Sick == "" && holder(on, gpu.UUID) == nil {
			free = append(free, gpu)
		}
	}
	return place.NewCandidate(h, free, minus(h.Inventory.Total, used), held)
}
