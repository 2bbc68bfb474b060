package fleet

import (
	"fmt"
	"net/netip"
	"time"
)

// OverlayID identifies a private network that pods on several hosts share. An account's own is AccountOverlay; others, such as
// a cluster's, have ids of their own, and an account may have any number of them.
type OverlayID string

// AccountOverlay is the id of the network that global networking joins pods of an account to.
func AccountOverlay(account AccountID) OverlayID { return OverlayID("account-" + string(account)) }

// Overlay is a private network. Its addresses may be those of another account's: its VNI tells them apart.
type Overlay struct {
	ID        OverlayID    `cbor:"1,keyasint"`
	Account   AccountID    `cbor:"2,keyasint"`
	VNI       uint32       `cbor:"3,keyasint"` // VXLAN network identifier (RFC 7348), of no other overlay
	CIDR      netip.Prefix `cbor:"4,keyasint"`
	CreatedAt time.Time    `cbor:"5,keyasint"`
	Rev       uint64       `cbor:"6,keyasint"` // grows with every change of a member that hosts have to know
	Next      uint32       `cbor:"7,keyasint"` // where the search for a free address goes on, counted from the first of CIDR
	// MTU is that of pods' links in bytes: what all hosts of a cluster's members carry; 0: that of the settings.
	MTU int `cbor:"8,keyasint,omitempty"`
}

// OverlayMember is an address of an overlay that a pod has, or had.
type OverlayMember struct {
	Overlay OverlayID  `cbor:"1,keyasint"`
	Addr    netip.Addr `cbor:"2,keyasint"`
	Pod     PodID      `cbor:"3,keyasint"`
	Name    string     `cbor:"4,keyasint"`           // of the pod
	Host    HostID     `cbor:"5,keyasint,omitempty"` // that holds the pod in the network; empty: none does now
	Rev     uint64     `cbor:"6,keyasint"`           // of the overlay, when this last changed
	// FreeAt is when the address may become another pod's: the grace time after its pod was gone. Zero: the pod is there.
	FreeAt time.Time `cbor:"7,keyasint,omitzero"`
}

// OverlayPlace is a pod's place in an overlay. It keeps the address over stops and starts, until it is gone.
type OverlayPlace struct {
	Overlay OverlayID  `cbor:"1,keyasint"`
	Addr    netip.Addr `cbor:"2,keyasint"`
	// On says that the pod's present incarnation takes part. An address that is not in use stays the pod's.
	On bool `cbor:"3,keyasint,omitempty"`
}

// LocalPods is the range in which hosts give pods the addresses of their eth0; each host has a part of it, and no overlay any.
func LocalPods() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 88}), 13) }

// OverlayMAC is the hardware address that belongs to an address of an overlay: locally administered and unicast. Anything but
// an IPv4 address gives "".
func OverlayMAC(addr netip.Addr) string {
	if !addr.Is4() {
		return ""
	}
	b := addr.As4()
	return fmt.Sprintf("0a:67:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// OverlayLink is the name of the interface of an account's network in a pod (wire-facts.md 6.4).
const OverlayLink = "podnet1"

// Underlay says how the hosts of a data center reach each other.
type Underlay string

// The kinds. What crosses between data centers is always encrypted.
const (
	UnderlayEncrypted Underlay = ""        // WireGuard between any two hosts
	UnderlayPrivate   Underlay = "private" // plain VXLAN among the hosts of the data center: the operator vouches for the wire
)

// Egress says what pods of an account may reach outside of their own networks.
type Egress string

// The policies.
const (
	EgressOpen Egress = ""     // everything but hosts and denied ranges
	EgressNone Egress = "none" // nothing but answers, names, and other pods of their networks
)

// NetworkSettings are the operator's settings of private networks. Those of addresses concern what is made from then on.
type NetworkSettings struct {
	Pool          netip.Prefix `cbor:"1,keyasint"` // of IPv4, from which each overlay gets a range; they may overlap when it is used up
	Bits          int          `cbor:"2,keyasint"` // length of an overlay's range, 16 to 28 and not less than the pool's
	FirstVNI      uint32       `cbor:"3,keyasint"` // 1 to 16,777,215
	Suffix        string       `cbor:"4,keyasint"` // of internal names, without dots at its ends
	Aliases       []string     `cbor:"5,keyasint"` // further suffixes that mean the same
	MTU           int          `cbor:"6,keyasint"` // of pods' links in bytes, 1280 to 8930; underlays must carry 130 more
	VXLANPort     int          `cbor:"7,keyasint"` // UDP
	WireGuardPort int          `cbor:"8,keyasint"` // UDP, on every host that names no other
	Tunnel        netip.Prefix `cbor:"9,keyasint"` // of IPv4, from which each host gets its address in the tunnel
	// PodMbps limits what a pod sends and, apart from that, what it receives, on each of its links in 10^6 bits per second; 0: nothing does.
	PodMbps int `cbor:"10,keyasint,omitempty"`
	// Grace is how long the address of a pod that is gone belongs to nobody.
	Grace time.Duration `cbor:"11,keyasint"`
}

// DefaultNetworkSettings are those of a cluster whose operator set none (decisions.md, "Names").
func DefaultNetworkSettings() NetworkSettings {
	return NetworkSettings{
		Pool: netip.MustParsePrefix("10.64.0.0/10"), Bits: 16, FirstVNI: 4096,
		Suffix: "gantry.internal", Aliases: []string{"runpod.internal"}, MTU: 1370, VXLANPort: 4789, WireGuardPort: 51820,
		Tunnel: netip.MustParsePrefix("100.127.0.0/16"), Grace: 5 * time.Minute,
	}
}

// HostTunnel is a host's end of the tunnel to other hosts, as the host says.
type HostTunnel struct {
	PublicKey string `cbor:"1,keyasint"` // Curve25519, base64; empty: the host has no tunnel
	// Endpoint is the address and UDP port at which others reach it; the zero value: they cannot, since it is behind NAT, and it
	// calls those that can be reached.
	Endpoint netip.AddrPort `cbor:"2,keyasint,omitzero"`
	// Plain is its own address for hosts of a data center with a private underlay; the zero value: the endpoint's.
	Plain netip.Addr `cbor:"3,keyasint,omitzero"`
	// UserSpace says that the tunnel is a process, since the kernel has none.
	UserSpace bool `cbor:"4,keyasint,omitempty"`
	// MTU is that of the interface with the host's own address for others, in bytes; 0: unknown.
	MTU int `cbor:"5,keyasint,omitempty"`
}

// The bounds of the MTU of links in overlays, in bytes, and what the underlay must carry beyond that.
const (
	MinOverlayMTU   = 1280
	MaxOverlayMTU   = 8930
	OverlayOverhead = 130
)
