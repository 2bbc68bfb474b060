package networks

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/feed"
	"gantry/scheduler/state"
)

// line is what one session has sent of private networks.
type line struct {
	of      *Networks
	session feed.Session

	// Of Next and Forget.
	set      *agentrpc.NetworkSet
	overlays map[fleet.OverlayID]uint64 // revisions
	peersAt  uint64                     // see peerIndex.tellPeers
}

// Forget implements feed.Line.
func (t *line) Forget() { t.set, t.overlays, t.peersAt = nil, nil, 0 }

// Heard implements feed.Line: hosts say nothing of private networks.
func (t *line) Heard(context.Context, *agentrpc.Up) error { return nil }

// End implements feed.Line.
func (t *line) End() { t.of.leave(t) }

// Next implements feed.Line. A host gets only the overlays in which it has a pod now.
func (t *line) Next(v *state.View, host *feed.Host) []*agentrpc.Down {
	var out []*agentrpc.Down
	e := t.of.peerIndex
	overlays := v.HostOverlays(host.ID)
	set := networkSet(v.NetworkSettings(), host.Host, overlays)
	set.PrivateUnderlay = e.underlay(host.DataCenter)
	for _, id := range host.Accounts {
		if a, _ := v.Account(id); a.Egress == fleet.EgressNone {
			set.Closed = append(set.Closed, string(id))
		}
	}
	others := t.set == nil || !slices.Equal(t.set.GetOverlays(), set.GetOverlays())
	if t.set == nil || !proto.Equal(t.set, set) {
		t.set = set
		out = append(out, &agentrpc.Down{Kind: &agentrpc.Down_Network{Network: set}})
	}
	if others {
		t.peersAt = 0
	}
	peers, at := e.tellPeers(host.ID, overlays, t.peersAt)
	if t.peersAt = at; peers != nil {
		out = append(out, &agentrpc.Down{Kind: &agentrpc.Down_Peers{Peers: peers}})
	}
	known := t.overlays
	t.overlays = make(map[fleet.OverlayID]uint64, len(overlays))
	for _, id := range overlays {
		o, there := v.Overlay(id)
		if !there {
			continue
		}
		if from, told := known[id]; !told || from != o.Rev {
			out = append(out, e.overlayChange(v, &o, from))
		}
		t.overlays[id] = o.Rev
	}
	return out
}

// networkSet encodes the settings of private networks for one host.
func networkSet(n fleet.NetworkSettings, host *fleet.Host, overlays []fleet.OverlayID) *agentrpc.NetworkSet {
	out := &agentrpc.NetworkSet{
		Suffix: n.Suffix, Aliases: n.Aliases, TunnelRange: n.Tunnel.String(), Pool: n.Pool.String(),
		Mtu: int32(n.MTU), VxlanPort: int32(n.VXLANPort), WireguardPort: int32(n.WireGuardPort), PodMbps: int32(n.PodMbps), //nolint:gosec // small
		PublicKey: host.Inventory.Tunnel.PublicKey,
	}
	if host.Tunnel.IsValid() {
		out.TunnelAddr = host.Tunnel.String()
	}
	for _, id := range overlays {
		out.Overlays = append(out.Overlays, string(id))
	}
	return out
}

// update has the messages that lead to one revision of an overlay, by the revision that they start from.
type update struct {
	to   uint64
	from map[uint64]*agentrpc.Down
}

// overlayChange returns the message that leads from one revision of an overlay to that of the view. Sessions share it; it must not be
// modified.
func (e *peerIndex) overlayChange(v *state.View, o *fleet.Overlay, from uint64) *agentrpc.Down {
	if from > o.Rev {
		from = 0
	}
	e.updatesMu.Lock()
	defer e.updatesMu.Unlock()
	n := e.updates[o.ID]
	switch {
	case n == nil || n.to < o.Rev:
		if n == nil && len(e.updates) >= keptUpdates {
			clear(e.updates)
		}
		n = &update{to: o.Rev, from: map[uint64]*agentrpc.Down{}}
		e.updates[o.ID] = n
	case n.to > o.Rev: // another session has had a later view
		return encodeOverlay(o, from, v.OverlayMembers(o.ID, from))
	}
	if n.from[from] == nil {
		n.from[from] = encodeOverlay(o, from, v.OverlayMembers(o.ID, from))
	}
	return n.from[from]
}

// encodeOverlay encodes the members of an overlay that changed after a revision; 0: all members.
func encodeOverlay(o *fleet.Overlay, from uint64, members []fleet.OverlayMember) *agentrpc.Down {
	out := &agentrpc.OverlayChange{
		OverlayId: string(o.ID), AccountId: string(o.Account), Vni: o.VNI, Cidr: o.CIDR.String(), From: from, To: o.Rev, Mtu: int32(o.MTU), //nolint:gosec // at most fleet.MaxOverlayMTU
		Put: make([]*agentrpc.OverlayMember, 0, len(members)),
	}
	for i := range members {
		m := &members[i]
		if m.Host == "" {
			out.Gone = append(out.Gone, m.Addr.String())
			continue
		}
		out.Put = append(out.Put, &agentrpc.OverlayMember{Addr: m.Addr.String(), PodId: string(m.Pod), Name: m.Name, HostId: string(m.Host)})
	}
	return &agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: out}}
}
