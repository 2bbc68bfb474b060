package dispatch

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
	"gantry/test/simhosts/simhost"
)

// tunnelOf is the end of the tunnel that a host says that it has.
func tunnelOf(id fleet.HostID) *agentrpc.HostTunnel {
	key := sha256.Sum256([]byte(id))
	return &agentrpc.HostTunnel{
		PublicKey: base64.StdEncoding.EncodeToString(key[:]), Endpoint: fmt.Sprintf("203.0.113.%d:51820", key[0]), UserSpace: true,
	}
}

// hear takes what the host is told of private networks.
func (g *guest) hear(msg *agentrpc.Down) {
	g.netMu.Lock()
	defer g.netMu.Unlock()
	switch {
	case msg.GetNetwork() != nil:
		g.kinds = append(g.kinds, "set")
	case msg.GetPeers() != nil:
		g.kinds = append(g.kinds, "peers")
	case msg.GetOverlay() != nil:
		g.kinds = append(g.kinds, "overlay")
	case msg.GetFull() != nil, msg.GetDifference() != nil:
		g.kinds = append(g.kinds, "pods")
		return
	default:
		return
	}
	g.heard = append(g.heard, msg)
	if gap, fault := g.networks.Take(msg); gap || fault != "" {
		g.Errorf("%s was told %v: gap %v, %s", g.id, msg, gap, fault)
	}
}

// knows waits until what the host was told of private networks is this, in words.
func (g *guest) knows(want string) {
	g.Helper()
	g.told(want, func(n *simhost.Networks) bool { return n.String() == want })
}

func (g *guest) told(what string, ok func(*simhost.Networks) bool) {
	g.Helper()
	last := ""
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; {
		g.netMu.Lock()
		done := ok(&g.networks)
		last = g.networks.String()
		g.netMu.Unlock()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-g.ctx.Done():
		}
		if time.Now().After(deadline) || g.ctx.Err() != nil {
			g.Fatalf("%s is to know: %s; it knows: %s", g.id, what, last)
		}
	}
}

// since returns what was heard since it was called last.
func (g *guest) since() (heard []*agentrpc.Down, kinds []string) {
	g.netMu.Lock()
	defer g.netMu.Unlock()
	heard, kinds, g.heard, g.kinds = g.heard, g.kinds, nil, nil
	return heard, kinds
}

// runPod makes a pod of an account, with global networking, on a host.
func (y *yard) runPod(account fleet.AccountID, id fleet.PodID, host fleet.HostID) {
	y.Helper()
	h := y.host(host)
	y.do(state.CreatePods{Pods: []state.NewPod{{HostEpoch: h.Epoch, Pod: fleet.Pod{
		ID: id, Account: account, Host: host, DataCenter: h.DataCenter, CreatedAt: time.Now(),
		Need: fleet.Resources{MilliCPU: 10, MemoryMB: 10, DiskGB: 1},
		Spec: fleet.PodSpec{
			Name: string(id), Image: "i", Cloud: fleet.CloudSecure, DiskGB: 1, GlobalNetworking: true,
			CPU: &fleet.CPURequest{Flavor: "f", VCPU: 1, MemoryGB: 1},
		},
	}}}})
}

// endPod terminates a pod, of which its host then keeps nothing.
func (y *yard) endPod(account fleet.AccountID, id fleet.PodID, host fleet.HostID) {
	y.Helper()
	y.do(
		state.ActPod{Account: account, Pod: id, Action: fleet.ActionTerminate, At: time.Now()},
		state.ReportPods{Host: host, Epoch: y.host(host).Epoch, At: time.Now(), Reports: []state.PodReport{
			{Pod: id, Incarnation: 1, Event: state.ReportGone, At: time.Now()},
		}},
	)
}

func (y *yard) host(id fleet.HostID) (out fleet.Host) {
	y.Helper()
	check(y, y.store.View(func(v *state.View) error { out, _ = v.Host(id); return nil }))
	return out
}

// begun waits until the host was told everything of its session.
func (g *guest) begun() *guest {
	g.Helper()
	g.told("its peers", func(n *simhost.Networks) bool { return n.Peers != nil })
	return g
}

func TestAHostIsToldOfItsOverlays(t *testing.T) {
	y := newYard(t)
	a, b := y.join("a").connect().begun(), y.join("b").connect().begun()
	a.knows("peers:")
	_, kinds := a.since()
	if !slices.Equal(kinds, []string{"set", "peers", "pods"}) {
		t.Errorf("a session begins with %v", kinds)
	}
	y.runPod("acme", "p1", "a")
	a.knows("account-acme: p1@a peers:")
	order := a.order("p1")
	at := order.GetOverlays()
	if len(at) != 1 || at[0].GetLink() != "podnet1" || at[0].GetOverlayId() != "account-acme" || at[0].GetVni() != 4096 ||
		!netip.MustParsePrefix(at[0].GetCidr()).Contains(netip.MustParseAddr(at[0].GetAddr())) {
		t.Errorf("the pod's places are %v", at)
	}
	// Of its circle it may be told again when that is known.
	if _, kinds = a.since(); len(kinds) < 4 || !slices.Equal(kinds[:4], []string{"set", "peers", "overlay", "pods"}) {
		t.Errorf("a new pod was told of as %v", kinds)
	}
	b.knows("peers:")

	y.runPod("acme", "p2", "b")
	b.knows("account-acme: p1@a p2@b peers: a")
	a.knows("account-acme: p1@a p2@b peers: b")
	a.since()
	c := y.join("c").connect().begun()
	y.runPod("acme", "p3", "c")
	a.knows("account-acme: p1@a p2@b p3@c peers: b c")
	heard, _ := a.since()
	for _, msg := range heard {
		if o := msg.GetOverlay(); o != nil && (o.GetFrom() == 0 || len(o.GetPut()) > 1) || msg.GetPeers().GetFull() || msg.GetNetwork() != nil {
			t.Errorf("of one host more came %v", msg)
		}
	}
	y.endPod("acme", "p3", "c")
	c.knows("peers:")
	a.knows("account-acme: p1@a p2@b peers: b")
	if p := b.peer("a"); p.GetPublicKey() != a.tunnel.GetPublicKey() || p.GetEndpoint() != a.tunnel.GetEndpoint() || p.GetPlain() != "" ||
		p.GetTunnelAddr() != y.host("a").Tunnel.String() {
		t.Errorf("b was told of a: %v", p)
	}
	b.told("what all have to know", func(n *simhost.Networks) bool {
		s := n.Set
		return s.GetSuffix() == "gantry.internal" && slices.Equal(s.GetAliases(), []string{"runpod.internal"}) && s.GetMtu() == 1370 &&
			s.GetVxlanPort() == 4789 && s.GetWireguardPort() == 51820 && s.GetPool() == "10.64.0.0/10" && s.GetTunnelRange() == "100.127.0.0/16" &&
			s.GetTunnelAddr() == y.host("b").Tunnel.String() && !s.GetPrivateUnderlay() && len(s.GetClosed()) == 0 &&
			s.GetPublicKey() == b.tunnel.GetPublicKey()
	})

	y.endPod("acme", "p1", "a")
	a.knows("peers:")
	b.knows("account-acme: p2@b peers:")
}

func (g *guest) peer(id string) *agentrpc.HostPeer {
	g.netMu.Lock()
	defer g.netMu.Unlock()
	return g.networks.Peers[id]
}

// A host is never told of an overlay in which it has no pod (guest.hear sees to it), nor of hosts that have none of its.
func TestTwoAccountsDoNotSeeEachOther(t *testing.T) {
	y := newYard(t)
	y.do(state.PutAccount{Account: fleet.Account{ID: "other", Name: "Other", CreatedAt: time.Now()}})
	a, b, c := y.join("a").connect().begun(), y.join("b").connect().begun(), y.join("c").connect().begun()
	y.runPod("acme", "p1", "a")
	y.runPod("acme", "p2", "b")
	y.runPod("other", "q1", "b")
	y.runPod("other", "q2", "c")
	a.knows("account-acme: p1@a p2@b peers: b")
	b.knows("account-acme: p1@a p2@b account-other: q1@b q2@c peers: a c")
	c.knows("account-other: q1@b q2@c peers: b")
	y.endPod("other", "q1", "b")
	a.knows("account-acme: p1@a p2@b peers: b")
	b.knows("account-acme: p1@a p2@b peers: a")
	c.knows("account-other: q2@c peers:")
	for _, g := range []*guest{a, c} {
		heard, _ := g.since()
		for _, msg := range heard {
			foreign := map[fleet.HostID]string{"a": "other", "c": "acme"}[g.id]
			if text := msg.String(); strings.Contains(text, "account-"+foreign) {
				t.Errorf("%s was told %v", g.id, text)
			}
		}
	}
}

func TestASessionBeginsWithEverything(t *testing.T) {
	y := newYard(t)
	a, b := y.join("a").connect().begun(), y.join("b").connect().begun()
	y.runPod("acme", "p1", "a")
	y.runPod("acme", "p2", "b")
	const all = "account-acme: p1@a p2@b peers: b"
	a.knows(all)
	a.since()
	check(t, a.stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Resync{Resync: &agentrpc.Resync{}}}))
	var kinds []string
	y.soon("everything comes again", func() bool {
		_, more := a.since()
		kinds = append(kinds, more...)
		return slices.Contains(kinds, "pods")
	})
	if n := len(kinds); n < 4 || !slices.Equal(kinds[n-4:], []string{"set", "peers", "overlay", "pods"}) {
		t.Errorf("after a Resync came %v", kinds)
	}
	a.leave()
	y.soon("its session ends", func() bool { return y.server.session("a") == nil })
	y.runPod("acme", "p3", "b")
	y.endPod("acme", "p2", "b")
	b.knows("account-acme: p1@a p3@b peers: a")
	a.since()
	a.connect()
	a.knows("account-acme: p1@a p3@b peers: b")
	heard, _ := a.since()
	if len(heard) != 3 || heard[0].GetNetwork() == nil || !heard[1].GetPeers().GetFull() || heard[2].GetOverlay().GetFrom() != 0 {
		t.Errorf("the session began with %v", heard)
	}
}

func TestPeersFollowTheirTunnels(t *testing.T) {
	y := newYard(t)
	a, b := y.join("a").connect().begun(), y.join("b").connect().begun()
	y.runPod("acme", "p1", "a")
	y.runPod("acme", "p2", "b")
	a.knows("account-acme: p1@a p2@b peers: b")
	say := func(h *agentrpc.HostTunnel) {
		check(t, b.stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Inventory{Inventory: &agentrpc.Inventory{
			Total: &agentrpc.Resources{MilliCpu: 64_000, MemoryMb: 64_000, DiskGb: 1000}, Tunnel: h,
		}}}))
	}
	behindNAT := &agentrpc.HostTunnel{PublicKey: tunnelOf("b2").GetPublicKey()}
	say(behindNAT)
	y.soon("a knows the new key", func() bool {
		p := a.peer("b")
		return p.GetPublicKey() == behindNAT.GetPublicKey() && p.GetEndpoint() == ""
	})
	a.since()
	y.do(state.UpdateInventory{Host: "b", Epoch: y.host("b").Epoch, At: time.Now(), Inventory: fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 64_000, MemoryMB: 64_000, DiskGB: 1000},
	}})
	a.knows("account-acme: p1@a p2@b peers:") // it has no key any more: it cannot be reached
	y.do(state.UpdateInventory{Host: "b", Epoch: y.host("b").Epoch, At: time.Now(), Inventory: fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 64_000, MemoryMB: 64_000, DiskGB: 1000}, Tunnel: decodeTunnel(tunnelOf("b")),
	}})
	a.knows("account-acme: p1@a p2@b peers: b")
	heard, _ := a.since()
	for _, msg := range heard {
		if msg.GetPeers() == nil || msg.GetPeers().GetFull() {
			t.Errorf("a was told %v", msg)
		}
	}
}

func TestAPrivateUnderlay(t *testing.T) {
	y := newYard(t)
	center := fleet.DataCenter{ID: "dc-2", Name: "dc-2", Region: "EUROPE", GlobalNetwork: true}
	y.do(state.PutDataCenter{DataCenter: center})
	a, b, c, d := y.join("a").connect().begun(), y.joinAt("dc-2", "b"), y.joinAt("dc-2", "c"), y.joinAt("dc-2", "d")
	b.tunnel.Plain = "192.168.0.2"
	d.tunnel.Endpoint = "" // no address of it is known
	for i, g := range []*guest{a, b, c, d} {
		if g.stream == nil {
			g.connect().begun()
		}
		y.runPod("acme", fleet.PodID(fmt.Sprintf("p%d", i)), g.id)
	}
	const members = "account-acme: p0@a p1@b p2@c p3@d peers: "
	b.knows(members + "a c d")
	center.Underlay = fleet.UnderlayPrivate
	y.do(state.PutDataCenter{DataCenter: center})
	a.knows(members + "b c d")
	b.knows(members + "a c=plain d")
	c.knows(members + "a b=plain d")
	d.knows(members + "a b c") // it cannot be answered plainly
	if p := c.peer("b"); p.GetPlain() != "192.168.0.2" || p.GetPublicKey() != "" {
		t.Errorf("c was told of b: %v", p)
	}
	c.told("its own underlay", func(n *simhost.Networks) bool { return n.Set.GetPrivateUnderlay() })
	a.told("its own underlay", func(n *simhost.Networks) bool { return !n.Set.GetPrivateUnderlay() })
	center.Underlay = fleet.UnderlayEncrypted
	y.do(state.PutDataCenter{DataCenter: center})
	b.knows(members + "a c d")
	c.told("its own underlay", func(n *simhost.Networks) bool { return !n.Set.GetPrivateUnderlay() })
}

func TestSettingsAndEgressAreToldAtOnce(t *testing.T) {
	y := newYard(t)
	a, b := y.join("a").connect().begun(), y.join("b").connect().begun()
	y.runPod("acme", "p1", "a")
	a.knows("account-acme: p1@a peers:")
	closed := func(want ...string) func(*simhost.Networks) bool {
		return func(n *simhost.Networks) bool { return slices.Equal(n.Set.GetClosed(), want) }
	}
	none, open := fleet.EgressNone, fleet.EgressOpen
	y.do(state.UpdateAccount{Account: "acme", Egress: &none})
	a.told("the account is closed", closed("acme"))
	b.told("it has no pods of it", closed())
	b.since()
	y.runPod("acme", "p2", "b")
	b.told("the account is closed", closed("acme"))
	b.order("p2")
	if _, kinds := b.since(); len(kinds) == 0 || kinds[0] != "set" {
		t.Errorf("the first pod of a closed account was told of as %v", kinds)
	}
	y.do(state.UpdateAccount{Account: "acme", Egress: &open})
	for _, g := range []*guest{a, b} {
		g.told("the account is open", closed())
	}
	s := fleet.DefaultNetworkSettings()
	s.PodMbps, s.Suffix, s.Aliases = 500, "pods.example", nil
	y.do(state.PutNetworkSettings{Settings: s})
	for _, g := range []*guest{a, b} {
		g.told("the settings", func(n *simhost.Networks) bool {
			return n.Set.GetPodMbps() == 500 && n.Set.GetSuffix() == "pods.example" && len(n.Set.GetAliases()) == 0
		})
	}
}

// TestPlacesThatAHostGivesAPod: those that are on, of overlays that are there, while the pod holds its host; the first name is the account's.
func TestPlacesThatAHostGivesAPod(t *testing.T) {
	y := newYard(t)
	y.join("h1").connect()
	y.runPod("acme", "p1", "h1")
	own := fleet.OverlayPlace{Overlay: fleet.AccountOverlay("acme"), On: true, Addr: netip.MustParseAddr("10.0.0.2")}
	off, strange := own, own
	off.On, strange.Overlay = false, "another"
	for name, c := range map[string]struct {
		p    fleet.Pod
		want string
	}{
		"one":           {fleet.Pod{Account: "acme", Held: true, Overlays: []fleet.OverlayPlace{own}}, fleet.OverlayLink},
		"off":           {fleet.Pod{Account: "acme", Held: true, Overlays: []fleet.OverlayPlace{off}}, ""},
		"not held":      {fleet.Pod{Account: "acme", Overlays: []fleet.OverlayPlace{own}}, ""},
		"not there":     {fleet.Pod{Account: "acme", Held: true, Overlays: []fleet.OverlayPlace{strange, own}}, fleet.OverlayLink},
		"not its own":   {fleet.Pod{Account: "other", Held: true, Overlays: []fleet.OverlayPlace{own}}, "podnet2"},
		"the next name": {fleet.Pod{Account: "other", Held: true, Overlays: []fleet.OverlayPlace{strange, off, own}}, "podnet4"},
	} {
		check(t, y.store.View(func(v *state.View) error {
			var got []string
			for _, p := range places(v, &c.p) {
				got = append(got, p.GetLink())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: %q", name, got)
			}
			return nil
		}))
	}
}
