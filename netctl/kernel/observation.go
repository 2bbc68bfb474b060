package kernel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"gantry/netctl"
)

// lookOverlays reads what leads to members, and which overlays there are.
func (c *Controller) lookOverlays(s *observation, links []netlink.Link) error {
	var err error
	if s.entries, err = c.rules.entries(); err != nil {
		return err
	}
	names := map[int]name{}
	for _, l := range links {
		if s.overlayLinks[l.Attrs().Name] != nil {
			names[l.Attrs().Index] = nameOf(l.Attrs().Name)
		}
	}
	if len(names) > 0 {
		if err := c.home.neighbours(s.entries, names); err != nil {
			return err
		}
	}
	c.mu.Lock()
	s.known = c.want.Clone()
	c.mu.Unlock()
	s.right = exactly(s.entries, entriesOf(s.known))
	s.lookHeldBack()
	for name, l := range s.overlayLinks {
		instance, o, err := netctl.ParseOverlayMark(l.Attrs().Alias)
		if err != nil || instance != c.instance || name != netctl.OverlayBridge(instance, o.VNI) || l.Type() != "bridge" {
			continue
		}
		if mtu := l.Attrs().MTU; mtu != s.config.OverlayMTU(netctl.Overlay{}) {
			o.MTU = mtu
		}
		o.Members = s.members(s.known, o)
		s.config.Overlays = append(s.config.Overlays, o)
	}
	slices.SortFunc(s.config.Overlays, func(a, b netctl.Overlay) int { return cmp.Compare(a.VNI, b.VNI) })
	return nil
}

// lookHeldBack reads what is barred, and whence VXLAN may come.
func (s *observation) lookHeldBack() {
	s.config.Underlay.Plain = nil
	for e := range s.entries {
		switch e.kind {
		case barred:
			s.config.Barred = append(s.config.Barred, netip.AddrPortFrom(e.addr.addr(), uint16(e.vni))) //nolint:gosec // a port
		case near:
			if s.ready {
				s.config.Underlay.Plain = append(s.config.Underlay.Plain, e.addr.addr())
			}
		}
	}
	slices.SortFunc(s.config.Barred, netip.AddrPort.Compare)
	slices.SortFunc(s.config.Underlay.Plain, netip.Addr.Compare)
}

// members returns whom an overlay leads to: of those that memory knows the ones that are whole, and what else the bridge answers for.
func (s observation) members(known netctl.Config, o netctl.Overlay) []netctl.Member {
	wanted, _ := known.Overlay(o.VNI)
	if s.right && wanted.CIDR == o.CIDR {
		return wanted.Members
	}
	bridge := nameOf(netctl.OverlayBridge(s.instance, o.VNI))
	locals := localsOf(known, o.VNI)
	var out []netctl.Member
	mine := map[netip.Addr]bool{}
	for _, m := range wanted.Members {
		l, here := locals[m.Addr]
		entries := addrEntries(known, o.VNI, m, l, here)
		if whole := !slices.ContainsFunc(entries, func(e entry) bool { return !s.entries[e] }); whole {
			out = append(out, m) // one that nothing leads to has nothing to lack
		}
		mine[m.Addr] = true
	}
	for addr := range locals {
		mine[addr] = true
	}
	vias := s.vias(o.VNI)
	for e := range s.entries {
		if e.kind == neighbour && e.link == bridge && !mine[e.addr.addr()] {
			out = append(out, netctl.Member{Addr: e.addr.addr(), MAC: e.mac.String(), Via: vias[e.mac]})
		}
	}
	slices.SortFunc(out, func(a, b netctl.Member) int { return a.Addr.Compare(b.Addr) })
	return out
}

// vias returns the hosts to which frames for hardware addresses go.
func (s observation) vias(vni uint32) map[hardware]netctl.Via {
	out, link := map[hardware]netctl.Via{}, nameOf(netctl.VXLANLink(s.instance, vni))
	for e := range s.entries {
		if e.kind == toHost && e.link == link {
			out[e.mac] = netctl.Via{Addr: e.addr.addr(), Tunnel: s.config.Underlay.Range.Contains(e.addr.addr())}
		}
	}
	return out
}

// places returns the places of pods whose links and source rules are there, by pod.
func (s observation) places(pins map[pin]bool) map[string][]netctl.Place {
	out := map[string][]netctl.Place{}
	for name, l := range s.overlayLinks {
		instance, pod, at, err := netctl.ParsePlaceMark(l.Attrs().Alias)
		bridge := s.overlayLinks[netctl.OverlayBridge(s.instance, at.VNI)]
		if err != nil || instance != s.instance || name != netctl.OverlayLinkName(instance, pod, at.VNI) || bridge == nil {
			continue
		}
		if isPort(l, bridge.Attrs().Index) && pins[pin{name, at.MAC, at.Addr}] {
			out[pod] = append(out[pod], at)
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b netctl.Place) int { return cmp.Compare(a.VNI, b.VNI) })
	}
	return out
}

// limitsOf returns the limit of all links of a pod, and -1 when they have not the same one. The text of a Config shows that it is not right.
func (c *Controller) limitsOf(s *observation, p netctl.Pod, all queues) (int, error) {
	out := 0
	for i, end := range podEnds(c.instance, p) {
		l := s.links[end]
		if l == nil {
			l = s.overlayLinks[end]
		}
		mbps, err := c.limitOf(l, all)
		if err != nil {
			return -1, err
		}
		if i > 0 && mbps != out {
			return -1, nil
		}
		out = mbps
	}
	return out, nil
}

// agrees says whether exactly the entries of the value are there.
func (s observation) agrees(want netctl.Config) bool {
	if s.right && s.known.Equal(want) {
		return true
	}
	gone, come := differing(s.entries, entriesOf(want))
	return len(gone)+len(come) == 0
}

// stands says whether the links of a pod are as they should be.
func (s observation) stands(want netctl.Config, p netctl.Pod) bool {
	seen, there := s.config.Pod(p.ID)
	if !there || !seen.Equal(p) || s.links[netctl.LinkName(s.instance, p.ID)].Attrs().Alias != netctl.Mark(want, p) {
		return false
	}
	return !slices.ContainsFunc(p.Overlays, func(at netctl.Place) bool {
		return s.overlayLinks[netctl.OverlayLinkName(s.instance, p.ID, at.VNI)].Attrs().Alias != placeMark(want, p, at)
	})
}

// settleRules makes the elements of overlays and of closed pods those of the value.
func (c *Controller) settleRules(want netctl.Config) error {
	have, err := c.rules.entries()
	if err != nil {
		return err
	}
	rules, _ := split(entriesOf(want))
	gone, come := differing(have, rules)
	return c.rules.change(gone, come)
}

// settleLinks makes what leads to members by links that of the value.
func (c *Controller) settleLinks(want netctl.Config) error {
	if len(want.Overlays) == 0 {
		return nil
	}
	links, err := retry(c.host.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	names := map[int]name{}
	for _, l := range links {
		if isOverlayLink(c.instance, l.Attrs().Name) {
			names[l.Attrs().Index] = nameOf(l.Attrs().Name)
		}
	}
	have := map[entry]bool{}
	if err := c.home.neighbours(have, names); err != nil {
		return err
	}
	_, wanted := split(entriesOf(want))
	gone, come := differing(have, wanted)
	return c.tellEntries(gone, come)
}
