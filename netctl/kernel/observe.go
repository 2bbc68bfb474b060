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

// sight is what one look at the kernel found of the instance.
type sight struct {
	instance string
	ready    bool
	bridge   int                     // index, 0 when there is none
	config   netctl.Config           // bridge and complete pods
	links    map[string]netlink.Link // hosts' ends by name, without the bridge
	names    []string                // of network namespaces, sorted
	ports    ports                   // that lead to pods
}

func (c *Controller) look(ctx context.Context) (sight, error) {
	s := sight{instance: c.instance, links: map[string]netlink.Link{}}
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
	for _, l := range s.links {
		host, pod, ok := c.finished(l, s.bridge)
		same := host.Subnet == s.config.Subnet && host.MTU == s.config.MTU
		if ok && same && found.pins[pinOf(c.instance, pod)] && isNamespace(pod.Namespace) {
			pod.Ports = found.ports.of(pod.Addr)
			s.config.Pods = append(s.config.Pods, pod)
		}
	}
	slices.SortFunc(s.config.Pods, func(a, b netctl.Pod) int { return cmp.Compare(a.ID, b.ID) })
	return s, ctx.Err()
}

func (c *Controller) lookBridge(s *sight, l netlink.Link) error {
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
	up := a.RawFlags&unix.IFF_UP != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0
	return host, pod, l.Type() == "veth" && up && bridge != 0 && a.MasterIndex == bridge
}

func (s sight) state() netctl.State {
	return netctl.State{Config: s.config, Ready: s.ready && s.config.Subnet.IsValid(), Partial: s.orphans(s.config)}
}

// orphans names, sorted, the links and namespaces that no pod of want and no
// complete pod has.
func (s sight) orphans(want netctl.Config) []string {
	mine := map[string]bool{}
	for _, p := range slices.Concat(want.Pods, s.config.Pods) {
		mine[netctl.LinkName(s.instance, p.ID)], mine[p.Namespace] = true, true
	}
	var out []string
	for name := range s.links {
		if !mine[name] {
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
