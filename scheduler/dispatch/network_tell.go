package dispatch

import (
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/scheduler/state"
)

// toldNetwork is what a session's host was told of private networks; of the sending goroutine alone.
type toldNetwork struct {
	set      *link.NetworkSet
	overlays map[fleet.OverlayID]uint64 // revisions
	peersAt  uint64                     // see exchange.tellPeers
	accounts []fleet.AccountID          // with pods on the host, as it was assigned them last; sorted
}

// assigned takes note of the pods of the host. A leftover is its account's until nothing is left of it.
func (t *toldNetwork) assigned(v *state.View, pods []fleet.Pod) {
	t.accounts = t.accounts[:0]
	for i := range pods {
		account := pods[i].Account
		if account == "" {
			p, _ := v.Pod(pods[i].ID)
			account = p.Account
		}
		if account != "" {
			t.accounts = append(t.accounts, account)
		}
	}
	slices.Sort(t.accounts)
	t.accounts = slices.Compact(t.accounts)
}

// forget has everything told again.
func (t *toldNetwork) forget() { t.set, t.overlays, t.peersAt = nil, nil, 0 }

// networks returns what the host has to be told of private networks to come from what it was told last to what is now. It
// is told of no overlay but those in which it has a pod at this very moment.
func (x *session) networks(v *state.View, host *fleet.Host) []*link.Down {
	var out []*link.Down
	e, t := x.server.exchange, &x.network
	overlays := v.HostOverlays(x.host)
	set := networkSet(v.NetworkSettings(), host, overlays)
	set.PrivateUnderlay = e.underlay(host.DataCenter)
	for _, id := range t.accounts {
		if a, _ := v.Account(id); a.Egress == fleet.EgressNone {
			set.Closed = append(set.Closed, string(id))
		}
	}
	others := t.set == nil || !slices.Equal(t.set.GetOverlays(), set.GetOverlays())
	if t.set == nil || !proto.Equal(t.set, set) {
		t.set = set
		out = append(out, &link.Down{Kind: &link.Down_Network{Network: set}})
	}
	if others {
		t.peersAt = 0
	}
	peers, at := e.tellPeers(x.host, overlays, t.peersAt)
	if t.peersAt = at; peers != nil {
		out = append(out, &link.Down{Kind: &link.Down_Peers{Peers: peers}})
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

// networkSet is what a host has to know of private networks beside what hangs on others.
func networkSet(n fleet.NetworkSettings, host *fleet.Host, overlays []fleet.OverlayID) *link.NetworkSet {
	out := &link.NetworkSet{
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

// news are messages that lead to one revision of an overlay, by the revision from which they do.
type news struct {
	to   uint64
	from map[uint64]*link.Down
}

// overlayChange returns what leads from a revision of an overlay to that of the view, for all sessions that are there: it is
// never changed.
func (e *exchange) overlayChange(v *state.View, o *fleet.Overlay, from uint64) *link.Down {
	if from > o.Rev {
		from = 0
	}
	e.newsMu.Lock()
	defer e.newsMu.Unlock()
	n := e.news[o.ID]
	switch {
	case n == nil || n.to < o.Rev:
		if n == nil && len(e.news) >= keptNews {
			clear(e.news)
		}
		n = &news{to: o.Rev, from: map[uint64]*link.Down{}}
		e.news[o.ID] = n
	case n.to > o.Rev: // another session has had a later view
		return encodeOverlay(o, from, v.OverlayMembers(o.ID, from))
	}
	if n.from[from] == nil {
		n.from[from] = encodeOverlay(o, from, v.OverlayMembers(o.ID, from))
	}
	return n.from[from]
}

// encodeOverlay tells of the members of an overlay that changed after a revision; 0: of all.
func encodeOverlay(o *fleet.Overlay, from uint64, members []fleet.OverlayMember) *link.Down {
	out := &link.OverlayChange{
		OverlayId: string(o.ID), AccountId: string(o.Account), Vni: o.VNI, Cidr: o.CIDR.String(), From: from, To: o.Rev,
		Put: make([]*link.OverlayMember, 0, len(members)),
	}
	for i := range members {
		m := &members[i]
		if m.Host == "" {
			out.Gone = append(out.Gone, m.Addr.String())
			continue
		}
		out.Put = append(out.Put, &link.OverlayMember{Addr: m.Addr.String(), PodId: string(m.Pod), Name: m.Name, HostId: string(m.Host)})
	}
	return &link.Down{Kind: &link.Down_Overlay{Overlay: out}}
}

// places returns the places of a pod in private networks that its host has to give it.
func places(v *state.View, p *fleet.Pod) (out []*link.OverlayPlace) {
	next := 2
	for _, at := range p.Overlays {
		name := fleet.OverlayLink
		if at.Overlay != fleet.AccountOverlay(p.Account) {
			name = fmt.Sprintf("podnet%d", next)
			next++
		}
		o, there := v.Overlay(at.Overlay)
		if !at.On || !p.Held || !there {
			continue
		}
		out = append(out, &link.OverlayPlace{
			OverlayId: string(at.Overlay), Vni: o.VNI, Cidr: o.CIDR.String(), Addr: at.Addr.String(), Link: name,
		})
	}
	return out
}

// decodeTunnel reads a host's end of the tunnel; what cannot be read is nothing. The state decides what of it is fit for
// other hosts.
func decodeTunnel(in *link.HostTunnel) fleet.HostTunnel {
	out := fleet.HostTunnel{PublicKey: word(in.GetPublicKey()), UserSpace: in.GetUserSpace()}
	if at, err := netip.ParseAddrPort(in.GetEndpoint()); err == nil {
		out.Endpoint = at
	}
	if addr, err := netip.ParseAddr(in.GetPlain()); err == nil {
		out.Plain = addr
	}
	return out
}
