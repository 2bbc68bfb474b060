package overlay

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/netctl"
	"gantry/netctl/dns"
	"gantry/netctl/tunnel"
)

// TestWhatIsToldBecomesTheHostsNetworks starts a pod, adds a member, ends the pod.
func TestWhatIsToldBecomesTheHostsNetworks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.wire.user = true
		defer s.begin()()
		s.session()
		if err := s.start(place()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		want := []netctl.Member{reached("10.64.0.2", "", false), reached("10.64.0.3", "100.127.0.2", true), reached("10.64.0.4", "192.0.2.3", false)}
		is := s.inKernel()
		if len(is.Overlays) != 1 || !slices.Equal(is.Overlays[0].Members, want) || !is.Names {
			t.Errorf("in the kernel: %s", is)
		}
		u := netctl.Underlay{Addr: addr("100.127.0.1"), Range: netip.MustParsePrefix("100.127.0.0/16"), Port: 4789, MTU: 1370, Plain: []netip.Addr{addr("192.0.2.3")}}
		if !is.Underlay.Equal(u) {
			t.Errorf("underlay %+v", is.Underlay)
		}
		conf := s.wire.now()
		if len(conf.Peers) != 1 || conf.Peers[0].Host != "far" || conf.Peers[0].Keepalive != 0 || conf.ListenPort != 51820 {
			t.Errorf("tunnel %+v", conf)
		}
		if n := s.Conditions(); len(n) != 1 || n[0].Code != "tunnel_slow" {
			t.Errorf("conditions %v", n)
		}
		base, pods, names := s.book.now()
		if got := pods[addr("10.88.0.2")]; !slices.Equal(got, []uint32{4096}) || len(names[4096]) != 4 {
			t.Errorf("names: %v %v", pods, names)
		}
		if up := base.Upstreams; len(up) != 3 || up[0] != netip.MustParseAddrPort("127.0.0.53:53") {
			t.Errorf("names are asked of %v", up)
		}
		if got := s.ResolvConf(); got != "search corp.example\noptions edns0\nnameserver 10.88.0.1\n" {
			t.Errorf("resolv.conf %q", got)
		}
	})
}

// TestChangesReachTheKernel adds a member, takes one away, and ends the pod.
func TestChangesReachTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.wire.user = true
		defer s.begin()()
		s.session()
		if err := s.start(place()); err != nil {
			t.Fatal(err)
		}
		s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: &agentrpc.OverlayChange{
			OverlayId: "o4096", Vni: 4096, Cidr: "10.64.0.0/16", From: 5, To: 6, Put: []*agentrpc.OverlayMember{{Addr: "10.64.0.9", PodId: "p9", HostId: "far"}}, Gone: []string{"10.64.0.4"},
		}}})
		time.Sleep(50 * time.Millisecond)
		want := []netctl.Member{reached("10.64.0.2", "", false), reached("10.64.0.3", "100.127.0.2", true), reached("10.64.0.9", "100.127.0.2", true)}
		if is := s.inKernel(); !slices.Equal(is.Overlays[0].Members, want) {
			t.Errorf("after a difference: %v", is.Overlays[0].Members)
		}
		if err := s.control.RemovePod(t.Context(), "p2"); err != nil {
			t.Fatal(err)
		}
		s.Leave("p2")
		time.Sleep(time.Second)
		if _, pods, names := s.book.now(); len(s.inKernel().Overlays)+len(names)+len(pods) != 0 {
			t.Errorf("left: %s %v %v", s.inKernel(), names, pods)
		}
	})
}

// TestAGapAsksForEverythingOnce hears differences that lead on from nothing.
func TestAGapAsksForEverythingOnce(t *testing.T) {
	s := newSite(t)
	s.session()
	next := func(from uint64) bool {
		return s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: &agentrpc.OverlayChange{OverlayId: "o4096", Vni: 4096, Cidr: "10.64.0.0/16", From: from, To: from + 1}}})
	}
	if next(5) || !next(9) || next(10) {
		t.Error("not asked for exactly once")
	}
	s.NewSession()
	if !next(11) {
		t.Error("not asked for in a new session")
	}
	if other := s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: &agentrpc.OverlayChange{OverlayId: "o9", Vni: 9, Cidr: "10.65.0.0/16", From: 3, To: 4}}}); !other {
		t.Error("a difference of an overlay that is not known")
	}
	s.session()
	if len(s.desired.byVNI(4096).members) != 4 || s.desired.byVNI(9) != nil {
		t.Errorf("after everything came: %+v", s.desired.overlays)
	}
}

// TestARestartWithoutASchedulerChangesNothing ends the agent and starts the next one.
func TestARestartWithoutASchedulerChangesNothing(t *testing.T) {
	s := newSite(t)
	end := s.begin()
	s.session()
	at := place()
	if err := s.start(at); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { c := s.wire.now(); return len(c.Peers) == 1 && s.inKernel().Names })
	key := s.Announce().PublicKey
	end()
	before, steps := s.inKernel(), s.control.Steps()
	s.wire.is, s.book.overlays, s.book.pods = tunnel.Config{}, map[uint32][]dns.Name{}, nil
	s.open()
	pod2 := s.Place(netctl.NewPod("0a1b", "p2", addr("10.88.0.2")), "a", []pod.Place{at})
	defer s.begin(pod2)()
	await(t, func() bool { c := s.wire.now(); return len(c.Peers) == 1 })
	if now := s.inKernel(); s.control.Steps() != steps || !now.Equal(before) {
		t.Errorf("the network was changed in %d steps:\n%s\n%s", s.control.Steps()-steps, before, now)
	}
	if _, pods, names := s.book.now(); len(names[4096]) != 4 || len(pods) != 1 || s.Announce().PublicKey != key || key == "" {
		t.Errorf("names %v, key %q", names, s.Announce().PublicKey)
	}
}

// TestAPodWaitsForItsOwnLinksAlone has neither tunnel nor names work.
func TestAPodWaitsForItsOwnLinksAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.wire.err, s.book.err = tunnel.ErrDown, errors.New("port 53 is taken")
		defer s.begin()()
		s.session()
		if err := s.start(place()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		var codes []string
		for _, n := range s.Conditions() {
			codes = append(codes, n.Code)
		}
		synctest.Wait()
		if !slices.Equal(codes, []string{"tunnel_failed", "dns_failed"}) || s.wire.sets < 3 || s.wire.sets > 10 {
			t.Errorf("conditions %v, %d tries", codes, s.wire.sets)
		}
		if is := s.inKernel(); is.Names || s.ResolvConf() != "search corp.example\noptions edns0\nnameserver 1.1.1.1\nnameserver 8.8.8.8\n" {
			t.Errorf("pods ask the gateway: %s %s", is, s.ResolvConf())
		}
		s.wire.mu.Lock()
		s.wire.err = nil
		s.wire.mu.Unlock()
		s.book.mu.Lock()
		s.book.err = nil
		s.book.mu.Unlock()
		time.Sleep(time.Minute)
		if n := s.Conditions(); len(n) != 0 || !s.inKernel().Names || !strings.Contains(s.ResolvConf(), "nameserver 10.88.0.1") {
			t.Errorf("after both were mended: %v", n)
		}
	})
}

// TestPolicyChangesWhilePodsRun closes an account and limits pods.
func TestPolicyChangesWhilePodsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		defer s.begin()()
		s.session()
		if err := s.start(); err != nil {
			t.Fatal(err)
		}
		s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Network{Network: &agentrpc.NetworkSet{
			Suffix: "gantry.internal", Mtu: 1370, VxlanPort: 4789, PodMbps: 100, Closed: []string{"a"},
		}}})
		time.Sleep(time.Second)
		is := s.inKernel()
		if p, _ := is.Pod("p2"); p.Mbps != 100 || !p.Closed {
			t.Errorf("in force: %s", is)
		}
		if s.desired.byVNI(4096) != nil {
			t.Error("an overlay that is not named any more is known")
		}
	})
}

// TestKeysAreRenewed lets a key grow old.
func TestKeysAreRenewed(t *testing.T) {
	s := newSite(t, func(c *Config) { c.KeyAge = 24 * time.Hour })
	s.announce(t.Context())
	before := s.Announce()
	if before.Endpoint.String() != "192.0.2.1:51820" || before.Plain.IsValid() {
		t.Errorf("announced %+v", before)
	}
	s.renewKey(time.Now())
	if s.Announce() != before {
		t.Error("a young key was renewed")
	}
	later := time.Now().Add(25 * time.Hour)
	s.renewKey(later)
	next := s.Announce().PublicKey
	if next == before.PublicKey || s.changes == 0 {
		t.Error("an old key was not renewed")
	}
	s.renewKey(later.Add(30 * time.Second))
	if s.Announce().PublicKey != next {
		t.Error("a key that nobody knows yet was renewed")
	}
	// Until the scheduler has the new key on record, others know the old one.
	set := func(key string) { s.Hear(networkSet(func(n *agentrpc.NetworkSet) { n.PublicKey = key })) }
	set(before.PublicKey)
	if s.key.Public() != before.PublicKey {
		t.Error("a key is in use that others do not know")
	}
	set(next)
	kept, err := tunnel.ReadKey(s.KeyFile)
	if err != nil || kept.Public() != next || s.key.Public() != next || s.Announce().PublicKey != next {
		t.Errorf("kept %v %v, in use %s", kept.Public(), err, s.key.Public())
	}
	// A file that cannot be written any more gets old, which is no reason for a key every half minute.
	s.KeyFile = s.File + "/none/key"
	s.renewKey(later.Add(time.Minute))
	if s.Announce().PublicKey != next {
		t.Error("there is another key again")
	}
}

// networkSet is what a scheduler tells first.
func networkSet(change func(*agentrpc.NetworkSet)) *agentrpc.Down {
	n := &agentrpc.NetworkSet{Suffix: "gantry.internal", Mtu: 1370, VxlanPort: 4789}
	change(n)
	return &agentrpc.Down{Kind: &agentrpc.Down_Network{Network: n}}
}

// TestNamesWaitForNoResolver starts an agent on a host whose resolvers are down: pods that run keep their names.
func TestNamesWaitForNoResolver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, func(c *Config) {
			c.Barred = func(ctx context.Context) []netip.AddrPort { <-ctx.Done(); return nil }
			c.Find = func(ctx context.Context, _ uint16) (netip.AddrPort, netip.Addr, error) {
				<-ctx.Done()
				return netip.AddrPort{}, netip.Addr{}, ctx.Err()
			}
		})
		before := hostNet.Clone()
		before.Barred = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.7:7000")}
		if err := s.control.Set(t.Context(), before); err != nil {
			t.Fatal(err)
		}
		s.Begin(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s.bar(ctx)
		if is := s.Complete(hostNet.Clone()); !is.Names || !slices.Equal(is.Barred, before.Barred) {
			t.Errorf("after the start: %s", is)
		}
	})
}

// TestAnAccountIsClosedFromTheFirstPacketOn closes an account while its pod is made, and kills the agent then.
func TestAnAccountIsClosedFromTheFirstPacketOn(t *testing.T) {
	s := newSite(t)
	defer s.begin()()
	s.session()
	p := s.Place(netctl.NewPod("0a1b", "p2", addr("10.88.0.2")), "a", nil)
	s.Hear(networkSet(func(n *agentrpc.NetworkSet) { n.Closed = []string{"a"} }))
	if after, err := read(s.File); err != nil || !after.settings.closed["a"] {
		t.Errorf("the next agent would open it: %v", err)
	}
	if err := errors.Join(s.control.AddPod(t.Context(), p), s.Added(t.Context(), p, "a")); err != nil {
		t.Fatal(err)
	}
	is := s.inKernel()
	if p, _ := is.Pod("p2"); !p.Closed {
		t.Errorf("in force: %s", is)
	}
}

// TestAFileOfAnotherVersion has a message that this version refuses, and an end that is torn.
func TestAFileOfAnotherVersion(t *testing.T) {
	s := newSite(t)
	s.session()
	s.desired.overlays["other"] = &network{id: "other", vni: 0, cidr: netip.MustParsePrefix("10.64.0.0/16")}
	s.desired.overlays["z"] = &network{id: "z", vni: 9, cidr: netip.MustParsePrefix("10.64.0.0/16"), rev: 3}
	text, err := s.desired.encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := write(s.File, append(text, 9, 9)); err != nil {
		t.Fatal(err)
	}
	got, err := read(s.File)
	if err == nil || got.byVNI(9) == nil || got.byVNI(4096) == nil || len(got.overlays) != 2 {
		t.Errorf("%v: %+v", err, got.overlays)
	}
}

// TestPodsThatRunAreToldOfOtherResolvers lets names be answered after pods began. The condition goes by itself.
func TestPodsThatRunAreToldOfOtherResolvers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var desired []string
		s := newSite(t, func(c *Config) {
			c.Resolved = func(text string) { mu.Lock(); desired = append(desired, text); mu.Unlock() }
		})
		s.book.err = errors.New("port 53 is taken")
		defer s.begin()()
		time.Sleep(time.Minute)
		if all := s.Conditions(); len(all) != 1 || all[0].Code != "dns_failed" {
			t.Errorf("before names are answered: %v", all)
		}
		s.book.mu.Lock()
		s.book.err = nil
		s.book.mu.Unlock()
		time.Sleep(time.Minute)
		if all := s.Conditions(); len(all) > 0 || !s.Complete(hostNet.Clone()).Names {
			t.Errorf("once they are: %v", all)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(desired) != 4 || !strings.Contains(desired[1], "nameserver 1.1.1.1") || !strings.Contains(desired[2], "nameserver 10.88.0.1") || desired[3] != s.ResolvConf() {
			t.Errorf("told %q", desired)
		}
	})
}

// TestShowTellsWhatDoesNotWork has a host that does not answer, one that nobody knows and one behind NAT as this one is.
func TestShowTellsWhatDoesNotWork(t *testing.T) {
	s := newSite(t, func(c *Config) {
		c.Find = func(context.Context, uint16) (netip.AddrPort, netip.Addr, error) {
			return netip.AddrPort{}, addr("192.0.2.1"), nil
		}
	})
	defer s.begin()()
	s.session()
	s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Peers{Peers: &agentrpc.PeerChange{Put: []*agentrpc.HostPeer{{HostId: "hidden", TunnelAddr: "100.127.0.4", PublicKey: publicKey2}}}}})
	if err := s.start(place()); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { c := s.wire.now(); return len(c.Peers) == 2 })
	if c := s.wire.now(); c.Peers[0].Keepalive != keepalive || c.Peers[1].Keepalive != 0 {
		t.Errorf("peers %+v", c.Peers)
	}
	s.wire.mu.Lock()
	s.wire.states = []tunnel.PeerState{{Host: "far", Addr: addr("100.127.0.2"), Sent: 148}, {Host: "hidden", Addr: addr("100.127.0.4")}}
	s.wire.mu.Unlock()
	got, err := s.Show(t.Context(), nil)
	if err != nil || len(got.Steps) != 0 || got.Tunnel != "kernel" || got.Desired != got.Real || len(got.Tunnels) != 3 || !got.Tunnels[2].Plain {
		t.Errorf("%v\n%+v", err, got)
	}
	for _, want := range []string{"host far does not answer through the tunnel, and never has", "1 pods on host nowhere cannot be reached", "host hidden and this one cannot call each other"} {
		if !slices.ContainsFunc(got.Problems, func(p string) bool { return strings.Contains(p, want) }) {
			t.Errorf("not told %q but %q", want, got.Problems)
		}
	}
	if i := slices.IndexFunc(got.Drops, func(d fleet.NetDrop) bool { return d.Why == "foreign" }); i < 0 || got.Drops[i].Packets != 3 {
		t.Errorf("drops %v", got.Drops)
	}
	stats, err := s.readStats(t.Context(), time.Now())
	if err != nil || stats.Overlays != 1 || stats.Members != 4 || stats.Sent != 148 || stats.Peers != 2 || !stats.Answers || stats.Names.Internal != 7 {
		t.Errorf("stats %+v %v", stats, err)
	}
}

// TestNonsenseIsRefused keeps what was told before.
func TestNonsenseIsRefused(t *testing.T) {
	s := newSite(t)
	s.session()
	before := s.desired.settings
	for _, m := range []*agentrpc.NetworkSet{
		{Suffix: "x", Mtu: 500, VxlanPort: 1},
		{Suffix: "x", Mtu: 1400, VxlanPort: 70_000},
		{Suffix: "", Mtu: 1400, VxlanPort: 1},
		{Suffix: "x", Mtu: 1400, VxlanPort: 1, TunnelAddr: "9.9.9.9"},
		{Suffix: "x", Mtu: 1400, VxlanPort: 1, Pool: "10.64.0.1/10"},
		{Suffix: "x", Mtu: 1400, VxlanPort: 1, PodMbps: -1},
	} {
		s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Network{Network: m}})
	}
	for _, o := range []*agentrpc.OverlayChange{
		{OverlayId: "o4096", Vni: 0, Cidr: "10.64.0.0/16"}, {OverlayId: "o4096", Vni: 4096, Cidr: "10.64.0.1/16"}, {OverlayId: "", Vni: 4096, Cidr: "10.64.0.0/16"}, {OverlayId: "o4096", Vni: 1 << 24, Cidr: "10.64.0.0/16"},
	} {
		s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: o}})
	}
	s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Peers{Peers: &agentrpc.PeerChange{Put: []*agentrpc.HostPeer{
		{HostId: "x", TunnelAddr: "::1"}, {HostId: "y", PublicKey: "short"}, {HostId: "z", Endpoint: "nowhere"}, {HostId: "", TunnelAddr: "100.127.0.9"}, {HostId: "w", Plain: "::1"},
	}}}})
	if !reflect.DeepEqual(before, s.desired.settings) || len(s.desired.peers) != 2 || len(s.desired.byVNI(4096).members) != 4 {
		t.Errorf("%+v", s.desired)
	}
}

// TestManyMembersAtOnce gives one address twice, and none in order.
func TestManyMembersAtOnce(t *testing.T) {
	s := newSite(t)
	change := &agentrpc.OverlayChange{OverlayId: "o", Vni: 7, Cidr: "10.64.0.0/16", To: 1}
	for i := 10_000; i > 0; i-- {
		change.Put = append(change.Put, &agentrpc.OverlayMember{Addr: fmt.Sprintf("10.64.%d.%d", i>>8, i&255), PodId: fmt.Sprint("p", i), HostId: "far"})
	}
	change.Put = append(change.Put, &agentrpc.OverlayMember{Addr: "10.64.0.9", PodId: "new", HostId: "near"}, &agentrpc.OverlayMember{Addr: "10.64.0.8", PodId: "left"})
	s.Hear(&agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: change}})
	n := s.desired.byVNI(7)
	i, there := n.find(addr("10.64.0.9"))
	if _, left := n.find(addr("10.64.0.8")); len(n.members) != 9_999 || !there || n.members[i].pod != "new" || left || !slices.IsSortedFunc(n.members, compareMembers) {
		t.Errorf("%d members", len(n.members))
	}
	text, err := s.desired.encode()
	if err == nil {
		err = write(s.File, text)
	}
	back, rerr := read(s.File)
	if err != nil || rerr != nil || len(text) != 0 && len(back.byVNI(7).members) != 9_999 {
		t.Errorf("%v %v", err, rerr)
	}
}
