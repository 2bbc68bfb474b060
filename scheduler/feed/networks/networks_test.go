package networks

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
)

// TestWhatIsNotedOfTheState, and that it stirs the peerIndex; of anything else it does not.
func TestWhatIsNotedOfTheState(t *testing.T) {
	for name, c := range map[string]struct {
		events []state.Event
		all    bool
		want   func(*pending)
	}{
		"settings":    {[]state.Event{{Kind: state.KindNetwork}}, false, func(n *pending) { n.settings = true }},
		"an overlay":  {[]state.Event{{Kind: state.KindNetwork, ID: "o"}}, false, func(n *pending) { n.overlays["o"] = true }},
		"a host":      {[]state.Event{{Kind: state.KindHost, ID: "h"}}, false, func(n *pending) { n.hosts["h"] = true }},
		"an account":  {[]state.Event{{Kind: state.KindAccount, ID: "a"}}, false, func(n *pending) { n.accounts["a"] = true }},
		"a center":    {[]state.Event{{Kind: state.KindCatalog, ID: "d"}}, false, func(n *pending) { n.centers = true }},
		"the catalog": {[]state.Event{{Kind: state.KindCatalog}}, false, nil},
		"others":      {[]state.Event{{Kind: state.KindPod, ID: "p"}, {Kind: state.KindAssign, ID: "h"}, {Kind: state.KindStorage, ID: "b"}}, false, nil},
		"nobody says": {nil, true, func(n *pending) { n.all = true }},
		"two":         {[]state.Event{{Kind: state.KindHost, ID: "h"}, {Kind: state.KindPod, ID: "p"}}, false, func(n *pending) { n.hosts["h"] = true }},
	} {
		e, want := newPeerIndex(), newPending()
		e.heed(c.events, c.all)
		if c.want != nil {
			c.want(&want)
		}
		got := e.take()
		if d := cmp.Diff(want, got, cmp.AllowUnexported(pending{})); d != "" || (len(e.wake) > 0) != (c.want != nil) {
			t.Errorf("%s: it stirs %v (-want +got):\n%s", name, len(e.wake) > 0, d)
		}
		if d := cmp.Diff(newPending(), e.take(), cmp.AllowUnexported(pending{})); d != "" {
			t.Errorf("%s: what was taken is still there:\n%s", name, d)
		}
	}
}

// learned is an peerIndex of a test's own that looks at a world.
type learned struct {
	*world
	e *peerIndex
}

// look has the peerIndex look at what note notes, and returns who is to be told, in words, and how many changes it kept of acme's overlayHosts.
func (l *learned) look(note func(*pending)) (told string, changes int) {
	l.Helper()
	n := newPending()
	note(&n)
	var w targets
	check(l, l.store.View(func(v *state.View) error { w = l.e.learn(v, n); return nil }))
	told = fmt.Sprint(slices.Sorted(maps.Keys(w.hosts)))
	if w.all {
		told = "all"
	}
	if c := l.e.overlays[fleet.AccountOverlay("acme")]; c != nil {
		changes = len(c.log)
	}
	return told, changes
}

// TestWhoIsToldOfAChange: hosts that have members of the overlay that changed, or of which a member's host did, and all where nobody
// knows whom it concerns. What did not change is told to nobody.
func TestWhoIsToldOfAChange(t *testing.T) {
	y := newWorld(t)
	y.do(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-2", Name: "dc-2", Region: "EUROPE", GlobalNetwork: true}})
	for _, id := range []fleet.HostID{"h1", "h2", "h3"} {
		y.join(id)
	}
	overlay := fleet.AccountOverlay("acme")
	l := &learned{world: y, e: newPeerIndex()}
	y.runPod("p1", "h1")
	ofOverlay := func(n *pending) { n.overlays[overlay] = true }
	ofHost := func(id fleet.HostID) func(*pending) { return func(n *pending) { n.hosts[id] = true } }
	ofAccount := func(n *pending) { n.accounts["acme"] = true }
	ofCenters := func(n *pending) { n.centers = true }
	everything := func(n *pending) { n.all = true }
	egress := func(e fleet.Egress) func() { return func() { y.do(state.UpdateAccount{Account: "acme", Egress: &e}) } }
	underlay := func(u fleet.Underlay) func() {
		return func() {
			y.do(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-1", Name: "dc-1", Region: "EUROPE", GlobalNetwork: true, Underlay: u}})
		}
	}
	renewed := func() {
		h := y.host("h2")
		h.Inventory.Tunnel.PublicKey = tunnelOf("other").PublicKey
		y.do(state.UpdateInventory{Host: "h2", Epoch: h.Epoch, Inventory: h.Inventory, At: time.Now()})
	}
	for _, c := range []struct {
		what    string
		do      func()
		note    func(*pending)
		told    string
		changes int
		knows   string // hosts
	}{
		{"all is new", nil, everything, "all", 2, "[h1]"},
		{"a pod on another host", func() { y.runPod("p2", "h2") }, ofOverlay, "[h1 h2]", 4, "[h1 h2]"},
		{"its members only", func() { y.runPod("p3", "h2") }, ofOverlay, "[h1 h2]", 4, "[h1 h2]"},
		{"nothing of a host", nil, ofHost("h2"), "[]", 4, "[h1 h2]"},
		{"a host without pods", nil, ofHost("h3"), "[]", 4, "[h1 h2]"},
		{"a host nobody knows", nil, ofHost("h9"), "[]", 4, "[h1 h2]"},
		{"another way to a host", renewed, ofHost("h2"), "[h1 h2]", 5, "[h1 h2]"},
		{"nothing of the account", nil, ofAccount, "[]", 5, "[h1 h2]"},
		{"no egress", egress(fleet.EgressNone), ofAccount, "all", 5, "[h1 h2]"},
		{"no egress still", nil, ofAccount, "[]", 5, "[h1 h2]"},
		{"egress again", egress(""), ofAccount, "all", 5, "[h1 h2]"},
		{"egress still", nil, ofAccount, "[]", 5, "[h1 h2]"},
		{"nothing of the centers", nil, ofCenters, "[]", 5, "[h1 h2]"},
		{"a private wire", underlay(fleet.UnderlayPrivate), ofCenters, "all", 7, "[h1 h2]"},
		{"a private wire still", nil, ofCenters, "[]", 7, "[h1 h2]"},
		{"no private wire", underlay(""), ofCenters, "all", 9, "[h1 h2]"},
		{"the settings", nil, func(n *pending) { n.settings = true }, "all", 9, "[h1 h2]"},
		{"an overlay nobody has", nil, func(n *pending) { n.overlays["none"] = true }, "[]", 9, "[h1 h2]"},
		{"a host leaves", func() { y.endPod("p2", "h2"); y.endPod("p3", "h2") }, ofOverlay, "[h1 h2]", 10, "[h1]"},
		{"the last one leaves", func() { y.endPod("p1", "h1") }, ofOverlay, "[h1]", 0, "[]"},
		{"all of nothing", nil, everything, "all", 0, "[]"},
	} {
		if c.do != nil {
			c.do()
		}
		told, changes := l.look(c.note)
		knows := fmt.Sprint(slices.Sorted(maps.Keys(l.e.endpoints)))
		if told != c.told || changes != c.changes || knows != c.knows {
			t.Errorf("%s: told %s, %d changes, endpoints %s; want %s, %d, %s", c.what, told, changes, knows, c.told, c.changes, c.knows)
		}
		if _, none := l.e.overlays["none"]; none || (len(l.e.overlays) > 0) != (c.knows != "[]") {
			t.Errorf("%s: overlays %v", c.what, l.e.overlays)
		}
		if confined := strings.HasPrefix(c.what, "no egress"); l.e.confined["acme"] != confined || len(l.e.confined) > 1 {
			t.Errorf("%s: confined %v", c.what, l.e.confined)
		}
	}
}

// TestHowAHostIsReached: through the tunnel when it has a key and an address, by plain frames on a private wire.
func TestHowAHostIsReached(t *testing.T) {
	addr, v4, v6 := netip.MustParseAddr("100.127.0.1"), netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")
	at4, at6 := netip.AddrPortFrom(v4, 51820), netip.AddrPortFrom(v6, 51820)
	none := &agentrpc.HostPeer{}
	for name, c := range map[string]struct {
		addr          netip.Addr
		in            fleet.HostTunnel
		private       bool
		tunnel, plain *agentrpc.HostPeer
	}{
		"with all":          {addr, fleet.HostTunnel{PublicKey: "k", Endpoint: at4}, false, &agentrpc.HostPeer{TunnelAddr: "100.127.0.1", PublicKey: "k", Endpoint: "192.0.2.7:51820"}, nil},
		"behind a NAT":      {addr, fleet.HostTunnel{PublicKey: "k"}, false, &agentrpc.HostPeer{TunnelAddr: "100.127.0.1", PublicKey: "k"}, nil},
		"no key":            {addr, fleet.HostTunnel{Endpoint: at4}, false, nil, nil},
		"no address":        {netip.Addr{}, fleet.HostTunnel{PublicKey: "k", Endpoint: at4}, false, nil, nil},
		"a private wire":    {addr, fleet.HostTunnel{Plain: v4}, true, nil, &agentrpc.HostPeer{TunnelAddr: "100.127.0.1", Plain: "192.0.2.7"}},
		"by the endpoint":   {addr, fleet.HostTunnel{Endpoint: at4}, true, nil, &agentrpc.HostPeer{TunnelAddr: "100.127.0.1", Plain: "192.0.2.7"}},
		"IPv6 on a wire":    {addr, fleet.HostTunnel{Plain: v6}, true, nil, nil},
		"the plain address": {addr, fleet.HostTunnel{Plain: v4, Endpoint: at6}, true, nil, &agentrpc.HostPeer{TunnelAddr: "100.127.0.1", Plain: "192.0.2.7"}},
	} {
		got := newEndpoint(&fleet.Host{ID: "h", DataCenter: "d", Tunnel: c.addr, Inventory: fleet.Inventory{Tunnel: c.in}}, c.private)
		for _, want := range []*agentrpc.HostPeer{c.tunnel, c.plain} {
			if want != nil {
				want.HostId = "h"
			}
		}
		if !proto.Equal(got.tunnel, c.tunnel) || !proto.Equal(got.plain, c.plain) || got.center != "d" {
			t.Errorf("%s: %v, plain %v", name, got.tunnel, got.plain)
		}
	}
	both := &endpoint{center: "d", tunnel: none, plain: &agentrpc.HostPeer{Plain: "p"}}
	far, crypted := &endpoint{center: "e", tunnel: none, plain: both.plain}, &endpoint{center: "d", tunnel: none}
	for name, c := range map[string]struct {
		of, by *endpoint
		want   *agentrpc.HostPeer
	}{
		"nobody": {nil, both, nil}, "both plain": {both, both, both.plain}, "elsewhere": {both, far, none},
		"the other is not": {both, crypted, none}, "it is not": {crypted, both, none}, "by nobody known": {both, nil, none},
	} {
		if got := c.of.seenBy(c.by); got != c.want {
			t.Errorf("%s is seen as %v", name, got)
		}
	}
	if !both.equal(both) || both.equal(far) || both.equal(crypted) || both.equal(&endpoint{center: "d", plain: both.plain}) {
		t.Error("what is equal is not, or the other way round")
	}
}

// TestPeersOfSeveralOverlays are told once each, and never the host itself.
func TestPeersOfSeveralOverlays(t *testing.T) {
	e := newPeerIndex()
	e.at = 9
	reached := func(id string) *endpoint { return &endpoint{tunnel: &agentrpc.HostPeer{HostId: id}} }
	for _, id := range []string{"a", "b", "c"} {
		e.endpoints[fleet.HostID(id)] = reached(id)
	}
	e.endpoints["mute"] = &endpoint{}
	e.overlays["o"] = &overlayHosts{hosts: []fleet.HostID{"a", "b", "mute"}, from: 5, log: []change{{6, "b"}, {8, "mute"}, {8, "gone"}}}
	e.overlays["p"] = &overlayHosts{hosts: []fleet.HostID{"a", "b", "c"}, from: 6, log: []change{{7, "b"}, {8, "c"}}}
	for name, c := range map[string]struct {
		in    []fleet.OverlayID
		since uint64
		full  bool
		put   string
		gone  string
		none  bool
	}{
		"all of one":           {in: []fleet.OverlayID{"o"}, full: true, put: "b"},
		"all of two":           {in: []fleet.OverlayID{"o", "p"}, full: true, put: "b c"},
		"one that is not here": {in: []fleet.OverlayID{"q"}, full: true},
		"of two, before both":  {in: []fleet.OverlayID{"o", "p"}, since: 5, full: true, put: "b c"},
		"from the first on":    {in: []fleet.OverlayID{"o"}, since: 5, put: "b", gone: "gone mute"},
		"of two":               {in: []fleet.OverlayID{"o", "p"}, since: 6, put: "b c", gone: "gone mute"},
		"the last":             {in: []fleet.OverlayID{"p"}, since: 7, put: "c"},
		"nothing":              {in: []fleet.OverlayID{"p"}, since: 8, none: true},
	} {
		got, at := e.tellPeers("a", c.in, c.since)
		var put []string
		for _, p := range got.GetPut() {
			put = append(put, p.GetHostId())
		}
		if got.GetFull() != c.full || strings.Join(put, " ") != c.put || strings.Join(got.GetGone(), " ") != c.gone || (got == nil) != c.none || at != 9 {
			t.Errorf("%s: %v", name, got)
		}
	}
	e.overlays["p"].changed(9, "a")
	if got, _ := e.tellPeers("a", []fleet.OverlayID{"p"}, 8); !got.GetFull() || len(got.GetPut()) != 2 {
		t.Errorf("when the host itself changed: %v", got)
	}
}

// TestNewsOfAnOverlayAreMadeOnce, for the newest revision, and few are kept.
func TestNewsOfAnOverlayAreMadeOnce(t *testing.T) {
	y := newWorld(t)
	y.join("h1")
	y.runPod("p1", "h1")
	e := newPeerIndex()
	check(t, y.store.View(func(v *state.View) error {
		o, _ := v.Overlay(fleet.AccountOverlay("acme"))
		first := e.overlayChange(v, &o, 0)
		if first.GetOverlay().GetTo() != o.Rev || len(first.GetOverlay().GetPut()) != 1 || e.overlayChange(v, &o, 0) != first || e.overlayChange(v, &o, o.Rev+1) != first {
			t.Errorf("update %v", first)
		}
		if other := e.overlayChange(v, &o, o.Rev); other == first || other.GetOverlay().GetFrom() != o.Rev || len(other.GetOverlay().GetPut()) != 0 {
			t.Errorf("of its own revision: %v", other)
		}
		later := o
		later.Rev++
		newer := e.overlayChange(v, &later, 0)
		if newer.GetOverlay().GetTo() != later.Rev || newer == first {
			t.Errorf("of a later revision: %v", newer)
		}
		if old := e.overlayChange(v, &o, 0); old.GetOverlay().GetTo() != o.Rev || e.overlayChange(v, &later, 0) != newer {
			t.Errorf("of an older one: %v", old)
		}
		for i := range keptUpdates - 1 {
			e.updates[fleet.OverlayID(fmt.Sprint(i))] = &update{}
		}
		if e.overlayChange(v, &later, 0); len(e.updates) != keptUpdates {
			t.Errorf("%d are kept", len(e.updates))
		}
		later.ID = "another"
		if e.overlayChange(v, &later, 0); len(e.updates) != 1 {
			t.Errorf("%d are kept, and one more", len(e.updates))
		}
		return nil
	}))
}

// A host that was told of an earlier time than is remembered is told of all its peers.
func TestPeersOfLongAgo(t *testing.T) {
	e := newPeerIndex()
	c := &overlayHosts{}
	e.overlays["o"] = c
	for i := range 4 * keptChanges {
		e.at++
		id := fleet.HostID(fmt.Sprintf("h%d", i%8))
		e.endpoints[id] = newEndpoint(&fleet.Host{
			ID: id, Tunnel: netip.MustParseAddr("100.127.0.1"), Inventory: fleet.Inventory{Tunnel: fleet.HostTunnel{PublicKey: fmt.Sprint(i)}},
		}, false)
		c.changed(e.at, id)
	}
	c.hosts = []fleet.HostID{"h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"}
	in := []fleet.OverlayID{"o"}
	for _, tc := range []struct {
		since uint64
		full  bool
		put   int
	}{{0, true, 7}, {1, true, 7}, {e.at - 2, false, 2}, {e.at - 7, false, 7}, {e.at - 8, true, 7}} {
		got, at := e.tellPeers("h0", in, tc.since)
		if got.GetFull() != tc.full || len(got.GetPut()) != tc.put || at != e.at {
			t.Errorf("since %d of %d: %v", tc.since, e.at, got)
		}
	}
	if got, _ := e.tellPeers("h0", in, e.at); got != nil {
		t.Errorf("nothing changed: %v", got)
	}
	if len(c.log) > 2*keptChanges {
		t.Errorf("%d changes are kept", len(c.log))
	}
	c.hosts = c.hosts[:7]
	if got, _ := e.tellPeers("h0", in, e.at-1); len(got.GetGone()) != 1 || got.GetGone()[0] != "h7" {
		t.Errorf("a host left: %v", got)
	}
}
