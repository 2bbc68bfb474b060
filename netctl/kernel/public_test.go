package kernel

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// addLink makes a link with addresses, which is up, until the test ends.
func addLink(t *testing.T, l netlink.Link, addrs ...string) netlink.Link {
	t.Helper()
	must(t, netlink.LinkAdd(l))
	t.Cleanup(func() { must(t, netlink.LinkDel(l)) })
	for _, a := range addrs {
		must(t, netlink.AddrAdd(l, addrOf(netip.MustParsePrefix(a))))
	}
	must(t, netlink.LinkSetUp(l))
	return l
}

// plain is a link that no program makes for containers.
func plain(name string) netlink.Link { return &netlink.Ifb{LinkAttrs: linkAttrs(name, 1500, nil)} }

func bridge(name string) netlink.Link {
	return &netlink.Bridge{LinkAttrs: linkAttrs(name, 1500, nil)}
}

func wantPublic(t *testing.T, c *Controller, when, want string) {
	t.Helper()
	if got, err := c.PublicAddr(); err != nil || got.IsValid() != (want != "") || want != "" && got.String() != want {
		t.Errorf("%s: %v, %v; want %q", when, got, err, want)
	}
}

func TestPublicAddrOfTheDefaultRoute(t *testing.T) {
	newOutside(t) // its link is a veth, as in a container
	c := start(t, "0a1b")
	must(t, c.Set(context.Background(), config(t, "0a1b", "10.88.16.0/20", "alpha")))
	addLink(t, plain("wan0"), "203.0.113.99/24")
	wantPublic(t, c, "no default route", "203.0.113.99")
	up, err := netlink.LinkByName("up0")
	must(t, err)
	must(t, netlink.AddrAdd(up, addrOf(netip.MustParsePrefix("198.51.100.9/24"))))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: net.ParseIP(outsideAddr), Priority: 10}))
	wantPublic(t, c, "default route", uplinkAddr)
	must(t, netlink.RouteAdd(&netlink.Route{
		LinkIndex: up.Attrs().Index, Gw: net.ParseIP(outsideAddr), Priority: 5, Src: net.ParseIP("198.51.100.9"),
	}))
	wantPublic(t, c, "default route with a source", "198.51.100.9")
	for addr, want := range map[string]bool{uplinkAddr: true, "203.0.113.99": true, outsideAddr: false} {
		if has, err := c.HasAddr(netip.MustParseAddr(addr)); err != nil || has != want {
			t.Errorf("has %s: %v, %v", addr, has, err)
		}
	}
}

// TestPublicAddrIsNoneOfAVPN gives a tunnel the best default route and an address, as VPN clients do.
func TestPublicAddrIsNoneOfAVPN(t *testing.T) {
	newOutside(t)
	c := start(t, "0a1b")
	vpn := addLink(t, &netlink.Tuntap{LinkAttrs: linkAttrs("tun0", 1400, nil), Mode: netlink.TUNTAP_MODE_TUN}, "100.64.7.7/10")
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: vpn.Attrs().Index, Dst: addrOf(netip.MustParsePrefix("0.0.0.0/0")).IPNet, Scope: netlink.SCOPE_LINK}))
	wantPublic(t, c, "a VPN alone", "")
	addLink(t, plain("wan0"), "203.0.113.99/24")
	wantPublic(t, c, "beside a link of its own", "203.0.113.99")
	up, err := netlink.LinkByName("up0")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: net.ParseIP(outsideAddr), Priority: 10}))
	wantPublic(t, c, "beside another default route", uplinkAddr)
}

// TestPublicAddrIsNoneOfTheHostsOwnNetworks starts with what a host has before its network is up.
func TestPublicAddrIsNoneOfTheHostsOwnNetworks(t *testing.T) {
	newOutside(t)
	c := start(t, "0a1b")
	must(t, c.Set(context.Background(), config(t, "0a1b", "10.88.16.0/20", "alpha")))
	addLink(t, bridge("docker0"), "172.17.0.1/16")
	addLink(t, bridge("br-0123456789ab"), "172.18.0.1/16")
	addLink(t, bridge("virbr0"), "192.168.122.1/24")
	addLink(t, bridge("lan"), "192.168.7.1/24")
	addLink(t, plain("docker_gwbridge"), "172.19.0.1/16")
	addLink(t, plain("gn0a1cxyz"), "10.88.48.1/20")
	local := addLink(t, plain("local0"), "169.254.7.7/16")
	down := addLink(t, plain("wan0"), "203.0.113.5/24", "203.0.113.6/24")
	must(t, netlink.LinkSetDown(down))
	wantPublic(t, c, "before the network is up", "")
	must(t, netlink.LinkSetUp(down))
	wantPublic(t, c, "the network is up", "203.0.113.5")
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: local.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: addrOf(netip.MustParsePrefix("0.0.0.0/0")).IPNet}))
	wantPublic(t, c, "a default route through a link without an address", "203.0.113.5")
}
