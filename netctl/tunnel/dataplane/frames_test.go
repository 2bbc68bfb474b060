package dataplane

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

const vni = 4096

var (
	ownAddr  = addr{100, 127, 0, 1}
	farAddr  = addr{100, 127, 0, 2}
	hereMAC  = mac{10, 103, 10, 64, 0, 2}
	thereMAC = mac{10, 103, 10, 64, 0, 3}
	hereIP   = addr{10, 64, 0, 2}
	thereIP  = addr{10, 64, 0, 3}
)

// testDevice has an overlay with a member here and one there.
func testDevice(t testing.TB) (*Device, *overlay) {
	t.Helper()
	d := NewDevice(netip.AddrFrom4(ownAddr), 4789, 1370)
	t.Cleanup(func() { _ = d.Close() })
	member := func(m mac, a, via addr) []byte { return append(append(m[:], a[:]...), via[:]...) }
	if err := d.SetOverlay(vni, append(member(hereMAC, hereIP, addr{}), member(thereMAC, thereIP, farAddr)...)); err != nil {
		t.Fatal(err)
	}
	return d, (*d.overlays.Load())[vni]
}

// packet is a frame between the two with a payload behind a header of l4 bytes.
func packet(proto byte, from, to mac, src, dst addr, l4 []byte, payload []byte) []byte {
	f := append(append(append([]byte{}, to[:]...), from[:]...), 8, 0)
	ip := make([]byte, ipLen)
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(ipLen+len(l4)+len(payload)))
	binary.BigEndian.PutUint16(ip[4:], 0xfffe)
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip, 0)))
	return append(append(append(f, ip...), l4...), payload...)
}

// tcp is a header with 12 bytes of options.
func tcp(seq uint32, flags byte) []byte {
	h := make([]byte, tcpLen+12)
	binary.BigEndian.PutUint16(h, 1234)
	binary.BigEndian.PutUint16(h[2:], 80)
	binary.BigEndian.PutUint32(h[4:], seq)
	binary.BigEndian.PutUint32(h[8:], 77)
	h[12], h[13] = 8<<4, flags
	binary.BigEndian.PutUint16(h[14:], 500)
	copy(h[20:], []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2})
	return h
}

func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// offered is a frame as a TAP hands it over.
func offered(o *overlay, header []byte, f []byte) *frame {
	in := &frame{from: o}
	in.n = copy(in.data[:], header) + copy(in.data[len(header):], f)
	return in
}

func gso(kind byte, size, l4 int) []byte {
	h := make([]byte, vnetLen)
	h[0], h[1] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, kind
	binary.NativeEndian.PutUint16(h[4:], uint16(size))
	binary.NativeEndian.PutUint16(h[6:], uint16(l4))
	binary.NativeEndian.PutUint16(h[8:], 16)
	return h
}

// encap has a device make datagrams of a frame, few at a time.
func encap(d *Device, in *frame, few int) (out [][]byte, why int) {
	if why := d.begin(in); why >= 0 {
		return nil, why
	}
	bufs, sizes := make([][]byte, few), make([]int, few)
	for !d.cut.done() {
		for i := range bufs {
			bufs[i] = make([]byte, 16+outerLen+ethLen+1370)
		}
		for i := range d.cut.next(bufs, sizes, 16) {
			out = append(out, bufs[i][16:16+sizes[i]])
		}
	}
	d.cut.frame = nil
	return out, -1
}

// TestCutAndJoined: a frame of TCP is cut into segments that are right in all, which are joined to what it was, however many
// buffers there are at a time.
func TestCutAndJoined(t *testing.T) {
	d, o := testDevice(t)
	for _, few := range []int{1, 7, 128} {
		payload := content(60001)
		whole := packet(protoTCP, hereMAC, thereMAC, hereIP, thereIP, tcp(0xffffff00, flagACK|flagPSH|flagFIN|flagCWR), payload)
		all, why := encap(d, offered(o, gso(unix.VIRTIO_NET_HDR_GSO_TCPV4, 1318, 34), whole), few)
		if why >= 0 || len(all) != 46 {
			t.Fatalf("%d datagrams, %d", len(all), why)
		}
		var got []byte
		for i, p := range all {
			f := p[outerLen:]
			if !isIPv4(f) || fold(sum(f[ethLen:34], 0)) != 0xffff || !sound(f, 34) || fold(sum(p[:20], 0)) != 0xffff {
				t.Fatalf("datagram %d has a wrong sum", i)
			}
			if id := binary.BigEndian.Uint16(f[18:]); id != uint16(0xfffe+i) {
				t.Errorf("datagram %d has the number %d", i, id)
			}
			if seq := binary.BigEndian.Uint32(f[38:]); seq != 0xffffff00+uint32(len(got)) {
				t.Errorf("datagram %d begins at %d", i, seq)
			}
			want := byte(flagACK)
			if i == 0 {
				want |= flagCWR
			}
			if i == len(all)-1 {
				want |= flagPSH | flagFIN
			}
			if f[47] != want || f[20] != 0x40 {
				t.Errorf("datagram %d has flags %x %x, want %x", i, f[47], f[20], want)
			}
			got = append(got, f[66:]...)
		}
		if !bytes.Equal(got, payload) {
			t.Error("the payload is another")
		}
	}
}

// TestJoined: what follows on each other is joined, in order; what does not is not.
func TestJoined(t *testing.T) {
	segment := func(seq uint32, flags byte, n int) []byte {
		f := packet(protoTCP, thereMAC, hereMAC, thereIP, hereIP, tcp(seq, flags), content(n))
		binary.BigEndian.PutUint16(f[50:], ^fold(sum(f[34:], pseudo(f[ethLen:])+uint64(len(f)-34))))
		return f
	}
	broken := segment(1100, flagACK, 100)
	broken[70]++
	other := segment(1100, flagACK, 100)
	other[49]++ // another window
	binary.BigEndian.PutUint16(other[50:], 0)
	binary.BigEndian.PutUint16(other[50:], ^fold(sum(other[34:], pseudo(other[ethLen:])+uint64(len(other)-34))))
	for name, c := range map[string]struct {
		frames [][]byte
		want   []int // bytes of each frame
	}{
		"in a row":       {[][]byte{segment(1000, flagACK, 100), segment(1100, flagACK, 100), segment(1200, flagACK|flagPSH, 50)}, []int{316}},
		"after the last": {[][]byte{segment(1000, flagACK, 100), segment(1100, flagACK|flagPSH, 100), segment(1200, flagACK, 100)}, []int{266, 166}},
		"after a short":  {[][]byte{segment(1000, flagACK, 100), segment(1100, flagACK, 50), segment(1150, flagACK, 50)}, []int{216, 116}},
		"a gap":          {[][]byte{segment(1000, flagACK, 100), segment(1200, flagACK, 100)}, []int{166, 166}},
		"an end":         {[][]byte{segment(1000, flagACK, 100), segment(1100, flagACK|flagFIN, 100)}, []int{166, 166}},
		"longer":         {[][]byte{segment(1000, flagACK, 100), segment(1100, flagACK, 101)}, []int{166, 167}},
		"broken":         {[][]byte{segment(1000, flagACK, 100), broken}, []int{166, 166}},
		"another window": {[][]byte{segment(1000, flagACK, 100), other}, []int{166, 166}},
		"bare answers":   {[][]byte{segment(1000, flagACK, 0), segment(1000, flagACK, 0)}, []int{66, 66}},
	} {
		var j joiner
		j.begin()
		for _, f := range c.frames {
			j.add(nil, bytes.Clone(f))
		}
		var got []int
		for i := range j.groups {
			g := &j.groups[i]
			g.seal()
			got = append(got, g.total)
			if n := binary.BigEndian.Uint16(g.frame[16:]); int(n) != g.total-ethLen || fold(sum(g.frame[ethLen:34], 0)) != 0xffff {
				t.Errorf("%s: the header of IP is wrong", name)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// datagram is what the other host sends.
func datagram(f []byte) []byte {
	c := cutter{f: f}
	c.header(&settings{addr: farAddr, port: 4789}, vni, ownAddr)
	out := make([]byte, outerLen+len(f))
	c.put(out, f, nil)
	return out
}

// TestRefused: what is dropped, and why.
func TestRefused(t *testing.T) {
	d, o := testDevice(t)
	o.tap.Store(&tap{})
	defer o.tap.Store(nil)
	udp := content(8)
	good := packet(protoUDP, thereMAC, hereMAC, thereIP, hereIP, udp, nil)
	if _, f, why := d.decap(datagram(good)); why >= 0 || !bytes.Equal(f, good) {
		t.Fatalf("a good one: %d", why)
	}
	for name, c := range map[string]struct {
		change func(p []byte) []byte
		why    int
	}{
		"another host's member": {func(p []byte) []byte { p[15] = 9; return p }, foreign},
		"not for this host":     {func(p []byte) []byte { p[19] = 9; return p }, foreign},
		"another port":          {func(p []byte) []byte { p[23]++; return p }, foreign},
		"another overlay":       {func(p []byte) []byte { p[34]++; return p }, foreign},
		"no overlay":            {func(p []byte) []byte { p[28] = 0; return p }, foreign},
		"not UDP":               {func(p []byte) []byte { p[9] = protoTCP; return p }, malformed},
		"options":               {func(p []byte) []byte { p[0] = 0x46; return p }, malformed},
		"a fragment":            {func(p []byte) []byte { p[6] = 0x20; return p }, malformed},
		"cut short":             {func(p []byte) []byte { return p[:len(p)-1] }, malformed},
		"UDP of another length": {func(p []byte) []byte { p[25]++; return p }, malformed},
		"from nobody":           {func(p []byte) []byte { p[outerLen+11]++; return p }, foreign},
		"from a member here":    {func(p []byte) []byte { copy(p[outerLen+6:], hereMAC[:]); return p }, foreign},
		"another address":       {func(p []byte) []byte { p[outerLen+29]++; return p }, foreign},
		"to nobody":             {func(p []byte) []byte { p[outerLen+5]++; return p }, foreign},
		"to everybody":          {func(p []byte) []byte { copy(p[outerLen:], bytes.Repeat([]byte{255}, 6)); return p }, foreign},
		"to another address":    {func(p []byte) []byte { p[outerLen+33]++; return p }, foreign},
		"ARP":                   {func(p []byte) []byte { p[outerLen+13] = 6; return p }, malformed},
		"VLAN":                  {func(p []byte) []byte { p[outerLen+12], p[outerLen+13] = 0x81, 0; return p }, malformed},
		"IPv6":                  {func(p []byte) []byte { p[outerLen+12], p[outerLen+13] = 0x86, 0xdd; return p }, malformed},
	} {
		if _, _, why := d.decap(c.change(datagram(bytes.Clone(good)))); why != c.why {
			t.Errorf("%s: %d, want %d", name, why, c.why)
		}
	}
	plain := make([]byte, vnetLen)
	for name, c := range map[string]struct {
		header, f []byte
		why       int
	}{
		"a broadcast":         {plain, packet(protoUDP, hereMAC, mac{255, 255, 255, 255, 255, 255}, hereIP, thereIP, udp, nil), flooded},
		"to nobody":           {plain, packet(protoUDP, hereMAC, mac{2, 0, 0, 0, 0, 1}, hereIP, thereIP, udp, nil), flooded},
		"to another address":  {plain, packet(protoUDP, hereMAC, thereMAC, hereIP, addr{10, 64, 0, 9}, udp, nil), flooded},
		"from another member": {plain, packet(protoUDP, thereMAC, thereMAC, thereIP, thereIP, udp, nil), spoofed},
		"another address":     {plain, packet(protoUDP, hereMAC, thereMAC, thereIP, thereIP, udp, nil), spoofed},
		"too long":            {plain, packet(protoUDP, hereMAC, thereMAC, hereIP, thereIP, udp, content(1400)), malformed},
		"tiny segments":       {gso(unix.VIRTIO_NET_HDR_GSO_TCPV4, 1, 34), packet(protoTCP, hereMAC, thereMAC, hereIP, thereIP, tcp(1, flagACK), content(9000)), malformed},
		"huge segments":       {gso(unix.VIRTIO_NET_HDR_GSO_TCPV4, 1319, 34), packet(protoTCP, hereMAC, thereMAC, hereIP, thereIP, tcp(1, flagACK), content(9000)), malformed},
		"cut UDP":             {gso(unix.VIRTIO_NET_HDR_GSO_UDP, 1000, 34), packet(protoUDP, hereMAC, thereMAC, hereIP, thereIP, udp, content(9000)), malformed},
		"a sum outside":       {gso(0, 0, 2000), packet(protoUDP, hereMAC, thereMAC, hereIP, thereIP, udp, nil), malformed},
		"half a header":       {plain, packet(protoUDP, hereMAC, thereMAC, hereIP, thereIP, nil, nil)[:30], malformed},
	} {
		if _, why := encap(d, offered(o, c.header, c.f), 128); why != c.why {
			t.Errorf("from a pod: %s: %d, want %d", name, why, c.why)
		}
	}
}

// TestSumCompleted: the checksum that a pod's kernel left to the link is filled in, 0xffff for UDP where it would be none.
func TestSumCompleted(t *testing.T) {
	d, o := testDevice(t)
	h := gso(unix.VIRTIO_NET_HDR_GSO_NONE, 0, 34)
	binary.NativeEndian.PutUint16(h[8:], 6)
	f := packet(protoUDP, hereMAC, thereMAC, hereIP, thereIP, []byte{1, 2, 3, 4, 0, 13, 0, 0}, []byte("hello"))
	head := fold(sum(f[26:34], protoUDP) + 13)
	binary.BigEndian.PutUint16(f[40:], head)
	all, why := encap(d, offered(o, h, f), 1)
	if why >= 0 || len(all) != 1 || fold(sum(all[0][outerLen+34:], uint64(head))) != 0xffff {
		t.Errorf("%x, %d", all, why)
	}
}

// TestOneFlowOnePort: frames of a flow have one source port, all fragments of it too, and flows differ.
func TestOneFlowOnePort(t *testing.T) {
	ports := map[uint16]bool{}
	for i := range 100 {
		f := packet(protoUDP, hereMAC, thereMAC, hereIP, thereIP, []byte{byte(i), 1, 2, 3, 0, 8, 0, 0}, nil)
		if sourcePort(f) < 0xc000 {
			t.Error("a port that is not for that")
		}
		ports[sourcePort(f)] = true
		first, next := bytes.Clone(f), bytes.Clone(f)
		first[20], next[21] = 0x20, 1
		next[34]++
		if sourcePort(first) != sourcePort(next) {
			t.Error("fragments of a packet have two ports")
		}
	}
	if len(ports) < 90 {
		t.Errorf("100 flows have %d ports", len(ports))
	}
}

// FuzzFromPods: nothing that a pod hands over breaks the device, and what leaves it is whole and no longer than it may be.
func FuzzFromPods(f *testing.F) {
	big := packet(protoTCP, hereMAC, thereMAC, hereIP, thereIP, tcp(1, flagACK), content(5000))
	f.Add(gso(unix.VIRTIO_NET_HDR_GSO_TCPV4, 1318, 34), big)
	f.Add(gso(unix.VIRTIO_NET_HDR_GSO_TCPV4, 48, 34), big)
	f.Add(gso(unix.VIRTIO_NET_HDR_GSO_NONE, 0, 34), packet(protoUDP, hereMAC, thereMAC, hereIP, thereIP, content(8), nil))
	f.Add(make([]byte, vnetLen), big[:30])
	d, o := testDevice(f)
	f.Fuzz(func(t *testing.T, header, frame []byte) {
		if len(header) != vnetLen || len(frame) > frameMax-vnetLen {
			return
		}
		all, why := encap(d, offered(o, header, frame), 3)
		if (why < 0) == (len(all) == 0) {
			t.Fatalf("%d datagrams, %d", len(all), why)
		}
		for _, p := range all {
			if len(p) > outerLen+ethLen+1370 || fold(sum(p[:20], 0)) != 0xffff || addr(p[16:20]) != farAddr || int(binary.BigEndian.Uint16(p[2:])) != len(p) {
				t.Fatalf("a datagram %x", p)
			}
			if len(all) > 1 && (!sound(p[outerLen:], d.cut.l4) || fold(sum(p[outerLen+ethLen:outerLen+d.cut.l4], 0)) != 0xffff) {
				t.Fatalf("a segment with a wrong sum: %x", p)
			}
		}
	})
}

// FuzzFromHosts: nothing that another host sends breaks the device, and what is joined has all bytes that came.
func FuzzFromHosts(f *testing.F) {
	one := packet(protoTCP, thereMAC, hereMAC, thereIP, hereIP, tcp(1, flagACK), content(100))
	next := packet(protoTCP, thereMAC, hereMAC, thereIP, hereIP, tcp(101, flagACK|flagPSH), content(100))
	for _, s := range [][]byte{one, next} {
		binary.BigEndian.PutUint16(s[50:], ^fold(sum(s[34:], pseudo(s[ethLen:])+uint64(len(s)-34))))
	}
	f.Add(datagram(one), datagram(next))
	f.Add(datagram(one)[:40], datagram(one))
	d, o := testDevice(f)
	o.tap.Store(&tap{})
	f.Cleanup(func() { o.tap.Store(nil) })
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var j joiner
		j.begin()
		n := 0
		for _, p := range [][]byte{a, b} {
			if to, f, why := d.decap(bytes.Clone(p)); why < 0 {
				j.add(to, f)
				n += len(f)
			}
		}
		for i := range j.groups {
			g := &j.groups[i]
			g.seal()
			n -= g.total + len(g.more)*g.hl
			have := len(g.frame)
			for _, m := range g.more {
				have += len(m)
			}
			if have != g.total {
				t.Fatalf("a frame of %d bytes has %d", g.total, have)
			}
		}
		if n != 0 {
			t.Fatalf("%d bytes too few", n)
		}
	})
}
