package kernel

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// bridgePrefix begins the names of the bridges of every instance.
const bridgePrefix = "gn"

// PublicAddr returns the IPv4 address under which others are likely to reach the host: that of the
// default route's link, else the first global unicast one. The zero address says that there is none.
func (c *Controller) PublicAddr() (netip.Addr, error) {
	routes, err := retry(func() ([]netlink.Route, error) {
		return c.host.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list routes: %w", err)
	}
	best := -1
	for i, r := range routes {
		if isDefault(r) && (best < 0 || r.Priority < routes[best].Priority) {
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
	var first, routed netip.Addr
	err = c.eachAddr(func(a netlink.Addr, name string) {
		addr, ok := netip.AddrFromSlice(a.IP)
		if addr = addr.Unmap(); !ok || !addr.IsGlobalUnicast() || strings.HasPrefix(name, bridgePrefix) {
			return
		}
		if !first.IsValid() {
			first = addr
		}
		if !routed.IsValid() && a.LinkIndex == link {
			routed = addr
		}
	})
	if routed.IsValid() {
		return routed, err
	}
	return first, err
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
	err := c.eachAddr(func(a netlink.Addr, _ string) {
		addr, ok := netip.AddrFromSlice(a.IP)
		has = has || ok && addr.Unmap() == want
	})
	return has, err
}

// eachAddr calls f with every IPv4 address of the host and the name of its link.
func (c *Controller) eachAddr(f func(a netlink.Addr, link string)) error {
	links, err := retry(c.host.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return c.host.AddrList(nil, unix.AF_INET) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		f(a, names[a.LinkIndex])
	}
	return nil
}
