package kernel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// Two accounts with one range and the same addresses.
const (
	red  = 4096
	blue = 4097
)

var overlayRange = netip.MustParsePrefix("10.64.0.0/16")

// testHost is a host of its own: a network namespace with an uplink to the other.
type testHost struct {
	*Controller
	name, instance string
	addr           netip.Addr
	cfg            netctl.Config
}

// newHosts makes two hosts whose uplinks are one wire.
func newHosts(t testing.TB) (a, b *testHost) {
	t.Helper()
	must(t, shareNamespaces())
	before := census(t)
	t.Cleanup(func() {
		if after := census(t); after != before {
			t.Errorf("left behind:\n%s\nwas:\n%s", after, before)
		}
	})
	var spaces []*namespace
	for _, name := range []string{"host1", "host2"} {
		ns, _, err := ensureNamespace(name, 0, false)
		must(t, err)
		t.Cleanup(func() {
			ns.Close()
			must(t, removeNamespace(name))
		})
		spaces = append(spaces, ns)
	}
	pair := &netlink.Veth{LinkAttrs: linkAttrs("up0", 1600, nil), PeerName: "up0", PeerTxQLen: -1, PeerMTU: 1600, PeerNamespace: netlink.NsFd(spaces[1].file.Fd())}
	pair.Namespace = netlink.NsFd(spaces[0].file.Fd())
	must(t, netlink.LinkAdd(pair))
	t.Cleanup(func() {
		up, err := spaces[0].nl.LinkByName("up0")
		must(t, err)
		must(t, spaces[0].nl.LinkDel(up))
	})
	hosts := make([]*testHost, 2)
	for i, ns := range spaces {
		h := &testHost{name: fmt.Sprint("host", i+1), instance: fmt.Sprint("0a1", i+1), addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}
		up, err := ns.nl.LinkByName("up0")
		must(t, err)
		must(t, ns.nl.AddrAdd(up, addrOf(netip.PrefixFrom(h.addr, 24))))
		must(t, ns.nl.LinkSetUp(up))
		lo, err := ns.nl.LinkByName("lo")
		must(t, err)
		must(t, ns.nl.LinkSetUp(lo))
		other := netip.AddrFrom4([4]byte{192, 0, 2, byte(2 - i)})
		must(t, ns.nl.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: other.AsSlice()}))
		h.restart(t)
		t.Cleanup(func() {
			must(t, h.Clean(context.Background()))
			h.Close()
		})
		hosts[i] = h
	}
	for _, ns := range spaces {
		must(t, waitUp(context.Background(), ns.nl, "up0"))
	}
	return hosts[0], hosts[1]
}

// restart gives the host a new controller, as a new agent has.
func (h *testHost) restart(t testing.TB) {
	t.Helper()
	if h.Controller != nil {
		h.Close()
	}
	must(t, within(h.name, func() (err error) {
		h.Controller, err = New(h.instance, slog.New(slog.DiscardHandler))
		return err
	}))
}

// person is a pod of the small world: where it is, in which overlay, and at which address.
type person struct {
	id   string
	host int
	vni  uint32
	last byte
}

// people: on host 1 red-a, red-b and blue-a, on host 2 red-c and blue-c.
var people = []person{{"bluea", 0, blue, 2}, {"bluec", 1, blue, 4}, {"reda", 0, red, 2}, {"redb", 0, red, 3}, {"redc", 1, red, 4}}

func (p person) addr() netip.Addr { return netip.AddrFrom4([4]byte{10, 64, 0, p.last}) }

func (p person) mac() string { return fmt.Sprintf("0a:67:0a:40:00:%02x", p.last) }

func (p person) pod(h *testHost) netctl.Pod {
	pod := newPod(h.instance, p.id, netip.AddrFrom4([4]byte{10, 88, byte(16 * (p.host + 1)), p.last + byte(p.vni-red)*10}))
	pod.Overlays = []netctl.Place{{VNI: p.vni, Addr: p.addr(), MAC: p.mac(), Link: "podnet1"}}
	return pod
}

// overlay is an overlay as one of the hosts has it.
func overlayFor(host int, vni uint32, hosts ...*testHost) netctl.Overlay {
	o := netctl.Overlay{VNI: vni, CIDR: overlayRange}
	for _, p := range people {
		m := netctl.Member{Addr: p.addr(), MAC: p.mac()}
		if p.host != host {
			m.Via.Addr = hosts[p.host].addr
		}
		if p.vni == vni {
			o.Members = append(o.Members, m)
		}
	}
	slices.SortFunc(o.Members, func(a, b netctl.Member) int { return a.Addr.Compare(b.Addr) })
	return o
}

// worldOfTwo sets up both hosts with all people.
func worldOfTwo(t testing.TB) (a, b *testHost) {
	t.Helper()
	a, b = newHosts(t)
	for i, h := range []*testHost{a, b} {
		h.cfg = netctl.Config{Instance: h.instance, Subnet: netip.MustParsePrefix(fmt.Sprintf("10.88.%d.0/20", 16*(i+1))), MTU: 1500, Names: true}
		h.cfg.Underlay = netctl.Underlay{Port: 4789, MTU: 1450, Range: netip.MustParsePrefix("100.127.0.0/16"), Plain: []netip.Addr{a.addr, b.addr}}
		for _, vni := range []uint32{red, blue} {
			h.cfg = h.cfg.WithOverlay(overlayFor(i, vni, a, b))
		}
		for _, p := range people {
			if p.host == i {
				h.cfg = h.cfg.With(p.pod(h))
			}
		}
		must(t, h.Set(context.Background(), h.cfg))
	}
	return a, b
}

func spaceOf(id string) string {
	i := slices.IndexFunc(people, func(p person) bool { return p.id == id })
	return ns(fmt.Sprint("0a1", people[i].host+1), id)
}

// greet answers every TCP connection to port 8080 of a pod with its id.
func greet(t testing.TB, id string) {
	t.Helper()
	var l net.Listener
	must(t, within(spaceOf(id), func() (err error) {
		l, err = net.Listen("tcp4", ":8080")
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			_, _ = io.WriteString(c, id+" saw "+host)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
}

// wire is a link as one with a raw socket sees it.
type wire struct {
	t     testing.TB
	where string
	fd    int
}

func listenWire(t testing.TB, space, link string) wire {
	t.Helper()
	w := wire{t, space + " " + link, -1}
	must(t, within(space, func() (err error) {
		l, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all)); err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Index})
	}))
	t.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

// say sends frames.
func (w wire) say(frames ...[]byte) {
	w.t.Helper()
	for _, f := range frames {
		if _, err := unix.Write(w.fd, f); err != nil {
			w.t.Fatal(err)
		}
	}
}

// ofPod says whether the link is a pod's own end: it hears what it says as well.
func (w wire) ofPod() bool { return strings.Contains(w.where, "podnet1") }

// heard returns all frames so far, of a pod those that reached it.
func (w wire) heard() [][]byte {
	var out [][]byte
	for {
		buf := make([]byte, 2048)
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if err != nil {
			return out
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if own := ok && link.Pkttype == unix.PACKET_OUTGOING; !own || !w.ofPod() {
			out = append(out, buf[:n])
		}
	}
}

// clean fails when a frame holds the text "bad", or is ARP on a pod's link.
func (w wire) clean(what string) {
	w.t.Helper()
	for _, f := range w.heard() {
		arp := w.ofPod() && f[12] == 8 && f[13] == 6
		if bytes.Contains(f, []byte("bad")) || arp {
			w.t.Errorf("%s: %s heard %x", what, w.where, f)
		}
	}
}

// refusedAll is refused, from places to addresses, all at once.
func refusedAll(t testing.TB, ways ...[2]string) {
	t.Helper()
	var g errgroup.Group
	for _, way := range ways {
		g.Go(func() error {
			if got, err := ask(way[0], way[1], refusal); err == nil {
				return fmt.Errorf("%s reached %s, seen as %s", way[0], way[1], got)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// dropsOf returns what the host's rules dropped.
func dropsOf(t testing.TB, h *testHost) map[string]uint64 {
	t.Helper()
	list, err := h.Drops(context.Background())
	must(t, err)
	out := map[string]uint64{}
	for _, d := range list {
		out[d.Why] = d.Packets
	}
	return out
}

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}
