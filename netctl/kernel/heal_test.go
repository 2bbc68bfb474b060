package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// same fails when the host has not what it should have.
func (h *testHost) same(t testing.TB, when string) {
	t.Helper()
	st, err := h.Observed(context.Background())
	must(t, err)
	if text := netctl.Text(netctl.Diff(st.Config, h.cfg)); text != "" || !st.Ready || len(st.Partial) != 0 {
		t.Errorf("%s: steps %s, ready %v, %v", when, text, st.Ready, st.Partial)
	}
}

// asks fails when a pod does not get an answer from another.
func asks(t testing.TB, when, to string) {
	t.Helper()
	for _, p := range people {
		if p.id == to {
			if got, err := ask(spaceOf("reda"), p.addr().String()+":8080", patience); err != nil {
				t.Errorf("%s: %s to %s: %q, %v", when, "reda", to, got, err)
			}
		}
	}
}

// breaksOf are rounds of what someone else, or an agent that was killed, left wrong on host 1. What is in one round does not heal another of it.
func breaksOf(t *testing.T, a *testHost) map[string][]func() error {
	bridge, vx, table := netctl.OverlayBridge("0a11", red), netctl.VXLANLink("0a11", red), "gantry_0a11"
	tail := func(pod string, vni uint32) string { return netctl.OverlayLinkName("0a11", pod, vni) }
	link := func(name string, do func(h *netlink.Handle, l netlink.Link) error) func() error {
		return func() error {
			h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			defer h.Close()
			l, err := h.LinkByName(name)
			if err != nil {
				return err
			}
			return do(h, l)
		}
	}
	del := func(h *netlink.Handle, l netlink.Link) error { return h.LinkDel(l) }
	unmark := func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetAlias(l, "half") }
	alone := func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetNoMaster(l) }
	add := func(l netlink.Link) func() error { return func() error { return netlink.LinkAdd(l) } }
	rule := func(args ...string) func() error {
		return func() error {
			nft(t, args...)
			return nil
		}
	}
	return map[string][]func() error{
		"bridge": {link(bridge, del)},
		"links": {
			link(bridge, unmark), link(vx, del), link(tail("reda", red), del), link(tail("redb", red), unmark), link(tail("bluea", blue), alone),
			link(netctl.VXLANLink("0a11", blue), unmark),
		},
		"others of links": {
			link(vx, alone), link(netctl.LinkName("0a11", "redb"), del),
			link(tail("reda", red), func(h *netlink.Handle, l netlink.Link) error { return h.QdiscDel(bucket(l, 100)) }),
			link(limitLink(netctl.LinkName("0a11", "reda")), del),
		},
		"entries": {
			func() error {
				return a.tellEntries([]entry{
					{kind: toPort, link: nameOf(vx), mac: hardwareOf("0a:67:0a:40:00:04")},
					{kind: toHost, link: nameOf(vx), mac: hardwareOf("0a:67:0a:40:00:04"), addr: octets{192, 0, 2, 2}},
				}, nil)
			},
			link(bridge, func(h *netlink.Handle, l netlink.Link) error {
				return errors.Join(
					h.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.IP{10, 64, 0, 4}, Family: unix.AF_INET}),
					h.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: net.IP{10, 64, 0, 99}, HardwareAddr: mac(t, "0a:67:0a:40:00:63"), State: unix.NUD_PERMANENT, Family: unix.AF_INET}),
				)
			}),
			rule("add", "element", "bridge", table, memberSet, "{ 0x00001000 . 0a:67:0a:40:00:63 . 10.64.0.99 }"),
			rule("add", "element", "bridge", table, leadMap, "{ go0a11stranger : 0x00001000 }"),
			add(&netlink.Bridge{LinkAttrs: linkAttrs(netctl.OverlayBridge("0a11", 9), 1500, nil)}),
			add(&netlink.Ifb{LinkAttrs: linkAttrs("gi0a11stranger", 1500, nil)}),
		},
		"elements": {
			rule("flush", "set", "bridge", table, memberSet), rule("flush", "set", "bridge", table, askedSet), rule("flush", "set", "bridge", table, farSet),
			rule("flush", "map", "bridge", table, leadMap), rule("flush", "set", "inet", table, closedSet), rule("flush", "set", "inet", table, barredSet),
			rule("flush", "set", "inet", table, plainSet),
		},
		"sources":   {rule("flush", "set", "bridge", table, pinSet)},
		"all rules": {rule("flush", "ruleset")},
		"switches": {
			link(tail("reda", red), switching(a, true, switches{
				nl.IFLA_BRPORT_LEARNING: 1, nl.IFLA_BRPORT_UNICAST_FLOOD: 1, nl.IFLA_BRPORT_MCAST_FLOOD: 1, nl.IFLA_BRPORT_BCAST_FLOOD: 1,
				nl.IFLA_BRPORT_PROXYARP: 0, nl.IFLA_BRPORT_ISOLATED: 1, nl.IFLA_BRPORT_MODE: 1,
			})),
			link(vx, switching(a, true, switches{nl.IFLA_BRPORT_ISOLATED: 0, nl.IFLA_BRPORT_LEARNING: 1})),
			link(netctl.LinkName("0a11", "reda"), switching(a, true, switches{nl.IFLA_BRPORT_ISOLATED: 0})),
			link(bridge, switching(a, false, switches{
				nl.IFLA_BR_STP_STATE: 1, nl.IFLA_BR_VLAN_FILTERING: 1, nl.IFLA_BR_GROUP_FWD_MASK: 8, nl.IFLA_BR_MCAST_SNOOPING: 1, nl.IFLA_BR_NF_CALL_IPTABLES: 1,
			})),
			link(netctl.BridgeName("0a11"), switching(a, false, switches{nl.IFLA_BR_GROUP_FWD_MASK: 8})),
		},
	}
}

func switching(a *testHost, port bool, values switches) func(*netlink.Handle, netlink.Link) error {
	return func(_ *netlink.Handle, l netlink.Link) error {
		for number, value := range values { // not every kernel has all of them
			err := a.home.setSwitches(l.Attrs().Index, port, switches{number: value})
			if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
				return err
			}
		}
		return nil
	}
}

// healsEveryPart has the agent, and one that comes after it, put right what someone else made wrong.
func healsEveryPart(t *testing.T, a, _ *testHost) {
	ctx := context.Background()
	a.cfg.Pods[1].Mbps, a.cfg.Pods[0].Closed = 100, true
	a.cfg.Barred = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:81")}
	must(t, a.Set(ctx, a.cfg))
	greet(t, "redb")
	greet(t, "redc")
	for name, breaks := range breaksOf(t, a) {
		heals := map[string]func() error{" by a successor": func() error {
			a.restart(t)
			return a.Set(ctx, a.cfg)
		}}
		if name == "entries" || name == "elements" || name == "switches" { // the agent itself writes no more anew than that
			heals[" by a repair"] = func() error { return a.Repair(ctx) }
		}
		for when, heal := range heals {
			for _, one := range breaks {
				must(t, within("host1", one))
			}
			if st, err := a.Observed(ctx); err != nil || st.Ready && st.Config.Equal(a.cfg) && len(st.Partial) == 0 {
				t.Errorf("%s: nothing is noticed, %v", name, err)
			}
			if err := heal(); err != nil {
				t.Fatalf("%s%s: %v", name, when, err)
			}
			a.same(t, name+when)
		}
		asks(t, name, "redb")
		asks(t, name, "redc")
	}
}

// failures are what makes the kernel refuse a part of what a pod's verb does, until it is mended.
func failures(t *testing.T, a *testHost) map[string]func() (mend func()) {
	t.Helper()
	nowhere, err := os.Open(os.DevNull)
	must(t, err)
	t.Cleanup(func() { _ = nowhere.Close() })
	at := func(place *home) func() func() {
		return func() func() {
			whole := *place
			*place = home{nowhere}
			return func() { *place = whole }
		}
	}
	return map[string]func() func(){"links": at(&a.home), "rules": at(&a.rules.home)}
}

// failedVerbsAreFinished fails half-way when a pod's place changes and when the pod goes, and goes on with the same verb.
func failedVerbsAreFinished(t *testing.T, a, b *testHost) {
	ctx := context.Background()
	elsewhere := overlayFor(0, red, a, b)
	for i := range elsewhere.Members { // all of red's are elsewhere as well: what leads there comes back
		elsewhere.Members[i].Via.Addr = b.addr
	}
	must(t, a.SetOverlay(ctx, elsewhere))
	a.cfg = a.cfg.WithOverlay(elsewhere)
	first, _ := a.cfg.Pod("reda")
	first.Closed = true
	other := first
	other.Closed, other.Overlays = false, []netctl.Place{{VNI: blue, Addr: netip.MustParseAddr("10.64.0.77"), MAC: "0a:67:0a:40:00:4d", Link: "cluster0"}}
	next := newPod("0a11", "next", netip.MustParseAddr("10.88.16.50"))
	next.Overlays = first.Overlays
	for name, fail := range failures(t, a) {
		must(t, a.AddPod(ctx, first))
		for _, step := range []struct {
			name string
			do   func() error
			want netctl.Config
		}{
			{"change", func() error { return a.AddPod(ctx, other) }, a.cfg.With(other)},
			{"change back", func() error { return a.AddPod(ctx, first) }, a.cfg.With(first)},
			{"remove", func() error { return a.RemovePod(ctx, "reda") }, a.cfg.Without("reda")},
		} {
			mend := fail()
			if err := step.do(); err == nil {
				t.Errorf("%s, %s: no error though the kernel refused", name, step.name)
			}
			if step.name == "remove" {
				wantLeft(t, a.Controller, "reda", true)
				if err := a.AddPod(ctx, next); err == nil {
					t.Errorf("%s: another pod got a place to which something still leads", name)
				}
			}
			mend()
			must(t, step.do())
			a.cfg = step.want
			a.same(t, name+", "+step.name)
			seen, err := a.look(ctx)
			must(t, err)
			if gone, come := differing(seen.entries, entriesOf(a.cfg)); len(gone)+len(come) != 0 {
				t.Errorf("%s, %s: left %v, lacking %v", name, step.name, gone, come)
			}
		}
		wantLeft(t, a.Controller, "reda", false)
	}
}

// comeAndGo changes members, overlays and places.
func comeAndGo(t *testing.T, a, b *testHost) {
	ctx := context.Background()
	greet(t, "redc")
	asks(t, "before", "redc")
	if err := a.RemoveOverlay(ctx, red); !errors.Is(err, netctl.ErrOverlayInUse) {
		t.Errorf("an overlay in use: %v", err)
	}
	// redc moves to host 1 and back. The order of what the host is told does not count.
	mover, elsewhere := people[4], overlayFor(0, red, a, b)
	here := netctl.Overlay{VNI: red, CIDR: overlayRange, Members: append([]netctl.Member(nil), elsewhere.Members...)}
	here.Members[2].Via = netctl.Via{}
	moved := newPod(a.instance, "redc", netip.MustParseAddr("10.88.16.40"))
	moved.Overlays = mover.pod(b).Overlays
	steps := []func(){
		func() { must(t, a.SetOverlay(ctx, here)); a.cfg = a.cfg.WithOverlay(here) },
		func() { must(t, a.AddPod(ctx, moved)); a.cfg = a.cfg.With(moved) },
		func() { must(t, a.SetOverlay(ctx, elsewhere)); a.cfg = a.cfg.WithOverlay(elsewhere) },
		func() { must(t, a.RemovePod(ctx, "redc")); a.cfg = a.cfg.Without("redc") },
	}
	for _, order := range [][]int{{0, 1, 2, 3}, {1, 0, 3, 2}, {0, 1, 3, 2}, {1, 0, 2, 3}} {
		for i, step := range order {
			steps[step]()
			if whole := i == 1 || i == 3; whole {
				a.same(t, fmt.Sprint(order, step))
			}
		}
		asks(t, "after", "redc")
	}
	// Only one of the pod's places changes: the other link stays.
	reda, _ := a.cfg.Pod("reda")
	reda.Overlays = append(reda.Overlays, netctl.Place{VNI: blue, Addr: netip.MustParseAddr("10.64.0.77"), MAC: "0a:67:0a:40:00:4d", Link: "cluster0"})
	must(t, a.AddPod(ctx, reda))
	a.cfg = a.cfg.With(reda)
	a.same(t, "second place")
	reda.Overlays = reda.Overlays[1:]
	must(t, a.AddPod(ctx, reda))
	a.cfg = a.cfg.With(reda)
	a.same(t, "without its first")
	for _, id := range []string{"reda", "redb", "bluea"} {
		must(t, a.RemovePod(ctx, id))
		wantLeft(t, a.Controller, id, false)
		a.cfg = a.cfg.Without(id)
	}
	for _, vni := range []uint32{red, blue} {
		must(t, a.RemoveOverlay(ctx, vni))
		must(t, a.RemoveOverlay(ctx, vni))
		a.cfg = a.cfg.WithoutOverlay(vni)
	}
	a.same(t, "without overlays")
	rules, err := a.rules.entries()
	must(t, err)
	if !exactly(rules, hostEntries(a.cfg)) {
		t.Errorf("left behind: %v", rules)
	}
}

// limitsPolicyAndNames: what changes while links stay.
func limitsPolicyAndNames(t *testing.T, a, _ *testHost) {
	ctx := context.Background()
	greet(t, "redb")
	serve(t, "host2", ":80")
	serve(t, "host1", "10.88.16.1:53")
	reda, redb := spaceOf("reda"), spaceOf("redb")
	indexes := func() (out string) {
		must(t, within("host1", func() error {
			for _, name := range append(podEnds("0a11", a.cfg.Pods[1]), podEnds("0a11", a.cfg.Pods[2])...) {
				l, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				out += fmt.Sprintln(l.Attrs().Index, l.Attrs().Alias)
			}
			return nil
		}))
		return out
	}
	before := indexes()
	reaches(t, reda, "192.0.2.2:80", "192.0.2.1")
	reaches(t, reda, "10.88.16.1:53", "10.88.16.2")
	open := dial(t, reda, "192.0.2.2:80")
	pod, _ := a.cfg.Pod("reda")
	pod.Closed, pod.Mbps = true, 100
	must(t, a.AddPod(ctx, pod))
	refusedAll(t, [2]string{reda, "192.0.2.2:80"}, [2]string{"host2", "10.88.16.1:53"})
	reaches(t, reda, "10.88.16.1:53", "10.88.16.2")
	asks(t, "closed", "redb")
	serve(t, reda, ":8081")
	reaches(t, "host1", "10.88.16.2:8081", "10.88.16.1")
	if dropsOf(t, a)["closed"] == 0 {
		t.Error("a closed pod's packets are not counted")
	}
	_ = open.Close()
	for _, way := range []struct{ from, to, addr string }{{reda, redb, "10.64.0.3"}, {redb, reda, "10.64.0.2"}} {
		if got := mbps(t, way.from, way.to, way.addr); got < 80 || got > 120 {
			t.Errorf("%s to %s: %.0f Mbit/s, want 100", way.from, way.to, got)
		}
	}
	a.cfg = a.cfg.With(pod)
	a.same(t, "limited")
	pod.Closed = false
	must(t, a.AddPod(ctx, pod))
	if got := mbps(t, reda, "host2", "192.0.2.2"); got < 80 || got > 120 {
		t.Errorf("reda to outside: %.0f Mbit/s, want 100", got)
	}
	pod.Mbps = 400_000 // beyond 32 bits of octets
	must(t, a.AddPod(ctx, pod))
	a.cfg = a.cfg.With(pod)
	a.same(t, "a large limit")
	reaches(t, reda, "192.0.2.2:80", "192.0.2.1")
	policy := netctl.Policy{Barred: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:80")}}
	must(t, a.SetPolicy(ctx, policy))
	a.cfg = a.cfg.WithPolicy(policy)
	a.same(t, "barred, without names and limits")
	refusedAll(t, [2]string{reda, "10.88.16.1:53"}, [2]string{reda, "192.0.2.2:80"})
	reaches(t, "host1", "192.0.2.2:80", "192.0.2.1")
	if dropsOf(t, a)["scheduler"] == 0 {
		t.Error("what goes to a barred address is not counted")
	}
	must(t, a.SetPolicy(ctx, netctl.Policy{}))
	reaches(t, reda, "192.0.2.2:80", "192.0.2.1")
	if after := indexes(); after != before {
		t.Errorf("links are others: %s, were %s", after, before)
	}
}

// mbps measures how fast one pod sends to another.
func mbps(t *testing.T, from, to, addr string) float64 {
	t.Helper()
	var l net.Listener
	must(t, within(to, func() (err error) {
		l, err = net.Listen("tcp4", addr+":7")
		return err
	}))
	defer func() { _ = l.Close() }()
	conn := dial(t, from, addr+":7")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
		_, _ = io.Copy(conn, neverEnding{})
		_ = conn.Close()
	}()
	c, err := l.Accept()
	must(t, err)
	defer func() { _ = c.Close() }()
	begun := time.Now()
	n, _ := io.Copy(io.Discard, c)
	<-done
	return float64(n) * 8 / 1e6 / time.Since(begun).Seconds()
}

type neverEnding struct{}

func (neverEnding) Read(b []byte) (int, error) { return len(b), nil }
