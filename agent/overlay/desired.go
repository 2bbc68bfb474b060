package overlay

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const (
	leastMTU   = fleet.MinOverlayMTU
	mostMTU    = fleet.MaxOverlayMTU
	mostVNI    = 1<<24 - 1
	leastBits  = 8 // of the range of an overlay
	mostBits   = 29
	mostPort   = 1<<16 - 1
	mostMbps   = 1_000_000
	mostSuffix = 8
	keyLength  = 32
)

// errGap says that a difference does not lead on from what the host has.
var errGap = errors.New("the difference does not follow what the host has of the overlay")

// desired is the state of private networks that schedulers ordered, the newest of each.
type desired struct {
	set      *agentrpc.NetworkSet // as it came; nil: none came yet
	settings settings
	overlays map[fleet.OverlayID]*network
	peers    map[fleet.HostID]peer
	peered   uint64 // grows with every change of peers or settings
	counted  uint64 // changes of overlays
}

// settings are what a NetworkSet says.
type settings struct {
	suffixes        []string
	mtu, mbps       int
	vxlan, wireport uint16
	addr            netip.Addr   // the host's own in the tunnel; zero: it has none
	tunnels, pool   netip.Prefix // zero: not told
	closed          map[fleet.AccountID]bool
}

// network is an overlay with its members.
type network struct {
	id      fleet.OverlayID
	account fleet.AccountID
	vni     uint32
	cidr    netip.Prefix
	mtu     int // 0: that of the settings
	rev     uint64
	asked   bool     // for everything, after a gap
	members []member // by address
	changes uint64   // another one after each change
}

type member struct {
	addr netip.Addr
	mac  string
	pod  fleet.PodID
	name string
	host fleet.HostID
}

// peer is another host.
type peer struct {
	addr     netip.Addr // in the tunnel; zero: it has none
	key      string
	endpoint netip.AddrPort // zero: it calls
	plain    netip.Addr     // zero: frames go through the tunnel
}

func newDesired() desired {
	d := fleet.DefaultNetworkSettings()
	return desired{
		settings: settings{
			suffixes: append([]string{d.Suffix}, d.Aliases...), mtu: d.MTU, pool: d.Pool, tunnels: d.Tunnel,
			vxlan: uint16(d.VXLANPort), wireport: uint16(d.WireGuardPort), //nolint:gosec // ports
		},
		overlays: map[fleet.OverlayID]*network{}, peers: map[fleet.HostID]peer{},
	}
}

// take takes what concerns the whole host. Overlays that it does not name are forgotten.
func (t *desired) take(in *agentrpc.NetworkSet) error {
	s, err := decodeSettings(in)
	if err != nil {
		return fmt.Errorf("settings of private networks: %w", err)
	}
	t.set, t.settings = in, s
	t.peered++
	for id := range t.overlays {
		if !slices.Contains(in.GetOverlays(), string(id)) {
			delete(t.overlays, id)
		}
	}
	return nil
}

func decodeSettings(in *agentrpc.NetworkSet) (settings, error) {
	s := settings{
		suffixes: append([]string{in.GetSuffix()}, in.GetAliases()...), mtu: int(in.GetMtu()), mbps: int(in.GetPodMbps()),
		closed: map[fleet.AccountID]bool{},
	}
	for _, account := range in.GetClosed() {
		s.closed[fleet.AccountID(account)] = true
	}
	defaults := newDesired().settings
	vxlan, wire := int(in.GetVxlanPort()), cmp.Or(int(in.GetWireguardPort()), int(defaults.wireport))
	switch {
	case s.mtu < leastMTU || s.mtu > mostMTU:
		return s, fmt.Errorf("mtu: want %d to %d", leastMTU, mostMTU)
	case s.mbps < 0 || s.mbps > mostMbps:
		return s, fmt.Errorf("limit of pods: want 0 to %d Mbit/s", mostMbps)
	case vxlan < 1 || vxlan > mostPort || wire < 1 || wire > mostPort:
		return s, errors.New("ports: want 1 to 65535")
	case len(s.suffixes) > mostSuffix || slices.ContainsFunc(s.suffixes, func(name string) bool { return strings.Trim(name, ".") != name || name == "" }):
		return s, errors.New("suffixes: want names without dots at their ends")
	}
	s.vxlan, s.wireport = uint16(vxlan), uint16(wire) //nolint:gosec // just checked
	var err error
	if s.pool, err = prefixOr(in.GetPool(), defaults.pool); err != nil {
		return s, fmt.Errorf("pool: %w", err)
	}
	if s.tunnels, err = prefixOr(in.GetTunnelRange(), defaults.tunnels); err != nil {
		return s, fmt.Errorf("range of the tunnel: %w", err)
	}
	if text := in.GetTunnelAddr(); text != "" {
		if s.addr, err = netip.ParseAddr(text); err != nil || !s.tunnels.Contains(s.addr) {
			return s, errors.New("address in the tunnel: want one of its range")
		}
	}
	return s, nil
}

// prefixOr reads a masked range of IPv4; empty is the other one.
func prefixOr(text string, other netip.Prefix) (netip.Prefix, error) {
	if text == "" {
		return other, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p != p.Masked() {
		return p, errors.New("want a masked range of IPv4")
	}
	return p, nil
}

// change takes who takes part in an overlay. The error is errGap when everything is needed, and has been asked for by nobody;
// what does not make sense in itself is another error, and changes nothing.
func (t *desired) change(in *agentrpc.OverlayChange) (gap bool, err error) {
	id := fleet.OverlayID(in.GetOverlayId())
	cidr, err := CheckRange(in.GetOverlayId(), in.GetVni(), in.GetCidr())
	if err != nil {
		return false, err
	}
	n := t.overlays[id]
	if in.GetFrom() != 0 && (n == nil || n.rev != in.GetFrom() || n.vni != in.GetVni() || n.cidr != cidr) {
		if n == nil {
			n = &network{id: id, account: fleet.AccountID(in.GetAccountId()), vni: in.GetVni(), cidr: cidr}
			t.keep(n)
		}
		gap, n.asked = !n.asked, true
		return gap, errGap
	}
	next := network{
		id: id, account: fleet.AccountID(in.GetAccountId()), vni: in.GetVni(), cidr: cidr, rev: in.GetTo(), changes: t.count(), mtu: int(in.GetMtu()),
	}
	if next.mtu != 0 && (next.mtu < leastMTU || next.mtu > mostMTU) {
		next.mtu = 0
	}
	if in.GetFrom() != 0 {
		next.members = n.members
	}
	for _, text := range in.GetGone() {
		if addr, err := netip.ParseAddr(text); err == nil {
			next.drop(addr)
		}
	}
	var faults []error
	next.putAll(in.GetPut(), func(err error) { faults = append(faults, err) })
	t.keep(&next)
	return false, errors.Join(faults[:min(len(faults), 5)]...)
}

func (t *desired) count() uint64 {
	t.counted++
	return t.counted
}

// keep has the overlay be known, and no other of its VNI.
func (t *desired) keep(n *network) {
	for id, other := range t.overlays {
		if other.vni == n.vni && id != n.id {
			delete(t.overlays, id)
		}
	}
	t.overlays[n.id] = n
}

// putAll adds members, and drops those that are on no host. Most come one at a time, and at times all at once.
func (n *network) putAll(in []*agentrpc.OverlayMember, fault func(error)) {
	const few = 64
	n.members = slices.Clone(n.members) // others may read those of before
	for _, m := range in {
		addr, err := netip.ParseAddr(m.GetAddr())
		if err != nil || !n.cidr.Contains(addr) || m.GetPodId() == "" {
			fault(fmt.Errorf("overlay %s: a member is not in its range or has no name", n.id))
			continue
		}
		now := member{addr: addr, mac: fleet.OverlayMAC(addr), pod: fleet.PodID(m.GetPodId()), name: m.GetName(), host: fleet.HostID(m.GetHostId())}
		switch {
		case len(in) > few:
			n.members = append(n.members, now)
		case now.host == "":
			n.drop(addr)
		default:
			n.put(now)
		}
	}
	if len(in) <= few {
		return
	}
	slices.SortStableFunc(n.members, compareMembers)
	last := n.members[:0]
	for i, m := range n.members { // of one address the newest counts
		if (i == len(n.members)-1 || n.members[i+1].addr != m.addr) && m.host != "" {
			last = append(last, m)
		}
	}
	n.members = last
}

func compareMembers(a, b member) int { return a.addr.Compare(b.addr) }

func (n *network) find(addr netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(n.members, addr, func(m member, a netip.Addr) int { return m.addr.Compare(a) })
}

func (n *network) put(m member) {
	if i, there := n.find(m.addr); there {
		n.members[i] = m
	} else {
		n.members = slices.Insert(n.members, i, m)
	}
}

func (n *network) drop(addr netip.Addr) {
	if i, there := n.find(addr); there {
		n.members = slices.Concat(n.members[:i], n.members[i+1:])
	}
}

// changePeers takes where other hosts are. Those that make no sense are left out.
func (t *desired) changePeers(in *agentrpc.PeerChange) error {
	next := map[fleet.HostID]peer{}
	if !in.GetFull() {
		for id, p := range t.peers {
			next[id] = p
		}
	}
	for _, id := range in.GetGone() {
		delete(next, fleet.HostID(id))
	}
	var faults []error
	for _, p := range in.GetPut() {
		now, err := decodePeer(p)
		if err != nil {
			faults = append(faults, fmt.Errorf("host %.64q: %w", p.GetHostId(), err))
			delete(next, fleet.HostID(p.GetHostId()))
			continue
		}
		next[fleet.HostID(p.GetHostId())] = now
	}
	t.peers = next
	t.peered++
	return errors.Join(faults[:min(len(faults), 5)]...)
}

func decodePeer(in *agentrpc.HostPeer) (p peer, err error) {
	p.key = in.GetPublicKey()
	if in.GetHostId() == "" {
		return p, errors.New("there is no id")
	}
	if raw, err := base64.StdEncoding.Strict().DecodeString(p.key); p.key != "" && (err != nil || len(raw) != keyLength) {
		return p, errors.New("its public key is none of WireGuard's")
	}
	if text := in.GetTunnelAddr(); text != "" {
		if p.addr, err = netip.ParseAddr(text); err != nil || !p.addr.Is4() {
			return p, errors.New("its address in the tunnel is not one of IPv4")
		}
	}
	if text := in.GetEndpoint(); text != "" {
		if p.endpoint, err = netip.ParseAddrPort(text); err != nil || p.endpoint.Port() == 0 {
			return p, errors.New("its endpoint is not an address with a port")
		}
	}
	if text := in.GetPlain(); text != "" {
		if p.plain, err = netip.ParseAddr(text); err != nil || !p.plain.Is4() || !p.plain.IsGlobalUnicast() {
			return p, errors.New("its plain address is not one of IPv4")
		}
	}
	return p, nil
}

// CheckRange says what is wrong with an overlay's id, VNI and range, and returns the range.
func CheckRange(id string, vni uint32, cidr string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(cidr)
	switch {
	case id == "" || len(id) > 128:
		return p, errors.New("an overlay has no proper id")
	case vni < 1 || vni > mostVNI:
		return p, fmt.Errorf("overlay %s: its VNI is not 1 to %d", id, mostVNI)
	case err != nil || !p.Addr().Is4() || p != p.Masked() || p.Bits() < leastBits || p.Bits() > mostBits:
		return p, fmt.Errorf("overlay %s: its range is not a masked one of IPv4 of /%d to /%d", id, leastBits, mostBits)
	}
	return p, nil
}

// byVNI finds an overlay.
func (t *desired) byVNI(vni uint32) *network {
	for _, n := range t.overlays {
		if n.vni == vni {
			return n
		}
	}
	return nil
}
