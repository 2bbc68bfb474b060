package kernel

import (
	"bytes"
	"errors"
	"net"
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
