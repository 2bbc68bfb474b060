package kernel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// TestOverlays: two accounts with one range on two hosts, joined by plain VXLAN. Each part finds the world as it was made.
func TestOverlays(t *testing.T) {
	a, b := worldOfTwo(t)
	begin := []netctl.Config{a.cfg, b.cfg}
	for _, part := range []struct {
		name string
		test func(t *testing.T, a, b *testHost)
	}{
		{"members reach each other and nobody else", membersReachEachOther},
		{"attackers", attackers},
		{"every part is healed", healsEveryPart},
		{"failed verbs are finished", failedVerbsAreFinished},
		{"overlays come and go", comeAndGo},
		{"limits, policy and names", limitsPolicyAndNames},
		{"frames as large as the wire", framesOfTheWire},
	} {
		t.Run(part.name, func(t *testing.T) {
			for i, h := range []*testHost{a, b} {
				h.cfg = begin[i].Clone()
				must(t, h.Set(context.Background(), h.cfg))
				h.same(t, "before")
			}
			part.test(t, a, b)
		})
	}
}

func membersReachEachOther(t *testing.T, a, b *testHost) {
	for _, p := range people {
		greet(t, p.id)
	}
	everybody := func() {
		t.Helper()
		for _, from := range people {
			for _, to := range people {
				if from.vni != to.vni {
					continue
				}
				got, err := ask(spaceOf(from.id), to.addr().String()+":8080", patience)
				if want := fmt.Sprintf("%s saw %s", to.id, from.addr()); err != nil || got != want {
					t.Errorf("%s to %s: %q, %v", from.id, to.id, got, err)
				}
			}
		}
	}
	everybody()
	refused(t, spaceOf("bluea"), "10.64.0.3:8080") // only red has one there
	hostsKnowNothing(t, a, b)

	ctx := context.Background()
	links, rules := map[string]string{}, map[string]string{}
	for _, h := range []*testHost{a, b} {
		st, err := h.Observed(ctx)
		must(t, err)
		if text := netctl.Text(netctl.Diff(st.Config, h.cfg)); text != "" || !st.Ready || len(st.Partial) != 0 {
			t.Errorf("%s: steps %s, %v", h.name, text, st.Partial)
		}
		must(t, within(h.name, func() error {
			links[h.name], rules[h.name] = fingerprint(t), nft(t, "-a", "list", "ruleset")
			return nil
		}))
		must(t, h.Set(ctx, h.cfg))
		must(t, h.Repair(ctx))
		must(t, within(h.name, func() error {
			if d := cmp.Diff(links[h.name], fingerprint(t)); d != "" {
				t.Errorf("links changed: %s", d)
			}
			return nil
		}))
		h.restart(t) // a new agent
		must(t, h.Set(ctx, h.cfg))
		must(t, within(h.name, func() error {
			if d := cmp.Diff(links[h.name], fingerprint(t)); d != "" {
				t.Errorf("links changed with the agent: %s", d)
			}
			return nil
		}))
	}
	everybody()
	threadsAtHome(t)
}

// hostsKnowNothing: no connection of an overlay is remembered, and no link of one has IPv6.
func hostsKnowNothing(t *testing.T, hosts ...*testHost) {
	t.Helper()
	for _, h := range hosts {
		flows, err := retry(func() ([]*netlink.ConntrackFlow, error) {
			return h.host.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		})
		must(t, err)
		for _, f := range flows {
			if flowsOf(overlayRange).MatchConntrackFlow(f) {
				t.Errorf("%s remembers %s", h.name, f)
			}
		}
		must(t, within(h.name, func() error {
			links, err := net.Interfaces()
			for _, l := range links {
				value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + l.Name + "/disable_ipv6")
				if isOverlayLink(h.instance, l.Name) && err == nil && string(value) != "1\n" {
					t.Errorf("%s has IPv6", l.Name)
				}
			}
			return err
		}))
	}
}

// attackers sends what an attacker in a pod may think of, by both of its links. Each time a good frame to every member follows on
// the same roads: when these have arrived, the bad one would have.
func attackers(t *testing.T, a, b *testHost) {
	const gateway = "0a:58:0a:58:10:01"
	good := frame{src: "0a:67:0a:40:00:02", dst: "0a:67:0a:40:00:03", kind: unix.ETH_P_IP, from: "10.64.0.2", to: "10.64.0.3", text: "good"}
	abroad := good
	abroad.dst, abroad.to = "0a:67:0a:40:00:04", "10.64.0.4"
	eth := frame{src: "0a:58:0a:58:10:02", dst: gateway, kind: unix.ETH_P_IP, from: "10.88.16.2", to: "192.0.2.2", text: "bad"}

	attacker := map[string]wire{podLink: listenWire(t, spaceOf("reda"), podLink), "podnet1": listenWire(t, spaceOf("reda"), "podnet1")}
	var wires []wire
	for _, id := range []string{"redb", "redc", "bluea", "bluec"} {
		wires = append(wires, listenWire(t, spaceOf(id), "podnet1"))
	}
	wires = append(wires, listenWire(t, "host1", "up0"), listenWire(t, "host2", "up0"))
	hostBox := listenUDP(t, "host1")
	boxes := []net.PacketConn{listenUDP(t, spaceOf("redb")), listenUDP(t, spaceOf("redc"))}

	for name, one := range map[string]struct {
		link, why string
		frame     []byte
	}{
		"address of nobody":           {"podnet1", spoofed, bad(t, good, func(f *frame) { f.from = "10.64.0.99" })},
		"address of a member":         {"podnet1", spoofed, bad(t, good, func(f *frame) { f.from = "10.64.0.4" })},
		"hardware address":            {"podnet1", spoofed, bad(t, good, func(f *frame) { f.src = "0a:67:0a:40:00:63" })},
		"all of a member's":           {"podnet1", spoofed, bad(t, abroad, func(f *frame) { f.src, f.from = "0a:67:0a:40:00:03", "10.64.0.3" })},
		"unknown destination":         {"podnet1", foreign, bad(t, good, func(f *frame) { f.dst = "0a:67:0a:40:00:63" })},
		"destination of nobody":       {"podnet1", foreign, bad(t, good, func(f *frame) { f.to = "10.64.0.99" })},
		"the bridge":                  {"podnet1", foreign, bad(t, good, func(f *frame) { f.dst = "0a:67:ff:00:10:00" })},
		"outside, through the bridge": {"podnet1", foreign, bad(t, good, func(f *frame) { f.dst, f.to = "0a:67:ff:00:10:00", "192.0.2.2" })},
		"broadcast":                   {"podnet1", flooded, bad(t, good, func(f *frame) { f.dst = "ff:ff:ff:ff:ff:ff" })},
		"multicast":                   {"podnet1", flooded, bad(t, good, func(f *frame) { f.dst, f.to = "01:00:5e:00:00:fb", "224.0.0.251" })},
		"VLAN tag":                    {"podnet1", foreign, bad(t, good, func(f *frame) { f.vlan = true })},
		"IPv6":                        {"podnet1", foreign, bad(t, good, func(f *frame) { f.kind = unix.ETH_P_IPV6 })},
		"other protocol":              {"podnet1", foreign, bad(t, good, func(f *frame) { f.kind = 0x88cc })},
		"gratuitous ARP":              {"podnet1", flooded, arp(t, good.src, good.src, "10.64.0.2")},
		"ARP lie":                     {"podnet1", spoofed, arp(t, good.src, good.src, "10.64.0.3")},
		"ARP lie of another":          {"podnet1", spoofed, arp(t, "0a:67:0a:40:00:03", "0a:67:0a:40:00:03", "10.64.0.3")},
		"ARP request for oneself":     {"podnet1", flooded, request(t, good.src, "10.64.0.2", "10.64.0.2")},
		"ARP request as another":      {"podnet1", spoofed, request(t, good.src, "10.64.0.3", "10.64.0.4")},
		"ARP scan":                    {"podnet1", flooded, request(t, good.src, "10.64.0.2", "10.64.0.77")},
		"VXLAN to another host":       {podLink, denied, eth.port(t, "192.0.2.2", 4789)},
		"VXLAN to the host":           {podLink, host, eth.port(t, "192.0.2.1", 4789)},
		"the tunnel's range":          {podLink, denied, eth.port(t, "100.127.0.2", 4789)},
		"port of another in it":       {podLink, denied, eth.port(t, "100.127.0.2", 51820)},
		"metadata":                    {podLink, denied, eth.port(t, metaAddr, 80)},
		"a member, through the host":  {podLink, "", eth.port(t, "10.64.0.3", 9)},
		"port of the host":            {podLink, host, eth.port(t, "192.0.2.1", 22)},
		"the host, as LLDP":           {podLink, foreign, bad(t, eth, func(f *frame) { f.dst, f.to = "01:80:c2:00:00:0e", "192.0.2.1" })},
		"the host, as 802.1X":         {podLink, host, bad(t, eth, func(f *frame) { f.dst, f.to = "01:80:c2:00:00:03", "192.0.2.1" })},
		"the host, as slow protocol":  {podLink, host, bad(t, eth, func(f *frame) { f.dst, f.to = "01:80:c2:00:00:02", "192.0.2.1" })},
		"the host, as LLDP, inside":   {"podnet1", flooded, bad(t, good, func(f *frame) { f.dst, f.to = "01:80:c2:00:00:0e", "192.0.2.1" })},
		"the host, as 802.1X, inside": {"podnet1", host, bad(t, good, func(f *frame) { f.dst, f.to = "01:80:c2:00:00:03", "192.0.2.1" })},
	} {
		before := dropsOf(t, a)
		attacker[one.link].say(one.frame)
		attacker["podnet1"].say(good.bytes(t), abroad.bytes(t))
		for _, box := range boxes {
			if got := receive(t, box); got != "good" {
				t.Errorf("%s: got %q", name, got)
			}
		}
		if after := dropsOf(t, a); one.why != "" && after[one.why] != before[one.why]+1 {
			t.Errorf("%s: drops for %s went from %v to %v", name, one.why, before, after)
		}
		for _, w := range wires {
			if one.why != "" { // the other leaves for outside, as any packet may
				w.clean(name)
			} else {
				w.heard()
			}
		}
	}
	must(t, within("host2", func() error {
		conn, err := net.Dial("udp4", "192.0.2.1:9")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = conn.Write([]byte("good"))
		return err
	}))
	if got := receive(t, hostBox); got != "good" {
		t.Errorf("the host got %q", got)
	}
	before := dropsOf(t, b)
	var inner []frame
	for _, change := range []func(*frame){
		func(f *frame) { f.from = "10.64.0.99" },       // nobody
		func(f *frame) { f.src = "0a:67:0a:40:00:63" }, // nobody
		func(f *frame) { f.from = "10.64.0.4" },        // a pod of that host
		func(f *frame) { f.dst = "0a:67:0a:40:00:63" }, // to nobody
		func(f *frame) { f.to = "10.64.0.3" },          // back
		func(f *frame) { f.dst = "0a:67:0a:40:00:03" }, // back
		func(f *frame) { f.dst = "ff:ff:ff:ff:ff:ff" },
		func(f *frame) { f.vlan = true },
		func(f *frame) { f.kind = unix.ETH_P_ARP },
	} {
		f := abroad
		f.text = "bad"
		change(&f)
		inner = append(inner, f)
	}
	for _, f := range inner {
		injectVXLAN(t, red, f.bytes(t))
	}
	injectVXLAN(t, 77, abroad.bytes(t)) // an overlay that is not there
	injectVXLAN(t, red, abroad.bytes(t))
	if got := receive(t, boxes[1]); got != "good" {
		t.Errorf("from the other host: %q", got)
	}
	if n := dropsOf(t, b)[foreign] - before[foreign]; n != uint64(len(inner)) {
		t.Errorf("%d of %d injected frames were counted", n, len(inner))
	}
	for _, w := range wires[:4] {
		w.clean("injected by VXLAN")
	}
	stranger := b.cfg.Clone()
	stranger.Underlay.Plain = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	must(t, b.Set(context.Background(), stranger))
	before = dropsOf(t, b)
	injectVXLAN(t, red, abroad.bytes(t))
	eventually(t, "what comes from an unknown host is not counted", func() bool { return dropsOf(t, b)[foreign] == before[foreign]+1 })
}

// injectVXLAN sends a frame in an overlay from host 1 to host 2.
func injectVXLAN(t *testing.T, vni uint32, inner []byte) {
	t.Helper()
	must(t, within("host1", func() error {
		conn, err := net.Dial("udp4", "192.0.2.2:4789")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = conn.Write(append([]byte{8, 0, 0, 0, byte(vni >> 16), byte(vni >> 8), byte(vni), 0}, inner...))
		return err
	}))
}

// bad is the frame with a change and a text that is looked for.
func bad(t *testing.T, f frame, change func(*frame)) []byte {
	f.text = "bad"
	change(&f)
	return f.bytes(t)
}

// port is the frame to a UDP port.
func (f frame) port(t *testing.T, to string, port uint16) []byte {
	f.to = to
	out := f.bytes(t)
	out[36], out[37] = byte(port>>8), byte(port)
	return out
}

// request is an ARP request by broadcast.
func request(t *testing.T, src, from, to string) []byte {
	out := append(append(mac(t, "ff:ff:ff:ff:ff:ff"), mac(t, src)...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	out = append(append(out, mac(t, src)...), netip.MustParseAddr(from).AsSlice()...)
	return append(append(out, 0, 0, 0, 0, 0, 0), netip.MustParseAddr(to).AsSlice()...)
}
