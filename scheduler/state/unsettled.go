package state

import (
	"time"

	"gantry/fleet"
)

// unsettled reports whether a host may run pods that a restored cluster does not know of, or knows as ended: it was not
// compared yet, or what it had too much is not gone. A cluster that was never restored has no lineage.
func unsettled(h *fleet.Host, lineage uint64) bool {
	return lineage > 0 && h.State != fleet.HostFenced && h.State != fleet.HostGone && (h.Lineage != lineage || len(h.Leftovers) > 0)
}

// Unsettled returns up to when network volumes of a data center were created that pods may have of which a restored
// cluster does not know; zero: there are none. What is left of those stays until their hosts have connected, or were
// fenced or removed.
func (v *View) Unsettled(center fleet.DataCenterID) time.Time {
	lineage := v.tb.lineage()
	for _, h := range v.tb.hosts.Rows {
		if h.DataCenter == center && unsettled(h, lineage) {
			return v.tb.cluster.Rows[onlyKey].RestoredAt
		}
	}
	return time.Time{}
}

// unsettled is View.Unsettled, as the batch has it.
func (t *txn) unsettled(center fleet.DataCenterID) time.Time {
	lineage := t.lineage()
	if t.base.hosts.Count(t.Txn, func(h *fleet.Host) bool { return h.DataCenter == center && unsettled(h, lineage) }) == 0 {
		return time.Time{}
	}
	return t.base.cluster.Get(t.Txn, onlyKey).RestoredAt
}

// settle is called with every record of a host that is written, and the one before, and says to those who look after
// storage when a host keeps nothing back any more.
func (t *txn) settle(old, h *fleet.Host) {
	if lineage := t.lineage(); old != nil && unsettled(old, lineage) && !unsettled(h, lineage) {
		t.noteBackends(func(b *fleet.Backend) bool { return b.DataCenter == h.DataCenter })
	}
}
