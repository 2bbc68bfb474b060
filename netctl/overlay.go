package netctl

import (
	"fmt"
	"net/netip"
	"strings"
)

// Overlay is a private network of which pods of this host are members. Members on other hosts are reached through the underlay.
type Overlay struct {
	// VNI is its VXLAN network identifier, 1 to 16,777,215. It names the overlay on the host.
	VNI uint32
	// CIDR holds all its members, masked, of IPv4.
	CIDR netip.Prefix
	// Members is sorted by address, without repetition.
	Members []Member
}

// Member is an address of an overlay.
type Member struct {
	Addr netip.Addr
	MAC  string // unicast, lower-case, with colons
	Via  Via    // the zero value: the member is a pod of this host
}

// Via says where the host of a member receives frames.
type Via struct {
	Addr   netip.Addr // in the tunnel's range, or plain
	Tunnel bool
}

// Place is a pod's place in an overlay of the Config.
type Place struct {
	VNI  uint32
	Addr netip.Addr
	MAC  string
	Link string // name of the interface in the pod: 1 to 15 of a-z 0-9, not eth0 or lo
}

// Underlay is how overlays' frames leave the host. The zero value: they do not.
type Underlay struct {
	// Addr is the host's own address in the tunnel, one of Range, which holds those of all hosts.
	Addr  netip.Addr
	Range netip.Prefix
	// Port is the UDP port of VXLAN on all hosts.
	Port uint16
	// MTU is that of pods' links in overlays, in bytes.
	MTU int
	// UserSpace says that what goes through the tunnel passes a process, by a TAP per overlay, and no VXLAN link of the kernel's.
	UserSpace bool
	// Plain holds the hosts that send frames without the tunnel, sorted.
	Plain []netip.Addr
}

// OverlayBridge names an overlay's bridge.
func OverlayBridge(instance string, vni uint32) string { return fmt.Sprintf("gb%s%06x", instance, vni) }

// VXLANLink names an overlay's link of the kernel's to other hosts.
func VXLANLink(instance string, vni uint32) string { return fmt.Sprintf("gv%s%06x", instance, vni) }

// TapLink names an overlay's link to the process that has the tunnel.
func TapLink(instance string, vni uint32) string { return fmt.Sprintf("gt%s%06x", instance, vni) }

// TunnelLink names the tunnel's link.
func TunnelLink(instance string) string { return "gw" + instance }

// OverlayLinkName names the host's end of a pod's link in an overlay.
func OverlayLinkName(instance, pod string, vni uint32) string {
	return "go" + instance + strings.TrimPrefix(LinkName("", fmt.Sprintf("%s %d", pod, vni)), "gn")
}

// Drop counts what rules dropped for one reason since they were written last.
type Drop struct {
	Why            string // spoofed, flooded, host, denied, closed, foreign, unasked
	Packets, Bytes uint64
}
