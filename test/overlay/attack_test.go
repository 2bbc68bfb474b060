package overlay

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/netctl/kernel"
	"gantry/test/devtest"
)

// evil is in every frame that must get nowhere, and good in those that must arrive.
const (
	evil = "nobody-may-hear-this"
	good = "everybody-may-hear-this"
)

// attack is what an attacker sends from a link of its pod.
type attack struct {
	name  string
	link  string // podnet1 or eth0
	frame frame
}

// attackersGetNothing sends, with every right over a pod's network, what would reach another account's pod, or one's own
// under a false name, if anything let it (reliability row 24). Each bad frame is followed by good ones from the pod.
func (w *world) attackersGetNothing(t *testing.T) {
	a, b := w.users[0], w.users[1]
	attacker, near, far := a.pods[0], a.pods[1], a.pods[2]
	var ears []*listener
	for _, u := range w.users {
		for _, pod := range u.pods {
			if pod.ID != attacker.ID {
				ears = append(ears, listen(t, namespace(t, pod), fleet.OverlayLink, evil), listen(t, namespace(t, pod), "eth0", evil))
			}
		}
	}
	for _, ns := range w.islands(t) {
		ears = append(ears, listen(t, ns, "eth0", evil))
	}
	ear := listen(t, namespace(t, near), fleet.OverlayLink, good)
	earFar := listen(t, namespace(t, far), fleet.OverlayLink, good)
	before := w.drops(t)
	ns := namespace(t, attacker)
	from, to := netip.AddrPortFrom(address(t, attacker), 999), netip.AddrPortFrom(address(t, near), 9)
	toFar := netip.AddrPortFrom(address(t, far), 9)
	mac := fleet.OverlayMAC
	all := w.attacks(t, attacker, near, b.pods)
	for _, at := range all {
		at.frame.text = append(at.frame.text, text("%s: %s", evil, at.name)...)
		inject(t, ns, at.link, at.frame.bytes())
		inject(t, ns, fleet.OverlayLink,
			frame{src: mac(from.Addr()), dst: mac(to.Addr()), from: from, to: to, text: text("%s: after %s", good, at.name)}.bytes(),
			frame{src: mac(from.Addr()), dst: mac(toFar.Addr()), from: from, to: toFar, text: text("%s: after %s", good, at.name)}.bytes())
	}
	for name, l := range map[string]*listener{"on the host": ear, "on another": earFar} {
		await(t, func() error {
			_, hits := l.heard()
			for _, at := range all {
				if !slices.ContainsFunc(hits, func(f []byte) bool { return bytes.Contains(f, text("%s: after %s", good, at.name)) }) {
					return fmt.Errorf("%s: %d good frames arrived, not that after %q", name, len(hits), at.name)
				}
			}
			return nil
		})
	}
	for i, l := range ears {
		if _, hits := l.heard(); len(hits) > 0 {
			t.Errorf("ear %d of %d heard %q", i, len(ears), hits[0])
		}
	}
	after := w.drops(t)
	for _, why := range []string{"spoofed", "flooded", "host", "denied"} {
		if after[why] <= before[why] {
			t.Errorf("dropped for %q: %d before and %d after", why, before[why], after[why])
		}
	}
	w.portsAreClosed(t, attacker)
}

// attacks are all of them. The attacker may know everything: addresses, hardware addresses, network identifiers, and where the
// hosts are.
func (w *world) attacks(t *testing.T, attacker, near v2.Pod, others []v2.Pod) []attack {
	t.Helper()
	mine, its, nobody := address(t, attacker), address(t, near), address(t, attacker).Next().Next().Next().Next().Next().Next().Next()
	mac := fleet.OverlayMAC
	out := func(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, 999) }
	const net1 = fleet.OverlayLink
	all := []attack{
		{"another's address", net1, frame{src: mac(mine), dst: mac(its), from: out(address(t, others[3])), to: out(its)}},
		{"address of nobody", net1, frame{src: mac(mine), dst: mac(its), from: out(nobody), to: out(its)}},
		{"another's hardware address", net1, frame{src: mac(nobody), dst: mac(its), from: out(mine), to: out(its)}},
		{"all of another", net1, frame{src: mac(nobody), dst: mac(its), from: out(nobody), to: out(its)}},
		{"to all", net1, frame{src: mac(mine), dst: "ff:ff:ff:ff:ff:ff", from: out(mine), to: out(its)}},
		{"to many", net1, frame{src: mac(mine), dst: "01:00:5e:00:00:01", from: out(mine), to: out(netip.MustParseAddr("224.0.0.1"))}},
		{"to nobody", net1, frame{src: mac(mine), dst: mac(nobody), from: out(mine), to: out(nobody)}},
		{"VLAN", net1, frame{src: mac(mine), dst: mac(its), vlan: true, from: out(mine), to: out(its)}},
		{"IPv6", net1, frame{src: mac(mine), dst: mac(its), kind: unix.ETH_P_IPV6, text: append([]byte{0x60, 0, 0, 0, 0, 40, 59, 64}, make([]byte, 32)...)}},
		{"another ethertype", net1, frame{src: mac(mine), dst: mac(its), kind: 0x88b5}},
		{"ARP: another is here", net1, frame{src: mac(mine), dst: mac(its), kind: unix.ETH_P_ARP, text: arp(2, mac(mine), nobody, its, "")}},
		{"ARP: gratuitous lie", net1, frame{src: mac(mine), dst: "ff:ff:ff:ff:ff:ff", kind: unix.ETH_P_ARP, text: arp(1, mac(mine), its, its, "")}},
		{"ARP: question to all", net1, frame{src: mac(mine), dst: "ff:ff:ff:ff:ff:ff", kind: unix.ETH_P_ARP, text: arp(1, mac(mine), mine, its, "")}},
	}
	gateway, local, localMAC := w.local(t, attacker)
	for _, h := range []int{0, 1, 2} {
		host := w.hostAddr(t, h)
		for vni := uint32(4096); vni < 4099; vni++ {
			inner := frame{src: mac(nobody), dst: mac(address(t, others[0])), from: out(nobody), to: out(address(t, others[0])), text: text(evil)}.bytes()
			all = append(all, attack{fmt.Sprintf("VXLAN %d to host %d", vni, h+1), "eth0", frame{
				src: localMAC, dst: gateway, from: netip.AddrPortFrom(local, 4789), to: netip.AddrPortFrom(host, w.vxlanPort(t)), text: vxlan(vni, inner),
			}})
		}
	}
	return append(all,
		attack{"to a tunnel's address", "eth0", frame{src: localMAC, dst: gateway, from: out(local), to: out(netip.MustParseAddr("100.127.0.2"))}},
		attack{"to the metadata address", "eth0", frame{src: localMAC, dst: gateway, from: out(local), to: out(netip.MustParseAddr("169.254.169.254"))}},
		attack{"to the host", "eth0", frame{src: localMAC, dst: gateway, from: out(local), to: out(w.hostAddr(t, 0))}},
		attack{"another's local address", "eth0", frame{src: localMAC, dst: gateway, from: out(local.Next()), to: out(w.hostAddr(t, 1))}},
	)
}

// local reads the gateway's hardware address, and a pod's own address on its host.
func (w *world) local(t *testing.T, pod v2.Pod) (gateway string, addr netip.Addr, mac string) {
	t.Helper()
	err := kernel.Within(namespace(t, pod), func() error {
		l, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := l.Addrs()
		if err != nil || len(addrs) == 0 {
			return fmt.Errorf("addresses of eth0: %v, %w", addrs, err)
		}
		place, err := netip.ParsePrefix(addrs[0].String())
		addr, mac = place.Addr(), l.HardwareAddr.String()
		first := place.Masked().Addr().Next().As4()
		gateway = fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", first[0], first[1], first[2], first[3])
		return err
	})
	must(t, err)
	return gateway, addr, mac
}

// hostAddr is a host's address on the wire between hosts.
func (w *world) hostAddr(t *testing.T, n int) netip.Addr {
	t.Helper()
	var addr netip.Addr
	err := kernel.Within(w.islands(t)[n], func() error {
		l, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := l.Addrs()
		if err != nil || len(addrs) == 0 {
			return fmt.Errorf("addresses of eth0: %v, %w", addrs, err)
		}
		place, err := netip.ParsePrefix(addrs[0].String())
		addr = place.Addr()
		return err
	})
	must(t, err)
	return addr
}

func (w *world) vxlanPort(t *testing.T) uint16 {
	t.Helper()
	s, err := w.ops.NetworkSettings(t.Context())
	must(t, err)
	return uint16(s.Value.VXLANPort)
}

// drops are what all hosts' rules dropped, by reason.
func (w *world) drops(t *testing.T) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, h := range w.hosts {
		shown, err := w.ops.HostNetwork(t.Context(), h.ID)
		must(t, err)
		for _, d := range shown.Value.Drops {
			out[d.Why] += d.Packets
		}
	}
	return out
}

// portsAreClosed: from a pod, no port of its host, of the tunnel or of the schedulers' link answers.
func (w *world) portsAreClosed(t *testing.T, pod v2.Pod) {
	t.Helper()
	link, err := w.dev.Argument("agent", "--scheduler")
	must(t, err)
	gateway := w.hostAddr(t, 0)
	closed := []string{link}
	for _, p := range []int{22, 53, 111, 4789, 9100, 51820} {
		closed = append(closed, netip.AddrPortFrom(gateway, uint16(p)).String())
	}
	err = kernel.Within(namespace(t, pod), func() error {
		for _, addr := range closed {
			d := net.Dialer{Timeout: 300 * time.Millisecond}
			conn, err := d.DialContext(t.Context(), "tcp4", addr)
			if err == nil {
				_ = conn.Close()
				return fmt.Errorf("a pod reaches %s", addr)
			}
		}
		return nil
	})
	must(t, err)
	// The look is worth something: the one thing that pods may ask of their host answers.
	must(t, devtest.Until(reachTimeout, func() error {
		out, code, err := w.run(t.Context(), w.users[0], pod, "nslookup -type=a "+pod.ID+"."+suffix)
		if err == nil && code != 0 {
			err = fmt.Errorf("own name: %s", out)
		}
		return err
	}))
}
