package state

import (
	"cmp"
	"net/netip"
	"slices"

	"gantry/fleet"
)

// networkIndex is what is derived from the members of overlays.
type networkIndex struct {
	of map[fleet.OverlayID]*memberIndex
	// on counts the members of each overlay that a host has.
	on map[fleet.HostID]map[fleet.OverlayID]int
	// mixed holds the overlays whose latest changes are not in order.
	mixed map[fleet.OverlayID]struct{}
}

// memberIndex is what is derived from the members of one overlay.
type memberIndex struct {
	rows  map[netip.Addr]*fleet.OverlayMember
	hosts map[fleet.HostID]int // how many members each has
	// changes has every member at its revision, in order up to sorted; those of which a later one is there count no more.
	changes []memberChange
	sorted  int
}

// memberChange is when a member last changed, or changed once.
type memberChange struct {
	rev  uint64
	addr netip.Addr
}

func newNetworkIndex() networkIndex {
	return networkIndex{
		of:    map[fleet.OverlayID]*memberIndex{},
		on:    map[fleet.HostID]map[fleet.OverlayID]int{},
		mixed: map[fleet.OverlayID]struct{}{},
	}
}

// takeMember replaces old by m, either of which may be nil.
func (x *networkIndex) takeMember(old, m *fleet.OverlayMember) {
	if old != nil {
		of := x.of[old.Overlay]
		delete(of.rows, old.Addr)
		x.count(old, -1)
		if len(of.rows) == 0 && m == nil {
			delete(x.of, old.Overlay)
		}
	}
	if m == nil {
		return
	}
	of := x.of[m.Overlay]
	if of == nil {
		of = &memberIndex{rows: map[netip.Addr]*fleet.OverlayMember{}, hosts: map[fleet.HostID]int{}}
		x.of[m.Overlay] = of
	}
	of.rows[m.Addr] = m
	x.count(m, 1)
	if old == nil || old.Rev != m.Rev {
		of.changes = append(of.changes, memberChange{m.Rev, m.Addr})
		x.mixed[m.Overlay] = struct{}{}
	}
}

// count says that a host has a member, or has it no more.
func (x *networkIndex) count(m *fleet.OverlayMember, n int) {
	if m.Host == "" {
		return
	}
	of := x.of[m.Overlay]
	if of.hosts[m.Host] += n; of.hosts[m.Host] == 0 {
		delete(of.hosts, m.Host)
	}
	if x.on[m.Host] == nil {
		x.on[m.Host] = map[fleet.OverlayID]int{}
	}
	if x.on[m.Host][m.Overlay] += n; x.on[m.Host][m.Overlay] == 0 {
		delete(x.on[m.Host], m.Overlay)
	}
	if len(x.on[m.Host]) == 0 {
		delete(x.on, m.Host)
	}
}

// order puts the changes of a batch, or of a file, into order. Revisions only grow, so that as a rule it is the new ones alone.
func (x *networkIndex) order() {
	for id := range x.mixed {
		if of := x.of[id]; of != nil {
			of.order()
		}
	}
	clear(x.mixed)
}

func (of *memberIndex) order() {
	byRev := func(a, b memberChange) int { return cmp.Or(cmp.Compare(a.rev, b.rev), a.addr.Compare(b.addr)) }
	fresh := of.changes[of.sorted:]
	slices.SortFunc(fresh, byRev)
	if of.sorted > 0 && byRev(fresh[0], of.changes[of.sorted-1]) < 0 {
		slices.SortFunc(of.changes, byRev)
	}
	if len(of.changes) > 2*len(of.rows)+64 {
		of.changes = slices.Clone(slices.DeleteFunc(of.changes, func(c memberChange) bool { return !of.current(c) }))
	}
	of.sorted = len(of.changes)
}

// current reports whether a member did not change after that.
func (of *memberIndex) current(c memberChange) bool {
	m := of.rows[c.addr]
	return m != nil && m.Rev == c.rev
}

// since returns the members that changed after a revision, by address.
func (of *memberIndex) since(rev uint64) []fleet.OverlayMember {
	from, _ := slices.BinarySearchFunc(of.changes, rev, func(c memberChange, rev uint64) int {
		if c.rev > rev {
			return 1
		}
		return -1
	})
	out := []fleet.OverlayMember{}
	for _, c := range of.changes[from:] {
		if of.current(c) {
			out = append(out, *of.rows[c.addr])
		}
	}
	return byAddr(out)
}

// byAddr sorts members by their addresses.
func byAddr(members []fleet.OverlayMember) []fleet.OverlayMember {
	slices.SortFunc(members, func(a, b fleet.OverlayMember) int { return a.Addr.Compare(b.Addr) })
	return members
}
