package kernel

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/internal/userns"
	"gantry/netctl"
)

// observation is what one look at the kernel found of the instance.
type observation struct {
	instance string
	ready    bool
	bridge   int                     // index, 0 when there is none
	config   netctl.Config           // bridge and complete pods
	links    map[string]netlink.Link // hosts' ends by name, without the bridge
	// overlayLinks are the links of overlays by name: bridges, links to other hosts, hosts' ends of pods' links, and limits.
	overlayLinks map[string]netlink.Link
	names        []string       // of network namespaces, sorted
	ports        ports          // that lead to pods
	entries      map[entry]bool // of overlays, and of what holds pods back
	known        netctl.Config  // what memory has
	right        bool           // the entries are exactly those of known
	off          []switched     // what someone else switched at bridges and ports
}

func (c *Controller) look(ctx context.Context) (observation, error) {
	s := observation{instance: c.instance, links: map[string]netlink.Link{}, overlayLinks: map[string]netlink.Link{}}
	s.config.Instance = c.instance
	links, err := retry(c.host.LinkList)
	if err != nil {
		return s, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		switch name := l.Attrs().Name; {
		case name == netctl.BridgeName(c.instance):
			if err := c.lookBridge(&s, l); err != nil {
				return s, err
			}
		case strings.HasPrefix(name, netctl.BridgeName(c.instance)):
			s.links[name] = l
		case isOverlayLink(c.instance, name):
			s.overlayLinks[name] = l
		}
	}
	if s.names, err = listNamespaces(netctl.NamespacePrefix(c.instance)); err != nil {
		return s, err
	}
	found, err := c.rules.look()
	if err != nil {
		return s, err
	}
	s.ready, s.config.Deny, s.config.Public, s.ports = found.intact, found.deny, found.public, found.ports
	s.config.Names, s.config.Flows, s.config.Underlay = found.names, found.flows, found.under
	if err := c.lookOverlays(&s, links); err != nil {
		return s, err
	}
	if s.off, err = c.lookSwitches(links); err != nil {
		return s, err
	}
	places := s.places(found.pins)
	queued, err := c.queues()
	if err != nil {
		return s, err
	}
	for _, l := range s.links {
		host, pod, ok := c.finished(l, s.bridge)
		same := host.Subnet == s.config.Subnet && host.MTU == s.config.MTU
		if ok && same && found.pins[pinOf(c.instance, pod)] && isNamespace(pod.Namespace) {
			pod.Ports, pod.Overlays = found.ports.of(pod.Addr), places[pod.ID]
			pod.Closed = s.entries[entry{kind: closed, addr: octetsOf(pod.Addr)}]
			if pod.Mbps, err = c.limitsOf(&s, pod, queued); err != nil {
				return s, err
			}
			s.config.Pods = append(s.config.Pods, pod)
		}
	}
	slices.SortFunc(s.config.Pods, func(a, b netctl.Pod) int { return cmp.Compare(a.ID, b.ID) })
	return s, ctx.Err()
}

func (c *Controller) lookBridge(s *observation, l netlink.Link) error {
	if l.Type() != "bridge" {
		return nil
	}
	s.bridge, s.config.MTU = l.Attrs().Index, l.Attrs().MTU
	addrs, err := c.addrs(l)
	if err == nil && len(addrs) == 1 {
		s.config.Subnet = addrs[0].Masked()
	}
	return err
}

// finished reads a link's mark and group, and checks that the host's end is as buildPod
// leaves it.
func (c *Controller) finished(l netlink.Link, bridge int) (netctl.Config, netctl.Pod, bool) {
	a := l.Attrs()
	host, pod, err := netctl.ParseMark(a.Alias)
	if err != nil || host.Instance != c.instance || a.Name != netctl.LinkName(c.instance, pod.ID) {
		return netctl.Config{}, netctl.Pod{}, false
	}
	if pod.IDBase = a.Group; a.Group != 0 && userns.CheckBase(a.Group) != nil {
		return netctl.Config{}, netctl.Pod{}, false
	}
	return host, pod, isPort(l, bridge)
}

func (s observation) state() netctl.State {
	return netctl.State{Config: s.config, Ready: s.ready && len(s.off) == 0 && s.config.Subnet.IsValid(), Partial: s.orphans(s.config)}
}

// orphans names, sorted, the links and namespaces that no pod of want and no
// complete pod has.
func (s observation) orphans(want netctl.Config) []string {
	mine := map[string]bool{}
	for _, p := range slices.Concat(want.Pods, s.config.Pods) {
		mine[netctl.LinkName(s.instance, p.ID)], mine[p.Namespace] = true, true
	}
	keep := overlayLinks(want)
	for _, p := range slices.Concat(want.Pods, s.config.Pods) {
		for _, end := range podEnds(s.instance, p) {
			keep[end] = true
			keep[limitLink(end)] = p.Mbps != 0 || keep[limitLink(end)]
		}
	}
	var out []string
	for name := range s.links {
		if !mine[name] {
			out = append(out, name)
		}
	}
	for name := range s.overlayLinks {
		if !keep[name] {
			out = append(out, name)
		}
	}
	for _, name := range s.names {
		if !mine[name] {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (c *Controller) addrs(l netlink.Link) ([]netip.Prefix, error) {
	list, err := retry(func() ([]netlink.Addr, error) { return c.host.AddrList(l, unix.AF_INET) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []netip.Prefix
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.IPNet.String()); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}
