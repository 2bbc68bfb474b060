package state

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
)

// The bounds of the settings of private networks.
const (
	maxVNI        = 1<<24 - 1
	minOverlay    = 16 // bits of an overlay's range at least
	maxOverlay    = 28 // and at most
	minTunnelBits = 8
	maxTunnelBits = 28
	minMTU        = fleet.MinOverlayMTU
	maxMTU        = fleet.MaxOverlayMTU
	maxPort       = 65535
	maxMbps       = 400_000
	maxGrace      = 24 * time.Hour
	maxAliases    = 8
	maxSuffix     = 200 // bytes: a pod's name goes before it
)

var suffixLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// reservedRanges are those that no pod and no tunnel may have: this network, loopback, link-local, multicast and what is above.
func reservedRanges() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("224.0.0.0/3"),
	}
}

// checkNetworkSettings refuses settings that cannot be meant.
func checkNetworkSettings(s *fleet.NetworkSettings) error {
	return cmp.Or(checkRanges(s), checkSuffixes(s), checkLinks(s))
}

func checkRanges(s *fleet.NetworkSettings) error {
	err := cmp.Or(checkRange("$.pool", s.Pool), checkRange("$.tunnelRange", s.Tunnel))
	switch {
	case err != nil:
		return err
	case s.Bits < minOverlay || s.Bits > maxOverlay || s.Bits < s.Pool.Bits():
		return fleet.Invalid("$.bits", "must be 16 to 28, and at least that of the pool")
	case s.Tunnel.Bits() < minTunnelBits || s.Tunnel.Bits() > maxTunnelBits:
		return fleet.Invalid("$.tunnelRange", "must be a range of /8 to /28")
	case s.Pool.Overlaps(s.Tunnel):
		return fleet.Invalid("$.tunnelRange", "must not overlap the pool")
	case s.Tunnel.Overlaps(fleet.LocalPods()):
		return fleet.Invalid("$.tunnelRange", "must not overlap "+fleet.LocalPods().String()+", from which hosts give pods addresses")
	case s.FirstVNI < 1 || s.FirstVNI > maxVNI:
		return fleet.Invalid("$.firstVxlanId", "must be 1 to 16777215")
	}
	for i := range slotsOf(s) {
		if usableSlot(s, i) {
			return nil
		}
	}
	return fleet.Invalid("$.pool", "must not lie in "+fleet.LocalPods().String()+", from which hosts give pods addresses")
}

// checkRange refuses what is no range of addresses that hosts and pods can have.
func checkRange(path string, p netip.Prefix) error {
	if !p.IsValid() || !p.Addr().Is4() || p != p.Masked() {
		return fleet.Invalid(path, "must be a range of IPv4 such as 10.64.0.0/10, without bits beyond its length")
	}
	if slices.ContainsFunc(reservedRanges(), p.Overlaps) {
		return fleet.Invalid(path, "must be of unicast addresses that are neither loopback nor link-local")
	}
	return nil
}

func checkSuffixes(s *fleet.NetworkSettings) error {
	if !validSuffix(s.Suffix) {
		return fleet.Invalid("$.suffix", "must be lower-case DNS labels with dots between them, of at most 200 bytes")
	}
	if len(s.Aliases) > maxAliases {
		return fleet.Invalid("$.aliases", "must be at most 8")
	}
	known := []string{s.Suffix}
	for _, alias := range s.Aliases {
		if !validSuffix(alias) {
			return fleet.Invalid("$.aliases", "each must be lower-case DNS labels with dots between them, of at most 200 bytes")
		}
		if slices.ContainsFunc(known, func(other string) bool { return below(alias, other) || below(other, alias) }) {
			return fleet.Invalid("$.aliases", "none may be the suffix or another alias, or lie below it")
		}
		known = append(known, alias)
	}
	return nil
}

// validSuffix reports whether names may end so. Those of reverse lookups and of the machine itself are taken.
func validSuffix(suffix string) bool {
	if suffix == "" || len(suffix) > maxSuffix || below(suffix, "arpa") || below(suffix, "localhost") {
		return false
	}
	for label := range strings.SplitSeq(suffix, ".") {
		if !suffixLabel.MatchString(label) {
			return false
		}
	}
	return true
}

// below reports whether a name is a zone's or the zone itself.
func below(name, zone string) bool { return name == zone || strings.HasSuffix(name, "."+zone) }

func checkLinks(s *fleet.NetworkSettings) error {
	switch {
	case s.MTU < minMTU || s.MTU > maxMTU:
		return fleet.Invalid("$.mtu", "must be 1280 to 8930")
	case s.VXLANPort < 1 || s.VXLANPort > maxPort:
		return fleet.Invalid("$.vxlanPort", "must be 1 to 65535")
	case s.WireGuardPort < 1 || s.WireGuardPort > maxPort || s.WireGuardPort == s.VXLANPort:
		return fleet.Invalid("$.wireguardPort", "must be 1 to 65535, and not the one of VXLAN")
	case s.PodMbps < 0 || s.PodMbps > maxMbps:
		return fleet.Invalid("$.podMbps", "must be 0 to 400000")
	case s.Grace < 0 || s.Grace > maxGrace:
		return fleet.Invalid("$.graceSeconds", "must be 0 to 86400")
	}
	return nil
}

// slotsOf returns how many ranges of an overlay the pool has.
func slotsOf(s *fleet.NetworkSettings) uint32 { return 1 << (s.Bits - s.Pool.Bits()) }

// slotAt returns one of those ranges.
func slotAt(s *fleet.NetworkSettings, i uint32) netip.Prefix {
	return netip.PrefixFrom(addrAt(s.Pool, i<<(32-s.Bits)), s.Bits)
}

// usableSlot reports whether pods can have addresses of a range beside those on their hosts' own networks.
func usableSlot(s *fleet.NetworkSettings, i uint32) bool {
	slot := slotAt(s, i)
	return !slot.Overlaps(fleet.LocalPods()) && !slot.Overlaps(s.Tunnel)
}

// addrAt returns the address so many after the first of a range of IPv4.
func addrAt(p netip.Prefix, n uint32) netip.Addr {
	b := p.Addr().As4()
	n += uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// checkEgress refuses a policy that is none.
func checkEgress(e fleet.Egress) error {
	if e != fleet.EgressOpen && e != fleet.EgressNone {
		return fleet.Invalid("$.egress", "must be empty or none")
	}
	return nil
}

// checkUnderlay refuses an underlay that is none.
func checkUnderlay(u fleet.Underlay) error {
	if u != fleet.UnderlayEncrypted && u != fleet.UnderlayPrivate {
		return fleet.Invalid("$.underlay", "must be empty or private")
	}
	return nil
}
