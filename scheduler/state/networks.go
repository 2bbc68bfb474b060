package state

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"gantry/fleet"
)

// networkCursors say where the search for what is given out in turn goes on.
type networkCursors struct {
	Overlays uint32 `cbor:"1,keyasint"` // how many steps the VNI and the range of the next overlay are from the first
	Tunnel   uint32 `cbor:"2,keyasint"` // the address of the next host in the tunnel, counted from the first of its range
}

// memberKey is the key of a member's row: no address has a '|'.
func memberKey(overlay fleet.OverlayID, addr netip.Addr) string {
	return string(overlay) + "|" + addr.String()
}

// networkSettings returns the settings of private networks, which must not be changed.
func (t *txn) networkSettings() *fleet.NetworkSettings {
	if s := t.base.networkSettings.Get(t.Txn, onlyKey); s != nil {
		return s
	}
	s := fleet.DefaultNetworkSettings()
	return &s
}

func (t *txn) cursors() networkCursors {
	if c := t.base.networkCursors.Get(t.Txn, onlyKey); c != nil {
		return *c
	}
	return networkCursors{}
}

func (t *txn) putCursors(c networkCursors) { t.base.networkCursors.Put(t.Txn, onlyKey, &c) }

func (c PutNetworkSettings) apply(t *txn) (any, error) {
	s := cloneNetworkSettings(&c.Settings)
	if err := checkNetworkSettings(&s); err != nil {
		return nil, err
	}
	hosts := t.base.hosts.Count(t.Txn, func(h *fleet.Host) bool { return h.Tunnel.IsValid() && !s.Tunnel.Contains(h.Tunnel) })
	overlays := t.base.overlays.Count(t.Txn, func(o *fleet.Overlay) bool { return o.CIDR.Overlaps(s.Tunnel) })
	switch {
	case hosts > 0:
		return nil, fleet.BreaksRule("tunnelRange must hold the addresses that hosts have in the tunnel already; it can be wider")
	case overlays > 0:
		return nil, fleet.BreaksRule("tunnelRange must not overlap a private network that is there already")
	}
	t.base.networkSettings.Put(t.Txn, onlyKey, &s)
	t.Note(KindNetwork, "")
	return cloneNetworkSettings(&s), nil
}

// networksOf lists the overlays in which an incarnation of the pod that begins now takes part.
func networksOf(p *fleet.Pod) []fleet.OverlayID {
	var out []fleet.OverlayID
	if p.Spec.GlobalNetworking {
		out = append(out, fleet.AccountOverlay(p.Account))
	}
	if id := memberOf(p); id != "" {
		out = append(out, fleet.ClusterOverlay(id))
	}
	return out
}

// networked reports whether a host can give a pod a private network: it has an end of the tunnel and, for the network of an account, it
// is in a data center that has those.
func (t *txn) networked(p *fleet.Pod, h *fleet.Host, id fleet.OverlayID) bool {
	if id != fleet.AccountOverlay(p.Account) {
		return h.Networked()
	}
	center := t.base.centers.Get(t.Txn, h.DataCenter)
	return center != nil && center.GlobalNetwork && h.Networked()
}

// connectable refuses a host that cannot give the pod its private networks.
func (t *txn) connectable(p *fleet.Pod, h *fleet.Host) error {
	for _, id := range networksOf(p) {
		if !t.networked(p, h, id) {
			return fleet.Stale("the host gives pods no private networks")
		}
	}
	return nil
}

// attach gives the pod's incarnation that begins now its places in private networks: addresses that it had before, or new ones.
// On a host that has no such networks, where it restarts, it takes part in none; it keeps its addresses. Errors: no_capacity.
func (t *txn) attach(p *fleet.Pod) error {
	host := t.base.hosts.Get(t.Txn, p.Host)
	var places []fleet.OverlayPlace
	for _, place := range p.Overlays {
		place.On = false
		if t.keeps(p, place) {
			places = append(places, place)
		}
	}
	p.Overlays = places
	for _, id := range networksOf(p) {
		if !t.networked(p, host, id) {
			continue
		}
		i := slices.IndexFunc(places, func(at fleet.OverlayPlace) bool { return at.Overlay == id })
		if i >= 0 {
			places[i].On = true
			continue
		}
		overlay, err := t.overlayFor(id, p.Account)
		if err != nil {
			return err
		}
		addr, err := t.takeAddr(overlay, p)
		if err != nil {
			return err
		}
		places = append(places, fleet.OverlayPlace{Overlay: id, Addr: addr, On: true})
	}
	slices.SortFunc(places, func(a, b fleet.OverlayPlace) int { return cmp.Compare(a.Overlay, b.Overlay) })
	p.Overlays = places
	return nil
}

// detach says that no container of the pod is left that could take part in a network.
func detach(p *fleet.Pod) {
	p.Overlays = slices.Clone(p.Overlays)
	for i := range p.Overlays {
		p.Overlays[i].On = false
	}
}

// keeps reports whether an address is still the pod's. It may not be when a pod runs that is terminated in a restored copy.
func (t *txn) keeps(p *fleet.Pod, place fleet.OverlayPlace) bool {
	m := t.base.overlayMembers.Get(t.Txn, memberKey(place.Overlay, place.Addr))
	return m != nil && m.Pod == p.ID
}

// follow is called with every record of a pod that is written, and has the rows of its addresses follow it. An address that is
// another pod's by now is taken from it.
func (t *txn) follow(p *fleet.Pod) {
	lost := func(place fleet.OverlayPlace) bool { return !t.keeps(p, place) }
	p.Overlays = slices.DeleteFunc(slices.Clone(p.Overlays), lost)
	for _, place := range p.Overlays {
		old := t.base.overlayMembers.Get(t.Txn, memberKey(place.Overlay, place.Addr))
		m := *old
		m.Name, m.Host = p.Spec.Name, ""
		if place.On && p.Held {
			m.Host = p.Host
		}
		switch {
		case p.Status != fleet.StatusTerminated || p.Held:
			m.FreeAt = time.Time{}
		case m.FreeAt.IsZero():
			m.FreeAt = freeAt(t.now, t.networkSettings().Grace)
		}
		if m == *old {
			continue
		}
		if m.Host != old.Host || m.Host != "" {
			m.Rev = t.revise(place.Overlay)
		}
		t.base.overlayMembers.Put(t.Txn, memberKey(place.Overlay, place.Addr), &m)
	}
}

// freeAt is when an address may become another pod's. It is never zero, and never a time that no record can hold.
func freeAt(now time.Time, grace time.Duration) time.Time {
	at := now.UTC().Add(max(grace, time.Nanosecond))
	if at.Year() > 9999 {
		return now
	}
	return at
}

// revise gives an overlay its next revision and returns it.
func (t *txn) revise(id fleet.OverlayID) uint64 {
	o := *t.base.overlays.Get(t.Txn, id)
	o.Rev = max(o.Rev, lineageFloor(t.lineage())) + 1
	t.putOverlay(&o)
	return o.Rev
}

func (t *txn) putOverlay(o *fleet.Overlay) {
	t.base.overlays.Put(t.Txn, o.ID, o)
	t.Note(KindNetwork, string(o.ID))
}
