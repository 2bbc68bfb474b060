package dataplane

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

const (
	minSegment = 48 // bytes; the least that the kernel's TCP sends (net.ipv4.tcp_min_snd_mss)
	tcpLen     = 20

	flagFIN, flagPSH, flagACK, flagCWR = 0x01, 0x08, 0x10, 0x80
)

// cutter makes datagrams of one frame from a TAP: one, or one for each of its segments.
type cutter struct {
	frame *frame // nil: there is none
	f     []byte // without the virtio header
	outer [outerLen]byte
	at    int // what is done of f

	// Of a frame that is cut.
	segment int // bytes of payload; 0: it is not cut
	l4, hl  int // where TCP and its payload begin
	i       int
	id      uint16
	seq     uint32
	flags   byte
	ipSum   uint64 // of the header, without what differs
	tcpSum  uint64 // of pseudo header and header, without what differs
}

func (c *cutter) done() bool { return c.at >= len(c.f) }

// begin has the frame cut next. Otherwise it says why not.
func (d *Device) begin(in *frame) (why int) {
	s := d.settings.Load()
	if in.n < vnetLen+ethLen {
		return malformed
	}
	f := in.data[vnetLen:in.n]
	t := in.from.table.Load()
	src, ok := t.here[mac(f[6:12])]
	if !ok {
		return spoofed
	}
	to, ok := t.there[mac(f[:6])]
	if !ok {
		return flooded
	}
	if !isIPv4(f) || int(binary.BigEndian.Uint16(f[16:])) > len(f)-ethLen {
		return malformed
	}
	if src != addr(f[26:30]) {
		return spoofed
	}
	if to.addr != addr(f[30:34]) {
		return flooded
	}
	if !d.pace.may(to.via) {
		return unanswered
	}
	c := cutter{frame: in, f: f}
	if !c.plan(in.data[:vnetLen], ethLen+s.mtu) {
		return malformed
	}
	c.header(s, in.from.vni, to.via)
	d.cut = c
	return -1
}

// plan reads the virtio header: it completes the frame's checksum, or gets ready to cut it. most is how long a frame may be.
func (c *cutter) plan(h []byte, most int) bool {
	flags, gso := h[0], h[1]&^unix.VIRTIO_NET_HDR_GSO_ECN
	f, l4 := c.f, int(binary.NativeEndian.Uint16(h[6:]))
	switch gso {
	case unix.VIRTIO_NET_HDR_GSO_NONE:
		return len(f) <= most && (flags&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 || complete(f, l4, int(binary.NativeEndian.Uint16(h[8:]))))
	case unix.VIRTIO_NET_HDR_GSO_TCPV4:
		return c.planTCP(int(binary.NativeEndian.Uint16(h[4:])), most)
	default:
		return false
	}
}

// complete fills in the checksum of what begins at l4. Its field holds the sum of the pseudo header.
func complete(f []byte, l4, field int) bool {
	at := l4 + field
	if l4 < ethLen || l4 > len(f) || at+2 > len(f) {
		return false
	}
	sum := ^fold(sum(f[l4:], 0))
	if sum == 0 && field == 6 {
		sum = 0xffff // UDP: 0 says that there is none
	}
	binary.BigEndian.PutUint16(f[at:], sum)
	return true
}

// planTCP gets ready to cut a frame of TCP into segments.
func (c *cutter) planTCP(segment, most int) bool {
	f := c.f
	c.l4 = ethLen + int(f[14]&15)*4
	if f[23] != protoTCP || f[20]&0x3f != 0 || f[21] != 0 || c.l4+tcpLen > len(f) {
		return false
	}
	c.hl = c.l4 + int(f[c.l4+12]>>4)*4
	if c.hl < c.l4+tcpLen || c.hl >= len(f) || segment < minSegment || c.hl+segment > most {
		return false
	}
	ip, tcp := f[ethLen:c.l4], f[c.l4:c.hl]
	c.segment, c.at = segment, c.hl
	c.id, c.seq, c.flags = binary.BigEndian.Uint16(ip[4:]), binary.BigEndian.Uint32(tcp[4:]), tcp[13]
	// All that does not differ between segments is summed once.
	clear(ip[2:6])
	clear(ip[10:12])
	clear(tcp[4:8])
	tcp[13] = 0
	clear(tcp[16:18])
	c.ipSum = uint64(fold(sum(ip, 0)))
	c.tcpSum = uint64(fold(sum(tcp, pseudo(ip))))
	return true
}

// next writes as many datagrams as there is place for, and returns how many.
func (c *cutter) next(bufs [][]byte, sizes []int, offset int) (n int) {
	for ; n < len(bufs) && !c.done(); n++ {
		out := bufs[n][offset:]
		if c.segment == 0 {
			sizes[n] = c.put(out, c.f, nil)
			c.at = len(c.f)
			continue
		}
		end := min(c.at+c.segment, len(c.f))
		sizes[n] = c.put(out, c.f[:c.hl], c.f[c.at:end])
		c.finish(out[outerLen:sizes[n]], end == len(c.f))
		c.at = end
	}
	return n
}

// finish fills in what differs between segments. o is a whole frame.
func (c *cutter) finish(o []byte, last bool) {
	ip, tcp := o[ethLen:], o[c.l4:]
	length, id := uint16(len(o)-ethLen), c.id+uint16(c.i) //nolint:gosec // it wraps
	binary.BigEndian.PutUint16(ip[2:], length)
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[10:], ^fold(c.ipSum+uint64(length)+uint64(id)))
	bits := c.flags
	if !last {
		bits &^= flagFIN | flagPSH
	}
	if c.i > 0 {
		bits &^= flagCWR
	}
	seq := c.seq + uint32(c.i*c.segment) //nolint:gosec // it wraps
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[13] = bits
	all := c.tcpSum + uint64(seq>>16) + uint64(seq&0xffff) + uint64(bits) + uint64(len(tcp))
	binary.BigEndian.PutUint16(tcp[16:], ^fold(sum(o[c.hl:], all)))
	c.i++
}

// put writes a datagram with a frame of two parts, and returns its length. A frame is never longer than most, and buffers are 64 KiB.
func (c *cutter) put(out, head, tail []byte) int {
	n := len(head) + len(tail)
	copy(out, c.outer[:])
	binary.BigEndian.PutUint16(out[2:], uint16(outerLen+n)) //nolint:gosec // at most an MTU
	binary.BigEndian.PutUint16(out[10:], ^fold(sum(out[:20], 0)))
	binary.BigEndian.PutUint16(out[24:], uint16(16+n)) //nolint:gosec // at most an MTU
	copy(out[outerLen:], head)
	copy(out[outerLen+len(head):], tail)
	return outerLen + n
}

// header prepares outer IPv4 (it may not be cut on its way), UDP without a checksum, as RFC 7348 has it, and VXLAN.
func (c *cutter) header(s *settings, vni uint32, to addr) {
	o := c.outer[:]
	o[0], o[6], o[8], o[9] = 0x45, 0x40, 64, protoUDP
	copy(o[12:16], s.addr[:])
	copy(o[16:20], to[:])
	binary.BigEndian.PutUint16(o[20:], sourcePort(c.f))
	binary.BigEndian.PutUint16(o[22:], s.port)
	o[28] = 8
	binary.BigEndian.PutUint32(o[32:], vni<<8)
}

// sourcePort is one for each flow of pods, so that what is between hosts can tell them apart. All fragments of a packet have one.
func sourcePort(f []byte) uint16 {
	h := uint32(2166136261)
	add := func(b []byte) {
		for _, x := range b {
			h = (h ^ uint32(x)) * 16777619
		}
	}
	add(f[ethLen+12 : ethLen+20])
	l4 := ethLen + int(f[14]&15)*4
	whole := f[20]&0x3f == 0 && f[21] == 0
	if p := f[23]; whole && (p == protoTCP || p == protoUDP) && l4+4 <= len(f) {
		add(f[l4 : l4+4])
	}
	return 0xc000 | uint16(h^h>>16)&0x3fff
}
