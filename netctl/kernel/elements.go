package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Sets of overlays in the bridge table, and what holds pods back in the inet table. A packet of an overlay bears its VNI as the
// packet mark while it is in our rules.
const (
	leadMap   = "overlays" // link to VNI
	memberSet = "members"  // VNI, hardware and IPv4 address that pods may send to
	askedSet  = "asked"    // VNI and address that they may ask for by ARP
	farSet    = "far"      // link to other hosts, hardware and IPv4 address that may come by it
	closedSet = "closed"   // addresses of pods that open nothing outside
	barredSet = "barred"   // addresses and TCP ports that pods do not reach
	plainSet  = "plain"    // addresses from which VXLAN may come
)

// elementBatch is how many elements one message holds: the length of an attribute has 16 bits.
const elementBatch = 500

func setOf(k kind) string {
	return [kinds]string{
		member: memberSet, asked: askedSet, far: farSet, belongs: leadMap, closed: closedSet, barred: barredSet, near: plainSet,
	}[k]
}

func (r *ruleset) entrySet(k kind) *nftables.Set {
	if k >= closed {
		return r.inet(setOf(k))
	}
	return &nftables.Set{Name: setOf(k), IsMap: k == belongs, Table: r.set().Table}
}

// element is the kernel's form of an entry: every part padded to four octets, names to sixteen; marks are in the machine's order.
func (e entry) element() nftables.SetElement {
	mark := binary.NativeEndian.AppendUint32(nil, e.vni)
	mac := append(append([]byte{}, e.mac[:]...), 0, 0)
	switch e.kind {
	case member:
		return nftables.SetElement{Key: append(append(mark, mac...), e.addr[:]...)}
	case asked:
		return nftables.SetElement{Key: append(mark, e.addr[:]...)}
	case far:
		return nftables.SetElement{Key: append(append(e.link[:], mac...), e.addr[:]...)}
	case belongs:
		return nftables.SetElement{Key: e.link[:], Val: mark}
	case barred:
		return nftables.SetElement{Key: append(binary.BigEndian.AppendUint16(e.addr[:], uint16(e.vni)), 0, 0)} //nolint:gosec // a port
	default:
		return nftables.SetElement{Key: e.addr[:]}
	}
}

// parseElement reads what element writes.
func parseElement(k kind, el nftables.SetElement) (entry, bool) {
	e, key := entry{kind: k}, el.Key
	want := [kinds]int{member: 16, asked: 8, far: 28, belongs: 16, closed: 4, barred: 8, near: 4}[k]
	if len(key) != want || k == belongs && len(el.Val) < 4 {
		return e, false
	}
	switch k {
	case member:
		e.vni, e.mac = binary.NativeEndian.Uint32(key), hardware(key[4:10])
	case asked:
		e.vni = binary.NativeEndian.Uint32(key)
	case far:
		e.link, e.mac = name(key[:16]), hardware(key[16:22])
	case belongs:
		e.link, e.vni = name(key), binary.NativeEndian.Uint32(el.Val)
		return e, true
	case barred:
		e.addr, e.vni = octets(key[:4]), uint32(binary.BigEndian.Uint16(key[4:]))
		return e, true
	}
	e.addr = octets(key[len(key)-4:])
	return e, true
}

// entries reads the elements of all sets; without tables there are none.
func (r *ruleset) entries() (map[entry]bool, error) {
	var list []entry
	err := r.home.in(func() error {
		for k := member; k < kinds; k++ {
			set := r.entrySet(k)
			request := []byte{byte(set.Table.Family), 0, 0, 0} // struct nfgenmsg
			request = attribute(request, unix.NFTA_SET_ELEM_LIST_TABLE, append([]byte(set.Table.Name), 0))
			request = attribute(request, unix.NFTA_SET_ELEM_LIST_SET, append([]byte(set.Name), 0))
			err := dumpHere(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, request, func(body []byte) {
				eachElement(body, func(el nftables.SetElement) {
					if e, ok := parseElement(k, el); ok {
						list = append(list, e)
					}
				})
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("list elements: %w", err)
			}
		}
		return nil
	})
	out := make(map[entry]bool, 2*len(list)) // links have about as many
	for _, e := range list {
		out[e] = true
	}
	return out, err
}

// eachElement calls f with the elements of a message of the kernel's.
func eachElement(body []byte, f func(nftables.SetElement)) {
	if len(body) < 4 {
		return
	}
	attributes(body[4:], func(kind uint16, list []byte) {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return
		}
		attributes(list, func(_ uint16, parts []byte) {
			var el nftables.SetElement
			attributes(parts, func(part uint16, data []byte) {
				attributes(data, func(kind uint16, value []byte) {
					switch {
					case kind == unix.NFTA_DATA_VALUE && part == unix.NFTA_SET_ELEM_KEY:
						el.Key = value
					case kind == unix.NFTA_DATA_VALUE && part == unix.NFTA_SET_ELEM_DATA:
						el.Val = value
					}
				})
			})
			f(el)
		})
	})
}

// change makes elements go and come. The error is ENOENT when the tables are gone; an element that is gone already is none.
func (r *ruleset) change(gone, come []entry) error {
	if err := r.elements(come, (*nftables.Conn).SetAddElements); err != nil {
		return fmt.Errorf("rules of overlays: %w", err)
	}
	err := r.elements(gone, (*nftables.Conn).SetDeleteElements)
	for _, e := range gone {
		if !errors.Is(err, unix.ENOENT) {
			break
		}
		if one := r.elements([]entry{e}, (*nftables.Conn).SetDeleteElements); one != nil && !errors.Is(one, unix.ENOENT) {
			err = one
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("rules of overlays: %w", err)
	}
	return nil
}

// elements sends entries in messages of one set each; a number of them is one step of the kernel.
func (r *ruleset) elements(list []entry, do func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) error {
	if len(list) == 0 {
		return nil
	}
	return r.exchange(func(conn *nftables.Conn) error {
		for len(list) > 0 {
			part := list[:min(elementBatch, len(list))]
			list = list[len(part):]
			bySet := map[kind][]nftables.SetElement{}
			for _, e := range part {
				bySet[e.kind] = append(bySet[e.kind], e.element())
			}
			for k := member; k < kinds; k++ {
				if len(bySet[k]) == 0 {
					continue
				}
				if err := do(conn, r.entrySet(k), bySet[k]); err != nil {
					return err
				}
			}
			if err := conn.Flush(); err != nil {
				return err
			}
		}
		return nil
	})
}
