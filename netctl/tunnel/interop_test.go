package tunnel_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"

	"gantry/fleet"
	"gantry/netctl"
	"gantry/netctl/tunnel"
	"gantry/netctl/tunnel/dataplane"
)

// TestKernelVXLAN: what a device sends is what the kernel's VXLAN understands, and the other way round. Between them is a link
// without encryption: a TUN, as WireGuard's would be.
func TestKernelVXLAN(t *testing.T) {
	here, there := newSpace(t), newSpace(t)
	h := &host{i: 1, ns: here, addr: netip.MustParseAddr("100.127.0.1")}
	far := &host{i: 2, ns: there, addr: netip.MustParseAddr("100.127.0.2")}
	a := h.newPod(t, red, "10.64.0.2")
	b := &pod{ns: there, host: far, addr: netip.MustParseAddr("10.64.0.3"), mac: fleet.OverlayMAC(netip.MustParseAddr("10.64.0.3"))}
	d := dataplane.NewDevice(h.addr, vxPort, podMTU)
	must(t, d.SetOverlay(red, wireMembers(t, h, a, b)))
	attach(t, d, here, red)
	var wire tun.Device
	must(t, there.do(func() (err error) {
		wire, err = tun.CreateTUN("gw", podMTU+tunnel.Overhead)
		return err
	}))
	there.addr(t, "gw", netip.PrefixFrom(far.addr, 16))
	must(t, there.up("gw"))
	kernelOverlay(t, there, b, a, far.addr, h.addr)
	relay(t, d, wire)
	knows(t, a, b)

	b.listenUDP(t, "b ")
	a.listenUDP(t, "a ")
	for _, size := range []int{1, 1000, 5000} { // the last in fragments
		text := strings.Repeat("z", size)
		if got, ok := a.echo(t, b, text, time.Second); !ok || got != "b "+text {
			t.Errorf("%d bytes to the kernel: %d came back", size, len(got))
		}
		if got, ok := b.echo(t, a, text, time.Second); !ok || got != "a "+text {
			t.Errorf("%d bytes from the kernel: %d came back", size, len(got))
		}
	}
	stream(t, a, b, 4<<20)
	stream(t, b, a, 4<<20)
	for _, drop := range d.Drops() {
		if drop.Packets > 0 {
			t.Errorf("dropped: %+v", drop)
		}
	}
}

// kernelOverlay makes the kernel's link, which stands for the pod's.
func kernelOverlay(t *testing.T, s *space, own, other *pod, local, via netip.Addr) {
	t.Helper()
	hw, err := net.ParseMAC(own.mac)
	must(t, err)
	l := &netlink.Vxlan{LinkAttrs: netlink.NewLinkAttrs(), VxlanId: red, SrcAddr: local.AsSlice(), Port: vxPort}
	l.Name, l.MTU, l.HardwareAddr = "podnet1", podMTU, hw
	must(t, s.nl.LinkAdd(l))
	must(t, s.up("podnet1"))
	s.addr(t, "podnet1", netip.PrefixFrom(own.addr, 16))
	remote, err := net.ParseMAC(other.mac)
	must(t, err)
	must(t, s.nl.NeighAppend(&netlink.Neigh{
		LinkIndex: link(t, s, "podnet1").Attrs().Index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: via.AsSlice(), HardwareAddr: remote,
	}))
}

// wireMembers are the members as a host's process is told of them.
func wireMembers(t testing.TB, h *host, pods ...*pod) []byte {
	t.Helper()
	m, err := tunnel.MembersOf(members(h, red, pods...))
	must(t, err)
	return m.All
}

// attach gives a device an overlay's TAP.
func attach(t testing.TB, d *dataplane.Device, s *space, vni uint32) {
	t.Helper()
	must(t, s.do(func() error {
		f, err := tunnel.OpenTap(netctl.TapLink(instance, vni))
		if err != nil {
			return err
		}
		return d.SetTap(vni, 1, f)
	}))
}

// relay carries what two devices send to each other, and closes both in the end.
func relay(t *testing.T, a, b tun.Device) {
	t.Helper()
	done := make(chan struct{}, 2)
	carry := func(from, to tun.Device) {
		defer func() { done <- struct{}{} }()
		const offset = 64
		bufs, sizes, out := make([][]byte, from.BatchSize()), make([]int, from.BatchSize()), make([][]byte, 0, from.BatchSize())
		for i := range bufs {
			bufs[i] = make([]byte, 1<<16)
		}
		for {
			n, err := from.Read(bufs, sizes, offset)
			if err != nil {
				if !errors.Is(err, os.ErrClosed) {
					t.Errorf("read: %v", err)
				}
				return
			}
			out = out[:0]
			for i := range n {
				out = append(out, bufs[i][:offset+sizes[i]])
			}
			if _, err := to.Write(out, offset); err != nil && !errors.Is(err, os.ErrClosed) {
				t.Errorf("write: %v", err)
			}
		}
	}
	go carry(a, b)
	go carry(b, a)
	t.Cleanup(func() {
		_ = a.Close()
		_ = b.Close()
		<-done
		<-done
	})
}
