package kernel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// FreeSubnet returns the subnet of the instance's bridge when it stands, and
// otherwise a range of netctl.Pool that overlaps no route and no address of the
// host. The error is netctl.ErrNoFreeSubnet when there is none.
func (c *Controller) FreeSubnet() (netip.Prefix, error) {
	var own observation
	l, err := c.linkByName(netctl.BridgeName(c.instance))
	if err != nil {
		return netip.Prefix{}, err
	}
	if l != nil {
		if err := c.lookBridge(&own, l); err != nil {
			return netip.Prefix{}, err
		}
	}
	if own.config.Subnet.IsValid() {
		return own.config.Subnet, nil
	}
	taken, err := c.foreignAddrs()
	if err != nil {
		return netip.Prefix{}, err
	}
	routes, err := retry(func() ([]netlink.Route, error) {
		return c.host.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		if p, err := netip.ParsePrefix(r.Dst.String()); err == nil && p.Bits() > 0 {
			taken = append(taken, p)
		}
	}
	return netctl.PickSubnet(c.instance, taken)
}

// subnetFree refuses a subnet that overlaps an address of a link which is not the
// instance's bridge: two agents may have picked it at the same moment.
func (c *Controller) subnetFree(subnet netip.Prefix) error {
	taken, err := c.foreignAddrs()
	if err != nil {
		return err
	}
	for _, p := range taken {
		if p.Overlaps(subnet) {
			return netctl.ErrSubnetTaken
		}
	}
	return nil
}

// foreignAddrs returns the addresses of all links but the instance's bridge.
func (c *Controller) foreignAddrs() ([]netip.Prefix, error) {
	own := 0
	l, err := c.linkByName(netctl.BridgeName(c.instance))
	if err != nil {
		return nil, err
	}
	if l != nil {
		own = l.Attrs().Index
	}
	list, err := retry(func() ([]netlink.Addr, error) { return c.host.AddrList(nil, unix.AF_INET) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []netip.Prefix
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.IPNet.String()); err == nil && a.LinkIndex != own {
			out = append(out, p)
		}
	}
	return out, nil
}
