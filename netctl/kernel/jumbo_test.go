package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// datagram sends one from a pod to another in one packet, as that arrives. It is unix.EMSGSIZE when the pod's link does not take it.
func datagram(t *testing.T, from, to person, size int) error {
	t.Helper()
	var server, client net.PacketConn
	must(t, within(spaceOf(to.id), func() (err error) {
		server, err = net.ListenPacket("udp4", to.addr().String()+":9000") //nolint:noctx // of a test
		return err
	}))
	defer func() { _ = server.Close() }()
	must(t, within(spaceOf(from.id), func() (err error) {
		client, err = net.ListenPacket("udp4", from.addr().String()+":0") //nolint:noctx // of a test
		return err
	}))
	defer func() { _ = client.Close() }()
	raw, err := client.(*net.UDPConn).SyscallConn() //nolint:forcetypeassert // just made
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		must(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO))
	}))
	text := bytes.Repeat([]byte("x"), size)
	if _, err := client.WriteTo(text, server.LocalAddr()); err != nil {
		return err
	}
	got := make([]byte, size+1)
	must(t, server.SetReadDeadline(time.Now().Add(5*time.Second)))
	n, _, err := server.ReadFrom(got)
	if err == nil && n != size {
		err = errors.New("it came in another size")
	}
	return err
}

// framesOfTheWire: overlays whose hosts carry large frames get them, and lose them while pods run.
func framesOfTheWire(t *testing.T, a, b *testHost) {
	wire := func(mtu int) {
		t.Helper()
		for _, h := range []*testHost{a, b} {
			up, err := h.host.LinkByName("up0")
			must(t, err)
			must(t, h.host.LinkSetMTU(up, mtu))
			if got := h.MTUOf(h.addr); got != mtu {
				t.Errorf("%s says that its wire takes %d bytes", h.name, got)
			}
		}
	}
	set := func(mtu int) {
		t.Helper()
		for i, h := range []*testHost{a, b} {
			o := overlayFor(i, red, a, b)
			o.MTU = mtu
			must(t, h.SetOverlay(t.Context(), o))
			h.cfg = h.cfg.WithOverlay(o)
			h.same(t, "with another MTU")
		}
	}
	link := func() int {
		l, err := a.host.LinkByName(netctl.OverlayLinkName(a.instance, "reda", red))
		must(t, err)
		return l.Attrs().Index
	}
	redA, redC, blueA, blueC := people[2], people[4], people[0], people[1]
	sends := func(from, to person, size int, want error) {
		t.Helper()
		if err := datagram(t, from, to, size); !errors.Is(err, want) {
			t.Errorf("%d bytes from %s to %s: %v, want %v", size, from.id, to.id, err, want)
		}
	}
	if got := a.MTUOf(redA.addr()); got != 0 {
		t.Errorf("an address of a pod is on a link of the host with %d bytes", got)
	}
	before := link()
	wire(9000)
	sends(redA, redC, 8000, unix.EMSGSIZE)
	set(8870)
	sends(redA, redC, 8870-28, nil)
	sends(redA, redC, 8870-27, unix.EMSGSIZE)
	sends(blueA, blueC, 1450-28, nil)
	sends(blueA, blueC, 1450-27, unix.EMSGSIZE)
	a.restart(t) // another agent
	must(t, a.Set(t.Context(), a.cfg))
	a.same(t, "after a restart")
	sends(redC, redA, 8870-28, nil)
	wire(1500)
	set(1370)
	sends(redA, redC, 1370-28, nil)
	sends(redA, redC, 1370-27, unix.EMSGSIZE)
	set(0)
	sends(redA, redC, 1450-28, nil)
	if after := link(); after != before {
		t.Error("the link of a running pod was made anew")
	}
}

// stream returns the bits per second of one TCP stream from a namespace to an address in another.
func stream(b *testing.B, from, to, addr string) float64 {
	b.Helper()
	var l net.Listener
	must(b, within(to, func() (err error) {
		l, err = net.Listen("tcp4", addr+":0") //nolint:noctx // of a benchmark
		return err
	}))
	defer func() { _ = l.Close() }()
	var c net.Conn
	must(b, within(from, func() (err error) {
		c, err = net.Dial("tcp4", l.Addr().String()) //nolint:noctx // of a benchmark
		return err
	}))
	far, err := l.Accept()
	must(b, err)
	defer func() { _ = far.Close() }()
	began, chunk := time.Now(), make([]byte, 1<<20)
	must(b, c.SetDeadline(began.Add(10*time.Second)))
	go func() {
		defer func() { _ = c.Close() }()
		for time.Since(began) < time.Second {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}()
	n, err := io.Copy(io.Discard, far)
	must(b, err)
	return 8 * float64(n) / time.Since(began).Seconds()
}

// BenchmarkOverWires compares a pod's overlay on a private underlay with the hosts' own wire, in turns, with usual and with jumbo frames.
func BenchmarkOverWires(b *testing.B) {
	x, y := worldOfTwo(b)
	redA, redC := people[2], people[4]
	for _, mtu := range []int{1500, 9000} {
		for i, h := range []*testHost{x, y} {
			up, err := h.host.LinkByName("up0")
			must(b, err)
			must(b, h.host.LinkSetMTU(up, mtu))
			o := overlayFor(i, red, x, y)
			o.MTU = mtu - 130
			must(b, h.SetOverlay(b.Context(), o))
		}
		b.Run(fmt.Sprint(mtu), func(b *testing.B) {
			var wire, over []float64
			for b.Loop() {
				for range 5 {
					wire = append(wire, stream(b, x.name, y.name, y.addr.String()))
					over = append(over, stream(b, spaceOf(redA.id), spaceOf(redC.id), redC.addr().String()))
				}
			}
			slices.Sort(wire)
			slices.Sort(over)
			b.ReportMetric(over[len(over)/2]/1e6, "overlay-Mbit/s")
			b.ReportMetric(wire[len(wire)/2]/1e6, "wire-Mbit/s")
			b.ReportMetric(over[len(over)/2]/wire[len(wire)/2], "overlay-of-wire")
		})
	}
}
