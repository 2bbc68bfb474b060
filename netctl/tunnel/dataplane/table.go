package dataplane

import (
	"errors"
	"sync/atomic"

	"gantry/netctl"
)

// Why a frame was dropped. Those that netctl knows have its words.
const (
	spoofed    = iota // from a pod: its source is none of the members here
	flooded           // from a pod: to nobody, or everybody
	malformed         // from a pod or another host: nothing that a pod's link carries
	foreign           // from another host: its sender is no member there, or whom it is for is none here
	unready           // from another host: the overlay's link is not there yet, or any more
	unanswered        // from a pod: to a host that does not answer, after the first few
	reasons
)

var words = [reasons]string{"spoofed", "flooded", "malformed", "foreign", "unready", "unanswered"}

// drops counts by reason.
type drops [reasons]struct{ packets, bytes atomic.Uint64 }

func (d *drops) add(why, bytes int) {
	d[why].packets.Add(1)
	d[why].bytes.Add(uint64(bytes)) //nolint:gosec // a length
}

// Drops returns what was counted since the process began.
func (d *Device) Drops() (out []netctl.Drop) {
	for why := range d.drops {
		c := &d.drops[why]
		out = append(out, netctl.Drop{Why: words[why], Packets: c.packets.Load(), Bytes: c.bytes.Load()})
	}
	return out
}

type (
	mac  [6]byte
	addr [4]byte
)

// remote is a member on another host.
type remote struct{ addr, via addr }

// table says who is a member, here and elsewhere. It is never changed: a new one takes its place.
type table struct {
	here  map[mac]addr
	there map[mac]remote
}

// overlay is one overlay's part of the device.
type overlay struct {
	vni   uint32
	table atomic.Pointer[table]
	tap   atomic.Pointer[tap] // nil: there is none now
}

// Member of an overlay: its hardware address, its address, and the host's in the tunnel that has it, which is zero for this host.
const memberSize = 6 + 4 + 4

// parseMembers reads members one after the other, memberSize bytes each.
func parseMembers(b []byte) (*table, error) {
	if len(b)%memberSize != 0 {
		return nil, errors.New("members: cut short")
	}
	t := &table{here: map[mac]addr{}, there: make(map[mac]remote, len(b)/memberSize)}
	for ; len(b) > 0; b = b[memberSize:] {
		m, a, via := mac(b[:6]), addr(b[6:10]), addr(b[10:14])
		if via == (addr{}) {
			t.here[m] = a
		} else {
			t.there[m] = remote{addr: a, via: via}
		}
	}
	return t, nil
}

// SetOverlay makes the members of an overlay those given, in the form of parseMembers.
func (d *Device) SetOverlay(vni uint32, members []byte) error {
	t, err := parseMembers(members)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	o := (*d.overlays.Load())[vni]
	if o == nil {
		o = &overlay{vni: vni}
		d.replace(vni, o)
	}
	o.table.Store(t)
	return nil
}

// RemoveOverlay forgets an overlay and closes its TAP.
func (d *Device) RemoveOverlay(vni uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := (*d.overlays.Load())[vni]
	if o == nil {
		return
	}
	d.replace(vni, nil)
	if t := o.tap.Swap(nil); t != nil {
		t.close()
	}
}

// replace swaps one overlay in the map, which readers have without a lock. The caller has the lock.
func (d *Device) replace(vni uint32, o *overlay) {
	old := *d.overlays.Load()
	next := make(map[uint32]*overlay, len(old)+1)
	for k, v := range old {
		next[k] = v
	}
	delete(next, vni)
	if o != nil {
		next[vni] = o
	}
	d.overlays.Store(&next)
}
