package dataplane

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

const (
	maxParts = 250   // of a joined frame
	maxJoin  = 65535 // bytes, of IPv4
)

// joiner joins segments of TCP that came together into frames for TAPs, as the kernel's GRO would.
type joiner struct {
	groups []group
	iov    []unix.Iovec
}

// group is a frame to be written, with the payloads that were joined to it.
type group struct {
	to     *tap
	header [vnetLen]byte
	frame  []byte   // the first, whole
	more   [][]byte // payloads behind it
	total  int      // bytes of all

	l4, hl int // 0: it is not TCP
	open   bool
	sound  bool   // the first one's checksum was looked at and is right
	seq    uint32 // of what may come next
	size   int    // of a segment's payload
}

func (j *joiner) begin() { j.groups = j.groups[:0] }

// forget lets go of others' memory.
func (j *joiner) forget() {
	for i := range j.groups {
		g := &j.groups[i]
		clear(g.more)
		g.to, g.frame, g.more = nil, nil, g.more[:0]
	}
	clear(j.iov[:cap(j.iov)])
}

// start begins a group.
func (j *joiner) start(to *tap, f []byte) *group {
	n := len(j.groups)
	if n < cap(j.groups) {
		j.groups = j.groups[:n+1]
	} else {
		j.groups = append(j.groups, group{})
	}
	g := &j.groups[n]
	*g = group{to: to, frame: f, more: g.more[:0], total: len(f)}
	return g
}

// add takes a frame that isIPv4. What is joined can be told from what would have come by nothing but its length.
func (j *joiner) add(to *tap, f []byte) {
	l4, hl := segmentOf(f)
	if l4 == 0 {
		j.start(to, f)
		return
	}
	seq, payload, flags := binary.BigEndian.Uint32(f[l4+4:]), len(f)-hl, f[l4+13]
	plain := payload > 0 && flags&^flagPSH == flagACK
	// The last group of the same flow decides, or order would be lost.
	for i := len(j.groups) - 1; i >= 0; i-- {
		g := &j.groups[i]
		if g.to != to || g.l4 != l4 || string(g.frame[l4-8:l4+4]) != string(f[l4-8:l4+4]) {
			continue
		}
		if plain && g.takes(f, hl, seq, payload) {
			g.more = append(g.more, f[hl:])
			g.total += payload
			g.seq += uint32(payload) //nolint:gosec // a frame's
			g.frame[l4+13] |= flags & flagPSH
			g.open = flags&flagPSH == 0 && payload == g.size
			return
		}
		break
	}
	g := j.start(to, f)
	g.l4, g.hl, g.seq, g.size = l4, hl, seq+uint32(max(payload, 0)), payload //nolint:gosec // a frame's
	g.open = plain && flags&flagPSH == 0
}

// segmentOf returns where TCP and its payload begin, 0 for what is no whole segment without options of IPv4.
func segmentOf(f []byte) (l4, hl int) {
	const at = ethLen + ipLen
	if len(f) < at+tcpLen || f[14] != 0x45 || f[23] != protoTCP || f[20]&0x3f != 0 || f[21] != 0 ||
		int(binary.BigEndian.Uint16(f[16:])) != len(f)-ethLen {
		return 0, 0
	}
	hl = at + int(f[at+12]>>4)*4
	if hl < at+tcpLen || hl > len(f) {
		return 0, 0
	}
	return at, hl
}

// takes says whether a segment follows on the group's last one, and is like it in all that a receiver could tell.
func (g *group) takes(f []byte, hl int, seq uint32, payload int) bool {
	a, l4 := g.frame, g.l4
	if !g.open || g.hl != hl || g.seq != seq || payload > g.size || g.total+payload > maxJoin || len(g.more) >= maxParts {
		return false
	}
	same := string(a[:ethLen]) == string(f[:ethLen]) &&
		a[15] == f[15] && a[20] == f[20] && a[22] == f[22] && // type of service, don't fragment, time to live
		string(a[l4+8:l4+13]) == string(f[l4+8:l4+13]) && // acknowledgement, offset
		string(a[l4+14:l4+16]) == string(f[l4+14:l4+16]) && // window
		string(a[l4+18:hl]) == string(f[l4+18:hl]) // urgent pointer, options
	if !same {
		return false
	}
	if !g.sound {
		if g.sound = sound(a, l4); !g.sound {
			g.open = false
			return false
		}
	}
	return sound(f, l4)
}

// sound says whether TCP's checksum is right. The kernel takes it as right for a frame that was joined.
func sound(f []byte, l4 int) bool {
	return fold(sum(f[l4:], pseudo(f[ethLen:])+uint64(len(f)-l4))) == 0xffff //nolint:gosec // a length
}

// flush writes the group to its TAP.
func (j *joiner) flush(g *group) error {
	g.seal()
	h, f := g.header[:], g.frame
	v := j.iov[:0]
	v = append(v, unix.Iovec{Base: &h[0], Len: vnetLen}, unix.Iovec{Base: &f[0], Len: uint64(len(f))})
	for _, m := range g.more {
		v = append(v, unix.Iovec{Base: &m[0], Len: uint64(len(m))})
	}
	j.iov = v
	return g.to.write(v)
}

// seal writes the virtio header, and makes the first frame's headers those of all.
func (g *group) seal() {
	h, f := g.header[:], g.frame
	clear(h)
	if len(g.more) > 0 {
		h[0], h[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_TCPV4
		binary.NativeEndian.PutUint16(h[2:], uint16(g.hl))   //nolint:gosec // at most a header's
		binary.NativeEndian.PutUint16(h[4:], uint16(g.size)) //nolint:gosec // at most an MTU
		binary.NativeEndian.PutUint16(h[6:], uint16(g.l4))   //nolint:gosec // at most a header's
		binary.NativeEndian.PutUint16(h[8:], 16)
		ip := f[ethLen:g.l4]
		binary.BigEndian.PutUint16(ip[2:], uint16(g.total-ethLen)) //nolint:gosec // at most maxJoin
		clear(ip[10:12])
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip, 0)))
		binary.BigEndian.PutUint16(f[g.l4+16:], fold(pseudo(ip)+uint64(g.total-g.l4))) //nolint:gosec // a length
	}
}
