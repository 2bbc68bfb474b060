package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// Island is a private network for several hosts of one machine: a bridge, and a named network namespace
// for each host with one link to it. The machine, which has the first address of the subnet, forwards and
// translates what they send to others. Every object carries the island's name; the kernel is the only
// memory. Its methods are for one goroutine.
type Island struct {
	name   string
	subnet netip.Prefix
}

// Limits of an island.
const (
	islandBits     = 24
	firstHost      = 10 // last byte of the first host's address
	maxIslandHosts = 32
	islandMTU      = 1500
)

var islandName = regexp.MustCompile(`^[a-z0-9]{1,8}$`)

// NewIsland names an island: 1 to 8 lower-case letters and digits, and a /24 of IPv4 that belongs to nobody
// else. It changes nothing.
func NewIsland(name string, subnet netip.Prefix) (*Island, error) {
	if !islandName.MatchString(name) || !subnet.Addr().Is4() || subnet.Bits() != islandBits || subnet != subnet.Masked() {
		return nil, fmt.Errorf("island %q on %s: a name of 1 to 8 letters and digits and a /24 are needed", name, subnet)
	}
	return &Island{name, subnet}, nil
}

// Gateway is the machine's own address on the island.
func (i *Island) Gateway() netip.Addr { return i.subnet.Addr().Next() }

// Addr is the address of host n, counted from 1.
func (i *Island) Addr(n int) netip.Addr {
	a := i.subnet.Addr().As4()
	a[3] = byte(firstHost + n - 1)
	return netip.AddrFrom4(a)
}

// Namespace is the name of the network namespace of host n.
func (i *Island) Namespace(n int) string { return i.prefix() + strconv.Itoa(n) }

func (i *Island) prefix() string           { return "gantry-dev-" + i.name + "-" }
func (i *Island) bridge() string           { return "gd" + i.name }
func (i *Island) link(n int) string        { return i.bridge() + "-" + strconv.Itoa(n) }
func (i *Island) table() string            { return "gantry_dev_" + i.name }
func (i *Island) family() knftables.Family { return knftables.InetFamily }

// on is an address with the island's prefix.
func (i *Island) on(a netip.Addr) *netlink.Addr { return addrOf(netip.PrefixFrom(a, islandBits)) }

// ErrIslandTaken says that another link of the machine has the island's addresses.
var ErrIslandTaken = errors.New("the addresses of this network are in use on another link")

// Up makes the island for hosts 1 to n; what stands already stays as it is. Errors: ErrIslandTaken.
func (i *Island) Up(ctx context.Context, hosts int) error {
	if hosts < 1 || hosts > maxIslandHosts {
		return fmt.Errorf("an island has 1 to %d hosts", maxIslandHosts)
	}
	if err := i.free(); err != nil {
		return err
	}
	if err := setSysctl("net/ipv4/ip_forward", "1"); err != nil {
		return err
	}
	bridge, err := i.ensureBridge()
	if err != nil {
		return fmt.Errorf("island: %w", err)
	}
	if err := i.setRules(ctx, true); err != nil {
		return fmt.Errorf("island: %w", err)
	}
	for n := 1; n <= hosts; n++ {
		if err := errors.Join(ctx.Err(), i.ensureHost(n, bridge)); err != nil {
			return fmt.Errorf("island: host %d: %w", n, err)
		}
	}
	return nil
}

// free fails when another link has an address of the island.
func (i *Island) free() error {
	links, err := retry(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Name == i.bridge() {
			continue
		}
		addrs, err := retry(func() ([]netlink.Addr, error) { return netlink.AddrList(l, unix.AF_INET) })
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range addrs {
			if p, ok := netip.AddrFromSlice(a.IP.To4()); ok && i.subnet.Contains(p) {
				return fmt.Errorf("%w: %s has %s", ErrIslandTaken, l.Attrs().Name, p)
			}
		}
	}
	return nil
}

func (i *Island) ensureBridge() (netlink.Link, error) {
	l, err := netlink.LinkByName(i.bridge())
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		l = &netlink.Bridge{LinkAttrs: linkAttrs(i.bridge(), islandMTU, nil)}
		err = netlink.LinkAdd(l)
	}
	if err != nil {
		return nil, fmt.Errorf("bridge: %w", err)
	}
	if err := setSysctl("net/ipv6/conf/"+i.bridge()+"/disable_ipv6", "1"); err != nil {
		return nil, err
	}
	if err := netlink.AddrReplace(l, i.on(i.Gateway())); err != nil {
		return nil, err
	}
	return l, netlink.LinkSetUp(l)
}

// ensureHost makes a host's namespace and its link.
func (i *Island) ensureHost(n int, bridge netlink.Link) error {
	ns, _, err := ensureNamespace(i.Namespace(n), 0, false)
	if err != nil {
		return err
	}
	defer ns.Close()
	if _, err := netlink.LinkByName(i.link(n)); err != nil {
		if !errors.As(err, &netlink.LinkNotFoundError{}) {
			return err
		}
		pair := &netlink.Veth{
			LinkAttrs: linkAttrs(i.link(n), islandMTU, nil), PeerName: podLink, PeerNamespace: netlink.NsFd(int(ns.file.Fd())),
		}
		pair.MasterIndex = bridge.Attrs().Index
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("link: %w", err)
		}
	}
	near, err := netlink.LinkByName(i.link(n))
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(near); err != nil {
		return err
	}
	return i.furnish(n, ns.nl)
}

// furnish sets up the host's end.
func (i *Island) furnish(n int, nl *netlink.Handle) error {
	lo, err := nl.LinkByIndex(loopback)
	if err != nil {
		return err
	}
	far, err := nl.LinkByName(podLink)
	if err != nil {
		return err
	}
	if err := errors.Join(nl.LinkSetUp(lo), nl.AddrReplace(far, i.on(i.Addr(n))), nl.LinkSetUp(far)); err != nil {
		return err
	}
	return nl.RouteReplace(&netlink.Route{LinkIndex: far.Attrs().Index, Gw: net.IP(i.Gateway().AsSlice())})
}

// setRules replaces the island's table, or removes it.
func (i *Island) setRules(ctx context.Context, there bool) error {
	nft, err := knftables.New("", "")
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	t := knftables.Table{Family: i.family(), Name: i.table()}
	tx := nft.NewTransaction()
	tx.Add(&t)
	tx.Delete(&t)
	if there {
		tx.Add(&t)
		w := writer{tx, i.family(), i.table()}
		w.base("at_postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority)
		w.rule("at_postrouting", "ip saddr", i.subnet.String(), "oifname !=", quote(i.bridge()), "masquerade")
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// Down takes the island away. Processes in its namespaces keep them, without a link, until they end.
func (i *Island) Down(ctx context.Context) error {
	names, err := listNamespaces(i.prefix())
	faults := []error{err}
	for _, name := range names {
		faults = append(faults, removeNamespace(name))
	}
	links, err := retry(netlink.LinkList)
	faults = append(faults, err)
	for _, l := range links {
		if name := l.Attrs().Name; name == i.bridge() || strings.HasPrefix(name, i.bridge()+"-") {
			if err := netlink.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
				faults = append(faults, fmt.Errorf("remove link %s: %w", name, err))
			}
		}
	}
	return errors.Join(append(faults, i.setRules(ctx, false), dropNamespaces())...)
}

// ListenIn listens for TCP at an address, host:port, of a named network namespace.
func ListenIn(namespace, address string) (l net.Listener, err error) {
	err = Within(namespace, func() error {
		l, err = net.Listen("tcp4", address) //nolint:noctx // nothing of it waits
		return err
	})
	return l, err
}

// Within runs f on a thread of its own in a named network namespace; a process that f starts is there too.
func Within(namespace string, f func() error) error {
	ns, err := openNamespaceFile(namespace)
	if err != nil {
		return err
	}
	defer func() { _ = ns.Close() }() // read-only
	return onOwnThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %s: %w", namespace, err)
		}
		return f()
	})
}
