package tunnel

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ensureMTU gives the link its MTU.
func ensureMTU(l netlink.Link, want Config) error {
	if l.Attrs().MTU == want.MTU+Overhead {
		return nil
	}
	if err := netlink.LinkSetMTU(l, want.MTU+Overhead); err != nil {
		return fmt.Errorf("set mtu: %w", err)
	}
	return nil
}

// ensureAddress leaves the host's address as the link's only one, and leads all others of the range there.
func ensureAddress(l netlink.Link, want Config) error {
	have, err := netlink.AddrList(l, unix.AF_INET)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	own := net.IPNet{IP: want.Addr.AsSlice(), Mask: net.CIDRMask(32, 32)}
	for i := range have {
		if have[i].IPNet.String() == own.String() {
			continue
		}
		if err := netlink.AddrDel(l, &have[i]); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address: %w", err)
		}
	}
	if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: &own}); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	return ensureRoute(l, want)
}

// ensureRoute leaves one route over the link.
func ensureRoute(l netlink.Link, want Config) error {
	to := &net.IPNet{IP: want.Range.Addr().AsSlice(), Mask: net.CIDRMask(want.Range.Bits(), 32)}
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Src: want.Addr.AsSlice(), Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("add route: %w", err)
	}
	have, err := netlink.RouteList(l, unix.AF_INET)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for i := range have {
		if have[i].Dst != nil && have[i].Dst.String() == to.String() {
			continue
		}
		if err := netlink.RouteDel(&have[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route: %w", err)
		}
	}
	return nil
}
