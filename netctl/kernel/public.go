package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PublicAddr returns the IPv4 address under which others are likely to reach the host: that of the
// default route's link, else the first global unicast one of a link that leads out of the host, of its
// hardware before others. Addresses of tunnels (VPNs) are never chosen. The zero address says that there is none, or none yet.
func (c *Controller) PublicAddr() (netip.Addr, error) {
	routes, err := retry(func() ([]netlink.Route, error) {
		return c.host.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list routes: %w", err)
	}
	tunnels, err := c.tunnels()
	if err != nil {
		return netip.Addr{}, err
	}
	best := -1
	for i, r := range routes {
		if isDefault(r) && !tunnels[r.LinkIndex] && (best < 0 || r.Priority < routes[best].Priority) {
			best = i
		}
	}
	link := 0
	if best >= 0 {
		if src, ok := netip.AddrFromSlice(routes[best].Src); ok && src.Unmap().IsGlobalUnicast() {
			return src.Unmap(), nil
		}
		link = routes[best].LinkIndex
	}
	var routed, hardware, other netip.Addr
	err = c.eachAddr(func(a netlink.Addr, l netlink.Link) {
		addr, ok := netip.AddrFromSlice(a.IP)
		if addr = addr.Unmap(); !ok || !addr.IsGlobalUnicast() {
			return
		}
		take := func(to *netip.Addr) {
			if !to.IsValid() {
				*to = addr
			}
		}
		switch {
		case a.LinkIndex == link:
			take(&routed)
		case !leadsOut(l):
		case l.Type() == "device":
			take(&hardware)
		default:
			take(&other)
		}
	})
	for _, addr := range []netip.Addr{routed, hardware, other} {
		if addr.IsValid() {
			return addr, err
		}
	}
	return netip.Addr{}, err
}

// leadsOut says whether a link may be the host's way to others: it is up, and none that programs make
// for containers and virtual machines, whose addresses nobody outside can reach.
func leadsOut(l netlink.Link) bool {
	if l == nil || l.Attrs().Flags&net.FlagUp == 0 || l.Attrs().Flags&net.FlagLoopback != 0 {
		return false
	}
	inner := func(prefix string) bool { return strings.HasPrefix(l.Attrs().Name, prefix) }
	return l.Type() != "bridge" && l.Type() != "veth" && !isTunnel(l) &&
		!slices.ContainsFunc([]string{"gn", "docker", "br-", "virbr", "cni", "veth"}, inner)
}

// isTunnel reports whether the link is one of a VPN, whose address only its other members reach. A link of PPP is none:
// it may be the host's own uplink.
func isTunnel(l netlink.Link) bool {
	return slices.Contains([]string{"wireguard", "tuntap", "ipip", "gre", "gretap", "sit", "ip6tnl", "ip6gre", "vti", "vti6", "xfrm", "vxlan", "geneve"}, l.Type())
}

// tunnels returns the indexes of the host's tunnels.
func (c *Controller) tunnels() (map[int]bool, error) {
	links, err := retry(c.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	out := map[int]bool{}
	for _, l := range links {
		out[l.Attrs().Index] = isTunnel(l)
	}
	return out, nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// HasAddr reports whether a link of the host has the address.
func (c *Controller) HasAddr(want netip.Addr) (bool, error) {
	has := false
	err := c.eachAddr(func(a netlink.Addr, _ netlink.Link) {
		addr, ok := netip.AddrFromSlice(a.IP)
		has = has || ok && addr.Unmap() == want
	})
	return has, err
}

// eachAddr calls f with every IPv4 address of the host and its link, which is nil when it has just gone.
func (c *Controller) eachAddr(f func(a netlink.Addr, l netlink.Link)) error {
	links, err := retry(c.host.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	byIndex := map[int]netlink.Link{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return c.host.AddrList(nil, unix.AF_INET) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		f(a, byIndex[a.LinkIndex])
	}
	return nil
}

// MTUOf returns the MTU of the link with an address of the host; 0: there is none.
func (c *Controller) MTUOf(addr netip.Addr) (mtu int) {
	err := c.eachAddr(func(a netlink.Addr, l netlink.Link) {
		if have, ok := netip.AddrFromSlice(a.IP); ok && have.Unmap() == addr && l != nil {
			mtu = l.Attrs().MTU
		}
	})
	if err != nil {
		return 0
	}
	return mtu
}
