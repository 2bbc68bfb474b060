package netctl

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"gantry/internal/userns"
)

const (
	minMTU  = 576
	maxMTU  = 65535
	maxDeny = 256
	maxBar  = 256

	maxPublic = 8
	maxPorts  = 256
	maxMbps   = 1_000_000
	maxFlows  = 1_000_000
)

// Config is the network that one host should have for one agent.
type Config struct {
	// Instance is 4 lower-case hexadecimal digits. It tells the agents of one
	// machine apart: every kernel object carries it in its name.
	Instance string
	// Subnet is the pods' IPv4 range on this host, a masked prefix of /8 to /29;
	// its first address is the gateway's.
	Subnet netip.Prefix
	// MTU of the bridge and of the pods' links in bytes, 576 to 65535.
	MTU int
	// Deny holds further IPv4 ranges that no pod may reach, masked, sorted and
	// without repetition, at most 256. 169.254.0.0/16 is always denied.
	Deny []netip.Prefix
	// Barred holds TCP ports at IPv4 addresses that no pod may reach, those of the control plane, sorted and without
	// repetition, at most 256.
	Barred []netip.AddrPort
	// Public holds the host's IPv4 addresses at which pods' ports are published, sorted and without
	// repetition, at most 8. Without any, no port is published.
	Public []netip.Addr
	// Names says that pods may ask the gateway's port 53.
	Names bool
	// Flows bounds the connections that the host tracks for each pod: those that the pod opens and, separately, those that
	// others open to it; at most 1,000,000. 0: no bound. Private networks are not tracked.
	Flows int
	// Overlays is sorted by VNI.
	Overlays []Overlay
	Underlay Underlay
	// Pods is sorted by ID.
	Pods []Pod
}

// Pod is one pod's place in the host's network.
type Pod struct {
	ID        string     // 1 to 64 of a-z A-Z 0-9 - _
	Namespace string     // NamespaceName(instance, ID)
	Addr      netip.Addr // inside the subnet
	MAC       string     // unicast, lower-case, with colons
	Ports     []Port     // that the host publishes for the pod, by Public; at most 256
	// IDBase is the host's id of the pod's root: the namespace is owned by a user namespace in which 65,536
	// ids begin there. 0: the host owns it.
	IDBase uint32
	// Overlays are its places in overlays of the Config, by VNI; at most 4.
	Overlays []Place
	// Mbps limits what the pod sends and, apart from that, receives, on each of its links, in 10^6 bits per second; 0: nothing does.
	Mbps int
	// Closed says that the pod reaches nothing outside of its overlays but the gateway's names, and answers what is asked of it.
	Closed bool
}

// Port is a TCP port of the host that leads to a port of a pod. Both are 1 to 65535; no two of a
// Config have one Public.
type Port struct {
	Public, Private uint16
}

// SamePlace says whether both have the same namespace and the same eth0. What else there is, is changed while they stand.
func (p Pod) SamePlace(o Pod) bool {
	return p.ID == o.ID && p.Namespace == o.Namespace && p.Addr == o.Addr && p.MAC == o.MAC && p.IDBase == o.IDBase
}

// Equal says whether both are the same.
func (p Pod) Equal(o Pod) bool {
	return p.SamePlace(o) && slices.Equal(p.Ports, o.Ports) && slices.Equal(p.Overlays, o.Overlays) && p.Mbps == o.Mbps && p.Closed == o.Closed
}

// Place finds the pod's place in an overlay.
func (p Pod) Place(vni uint32) (Place, bool) {
	for _, at := range p.Overlays {
		if at.VNI == vni {
			return at, true
		}
	}
	return Place{}, false
}

// NewPod fills in what follows from the pod's id and address.
func NewPod(instance, id string, addr netip.Addr) Pod {
	return Pod{ID: id, Namespace: NamespaceName(instance, id), Addr: addr, MAC: MACFor(addr)}
}

// Gateway is the host's own address in the subnet, with the subnet's length.
func (c Config) Gateway() netip.Prefix {
	return netip.PrefixFrom(c.Subnet.Masked().Addr().Next(), c.Subnet.Bits())
}

// Denied returns the ranges that no pod may reach, none inside another.
func (c Config) Denied() []netip.Prefix {
	all := append([]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254}), 16)}, c.Deny...)
	if c.Underlay.Range.IsValid() {
		all = append(all, c.Underlay.Range)
	}
	slices.SortFunc(all, comparePrefix)
	var out []netip.Prefix
	for _, p := range all {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// Pod finds a pod by its id.
func (c Config) Pod(id string) (Pod, bool) {
	i, ok := slices.BinarySearchFunc(c.Pods, id, func(p Pod, id string) int { return cmp.Compare(p.ID, id) })
	if !ok {
		return Pod{}, false
	}
	return c.Pods[i], true
}

// With returns a copy in which the pod is present as given. Public ports that it has are no other
// pod's any more: they are free for the next pod while what is left of the last one goes.
func (c Config) With(pod Pod) Config {
	out := c.Without(pod.ID)
	for i := range out.Pods {
		out.Pods[i].Ports = slices.DeleteFunc(slices.Clone(out.Pods[i].Ports), func(p Port) bool {
			return slices.ContainsFunc(pod.Ports, func(mine Port) bool { return mine.Public == p.Public })
		})
	}
	i, _ := slices.BinarySearchFunc(out.Pods, pod.ID, func(p Pod, id string) int { return cmp.Compare(p.ID, id) })
	out.Pods = slices.Insert(out.Pods, i, pod)
	return out
}

// Without returns a copy in which the pod is absent.
func (c Config) Without(id string) Config {
	out := c.Clone()
	out.Pods = slices.DeleteFunc(out.Pods, func(p Pod) bool { return p.ID == id })
	return out
}

// Clone returns a copy that shares nothing with c but the members of overlays, which nobody changes in place.
func (c Config) Clone() Config {
	c.Deny, c.Barred, c.Public, c.Pods = slices.Clone(c.Deny), slices.Clone(c.Barred), slices.Clone(c.Public), slices.Clone(c.Pods)
	c.Overlays, c.Underlay.Plain = slices.Clone(c.Overlays), slices.Clone(c.Underlay.Plain)
	for i := range c.Pods {
		c.Pods[i].Ports, c.Pods[i].Overlays = slices.Clone(c.Pods[i].Ports), slices.Clone(c.Pods[i].Overlays)
	}
	return c
}

// Keeping returns a copy in which every pod that have holds too has the IDBase that it has there.
// Nobody can change who owns a namespace, and to replace it would leave the processes in it without a
// network: Set keeps what stands, such as what an agent made that knew no user namespaces.
func (c Config) Keeping(have Config) Config {
	out := c.Clone()
	for i := range out.Pods {
		if old, ok := have.Pod(out.Pods[i].ID); ok {
			out.Pods[i].IDBase = old.IDBase
		}
	}
	return out
}

// Equal says whether both describe the same network.
func (c Config) Equal(o Config) bool {
	return c.sameHost(o) && slices.EqualFunc(c.Overlays, o.Overlays, Overlay.Equal) && slices.EqualFunc(c.Pods, o.Pods, Pod.Equal)
}

func (c Config) sameHost(o Config) bool {
	return c.Instance == o.Instance && c.Subnet == o.Subnet && c.MTU == o.MTU &&
		slices.Equal(c.Deny, o.Deny) && slices.Equal(c.Barred, o.Barred) && slices.Equal(c.Public, o.Public) && c.Names == o.Names && c.Flows == o.Flows && c.Underlay.Equal(o.Underlay)
}

// String is the text that a reviewer reads: one object a line, pods by id.
func (c Config) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "instance %s\n%s\n", c.Instance, c.hostLine())
	for _, p := range c.Denied() {
		fmt.Fprintf(&b, "deny %s\n", p)
	}
	for _, a := range c.Barred {
		fmt.Fprintf(&b, "bar %s\n", a)
	}
	for _, a := range c.Public {
		fmt.Fprintf(&b, "public %s\n", a)
	}
	if c.Names {
		fmt.Fprintf(&b, "names %s\n", c.Gateway().Addr())
	}
	if c.Flows != 0 {
		fmt.Fprintf(&b, "flows %d\n", c.Flows)
	}
	c.writeOverlays(&b)
	for _, p := range c.Pods {
		fmt.Fprintf(&b, "%s\n", podLine(c.Instance, p))
	}
	return b.String()
}

func (c Config) hostLine() string {
	return fmt.Sprintf("bridge %s subnet %s gateway %s mtu %d",
		BridgeName(c.Instance), c.Subnet, c.Gateway().Addr(), c.MTU)
}

func podLine(instance string, p Pod) string {
	line := fmt.Sprintf("pod %s addr %s mac %s link %s netns %s", p.ID, p.Addr, p.MAC, LinkName(instance, p.ID), p.Namespace)
	if p.IDBase != 0 {
		line += fmt.Sprintf(" ids %d", p.IDBase)
	}
	for _, port := range p.Ports {
		line += fmt.Sprintf(" port %d to %d", port.Public, port.Private)
	}
	for _, at := range p.Overlays {
		line += fmt.Sprintf(" in %d as %s addr %s mac %s", at.VNI, at.Link, at.Addr, at.MAC)
	}
	if p.Mbps != 0 {
		line += fmt.Sprintf(" mbps %d", p.Mbps)
	}
	if p.Closed {
		line += " closed"
	}
	return line
}

// Validate returns every fault of the value, joined. Texts name the member and
// the rule, never the value.
func (c Config) Validate() error { return errors.Join(c.ValidatePods(), c.checkMembers()) }

// ValidatePods is Validate without the members of overlays, of which there may be very many.
func (c Config) ValidatePods() error {
	var faults []error
	add := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	add(CheckInstance(c.Instance))
	subnetErr := checkSubnet(c.Subnet)
	add(subnetErr)
	if c.MTU < minMTU || c.MTU > maxMTU {
		add(fmt.Errorf("mtu: want %d to %d", minMTU, maxMTU))
	}
	if c.Flows < 0 || c.Flows > maxFlows {
		add(fmt.Errorf("flows: want 0 to %d", maxFlows))
	}
	add(checkDeny(c.Deny))
	add(checkBarred(c.Barred))
	add(checkPublic(c.Public))
	add(c.Underlay.check())
	add(c.checkOverlays())
	add(c.checkPlaces())
	addrs, macs, links, ports := map[netip.Addr]bool{}, map[string]bool{}, map[string]bool{}, map[uint16]string{}
	for i, p := range c.Pods {
		at := func(err error) {
			if err != nil {
				add(fmt.Errorf("pods[%d].%w", i, err))
			}
		}
		at(p.check(c.Instance))
		if subnetErr == nil {
			at(checkPlace(c.Subnet, p.Addr))
		}
		if i > 0 && c.Pods[i-1].ID >= p.ID {
			at(errors.New("id: want ascending ids"))
		}
		link := LinkName(c.Instance, p.ID)
		if addrs[p.Addr] || macs[p.MAC] || links[link] {
			at(errors.New("id: address, hardware address or link name is another pod's"))
		}
		addrs[p.Addr], macs[p.MAC], links[link] = true, true, true
		at(takePorts(ports, p))
	}
	return errors.Join(faults...)
}

// check holds the pod's own rules; its place in a subnet is checkPlace's.
func (p Pod) check(instance string) error {
	if err := CheckPodID(p.ID); err != nil {
		return err
	}
	if p.Namespace != NamespaceName(instance, p.ID) {
		return errors.New("namespace: want the name that follows from instance and id")
	}
	if !p.Addr.Is4() {
		return errors.New("addr: want an IPv4 address")
	}
	if err := checkMAC(p.MAC); err != nil {
		return err
	}
	if p.Mbps < 0 || p.Mbps > maxMbps {
		return fmt.Errorf("mbps: want 0 to %d", maxMbps)
	}
	if p.IDBase != 0 {
		if err := userns.CheckBase(p.IDBase); err != nil {
			return fmt.Errorf("id base: %w", err)
		}
	}
	return p.checkPorts()
}

func checkMAC(text string) error {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || mac.String() != text {
		return errors.New("mac: want six lower-case octets with colons")
	}
	if mac[0]&1 != 0 || text == "00:00:00:00:00:00" {
		return errors.New("mac: want a unicast address")
	}
	return nil
}

func (p Pod) checkPorts() error {
	if len(p.Ports) > maxPorts {
		return fmt.Errorf("ports: want at most %d", maxPorts)
	}
	for i, port := range p.Ports {
		if port.Public == 0 || port.Private == 0 {
			return errors.New("ports: want 1 to 65535")
		}
		if i > 0 && p.Ports[i-1].Public >= port.Public {
			return errors.New("ports: want ascending public ports")
		}
	}
	return nil
}

// takePorts enters the pod's public ports into what others have.
func takePorts(taken map[uint16]string, p Pod) error {
	for _, port := range p.Ports {
		if owner, ok := taken[port.Public]; ok && owner != p.ID {
			return errors.New("ports: a public port is another pod's")
		}
		taken[port.Public] = p.ID
	}
	return nil
}

func checkPublic(public []netip.Addr) error {
	if len(public) > maxPublic {
		return fmt.Errorf("public: want at most %d addresses", maxPublic)
	}
	for i, a := range public {
		if !a.Is4() || !a.IsGlobalUnicast() {
			return fmt.Errorf("public[%d]: want an IPv4 address that others can reach", i)
		}
		if i > 0 && !public[i-1].Less(a) {
			return fmt.Errorf("public[%d]: want ascending addresses", i)
		}
	}
	return nil
}

func checkSubnet(s netip.Prefix) error {
	if !s.IsValid() || !s.Addr().Is4() || s.Bits() < 8 || s.Bits() > 29 || s != s.Masked() {
		return errors.New("subnet: want a masked IPv4 prefix of /8 to /29")
	}
	return nil
}

func checkPlace(subnet netip.Prefix, a netip.Addr) error {
	if !subnet.Contains(a) {
		return errors.New("addr: want an address of the subnet")
	}
	if first := subnet.Addr(); a == first || a == first.Next() || a == lastAddr(subnet) {
		return errors.New("addr: the subnet's first, gateway and last address are reserved")
	}
	return nil
}

func checkDeny(deny []netip.Prefix) error {
	if len(deny) > maxDeny {
		return fmt.Errorf("deny: want at most %d ranges", maxDeny)
	}
	for i, p := range deny {
		if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
			return fmt.Errorf("deny[%d]: want a masked IPv4 prefix", i)
		}
		if i > 0 && comparePrefix(deny[i-1], p) >= 0 {
			return fmt.Errorf("deny[%d]: want ascending prefixes", i)
		}
	}
	return nil
}

func checkBarred(barred []netip.AddrPort) error {
	if len(barred) > maxBar {
		return fmt.Errorf("barred: want at most %d", maxBar)
	}
	for i, a := range barred {
		if !a.Addr().Is4() || a.Port() == 0 {
			return fmt.Errorf("barred[%d]: want an IPv4 address and a port", i)
		}
		if i > 0 && barred[i-1].Compare(a) >= 0 {
			return fmt.Errorf("barred[%d]: want ascending addresses", i)
		}
	}
	return nil
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
