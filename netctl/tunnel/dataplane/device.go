// Package dataplane is the tunnel's process: a device for wireguard-go whose packets are VXLAN datagrams between hosts, and whose
// other side is a TAP for each overlay. TCP crosses a TAP in frames of up to 64 KiB, both ways; what is cut and joined is done
// here, since the kernel would cut before a TUN, at a fifth of the speed. It has no rights: the TAPs are handed to it.
package dataplane

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/tun"
)

const (
	vnetLen  = 10           // struct virtio_net_hdr
	outerLen = 20 + 8 + 8   // IPv4, UDP, VXLAN
	ethLen   = 14           // no VLANs
	ipLen    = 20           // IPv4 without options
	frameMax = 64<<10 + 128 // what a TAP hands over at once
	frames   = 64           // that may be on their way from TAPs to the tunnel

	protoTCP = unix.IPPROTO_TCP
	protoUDP = unix.IPPROTO_UDP
)

// settings are the tunnel's, of this host.
type settings struct {
	addr addr
	port uint16 // of VXLAN
	mtu  int    // of pods' links
}

// Device is a tun.Device. Overlays come and go while it is in use.
type Device struct {
	settings atomic.Pointer[settings]
	overlays atomic.Pointer[map[uint32]*overlay]
	drops    drops
	pace     pace

	mu     sync.Mutex // changes of overlays and their TAPs
	taps   sync.WaitGroup
	closed chan struct{}
	once   sync.Once
	events chan tun.Event

	free chan *frame // not in use
	in   chan *frame // from TAPs
	rmu  sync.Mutex  // Read's
	cut  cutter

	joiners sync.Pool
}

// frame is what a TAP handed over: a virtio header and a frame behind it.
type frame struct {
	from *overlay
	n    int
	data [frameMax]byte
}

// NewDevice makes a device without overlays. Close it.
func NewDevice(local netip.Addr, port uint16, mtu int) *Device {
	d := &Device{closed: make(chan struct{}), events: make(chan tun.Event, 1), free: make(chan *frame, frames), in: make(chan *frame, frames)}
	d.pace.room = make(chan struct{}, 1)
	d.Configure(local, port, mtu)
	d.overlays.Store(&map[uint32]*overlay{})
	d.joiners.New = func() any { return &joiner{} }
	for range frames {
		d.free <- &frame{}
	}
	return d
}

// Configure changes the settings.
func (d *Device) Configure(local netip.Addr, port uint16, mtu int) {
	d.settings.Store(&settings{addr: local.As4(), port: port, mtu: mtu})
	select {
	case d.events <- tun.EventMTUUpdate:
	default: // the last one was not heard yet
	}
}

// File implements tun.Device: there is no single one.
func (d *Device) File() *os.File { return nil }

// MTU implements tun.Device.
func (d *Device) MTU() (int, error) { return d.settings.Load().mtu + outerLen + ethLen, nil }

// Name implements tun.Device.
func (d *Device) Name() (string, error) { return "overlays", nil }

// Events implements tun.Device.
func (d *Device) Events() <-chan tun.Event { return d.events }

// BatchSize implements tun.Device.
func (d *Device) BatchSize() int { return conn.IdealBatchSize }

// Close implements tun.Device. All TAPs are closed.
func (d *Device) Close() error {
	d.once.Do(func() {
		close(d.closed)
		d.mu.Lock()
		for _, o := range *d.overlays.Load() {
			if t := o.tap.Swap(nil); t != nil {
				t.close()
			}
		}
		d.mu.Unlock()
		d.taps.Wait()
		close(d.events)
	})
	return nil
}

// Read implements tun.Device: frames of pods, as datagrams for other hosts. What does not fit into bufs comes with the next call.
func (d *Device) Read(bufs [][]byte, sizes []int, offset int) (n int, err error) {
	d.rmu.Lock()
	defer d.rmu.Unlock()
	d.pace.wait(d.closed)
	defer func() { d.pace.gave(n) }()
	for {
		if d.cut.frame != nil {
			n += d.cut.next(bufs[n:], sizes[n:], offset)
			if !d.cut.done() {
				return n, nil
			}
			d.free <- d.cut.frame
			d.cut.frame = nil
		}
		if n == len(bufs) {
			return n, nil
		}
		f, err := d.incoming(n == 0)
		if f == nil {
			return n, err
		}
		if why := d.begin(f); why >= 0 {
			d.drops.add(why, max(f.n-vnetLen, 0))
			d.free <- f
		}
	}
}

// incoming returns a frame; nil without wait when there is none.
func (d *Device) incoming(wait bool) (*frame, error) {
	if !wait {
		select {
		case f := <-d.in:
			return f, nil
		default:
			return nil, nil
		}
	}
	select {
	case f := <-d.in:
		return f, nil
	case <-d.closed:
		return nil, os.ErrClosed
	}
}

// Write implements tun.Device: datagrams of other hosts, of which the tunnel has made sure that their source address is the
// sender's own.
func (d *Device) Write(bufs [][]byte, offset int) (int, error) {
	j, ok := d.joiners.Get().(*joiner)
	if !ok {
		return 0, errors.New("no joiner")
	}
	defer d.joiners.Put(j)
	j.begin()
	for _, b := range bufs {
		t, f, why := d.decap(b[offset:])
		if why >= 0 {
			d.drops.add(why, len(b)-offset)
			continue
		}
		j.add(t, f)
	}
	for i := range j.groups {
		if g := &j.groups[i]; j.flush(g) != nil {
			d.drops.add(unready, g.total)
		}
	}
	j.forget()
	return len(bufs), nil
}

// decap returns the TAP and the frame of a datagram, or why there is none.
func (d *Device) decap(p []byte) (*tap, []byte, int) {
	s := d.settings.Load()
	if len(p) < outerLen+ethLen+ipLen || p[0] != 0x45 || p[9] != protoUDP || p[6]&0x3f != 0 || p[7] != 0 {
		return nil, nil, malformed
	}
	total := int(binary.BigEndian.Uint16(p[2:]))
	if total > len(p) || total < outerLen+ethLen+ipLen || int(binary.BigEndian.Uint16(p[24:])) != total-20 {
		return nil, nil, malformed
	}
	p = p[:total]
	if addr(p[16:20]) != s.addr || binary.BigEndian.Uint16(p[22:]) != s.port || p[28] != 8 {
		return nil, nil, foreign
	}
	o := (*d.overlays.Load())[binary.BigEndian.Uint32(p[32:])>>8]
	if o == nil {
		return nil, nil, foreign
	}
	f, t := p[outerLen:], o.table.Load()
	if !isIPv4(f) || len(f) > ethLen+s.mtu {
		return nil, nil, malformed
	}
	from, ok := t.there[mac(f[6:12])]
	if !ok || from.via != addr(p[12:16]) || from.addr != addr(f[26:30]) {
		return nil, nil, foreign
	}
	if to, ok := t.here[mac(f[:6])]; !ok || to != addr(f[30:34]) {
		return nil, nil, foreign
	}
	d.pace.heard(from.via)
	link := o.tap.Load()
	if link == nil {
		return nil, nil, unready
	}
	return link, f, -1
}

// isIPv4 says whether the frame has a packet of IPv4 whose header is there.
func isIPv4(f []byte) bool {
	return len(f) >= ethLen+ipLen && f[12] == 8 && f[13] == 0 && f[14]>>4 == 4 && f[14]&15 >= 5
}
