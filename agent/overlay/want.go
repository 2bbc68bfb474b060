package overlay

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/netctl"
	"gantry/netctl/dns"
	"gantry/netctl/tunnel"
)

// keepalive is how often a host that others cannot call is heard by those that it can, so that its NAT remembers it.
const keepalive = 25 * time.Second

// What follows from what is known. The caller of each method holds mu.

// underlay is how frames leave the host.
func (k *Reconciler) underlay() netctl.Underlay {
	s := k.desired.settings
	u := netctl.Underlay{Range: s.tunnels, Port: s.vxlan, MTU: s.mtu}
	for _, p := range k.desired.peers {
		switch {
		case p.plain.IsValid():
			u.Plain = append(u.Plain, p.plain)
		case k.through(p): // without such a host no frame goes there, and no links are made for it
			u.Addr = s.addr
		}
	}
	slices.SortFunc(u.Plain, netip.Addr.Compare)
	u.Plain = slices.Compact(u.Plain)
	return u
}

// via says how each other host is reached that is.
func (k *Reconciler) via() map[fleet.HostID]netctl.Via {
	out := make(map[fleet.HostID]netctl.Via, len(k.desired.peers))
	for id, p := range k.desired.peers {
		switch {
		case p.plain.IsValid():
			out[id] = netctl.Via{Addr: p.plain}
		case k.through(p):
			out[id] = netctl.Via{Addr: p.addr, Tunnel: true}
		}
	}
	return out
}

// through reports whether the tunnel leads to another host.
func (k *Reconciler) through(p peer) bool {
	s := k.desired.settings
	return k.Tunnel != nil && s.addr.IsValid() && p.key != "" && p.addr != s.addr && s.tunnels.Contains(p.addr) && !p.plain.IsValid()
}

// stamp says from what overlay would make an overlay now.
func (k *Reconciler) stamp(vni uint32) stamp {
	out := stamp{peers: k.desired.peered, places: k.placing[vni]}
	if n := k.desired.byVNI(vni); n != nil {
		out.members = n.changes
	}
	return out
}

// overlay is one network as the kernel should have it: pods of this host that have a place there, told or not, and those of
// other hosts that can be reached.
func (k *Reconciler) overlay(vni uint32) netctl.Overlay {
	out := netctl.Overlay{VNI: vni}
	here := map[netip.Addr]bool{}
	for _, p := range k.pods {
		for _, place := range p.places {
			if place.VNI == vni {
				out.CIDR, here[place.Addr] = place.CIDR, true
			}
		}
	}
	if n := k.desired.byVNI(vni); n != nil && (n.cidr == out.CIDR || len(here) == 0) {
		if out.CIDR = n.cidr; n.mtu != k.desired.settings.mtu {
			out.MTU = n.mtu
		}
		via := k.via()
		out.Members = make([]netctl.Member, 0, len(n.members)+len(here))
		for _, m := range n.members {
			if v, reached := via[m.host]; reached && m.host != k.Host && !here[m.addr] {
				out.Members = append(out.Members, netctl.Member{Addr: m.addr, MAC: m.mac, Via: v})
			}
		}
	}
	for addr := range here {
		i, _ := slices.BinarySearchFunc(out.Members, addr, func(m netctl.Member, a netip.Addr) int { return m.Addr.Compare(a) })
		out.Members = slices.Insert(out.Members, i, netctl.Member{Addr: addr, MAC: fleet.OverlayMAC(addr)})
	}
	return out
}

// wantPolicy is what concerns all pods and changes while they run.
func (k *Reconciler) wantPolicy() netctl.Policy {
	p := netctl.Policy{Names: k.stands, Barred: slices.Clone(k.barred), Mbps: k.desired.settings.mbps}
	for id, pod := range k.pods {
		if k.desired.settings.closed[pod.account] {
			p.Closed = append(p.Closed, string(id))
		}
	}
	slices.Sort(p.Closed)
	return p
}

// tunnelConfig is the tunnel; false: none is needed.
func (k *Reconciler) tunnelConfig() (tunnel.Config, bool) {
	s := k.desired.settings
	out := tunnel.Config{
		Instance: k.host.Instance, Addr: s.addr, Range: s.tunnels, ListenPort: cmp.Or(k.Port, s.wireport), VXLANPort: s.vxlan, MTU: s.mtu, Key: k.key,
	}
	for _, n := range k.desired.overlays {
		out.MTU = max(out.MTU, n.mtu)
	}
	// One host that says what another one said before must not be the end of the tunnel to all.
	keys, addrs := map[string]bool{k.key.Public(): true}, map[netip.Addr]bool{}
	for _, id := range slices.Sorted(maps.Keys(k.desired.peers)) {
		p := k.desired.peers[id]
		if !k.through(p) || keys[p.key] || addrs[p.addr] {
			continue
		}
		keys[p.key], addrs[p.addr] = true, true
		to := tunnel.Peer{Host: string(id), PublicKey: p.key, Addr: p.addr, Endpoint: p.endpoint}
		if p.endpoint.IsValid() && !k.says.Endpoint.IsValid() {
			to.Keepalive = keepalive
		}
		out.Peers = append(out.Peers, to)
	}
	return out, len(out.Peers) > 0
}

// namesBase is what concerns the names of all pods.
func (k *Reconciler) namesBase() dns.Base {
	s := k.desired.settings
	ranges := []netip.Prefix{netctl.Pool(), k.host.Subnet, s.pool, s.tunnels}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return dns.Base{Suffixes: s.suffixes, Ranges: slices.Compact(ranges), Upstreams: k.resolv.upstreams()}
}

// askers are the pods that may ask, and the networks whose names each gets.
func (k *Reconciler) wantAskers() map[netip.Addr][]uint32 {
	out := make(map[netip.Addr][]uint32, len(k.pods))
	for _, p := range k.pods {
		vnis := []uint32{}
		for _, place := range p.places {
			vnis = append(vnis, place.VNI)
		}
		slices.Sort(vnis)
		out[p.link.Addr] = vnis
	}
	return out
}

// namesOf are the names in an overlay.
func (k *Reconciler) namesOf(vni uint32) dns.Overlay {
	out := dns.Overlay{VNI: vni}
	if n := k.desired.byVNI(vni); n != nil {
		out.Members = make([]dns.Name, len(n.members))
		for i, m := range n.members {
			out.Members[i] = dns.Name{Addr: m.addr, Pod: string(m.pod), Name: m.name}
		}
	}
	return out
}
