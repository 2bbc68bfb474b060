package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
	"gantry/netctl"
)

const (
	podLink  = "eth0"
	loopback = 1 // the index of lo in every namespace
)

// ensureHost makes the parts that all pods share, without the rules.
func (c *Controller) ensureHost(want netctl.Config) error {
	if err := c.home.switchOn("net/ipv4/ip_forward"); err != nil {
		return err
	}
	return c.ensureBridge(want)
}

func (c *Controller) ensureBridge(want netctl.Config) error {
	name := netctl.BridgeName(c.instance)
	mac, err := net.ParseMAC(netctl.MACFor(want.Gateway().Addr()))
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	l, err := c.linkByName(name)
	if err != nil {
		return err
	}
	if l != nil && l.Type() != "bridge" {
		if err := c.removeLink(name); err != nil {
			return err
		}
		l = nil
	}
	if l == nil {
		// A fixed hardware address: otherwise it would change as pods come and go.
		snooping, fences := false, uint16(throughFences)
		l = &netlink.Bridge{LinkAttrs: linkAttrs(name, want.MTU, mac), MulticastSnooping: &snooping, GroupFwdMask: &fences}
		if err := c.host.LinkAdd(l); err != nil {
			return fmt.Errorf("bridge: add: %w", err)
		}
	}
	if l.Attrs().HardwareAddr.String() != mac.String() {
		if err := c.host.LinkSetHardwareAddr(l, mac); err != nil {
			return fmt.Errorf("bridge: set hardware address: %w", err)
		}
	}
	if l.Attrs().MTU != want.MTU {
		if err := c.host.LinkSetMTU(l, want.MTU); err != nil {
			return fmt.Errorf("bridge: set mtu: %w", err)
		}
	}
	if err := c.home.switchOn("net/ipv6/conf/" + name + "/disable_ipv6"); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if err := c.ensureGateway(l, want.Gateway()); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if err := c.host.LinkSetUp(l); err != nil {
		return fmt.Errorf("bridge: up: %w", err)
	}
	return nil
}

// ensureGateway leaves the gateway's as the bridge's only IPv4 address.
func (c *Controller) ensureGateway(l netlink.Link, gateway netip.Prefix) error {
	have, err := c.addrs(l)
	if err != nil {
		return err
	}
	there := false
	for _, a := range have {
		if a == gateway {
			there = true
			continue
		}
		if err := c.host.AddrDel(l, addrOf(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address: %w", err)
		}
	}
	if there {
		return nil
	}
	if err := c.host.AddrAdd(l, addrOf(gateway)); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	return nil
}

// ensurePod builds the pod's links but those that are right. The rules already hold its sources. What it was before is was. must says
// that a namespace of another owner is replaced.
func (c *Controller) ensurePod(ctx context.Context, want netctl.Config, bridge netlink.Link, pod netctl.Pod, was []netctl.Pod, must bool, queued queues) error {
	fresh, err := c.ensureEth(ctx, want, bridge, pod, must)
	if err != nil {
		return err
	}
	if err := c.ensurePlaces(ctx, want, pod, was, fresh); err != nil {
		return err
	}
	return c.ensureLimits(pod, queued)
}

// ensureEth builds the pod's namespace and eth0 unless the namespace stands and the link's mark says
// that it was built from the same values. fresh says that the namespace is new.
func (c *Controller) ensureEth(ctx context.Context, want netctl.Config, bridge netlink.Link, pod netctl.Pod, must bool) (fresh bool, err error) {
	l, err := c.linkByName(netctl.LinkName(c.instance, pod.ID))
	if err != nil {
		return false, err
	}
	if l != nil && isNamespace(pod.Namespace) {
		_, have, ok := c.finished(l, bridge.Attrs().Index)
		if ok && have.IDBase == pod.IDBase && l.Attrs().Alias == netctl.Mark(want, pod) {
			return false, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if fresh, err = c.buildPod(ctx, want, bridge, pod, must); err != nil {
		return false, fmt.Errorf("pod network: %w", err)
	}
	return fresh, nil
}

// buildPod makes the pod's link anew, in its namespace if that stands and is the right one's. What it
// made is taken away again when a step fails; the mark is the last step.
func (c *Controller) buildPod(ctx context.Context, want netctl.Config, bridge netlink.Link, pod netctl.Pod, must bool) (fresh bool, err error) {
	name := netctl.LinkName(c.instance, pod.ID)
	if err := c.removeLink(name); err != nil {
		return false, err
	}
	ns, fresh, err := ensureNamespace(pod.Namespace, pod.IDBase, must)
	if err != nil {
		return false, err
	}
	defer ns.Close()
	defer func() {
		if err == nil {
			return
		}
		err = errors.Join(err, c.removeLink(name))
		if fresh {
			err = errors.Join(err, removeNamespace(pod.Namespace))
		}
	}()
	if !fresh {
		if err := removeStray(ns.nl, podLink); err != nil {
			return fresh, err
		}
	}
	mac, err := net.ParseMAC(pod.MAC)
	if err != nil {
		return fresh, err
	}
	veth := &netlink.Veth{
		LinkAttrs: linkAttrs(name, want.MTU, nil), PeerName: podLink, PeerHardwareAddr: mac,
		PeerNamespace: netlink.NsFd(ns.file.Fd()), PeerTxQLen: -1, PeerMTU: uint32(want.MTU),
	}
	veth.Group = ns.base
	if err := c.host.LinkAdd(veth); err != nil {
		return fresh, fmt.Errorf("add link: %w", err)
	}
	if err := inside(ns.nl, want, pod); err != nil {
		return fresh, err
	}
	if err := ns.noneProbed(podLink); err != nil {
		return fresh, err
	}
	if err := c.outside(veth, bridge); err != nil {
		return fresh, err
	}
	err = errors.Join(waitUp(ctx, c.host, name), waitUp(ctx, ns.nl, podLink), waitUp(ctx, c.host, bridge.Attrs().Name))
	if err != nil {
		return fresh, err
	}
	if err := c.host.LinkSetAlias(veth, netctl.Mark(want, pod)); err != nil {
		return fresh, fmt.Errorf("mark link: %w", err)
	}
	return fresh, nil
}

// waitUp waits until the kernel has put the link's carrier into effect. It does so
// in the background, and until then link, port and bridge (which has a carrier
// only from its first port on) drop every frame: the pod's first ARP request would
// be lost, and its first connection take a second.
func waitUp(ctx context.Context, nl *netlink.Handle, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		l, err := nl.LinkByName(name)
		if err != nil {
			return fmt.Errorf("wait for carrier: %w", err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		if sleep.For(ctx, pause) != nil {
			return fmt.Errorf("wait for carrier: %w", ctx.Err())
		}
	}
}

// outside attaches the host's end. The port is isolated from other pods before it
// carries its first frame.
func (c *Controller) outside(l, bridge netlink.Link) error {
	if err := c.home.switchOn("net/ipv6/conf/" + l.Attrs().Name + "/disable_ipv6"); err != nil {
		return err
	}
	if err := c.host.LinkSetMaster(l, bridge); err != nil {
		return fmt.Errorf("attach to bridge: %w", err)
	}
	if err := c.host.LinkSetIsolated(l, true); err != nil {
		return fmt.Errorf("isolate port: %w", err)
	}
	if err := c.host.LinkSetUp(l); err != nil {
		return fmt.Errorf("host end up: %w", err)
	}
	return nil
}

// inside sets up lo and eth0 in the pod's namespace.
func inside(nl *netlink.Handle, want netctl.Config, pod netctl.Pod) error {
	if err := nl.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loopback}}); err != nil {
		return fmt.Errorf("lo up: %w", err)
	}
	eth, err := nl.LinkByName(podLink)
	if err != nil {
		return fmt.Errorf("find %s: %w", podLink, err)
	}
	if err := nl.AddrAdd(eth, addrOf(netip.PrefixFrom(pod.Addr, want.Subnet.Bits()))); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := nl.LinkSetUp(eth); err != nil {
		return fmt.Errorf("%s up: %w", podLink, err)
	}
	gateway := want.Gateway().Addr()
	mac, err := net.ParseMAC(netctl.MACFor(gateway))
	if err != nil {
		return err
	}
	if err := nl.NeighSet(&netlink.Neigh{
		LinkIndex: eth.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: gateway.AsSlice(), HardwareAddr: mac,
	}); err != nil {
		return fmt.Errorf("add the gateway as neighbor: %w", err)
	}
	route := &netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateway.AsSlice()}
	if err := nl.RouteAdd(route); err != nil {
		return fmt.Errorf("add default route: %w", err)
	}
	return nil
}

// removeStray takes away a link of a pod that is not the one about to be made.
func removeStray(nl *netlink.Handle, name string) error {
	l, err := nl.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = nl.LinkDel(l)
	}
	if err != nil {
		return fmt.Errorf("remove stray %s: %w", name, err)
	}
	return nil
}

// linkByName returns nil when there is no such link.
func (c *Controller) linkByName(name string) (netlink.Link, error) {
	l, err := retry(func() (netlink.Link, error) { return c.host.LinkByName(name) })
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link: %w", err)
	}
	return l, nil
}

// removeLink deletes both ends of a link; an absent one is no error.
func (c *Controller) removeLink(name string) error {
	l, err := c.linkByName(name)
	if l == nil || err != nil {
		return err
	}
	if err := c.host.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link: %w", err)
	}
	return nil
}

// forgetFlows drops the kernel's connections of a range, so that whoever gets an
// address next receives nothing that was meant for its predecessor.
func (c *Controller) forgetFlows(p netip.Prefix) error {
	_, err := retry(func() (uint, error) {
		return c.host.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, flowsOf(p))
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forget connections: %w", err)
	}
	return nil
}

// flowsOf matches connections from or to a range.
type flowsOf netip.Prefix

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f flowsOf) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, ip := range []net.IP{flow.Forward.SrcIP, flow.Forward.DstIP, flow.Reverse.SrcIP, flow.Reverse.DstIP} {
		if a, ok := netip.AddrFromSlice(ip); ok && netip.Prefix(f).Contains(a.Unmap()) {
			return true
		}
	}
	return false
}

// isPort says whether a pod's link is up on both ends and a port of the bridge.
func isPort(l netlink.Link, bridge int) bool {
	a := l.Attrs()
	up := a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0
	return l.Type() == "veth" && up && bridge != 0 && a.MasterIndex == bridge
}

func linkAttrs(name string, mtu int, mac net.HardwareAddr) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU, a.HardwareAddr = name, mtu, mac
	return a
}

func addrOf(p netip.Prefix) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}}
}
