package state

import (
	"cmp"
	"slices"
	"testing"

	"gantry/fleet"

	"gantry/scheduler/place"
)

// Candidates returns the hosts of the fleet by id.
func (v *View) Candidates() []place.Candidate {
	out := []place.Candidate{}
	v.Fleet().All(func(c *place.Candidate) { out = append(out, *c) })
	slices.SortFunc(out, func(a, b place.Candidate) int { return cmp.Compare(a.Host.ID, b.Host.ID) })
	return out
}

func TestFleetFollowsTheTables(t *testing.T) {
	w := newWorld(t).settle()
	first := w.dump().Candidates
	w.create("pod-1", "host-a", 0)
	if len(first[0].FreeGPUs) != 4 || len(w.dump().Candidates[0].FreeGPUs) != 3 {
		t.Error("what was copied out changed, or the fleet did not")
	}
	if a, b := w.dump().Candidates, w.dump().Candidates; a[0].Host != b[0].Host {
		t.Error("a host is worked out anew although nothing changed")
	}
	w.inTxn(at(9), func(tx *txn) {
		gone := *tx.base.hosts.Get(tx.Txn, "host-a")
		gone.State = fleet.HostGone
		tx.base.hosts.Put(tx.Txn, gone.ID, &gone)
	})
	if n := len(w.dump().Candidates); n != len(first)-1 {
		t.Errorf("a host that is gone is one of %d", n)
	}
}
