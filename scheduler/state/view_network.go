package state

import (
	"gantry/fleet"
)

// NetworkSettings returns the settings of private networks: the operator's, or those of a cluster without any.
func (v *View) NetworkSettings() fleet.NetworkSettings {
	if s := v.tb.networkSettings.Rows[onlyKey]; s != nil {
		return cloneNetworkSettings(s)
	}
	return fleet.DefaultNetworkSettings()
}

// Overlay returns a private network.
func (v *View) Overlay(id fleet.OverlayID) (fleet.Overlay, bool) {
	o := v.tb.overlays.Rows[id]
	if o == nil {
		return fleet.Overlay{}, false
	}
	return *o, true
}

// Overlays returns all private networks by id.
func (v *View) Overlays() []fleet.Overlay { return cloneOverlays(v.tb.overlays.Rows) }

// OverlaysOf returns the private networks of an account by id.
func (v *View) OverlaysOf(account fleet.AccountID) []fleet.Overlay {
	return cloneOverlays(v.tb.overlaysOf.Rows[account])
}

func cloneOverlays(rows map[fleet.OverlayID]*fleet.Overlay) []fleet.Overlay {
	out := make([]fleet.Overlay, 0, len(rows))
	for _, id := range sortedKeys(rows) {
		out = append(out, *rows[id])
	}
	return out
}

// OverlayMembers returns what a host has to know of an overlay's members, by address. With since 0 it is all of them that a host
// holds in the network now; else all that changed after that revision of the overlay, also those that no host holds any more,
// which have no Host.
func (v *View) OverlayMembers(id fleet.OverlayID, since uint64) []fleet.OverlayMember {
	of := v.tb.networks.of[id]
	switch {
	case of == nil:
		return []fleet.OverlayMember{}
	case since > 0:
		return of.since(since)
	}
	return of.all(func(m *fleet.OverlayMember) bool { return m.Host != "" })
}

// OverlayAddresses returns the addresses of an overlay that belong to pods now, those of stopped pods too, in order.
func (v *View) OverlayAddresses(id fleet.OverlayID) []fleet.OverlayMember {
	of := v.tb.networks.of[id]
	if of == nil {
		return []fleet.OverlayMember{}
	}
	return of.all(func(m *fleet.OverlayMember) bool { return m.FreeAt.IsZero() })
}

// all returns the members that match, by address.
func (of *memberIndex) all(match func(*fleet.OverlayMember) bool) []fleet.OverlayMember {
	out := []fleet.OverlayMember{}
	for _, m := range of.rows {
		if match(m) {
			out = append(out, *m)
		}
	}
	return byAddr(out)
}

// OverlayHosts returns the hosts that hold members of an overlay now, by id.
func (v *View) OverlayHosts(id fleet.OverlayID) []fleet.HostID {
	of := v.tb.networks.of[id]
	if of == nil {
		return []fleet.HostID{}
	}
	return append([]fleet.HostID{}, sortedKeys(of.hosts)...)
}

// HostOverlays returns the overlays of which a host holds members now, by id.
func (v *View) HostOverlays(host fleet.HostID) []fleet.OverlayID {
	return append([]fleet.OverlayID{}, sortedKeys(v.tb.networks.on[host])...)
}
