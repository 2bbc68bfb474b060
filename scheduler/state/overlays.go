package state

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

const (
	// firstAddr is the first address of an overlay that a pod can have, counted from the first of its range. The last one of the
	// range is left out, too.
	firstAddr = 2
	// firstWindow is how many addresses of a range are used at first. The next ones are used when none of those is free, as many
	// again each time: so there are not many more rows than pods at one time, however many come and go.
	firstWindow = 1024
)

// overlayFor returns an overlay, which it makes when it is not there. Errors: no_capacity.
func (t *txn) overlayFor(id fleet.OverlayID, account fleet.AccountID) (*fleet.Overlay, error) {
	if o := t.base.overlays.Get(t.Txn, id); o != nil {
		return o, nil
	}
	s, c := t.networkSettings(), t.cursors()
	for range vnisOf(s) {
		n := c.Overlays % vnisOf(s)
		if c.Overlays = n + 1; t.base.overlaysByVNI.Count(t.Txn, vniKey(s.FirstVNI+n)) > 0 {
			continue
		}
		o := &fleet.Overlay{
			ID: id, Account: account, VNI: s.FirstVNI + n, CIDR: t.rangeFor(s, n, account), CreatedAt: t.now, Next: firstAddr,
		}
		t.putCursors(c)
		t.putOverlay(o)
		return o, nil
	}
	return nil, &fleet.Error{Code: fleet.CodeNoCapacity, Msg: "There are as many private networks as there can be."}
}

// vnisOf returns how many VNIs there are for overlays.
func vnisOf(s *fleet.NetworkSettings) uint32 { return maxVNI - s.FirstVNI + 1 }

func vniKey(vni uint32) string { return strconv.FormatUint(uint64(vni), 10) }

// rangeFor returns the range of the n-th overlay: ranges are given out in turn, and then again. One account gets none twice as
// long as there are others.
func (t *txn) rangeFor(s *fleet.NetworkSettings, n uint32, account fleet.AccountID) (out netip.Prefix) {
	var own []netip.Prefix
	t.base.overlaysOf.Each(t.Txn, account, func(_ fleet.OverlayID, o *fleet.Overlay) { own = append(own, o.CIDR) })
	slots := slotsOf(s)
	for i := range slots {
		slot := (n%slots + i) % slots
		if !usableSlot(s, slot) {
			continue
		}
		at := slotAt(s, slot)
		if !slices.ContainsFunc(own, at.Overlaps) {
			return at
		}
		if !out.IsValid() {
			out = at
		}
	}
	return out
}

// takeAddr gives a pod the next free address of an overlay. Errors: no_capacity.
func (t *txn) takeAddr(o *fleet.Overlay, p *fleet.Pod) (netip.Addr, error) {
	n, ok := t.findAddr(o)
	if !ok {
		return netip.Addr{}, &fleet.Error{Code: fleet.CodeNoCapacity, Msg: fmt.Sprintf(
			"The private network %s has no address left for the pod: it is for at most %d pods.", o.CIDR, lastAddr(o)-firstAddr+1)}
	}
	next := *o
	next.Next = n + 1
	t.putOverlay(&next)
	m := fleet.OverlayMember{Overlay: o.ID, Addr: addrAt(o.CIDR, n), Pod: p.ID, Name: p.Spec.Name}
	if old := t.base.overlayMembers.Get(t.Txn, memberKey(o.ID, m.Addr)); old != nil {
		m.Rev = old.Rev
	}
	t.base.overlayMembers.Put(t.Txn, memberKey(o.ID, m.Addr), &m)
	return m.Addr, nil
}

// lastAddr is the last address of an overlay that a pod can have, counted from the first of its range.
func lastAddr(o *fleet.Overlay) uint32 { return 1<<(32-o.CIDR.Bits()) - 2 }

// findAddr returns the next free address of an overlay, counted from the first of its range: from where the last one was given
// out to the end of those in use, then from the first one on, then of those that were not used yet.
func (t *txn) findAddr(o *fleet.Overlay) (uint32, bool) {
	at, end := o.Next, lastAddr(o)+1
	window := uint32(firstWindow)
	if used := at >= window && at&(at-1) == 0; used || at < firstAddr || at >= end { // it is behind the last of those in use
		at = firstAddr
	}
	for window <= at {
		window *= 2
	}
	window = min(window, end)
	if n, ok := t.freeAmong(o, at, window); ok {
		return n, true
	}
	if n, ok := t.freeAmong(o, firstAddr, at); ok {
		return n, true
	}
	for from := window; from < end; from = min(end, 2*from) {
		if n, ok := t.freeAmong(o, from, min(end, 2*from)); ok {
			return n, true
		}
	}
	return 0, false
}

// freeAmong returns the first address that no pod has, and none had within the grace time, of those before to.
func (t *txn) freeAmong(o *fleet.Overlay, from, to uint32) (uint32, bool) {
	for n := from; n < to; n++ {
		m := t.base.overlayMembers.Get(t.Txn, memberKey(o.ID, addrAt(o.CIDR, n)))
		if m == nil || !m.FreeAt.IsZero() && !m.FreeAt.After(t.now) {
			return n, true
		}
	}
	return 0, false
}

// skipNetworks has a restored cluster give out VNIs and addresses that others of its copy do not give out, as far as that can be.
func (t *txn) skipNetworks() {
	lineage, s, c := t.lineage(), t.networkSettings(), t.cursors()
	c.Overlays = pastCopy(c.Overlays, vnisOf(s), lineage)
	c.Tunnel = pastCopy(c.Tunnel, tunnelsOf(s), lineage)
	t.putCursors(c)
	for _, id := range t.base.overlays.Keys(t.Txn, 0, table.All) {
		o := *t.base.overlays.Get(t.Txn, id)
		o.Next = firstAddr + pastCopy(o.Next-firstAddr, lastAddr(&o)-firstAddr+1, lineage)
		t.putOverlay(&o)
	}
}
