package netctl

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

const (
	maxVNI    = 1<<24 - 1
	maxPlaces = 4
	maxPlain  = 4096
)

var placeLink = regexp.MustCompile(`^[a-z0-9]{1,15}$`)

// Overlay is a private network of which pods of this host are members. Members on other hosts are reached through the underlay.
type Overlay struct {
	// VNI is its VXLAN network identifier, 1 to 16,777,215. It names the overlay on the host.
	VNI uint32
	// CIDR holds all its members, masked, of IPv4.
	CIDR netip.Prefix
	// MTU is that of its bridge and of pods' links in it, in bytes; 0: that of the underlay.
	MTU int
	// Members is sorted by address, without repetition. Nobody changes it in place: copies share it. Those of this host are
	// reached through their pods' places, and are here for completeness.
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
	// Plain holds the hosts that send frames without the tunnel, sorted.
	Plain []netip.Addr
}

// OverlayBridge names an overlay's bridge.
func OverlayBridge(instance string, vni uint32) string { return fmt.Sprintf("gb%s%06x", instance, vni) }

// VXLANLink names an overlay's link to other hosts.
func VXLANLink(instance string, vni uint32) string { return fmt.Sprintf("gv%s%06x", instance, vni) }

// TunnelLink names the tunnel's link.
func TunnelLink(instance string) string { return "gw" + instance }

// OverlayLinkName names the host's end of a pod's link in an overlay.
func OverlayLinkName(instance, pod string, vni uint32) string {
	return "go" + instance + strings.TrimPrefix(LinkName("", fmt.Sprintf("%s %d", pod, vni)), "gn")
}

// Drop counts what rules dropped for one reason since they were written last.
type Drop struct {
	Why            string // spoofed, flooded, host, denied, scheduler, closed, foreign, unasked
	Packets, Bytes uint64
}

// OverlayMTU is that of an overlay's bridge and of pods' links in it.
func (c Config) OverlayMTU(o Overlay) int { return cmp.Or(o.MTU, c.Underlay.MTU, c.MTU) }

// VXLAN says whether overlays have a link to other hosts.
func (u Underlay) VXLAN() bool {
	return u.Port != 0 && (u.Addr.IsValid() || len(u.Plain) > 0)
}

// Equal says whether both are the same.
func (u Underlay) Equal(o Underlay) bool {
	return u.Addr == o.Addr && u.Range == o.Range && u.Port == o.Port && u.MTU == o.MTU && slices.Equal(u.Plain, o.Plain)
}

// Equal says whether both are the same.
func (o Overlay) Equal(p Overlay) bool {
	return o.VNI == p.VNI && o.CIDR == p.CIDR && o.MTU == p.MTU && slices.Equal(o.Members, p.Members)
}

// Member finds a member by its address.
func (o Overlay) Member(addr netip.Addr) (Member, bool) {
	i, ok := slices.BinarySearchFunc(o.Members, addr, func(m Member, a netip.Addr) int { return m.Addr.Compare(a) })
	if !ok {
		return Member{}, false
	}
	return o.Members[i], true
}

// Overlay finds an overlay by its VNI.
func (c Config) Overlay(vni uint32) (Overlay, bool) {
	i, ok := c.overlayAt(vni)
	if !ok {
		return Overlay{}, false
	}
	return c.Overlays[i], true
}

// WithOverlay returns a copy in which the overlay is present as given.
func (c Config) WithOverlay(o Overlay) Config {
	out := c.WithoutOverlay(o.VNI)
	i, _ := out.overlayAt(o.VNI)
	out.Overlays = slices.Insert(out.Overlays, i, o)
	return out
}

// WithoutOverlay returns a copy in which the overlay is absent.
func (c Config) WithoutOverlay(vni uint32) Config {
	out := c.Clone()
	out.Overlays = slices.DeleteFunc(out.Overlays, func(o Overlay) bool { return o.VNI == vni })
	return out
}

func (c Config) overlayAt(vni uint32) (int, bool) {
	return slices.BinarySearchFunc(c.Overlays, vni, func(o Overlay, vni uint32) int { return cmp.Compare(o.VNI, vni) })
}

// HasPlace says whether a pod has a place in an overlay.
func (c Config) HasPlace(vni uint32) bool {
	return slices.ContainsFunc(c.Pods, func(p Pod) bool {
		_, ok := p.Place(vni)
		return ok
	})
}

// MemberChange is one address of an overlay before and after. The zero Member: none has it.
type MemberChange struct{ Old, New Member }

// DiffMembers lists the addresses that are other members', by address. Both lists are sorted.
func DiffMembers(have, want []Member) []MemberChange {
	var out []MemberChange
	for len(have)+len(want) > 0 {
		switch {
		case len(want) == 0 || len(have) > 0 && have[0].Addr.Less(want[0].Addr):
			out = append(out, MemberChange{Old: have[0]})
			have = have[1:]
		case len(have) == 0 || want[0].Addr.Less(have[0].Addr):
			out = append(out, MemberChange{New: want[0]})
			want = want[1:]
		default:
			if have[0] != want[0] {
				out = append(out, MemberChange{have[0], want[0]})
			}
			have, want = have[1:], want[1:]
		}
	}
	return out
}

func diffOverlays(have, want Config) (gone, come []Op) {
	for _, o := range have.Overlays {
		if _, ok := want.Overlay(o.VNI); !ok || have.Instance != want.Instance {
			gone = append(gone, Op{Verb: RemoveOverlay, VNI: o.VNI, Text: "- " + overlayLine(have.Instance, o)})
		}
	}
	for _, o := range want.Overlays {
		old, ok := have.Overlay(o.VNI)
		if ok && have.Instance == want.Instance && old.Equal(o) {
			continue
		}
		sign := "~ "
		if !ok || have.Instance != want.Instance {
			sign, old = "+ ", Overlay{}
		}
		var more, less, other int
		for _, m := range DiffMembers(old.Members, o.Members) {
			switch {
			case !m.Old.Addr.IsValid():
				more++
			case !m.New.Addr.IsValid():
				less++
			default:
				other++
			}
		}
		text := fmt.Sprintf("%s%s members +%d -%d ~%d", sign, overlayLine(want.Instance, o), more, less, other)
		come = append(come, Op{Verb: SetOverlay, VNI: o.VNI, Text: text})
	}
	return gone, come
}

func overlayLine(instance string, o Overlay) string {
	line := fmt.Sprintf("overlay %d bridge %s cidr %s", o.VNI, OverlayBridge(instance, o.VNI), o.CIDR)
	if o.MTU != 0 {
		line += fmt.Sprintf(" mtu %d", o.MTU)
	}
	return line
}

func (c Config) writeOverlays(b *strings.Builder) {
	if u := c.Underlay; !u.Equal(Underlay{}) {
		b.WriteString("underlay")
		if u.Addr.IsValid() {
			fmt.Fprintf(b, " addr %s range %s", u.Addr, u.Range)
		}
		fmt.Fprintf(b, " port %d mtu %d", u.Port, u.MTU)
		for _, a := range u.Plain {
			fmt.Fprintf(b, " plain %s", a)
		}
		b.WriteByte('\n')
	}
	for _, o := range c.Overlays {
		fmt.Fprintln(b, overlayLine(c.Instance, o))
		for _, m := range o.Members {
			fmt.Fprintf(b, "member %d addr %s mac %s%s\n", o.VNI, m.Addr, m.MAC, m.Via)
		}
	}
}

// String is the text of Config.String.
func (v Via) String() string {
	switch {
	case !v.Addr.IsValid():
		return ""
	case v.Tunnel:
		return " tunnel " + v.Addr.String()
	default:
		return " plain " + v.Addr.String()
	}
}

func (u Underlay) check() error {
	if u.Equal(Underlay{}) {
		return nil
	}
	if u.MTU < minMTU || u.MTU > maxMTU {
		return fmt.Errorf("underlay.mtu: want %d to %d", minMTU, maxMTU)
	}
	if u.Port == 0 {
		return errors.New("underlay.port: want 1 to 65535")
	}
	if u.Range.IsValid() && (!u.Range.Addr().Is4() || u.Range != u.Range.Masked() || u.Range.Bits() == 0) {
		return errors.New("underlay.range: want a masked IPv4 prefix")
	}
	if u.Addr.IsValid() && !u.Range.Contains(u.Addr) {
		return errors.New("underlay.addr: want an address of the range")
	}
	if len(u.Plain) > maxPlain {
		return fmt.Errorf("underlay.plain: want at most %d addresses", maxPlain)
	}
	for i, a := range u.Plain {
		if !a.Is4() || !a.IsGlobalUnicast() || i > 0 && !u.Plain[i-1].Less(a) {
			return fmt.Errorf("underlay.plain[%d]: want ascending IPv4 addresses", i)
		}
	}
	return nil
}

// check holds the overlay's own rules but those of its members.
func (o Overlay) check() error {
	if o.VNI == 0 || o.VNI > maxVNI {
		return fmt.Errorf("vni: want 1 to %d", maxVNI)
	}
	if !o.CIDR.IsValid() || !o.CIDR.Addr().Is4() || o.CIDR != o.CIDR.Masked() || o.CIDR.Bits() < 8 || o.CIDR.Bits() > 29 {
		return errors.New("cidr: want a masked IPv4 prefix of /8 to /29")
	}
	if o.MTU != 0 && (o.MTU < minMTU || o.MTU > maxMTU) {
		return fmt.Errorf("mtu: want 0, or %d to %d", minMTU, maxMTU)
	}
	return nil
}

func (c Config) checkOverlays() error {
	for i, o := range c.Overlays {
		if err := o.check(); err != nil {
			return fmt.Errorf("overlays[%d].%w", i, err)
		}
		if i > 0 && c.Overlays[i-1].VNI >= o.VNI {
			return fmt.Errorf("overlays[%d].vni: want ascending numbers", i)
		}
	}
	return nil
}

func (c Config) checkMembers() error {
	for i, o := range c.Overlays {
		if err := c.CheckMembers(o); err != nil {
			return fmt.Errorf("overlays[%d].%w", i, err)
		}
	}
	return nil
}

// CheckMembers says what is wrong with the members of an overlay of the Config.
func (c Config) CheckMembers(o Overlay) error {
	macs := make(map[string]struct{}, len(o.Members))
	for i, m := range o.Members {
		if !o.CIDR.Contains(m.Addr) {
			return fmt.Errorf("members[%d].addr: want an address of the overlay", i)
		}
		if i > 0 && !o.Members[i-1].Addr.Less(m.Addr) {
			return fmt.Errorf("members[%d].addr: want ascending addresses", i)
		}
		if err := checkMAC(m.MAC); err != nil {
			return fmt.Errorf("members[%d].%w", i, err)
		}
		if _, taken := macs[m.MAC]; taken {
			return fmt.Errorf("members[%d].mac: is another member's", i)
		}
		macs[m.MAC] = struct{}{}
		if m.Via.Addr.IsValid() && !m.Via.Addr.Is4() || m.Via.Tunnel && !m.Via.Addr.IsValid() {
			return fmt.Errorf("members[%d].via: want an IPv4 address", i)
		}
	}
	return nil
}

func (p Place) check() error {
	if !p.Addr.Is4() {
		return errors.New("addr: want an IPv4 address")
	}
	if !placeLink.MatchString(p.Link) || p.Link == "eth0" || p.Link == "lo" {
		return errors.New("link: want 1 to 15 of a-z 0-9, not eth0 or lo")
	}
	return checkMAC(p.MAC)
}

// checkPlaces holds what pods' places must be, among each other too.
func (c Config) checkPlaces() error {
	type at struct {
		vni  uint32
		addr netip.Addr
	}
	type mac struct {
		vni uint32
		mac string
	}
	addrs, macs := map[at]bool{}, map[mac]bool{}
	for i, p := range c.Pods {
		if len(p.Overlays) > maxPlaces {
			return fmt.Errorf("pods[%d].overlays: want at most %d", i, maxPlaces)
		}
		for k, place := range p.Overlays {
			if err := c.checkPlace(p, k); err != nil {
				return fmt.Errorf("pods[%d].overlays[%d].%w", i, k, err)
			}
			a, m := at{place.VNI, place.Addr}, mac{place.VNI, place.MAC}
			if addrs[a] || macs[m] {
				return fmt.Errorf("pods[%d].overlays[%d].addr: address or hardware address is another pod's", i, k)
			}
			addrs[a], macs[m] = true, true
		}
	}
	return nil
}

func (c Config) checkPlace(p Pod, k int) error {
	place := p.Overlays[k]
	if err := place.check(); err != nil {
		return err
	}
	o, ok := c.Overlay(place.VNI)
	if !ok {
		return errors.New("vni: is no overlay's")
	}
	if !o.CIDR.Contains(place.Addr) {
		return errors.New("addr: want an address of the overlay")
	}
	for _, before := range p.Overlays[:k] {
		if before.VNI >= place.VNI {
			return errors.New("vni: want ascending numbers")
		}
		if before.Link == place.Link {
			return errors.New("link: is another place's")
		}
	}
	return nil
}
