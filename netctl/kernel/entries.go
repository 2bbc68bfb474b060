package kernel

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"net"
	"net/netip"
	"slices"

	"gantry/netctl"
)

// kind says what an entry is.
type kind uint16

const (
	toPort    kind = iota + 1 // bridge: frames to the address leave by the link's port
	toHost                    // VXLAN link: they go to the host with addr
	neighbour                 // bridge: it answers for addr with the hardware address
	member                    // rules: pods of the overlay may send to it
	asked                     // rules: pods of the overlay may ask for it
	far                       // rules: what comes by the link may have this source
	belongs                   // rules: the link is one of the overlay
	closed                    // rules: the address opens nothing outside
	barred                    // rules: pods do not reach the port (in vni) of the address
	near                      // rules: VXLAN may come from the address
	kinds
)

// entry is something of the kernel's that leads to a member of an overlay, or holds a pod back. What it does not need is zero.
// There are very many: it has no pointers and no gaps, so that it is a cheap key.
type entry struct {
	link name
	mac  hardware
	kind kind
	vni  uint32
	addr octets
}

// Parts of an entry, as the kernel has them.
type (
	name     [16]byte
	hardware [6]byte
	octets   [4]byte
)

func nameOf(text string) (out name) {
	copy(out[:15], text)
	return out
}

func (n name) String() string { return string(bytes.TrimRight(n[:], "\x00")) }

// hardwareOf reads a hardware address that Config.Validate has checked.
func hardwareOf(text string) (out hardware) {
	for i := range out {
		if len(text) < 3*i+2 {
			break
		}
		_, _ = hex.Decode(out[i:i+1], []byte(text[3*i:3*i+2]))
	}
	return out
}

func (h hardware) String() string { return net.HardwareAddr(h[:]).String() }

func octetsOf(a netip.Addr) (out octets) {
	if a.Is4() {
		out = a.As4()
	}
	return out
}

func (o octets) addr() netip.Addr { return netip.AddrFrom4(o) }

// isRule says whether the entry is an element of the rules, and not of a link.
func (e entry) isRule() bool { return e.kind >= member }

// local is a pod's place, and its pod.
type local struct {
	pod   string
	place netctl.Place
}

// localsOf returns the places in an overlay, by address.
func localsOf(c netctl.Config, vni uint32) map[netip.Addr]local {
	out := map[netip.Addr]local{}
	for _, p := range c.Pods {
		if at, ok := p.Place(vni); ok {
			out[at.Addr] = local{p.ID, at}
		}
	}
	return out
}

// placeEntries adds those of a pod's place.
func placeEntries(out []entry, instance string, l local) []entry {
	at := l.place
	link, mac, addr := nameOf(netctl.OverlayLinkName(instance, l.pod, at.VNI)), hardwareOf(at.MAC), octetsOf(at.Addr)
	return append(out,
		entry{kind: toPort, link: link, mac: mac},
		entry{kind: neighbour, link: nameOf(netctl.OverlayBridge(instance, at.VNI)), mac: mac, addr: addr},
		entry{kind: member, vni: at.VNI, mac: mac, addr: addr},
		entry{kind: asked, vni: at.VNI, addr: addr},
		entry{kind: belongs, link: link, vni: at.VNI},
	)
}

// addMember adds the entries of a member on another host. There are none when nothing leads there.
func addMember(out []entry, c netctl.Config, vni uint32, m netctl.Member) []entry {
	if !m.Via.Addr.IsValid() || !c.Underlay.VXLAN() {
		return out
	}
	link, bridge := nameOf(netctl.VXLANLink(c.Instance, vni)), nameOf(netctl.OverlayBridge(c.Instance, vni))
	mac, addr := hardwareOf(m.MAC), octetsOf(m.Addr)
	return append(out,
		entry{kind: toPort, link: link, mac: mac},
		entry{kind: neighbour, link: bridge, mac: mac, addr: addr},
		entry{kind: member, vni: vni, mac: mac, addr: addr},
		entry{kind: asked, vni: vni, addr: addr},
		entry{kind: far, link: link, mac: mac, addr: addr},
		entry{kind: toHost, link: link, mac: mac, addr: octetsOf(m.Via.Addr)},
	)
}

// addrEntries are those of one address of an overlay. A pod of this host that has it wins over a member elsewhere.
func addrEntries(c netctl.Config, vni uint32, m netctl.Member, l local, here bool) []entry {
	if here {
		return placeEntries(nil, c.Instance, l)
	}
	return addMember(nil, c, vni, m)
}

// uplinkEntries are those of an overlay's links to other hosts.
func uplinkEntries(c netctl.Config, vni uint32) []entry {
	var out []entry
	if c.Underlay.VXLAN() {
		out = append(out, entry{kind: belongs, link: nameOf(netctl.VXLANLink(c.Instance, vni)), vni: vni})
	}
	return out
}

// overlayEntries are all of an overlay, in a fixed order.
func overlayEntries(c netctl.Config, o netctl.Overlay) []entry {
	locals := localsOf(c, o.VNI)
	out := append(make([]entry, 0, 6*(len(o.Members)+len(locals))+2), uplinkEntries(c, o.VNI)...)
	for _, m := range o.Members {
		if _, here := locals[m.Addr]; !here {
			out = addMember(out, c, o.VNI, m)
		}
	}
	addrs := make([]netip.Addr, 0, len(locals))
	for a := range locals {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, a := range addrs {
		out = placeEntries(out, c.Instance, locals[a])
	}
	return out
}

// hostEntries are those that no overlay has.
func hostEntries(c netctl.Config) []entry {
	var out []entry
	for _, p := range c.Pods {
		if p.Closed {
			out = append(out, entry{kind: closed, addr: octetsOf(p.Addr)})
		}
	}
	for _, a := range c.Barred {
		out = append(out, entry{kind: barred, addr: octetsOf(a.Addr()), vni: uint32(a.Port())})
	}
	for _, a := range c.Underlay.Plain {
		out = append(out, entry{kind: near, addr: octetsOf(a)})
	}
	return out
}

// entriesOf are all that a host should have.
func entriesOf(c netctl.Config) []entry {
	var out []entry
	for _, o := range c.Overlays {
		out = append(out, overlayEntries(c, o)...)
	}
	return append(out, hostEntries(c)...)
}

// changeEntries returns what goes and what comes when an overlay of before becomes that of after.
func changeEntries(before, after netctl.Config, vni uint32) (gone, come []entry) {
	was, _ := before.Overlay(vni)
	is, _ := after.Overlay(vni)
	old, now := localsOf(before, vni), localsOf(after, vni)
	for _, m := range netctl.DiffMembers(was.Members, is.Members) {
		addr := cmp.Or(m.Old.Addr, m.New.Addr)
		l, had := old[addr]
		k, has := now[addr]
		g, c := without(addrEntries(before, vni, m.Old, l, had), addrEntries(after, vni, m.New, k, has))
		gone, come = append(gone, g...), append(come, c...)
	}
	return gone, come
}

// without returns what only one of both has.
func without(have, want []entry) (gone, come []entry) {
	for _, e := range have {
		if !slices.Contains(want, e) {
			gone = append(gone, e)
		}
	}
	for _, e := range want {
		if !slices.Contains(have, e) {
			come = append(come, e)
		}
	}
	return gone, come
}

// split returns those of the rules and those of links.
func split(list []entry) (rules, links []entry) {
	for _, e := range list {
		if e.isRule() {
			rules = append(rules, e)
		} else {
			links = append(links, e)
		}
	}
	return rules, links
}

// exactly says whether all of the list are there, and nothing else.
func exactly(have map[entry]bool, list []entry) bool {
	for _, e := range list {
		if !have[e] {
			return false
		}
	}
	return len(have) == len(list)
}

// differing returns what is there and not wanted, and what is wanted and not there.
func differing(have map[entry]bool, want []entry) (gone, come []entry) {
	if exactly(have, want) {
		return nil, nil
	}
	wanted := make(map[entry]bool, len(want))
	for _, e := range want {
		if !have[e] && !wanted[e] {
			come = append(come, e)
		}
		wanted[e] = true
	}
	for e := range have {
		if !wanted[e] {
			gone = append(gone, e)
		}
	}
	return gone, come
}
