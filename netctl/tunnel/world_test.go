package tunnel_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/netctl"
	"gantry/netctl/tunnel"
)

const (
	instance = "0a0b"
	podMTU   = 1370
	wgPort   = 51820
	vxPort   = 4789
)

var (
	rangeAll = netip.MustParsePrefix("100.127.0.0/16")
	cidr     = netip.MustParsePrefix("10.64.0.0/16")
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// space is a network namespace.
type space struct {
	file *os.File
	nl   *netlink.Handle
}

func newSpace(t testing.TB) *space {
	t.Helper()
	s := &space{}
	must(t, onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil {
			return err
		}
		if s.file, err = os.Open("/proc/thread-self/ns/net"); err == nil {
			s.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		return err
	}))
	must(t, s.up("lo"))
	t.Cleanup(func() { s.nl.Close(); _ = s.file.Close() })
	return s
}

// onThread runs f on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// do runs f in the namespace. Sockets that it opens, and processes that it starts, stay there.
func (s *space) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

func (s *space) up(name string) error {
	l, err := s.nl.LinkByName(name)
	if err != nil {
		return err
	}
	return s.nl.LinkSetUp(l)
}

// veth makes a link between two namespaces.
func veth(t testing.TB, a *space, name string, b *space, peer, mac string, mtu int) {
	t.Helper()
	l := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: peer, PeerNamespace: netlink.NsFd(b.file.Fd()), PeerMTU: uint32(mtu)}
	l.Name, l.MTU = name, mtu
	if mac != "" {
		hw, err := net.ParseMAC(mac)
		must(t, err)
		l.PeerHardwareAddr = hw
	}
	must(t, a.nl.LinkAdd(l))
	must(t, a.up(name))
	must(t, b.up(peer))
}

func (s *space) addr(t testing.TB, link string, p netip.Prefix) {
	t.Helper()
	l, err := s.nl.LinkByName(link)
	must(t, err)
	must(t, s.nl.AddrReplace(l, &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}}))
}

func (s *space) bridge(t testing.TB, name string, mtu int, ports ...string) {
	t.Helper()
	b, err := s.nl.LinkByName(name)
	if err != nil {
		no := false
		l := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &no}
		l.Name, l.MTU = name, mtu
		must(t, s.nl.LinkAdd(l))
		b = l
	}
	must(t, s.nl.LinkSetUp(b))
	for _, p := range ports {
		l, err := s.nl.LinkByName(p)
		must(t, err)
		must(t, s.nl.LinkSetMaster(l, b))
	}
}

// vxlan makes an overlay's link to other hosts as netctl's controller does, and attaches it.
func (s *space) vxlan(t testing.TB, vni uint32) {
	t.Helper()
	l := &netlink.Vxlan{LinkAttrs: netlink.NewLinkAttrs(), VxlanId: int(vni), Port: vxPort}
	l.Name, l.MTU = netctl.VXLANLink(instance, vni), podMTU
	must(t, s.nl.LinkAdd(l))
	must(t, s.nl.LinkSetUp(l))
	s.bridge(t, netctl.OverlayBridge(instance, vni), podMTU, l.Name)
}

// host is one of a world.
type host struct {
	i       int
	ns      *space
	dir     string
	program string
	keyFile string
	public  string
	addr    netip.Addr // in the tunnel
	under   netip.Addr
	agent   *agent
}

// world is hosts on one wire.
type world struct {
	wire  *space
	hosts []*host
}

func newWorld(t testing.TB, hosts int) *world {
	t.Helper()
	w := &world{wire: newSpace(t)}
	w.wire.bridge(t, "wire", 1500)
	for i := 1; i <= hosts; i++ {
		h := &host{
			i: i, ns: newSpace(t), dir: filepath.Join(t.TempDir(), "run"), program: program, keyFile: filepath.Join(t.TempDir(), "key"),
			addr: netip.AddrFrom4([4]byte{100, 127, 0, byte(i)}), under: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}),
		}
		h.newKey(t)
		port := fmt.Sprint("host", i)
		veth(t, w.wire, port, h.ns, "eth0", "", 1500)
		w.wire.bridge(t, "wire", 1500, port)
		h.ns.addr(t, "eth0", netip.PrefixFrom(h.under, 24))
		w.hosts = append(w.hosts, h)
	}
	return w
}

// withAgents starts an agent on each host, which ends, with the tunnel, when the test does.
func (w *world) withAgents(t testing.TB) *world {
	t.Helper()
	for _, h := range w.hosts {
		h.startAgent(t)
		t.Cleanup(func() {
			if _, err := h.try(ask{Do: "remove"}); err != nil {
				t.Errorf("host %d: remove: %v", h.i, err)
			}
			_ = h.agent.in.Close()
			_ = h.agent.cmd.Wait()
		})
	}
	return w
}

func (h *host) newKey(t testing.TB) {
	t.Helper()
	k := tunnel.NewKey()
	must(t, tunnel.WriteKey(h.keyFile, k))
	h.public = k.Public()
}

// config is that of a host, with all others as its peers.
func (w *world) config(h *host) tunnel.Config {
	c := tunnel.Config{Instance: instance, Addr: h.addr, Range: rangeAll, ListenPort: wgPort, VXLANPort: vxPort, MTU: podMTU}
	for _, o := range w.hosts {
		if o != h {
			c.Peers = append(c.Peers, tunnel.Peer{Host: fmt.Sprint("host-", o.i), PublicKey: o.public, Addr: o.addr, Endpoint: netip.AddrPortFrom(o.under, wgPort)})
		}
	}
	return c
}

func (w *world) set(t testing.TB, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		c := w.config(h)
		h.ask(t, ask{Do: "set", Config: &c, KeyFile: h.keyFile})
	}
}

// pod is a member of an overlay.
type pod struct {
	ns   *space
	host *host
	addr netip.Addr
	mac  string
}

// newPod makes a pod on a host, whose overlay's bridge and VXLAN link are made with the first one.
func (h *host) newPod(t testing.TB, vni uint32, addr string) *pod {
	t.Helper()
	p := &pod{ns: newSpace(t), host: h, addr: netip.MustParseAddr(addr)}
	p.mac = fleet.OverlayMAC(p.addr)
	bridge := netctl.OverlayBridge(instance, vni)
	if _, err := h.ns.nl.LinkByName(bridge); err != nil {
		h.ns.vxlan(t, vni)
	}
	port := netctl.OverlayLinkName(instance, addr, vni)
	veth(t, h.ns, port, p.ns, "podnet1", p.mac, podMTU)
	h.ns.bridge(t, bridge, podMTU, port)
	p.ns.addr(t, "podnet1", netip.PrefixFrom(p.addr, cidr.Bits()))
	return p
}

// knows has each pod know all others' hardware addresses, as netctl's controller would have them told.
func knows(t testing.TB, pods ...*pod) {
	t.Helper()
	for _, p := range pods {
		l, err := p.ns.nl.LinkByName("podnet1")
		must(t, err)
		for _, o := range pods {
			must(t, p.ns.nl.NeighSet(neighbour(t, l.Attrs().Index, o)))
		}
	}
}

// join tells all hosts where the pods of an overlay are, and these of each other.
func (w *world) join(t testing.TB, vni uint32, pods ...*pod) {
	t.Helper()
	knows(t, pods...)
	for _, h := range w.hosts {
		l, err := h.ns.nl.LinkByName(netctl.VXLANLink(instance, vni))
		if err != nil {
			continue // it has no pod there
		}
		for _, p := range pods {
			if p.host == h {
				continue
			}
			hw, err := net.ParseMAC(p.mac)
			must(t, err)
			must(t, h.ns.nl.NeighAppend(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
				IP: p.host.addr.AsSlice(), HardwareAddr: hw,
			}))
		}
	}
}

// listenUDP has a pod echo what it gets with a word before it.
func (p *pod) listenUDP(t testing.TB, word string) {
	t.Helper()
	var c *net.UDPConn
	must(t, p.ns.do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: p.addr.AsSlice(), Port: 7})
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(append([]byte(word), buf[:n]...), from)
		}
	}()
}

// dialUDP connects a pod to another's echo.
func (p *pod) dialUDP(t testing.TB, to *pod) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	must(t, p.ns.do(func() (err error) {
		c, err = net.DialUDP("udp4", &net.UDPAddr{IP: p.addr.AsSlice()}, &net.UDPAddr{IP: to.addr.AsSlice(), Port: 7})
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo sends a text until it comes back, and returns what came.
func (p *pod) echo(t testing.TB, to *pod, text string, within time.Duration) (string, bool) {
	t.Helper()
	c := p.dialUDP(t, to)
	buf := make([]byte, 1<<16)
	for end := time.Now().Add(within); time.Now().Before(end); {
		_, _ = c.Write([]byte(text))
		must(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		if n, err := c.Read(buf); err == nil {
			return string(buf[:n]), true
		}
	}
	return "", false
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not so: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func neighbour(t testing.TB, link int, p *pod) *netlink.Neigh {
	t.Helper()
	hw, err := net.ParseMAC(p.mac)
	must(t, err)
	return &netlink.Neigh{LinkIndex: link, State: netlink.NUD_PERMANENT, IP: p.addr.AsSlice(), HardwareAddr: hw}
}

func link(t testing.TB, s *space, name string) netlink.Link {
	t.Helper()
	l, err := s.nl.LinkByName(name)
	must(t, err)
	return l
}
