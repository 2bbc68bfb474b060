package dns

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// table is all that answers depend on. It is never changed: who changes something makes another one.
type table struct {
	base     zones
	pods     map[netip.Addr]asker
	overlays map[uint32]*overlay
}

// zones is a Base as it is looked up.
type zones struct {
	suffixes []string // lower case, with the dot at the end, e.g. "gantry.internal."
	ranges   []netip.Prefix
	upstream *upstreams
}

// asker is a pod that may ask.
type asker struct {
	vnis   []uint32
	budget *budget
}

// overlay is the names of one overlay, in an order to search. A change copies it, which is far cheaper than to sort it again.
type overlay struct {
	members []Name // by address
	labels  []label
}

// label is a name without the suffix that a member has: its id, or its name. It is in lower case.
type label struct {
	text string
	kind int8 // labelID before labelName
	addr netip.Addr
}

const (
	labelID = iota
	labelName
)

func compareLabels(a, b label) int {
	return cmp.Or(strings.Compare(a.text, b.text), cmp.Compare(a.kind, b.kind), a.addr.Compare(b.addr))
}

func compareMembers(a, b Name) int { return a.Addr.Compare(b.Addr) }

// labels returns what a member can be asked for as.
func labels(n Name) []label {
	out := make([]label, 0, 2)
	for kind, text := range []string{labelID: n.Pod, labelName: n.Name} {
		if isLabel(text) {
			out = append(out, label{strings.ToLower(text), int8(kind), n.Addr})
		}
	}
	return out
}

// isLabel tells whether a text can stand in a name as it is: letters, digits, hyphens and underscores, 63 at most.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

// put sets an overlay, or forgets it when it is nil.
func (t *table) put(vni uint32, o *overlay) {
	next := make(map[uint32]*overlay, len(t.overlays)+1)
	maps.Copy(next, t.overlays)
	if next[vni] = o; o == nil {
		delete(next, vni)
	}
	t.overlays = next
}

// sorted returns members by address, the last one of each.
func sorted(members []Name) []Name {
	out := slices.Clone(members)
	slices.Reverse(out)
	slices.SortStableFunc(out, compareMembers)
	return slices.CompactFunc(out, func(a, b Name) bool { return a.Addr == b.Addr })
}

// changed returns the overlay with members set and others gone.
func (o *overlay) changed(set []Name, gone []netip.Addr) *overlay {
	set = sorted(set)
	out := map[netip.Addr]bool{} // whose entries go
	for _, a := range gone {
		out[a] = true
	}
	for _, n := range set {
		out[n.Addr] = true
	}
	next := &overlay{
		members: make([]Name, 0, len(o.members)+len(set)),
		labels:  make([]label, 0, len(o.labels)+2*len(set)),
	}
	var added []label
	for _, n := range set {
		added = append(added, labels(n)...)
	}
	slices.SortFunc(added, compareLabels)
	next.members = merge(next.members, o.members, set, compareMembers, func(n Name) bool { return out[n.Addr] })
	next.labels = merge(next.labels, o.labels, added, compareLabels, func(l label) bool { return out[l.addr] })
	return next
}

// merge appends two sorted lists to out, without what is dropped from the first.
func merge[T any](out, old, added []T, compare func(a, b T) int, drop func(T) bool) []T {
	for _, v := range old {
		if drop(v) {
			continue
		}
		for len(added) > 0 && compare(added[0], v) < 0 {
			out, added = append(out, added[0]), added[1:]
		}
		out = append(out, v)
	}
	return append(out, added...)
}

// find returns the address that a label in lower case means: of the member with that id, else of the only one with that name.
func (o *overlay) find(text string) (addr netip.Addr, id, ok bool) {
	i, _ := slices.BinarySearchFunc(o.labels, text, func(l label, t string) int { return strings.Compare(l.text, t) })
	if i == len(o.labels) || o.labels[i].text != text {
		return netip.Addr{}, false, false
	}
	l := o.labels[i]
	if l.kind == labelName && i+1 < len(o.labels) && o.labels[i+1].text == text {
		return netip.Addr{}, false, false // the name of several
	}
	return l.addr, l.kind == labelID, true
}

// member returns who has an address.
func (o *overlay) member(addr netip.Addr) (Name, bool) {
	i, ok := slices.BinarySearchFunc(o.members, addr, func(n Name, a netip.Addr) int { return n.Addr.Compare(a) })
	if !ok {
		return Name{}, false
	}
	return o.members[i], true
}

// find returns the addresses that a label means to an asker. Known is false when it cannot be said yet, since an overlay of the asker has not come.
func (t *table) find(vnis []uint32, text string) (found []netip.Addr, known bool) {
	ids := false
	owners := map[string]bool{}
	for _, vni := range vnis {
		o := t.overlays[vni]
		if o == nil {
			return nil, false
		}
		addr, id, ok := o.find(text)
		switch {
		case !ok || ids && !id:
			continue
		case id && !ids: // an id hides names
			ids, found = true, nil
			clear(owners)
		}
		if m, ok := o.member(addr); ok {
			owners[m.Pod] = true
		}
		found = append(found, addr)
	}
	if len(owners) > 1 {
		return nil, true // one name, several pods
	}
	return found, true
}

// named returns the id of the pod that has an address, in the overlays of an asker.
func (t *table) named(vnis []uint32, addr netip.Addr) (pod string, known bool) {
	for _, vni := range vnis {
		o := t.overlays[vni]
		if o == nil {
			return "", false
		}
		if m, ok := o.member(addr); ok && isLabel(m.Pod) {
			return m.Pod, true
		}
	}
	return "", true
}

// internal returns what stands before the suffix of an internal name, "" for the suffix itself. The name is in lower case.
func (z *zones) internal(name string) (before, suffix string, ok bool) {
	for _, s := range z.suffixes {
		if name == s {
			return "", s, true
		}
		if strings.HasSuffix(name, s) && name[len(name)-len(s)-1] == '.' {
			return name[:len(name)-len(s)-1], s, true
		}
	}
	return "", "", false
}

// reverse tells whether a name in lower case is one of addresses that are asked of nobody else. The address is valid for a whole one.
func (z *zones) reverse(name string) (addr netip.Addr, zone string, ok bool) {
	const arpa = "in-addr.arpa."
	rest, found := strings.CutSuffix(name, "."+arpa)
	if !found {
		return netip.Addr{}, "", false
	}
	var octets [4]byte
	n, parts := 0, strings.Split(rest, ".")
	zone = arpa
	for i := len(parts) - 1; i >= 0 && n < 4; i-- {
		v, ok := octet(parts[i])
		if !ok {
			break
		}
		octets[n] = v
		n++
		if n < 4 {
			zone = parts[i] + "." + zone
		}
	}
	prefix := netip.PrefixFrom(netip.AddrFrom4(octets), 8*n)
	for _, r := range z.ranges {
		if r.Bits() <= prefix.Bits() && r.Contains(prefix.Addr()) {
			if n == 4 && len(parts) == 4 {
				addr = prefix.Addr()
			}
			return addr, zone, true
		}
	}
	return netip.Addr{}, "", false
}

func octet(s string) (byte, bool) {
	if s == "" || len(s) > 3 {
		return 0, false
	}
	v := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		v = 10*v + int(s[i]-'0')
	}
	return byte(v), v < 256 //nolint:gosec // what is more is not used
}

func newZones(b Base, own netip.AddrPort) zones {
	z := zones{ranges: slices.Clone(b.Ranges), upstream: newUpstreams(b.Upstreams, own)}
	for _, s := range b.Suffixes {
		z.suffixes = append(z.suffixes, dns.CanonicalName(s))
	}
	return z
}
