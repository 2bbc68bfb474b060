package state

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

func TestEachHostHasItsAddressInTheTunnel(t *testing.T) {
	s := smallNetworks()
	s.Tunnel = netip.MustParsePrefix("100.127.0.0/28")
	w := newWorld(t)
	w.must(Bootstrap{ClusterID: "cluster", At: at(0)}, PutNetworkSettings{s})
	seen := map[netip.Addr]bool{}
	for i := range 14 {
		h := w.connected(fleet.HostID(fmt.Sprintf("host-%02d", i)), at(i))
		if !s.Tunnel.Contains(h.Tunnel) || seen[h.Tunnel] || !h.Networked() {
			t.Fatalf("host %s has %s", h.ID, h.Tunnel)
		}
		seen[h.Tunnel] = true
	}
	if seen[netip.MustParseAddr("100.127.0.0")] || seen[netip.MustParseAddr("100.127.0.15")] {
		t.Errorf("given out were %v", seen)
	}
	full := w.connected("host-late", at(20))
	if full.Tunnel.IsValid() || full.Networked() || !noticed(full, conditionRangeTaken) {
		t.Errorf("got %+v", full)
	}
	w.check()
	// It goes with the host's record.
	first := w.host("host-00")
	w.must(RemoveHost{Host: "host-00", At: at(30)})
	again := UpdateInventory{Host: "host-late", Epoch: 1, Inventory: inventory("host-late"), At: at(31)}
	w.must(again)
	if h := w.host("host-late"); h.Tunnel.IsValid() {
		t.Errorf("it has the address of a host whose record is there: %s", h.Tunnel)
	}
	w.must(PurgeHosts{Before: at(40)}, again)
	if h := w.host("host-late"); h.Tunnel != first.Tunnel || noticed(h, conditionRangeTaken) || !h.Networked() {
		t.Errorf("got %s, want %s", h.Tunnel, first.Tunnel)
	}
	if h := w.connect("host-01"); h.Tunnel != netip.MustParseAddr("100.127.0.2") {
		t.Errorf("in its next session it has %s", h.Tunnel)
	}
	w.check()
}

func noticed(h fleet.Host, code string) bool {
	return slices.ContainsFunc(h.Inventory.Conditions, func(n fleet.Condition) bool { return n.Code == code })
}

// No host takes another's place in the tunnel by saying that its key is its own.
func TestNoTwoHostsHaveOneKey(t *testing.T) {
	w := networked(t, smallNetworks())
	says := func(host fleet.HostID, own fleet.HostTunnel) UpdateInventory {
		inv := inventory(host)
		inv.Conditions = []fleet.Condition{{Code: "a"}, {Code: "z"}}
		inv.Tunnel = own
		return UpdateInventory{Host: host, Epoch: w.host(host).Epoch, Inventory: inv, At: at(10)}
	}
	wants := func(host, whose fleet.HostID) {
		t.Helper()
		h := w.host(host)
		want := fleet.HostTunnel{}
		if whose != "" {
			want = hostTunnel(whose)
		}
		if h.Inventory.Tunnel != want || noticed(h, conditionKeyTaken) != (whose == "") || h.Networked() != (whose != "") {
			t.Errorf("host %s has %+v, conditions %+v", host, h.Inventory.Tunnel, h.Inventory.Conditions)
		}
		if !slices.IsSortedFunc(h.Inventory.Conditions, func(a, b fleet.Condition) int { return strings.Compare(a.Code, b.Code) }) {
			t.Errorf("conditions %+v", h.Inventory.Conditions)
		}
	}
	w.must(says("host-b", hostTunnel("host-a")))
	wants("host-b", "")
	wants("host-a", "host-a")
	index := w.s.Index()
	w.must(says("host-b", hostTunnel("host-a")))
	if w.said(index)[Event{Kind: KindHost, ID: "host-b"}] {
		t.Error("what is said again is news")
	}
	// A key is free when its host has another: within a batch, too.
	res, err := w.s.Apply([]entry.Entry{
		w.entry(says("host-a", hostTunnel("new")), says("host-b", hostTunnel("new"))), w.entry(says("host-b", hostTunnel("host-a"))),
	})
	if err != nil || res[0][0].Err != nil || res[0][1].Err != nil || res[1][0].Err != nil {
		t.Fatal(err, res)
	}
	wants("host-a", "new")
	wants("host-b", "host-a")
	w.check()
	// And when its host is gone.
	w.must(RemoveHost{Host: "host-b", At: at(11)}, says("host-a", hostTunnel("host-a")))
	wants("host-a", "host-a")
	w.check()
}

func TestWhatAHostSaysOfItsTunnel(t *testing.T) {
	key := hostTunnel("host-a").PublicKey
	v4, v6 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
	at4 := netip.AddrPortFrom(v4, 51_820)
	w := newWorld(t).settle()
	for name, c := range map[string]struct{ in, want fleet.HostTunnel }{
		"all":      {fleet.HostTunnel{PublicKey: key, Endpoint: at4, Plain: v6, UserSpace: true}, fleet.HostTunnel{PublicKey: key, Endpoint: at4, Plain: v6, UserSpace: true}},
		"nothing":  {},
		"NAT":      {fleet.HostTunnel{PublicKey: key}, fleet.HostTunnel{PublicKey: key}},
		"no key":   {fleet.HostTunnel{Endpoint: at4, Plain: v4, UserSpace: true}, fleet.HostTunnel{Plain: v4}},
		"short":    {fleet.HostTunnel{PublicKey: key[:40], Endpoint: at4}, fleet.HostTunnel{}},
		"long":     {fleet.HostTunnel{PublicKey: key + key, Endpoint: at4}, fleet.HostTunnel{}},
		"no text":  {fleet.HostTunnel{PublicKey: key[:43] + "\n"}, fleet.HostTunnel{}},
		"zero":     {fleet.HostTunnel{PublicKey: base64.StdEncoding.EncodeToString(make([]byte, 32))}, fleet.HostTunnel{}},
		"mapped":   {fleet.HostTunnel{PublicKey: key, Endpoint: netip.MustParseAddrPort("[::ffff:192.0.2.9]:51820")}, fleet.HostTunnel{PublicKey: key, Endpoint: at4}},
		"no port":  {fleet.HostTunnel{PublicKey: key, Endpoint: netip.AddrPortFrom(v4, 0)}, fleet.HostTunnel{PublicKey: key}},
		"loopback": {fleet.HostTunnel{PublicKey: key, Endpoint: netip.MustParseAddrPort("127.0.0.1:1"), Plain: netip.MustParseAddr("::1")}, fleet.HostTunnel{PublicKey: key}},
		"anywhere": {fleet.HostTunnel{PublicKey: key, Endpoint: netip.MustParseAddrPort("0.0.0.0:1"), Plain: netip.MustParseAddr("255.255.255.255")}, fleet.HostTunnel{PublicKey: key}},
		"group":    {fleet.HostTunnel{PublicKey: key, Endpoint: netip.MustParseAddrPort("224.0.0.1:1"), Plain: netip.MustParseAddr("ff02::1")}, fleet.HostTunnel{PublicKey: key}},
		"link":     {fleet.HostTunnel{PublicKey: key, Endpoint: netip.MustParseAddrPort("169.254.1.1:1"), Plain: netip.MustParseAddr("fe80::1%eth0")}, fleet.HostTunnel{PublicKey: key}},
		"zone":     {fleet.HostTunnel{PublicKey: key, Plain: v6.WithZone("eth0")}, fleet.HostTunnel{PublicKey: key}},
		"itself":   {fleet.HostTunnel{PublicKey: key, Endpoint: netip.MustParseAddrPort("100.127.0.9:1"), Plain: netip.MustParseAddr("100.127.0.9")}, fleet.HostTunnel{PublicKey: key}},
	} {
		inv := inventory("host-a")
		inv.Tunnel = c.in
		for _, cmd := range []Command{
			ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Inventory: inv, At: at(10)},
			UpdateInventory{Host: "host-a", Epoch: w.host("host-a").Epoch + 1, Inventory: inv, At: at(11)},
		} {
			w.must(cmd)
			if got := w.host("host-a").Inventory.Tunnel; got != c.want {
				t.Errorf("%s: after %T it is %+v, want %+v", name, cmd, got, c.want)
			}
		}
	}
	w.check()
}

// badSettings are changes of good settings, each with the field that is refused.
func badSettings() map[string]badSetting {
	p := netip.MustParsePrefix
	return map[string]badSetting{
		"no pool":                  {"$.pool", func(s *fleet.NetworkSettings) { s.Pool = netip.Prefix{} }},
		"a pool of IPv6":           {"$.pool", func(s *fleet.NetworkSettings) { s.Pool = p("fd00::/16") }},
		"bits beyond the length":   {"$.pool", func(s *fleet.NetworkSettings) { s.Pool = p("10.64.0.1/10") }},
		"loopback":                 {"$.pool", func(s *fleet.NetworkSettings) { s.Pool = p("127.0.0.0/16") }},
		"all there is":             {"$.pool", func(s *fleet.NetworkSettings) { s.Pool = p("0.0.0.0/0") }},
		"multicast":                {"$.pool", func(s *fleet.NetworkSettings) { s.Pool = p("224.0.0.0/8") }},
		"hosts' own range":         {"$.pool", func(s *fleet.NetworkSettings) { s.Pool = p("10.88.0.0/14") }},
		"a range above the pool":   {"$.bits", func(s *fleet.NetworkSettings) { s.Pool, s.Bits = p("10.64.0.0/20"), 19 }},
		"a range that is too wide": {"$.bits", func(s *fleet.NetworkSettings) { s.Bits = 15 }},
		"one that is too small":    {"$.bits", func(s *fleet.NetworkSettings) { s.Bits = 29 }},
		"VNI 0":                    {"$.firstVxlanId", func(s *fleet.NetworkSettings) { s.FirstVNI = 0 }},
		"VNI above":                {"$.firstVxlanId", func(s *fleet.NetworkSettings) { s.FirstVNI = 1 << 24 }},
		"no suffix":                {"$.suffix", func(s *fleet.NetworkSettings) { s.Suffix = "" }},
		"capitals":                 {"$.suffix", func(s *fleet.NetworkSettings) { s.Suffix = "Gantry.internal" }},
		"a dot at the end":         {"$.suffix", func(s *fleet.NetworkSettings) { s.Suffix = "internal." }},
		"a long label":             {"$.suffix", func(s *fleet.NetworkSettings) { s.Suffix = strings.Repeat("a", 64) + ".b" }},
		"a long suffix":            {"$.suffix", func(s *fleet.NetworkSettings) { s.Suffix = strings.Repeat("a.", 100) + "b" }},
		"reverse lookups":          {"$.suffix", func(s *fleet.NetworkSettings) { s.Suffix = "in-addr.arpa" }},
		"an alias twice":           {"$.aliases", func(s *fleet.NetworkSettings) { s.Aliases = []string{"a.b", "a.b"} }},
		"an alias below":           {"$.aliases", func(s *fleet.NetworkSettings) { s.Aliases = []string{"eu.gantry.internal"} }},
		"an alias above":           {"$.aliases", func(s *fleet.NetworkSettings) { s.Aliases = []string{"internal"} }},
		"no alias":                 {"$.aliases", func(s *fleet.NetworkSettings) { s.Aliases = []string{"_x"} }},
		"nine aliases":             {"$.aliases", func(s *fleet.NetworkSettings) { s.Aliases = strings.Split("a b c d e f g h i", " ") }},
		"a small MTU":              {"$.mtu", func(s *fleet.NetworkSettings) { s.MTU = 1279 }},
		"a large MTU":              {"$.mtu", func(s *fleet.NetworkSettings) { s.MTU = 8931 }},
		"no port":                  {"$.vxlanPort", func(s *fleet.NetworkSettings) { s.VXLANPort = 0 }},
		"a port above":             {"$.wireguardPort", func(s *fleet.NetworkSettings) { s.WireGuardPort = 65_536 }},
		"one port":                 {"$.wireguardPort", func(s *fleet.NetworkSettings) { s.WireGuardPort = s.VXLANPort }},
		"tunnel in the pool":       {"$.tunnelRange", func(s *fleet.NetworkSettings) { s.Tunnel = p("10.64.0.0/16") }},
		"tunnel in hosts' range":   {"$.tunnelRange", func(s *fleet.NetworkSettings) { s.Pool, s.Tunnel = p("10.64.0.0/16"), p("10.88.0.0/16") }},
		"a tunnel of few":          {"$.tunnelRange", func(s *fleet.NetworkSettings) { s.Tunnel = p("100.127.0.0/29") }},
		"no tunnel":                {"$.tunnelRange", func(s *fleet.NetworkSettings) { s.Tunnel = netip.Prefix{} }},
		"slow":                     {"$.podMbps", func(s *fleet.NetworkSettings) { s.PodMbps = -1 }},
		"fast":                     {"$.podMbps", func(s *fleet.NetworkSettings) { s.PodMbps = 400_001 }},
		"grace before":             {"$.graceSeconds", func(s *fleet.NetworkSettings) { s.Grace = -time.Second }},
		"grace of days":            {"$.graceSeconds", func(s *fleet.NetworkSettings) { s.Grace = 25 * time.Hour }},
	}
}

type badSetting struct {
	path   string
	change func(s *fleet.NetworkSettings)
}

func TestNetworkSettingsAreChecked(t *testing.T) {
	w := networked(t, fleet.DefaultNetworkSettings())
	for name, c := range badSettings() {
		s := fleet.DefaultNetworkSettings()
		c.change(&s)
		w.refused(fleet.CodeInvalid, PutNetworkSettings{s})
		if got := detail(w.do(PutNetworkSettings{s}).Err); !strings.HasPrefix(got, c.path+":") {
			t.Errorf("%s: it says %q", name, got)
		}
	}
}

// What is there already stays right.
func TestNetworkSettingsThatChange(t *testing.T) {
	p := netip.MustParsePrefix
	w := networked(t, fleet.DefaultNetworkSettings())
	w.joins("p1", "acme", "host-a", at(10))
	s := fleet.DefaultNetworkSettings()
	s.Tunnel = p("100.126.0.0/16")
	w.refused(fleet.CodeConflictRule, PutNetworkSettings{s})
	s.Pool, s.Tunnel = p("172.16.0.0/12"), p("10.64.0.0/16")
	w.refused(fleet.CodeConflictRule, PutNetworkSettings{s})
	s.Tunnel, s.FirstVNI, s.Grace = p("100.126.0.0/15"), 1, 0
	index := w.s.Index()
	if got := w.must(PutNetworkSettings{s}).(fleet.NetworkSettings); got.Pool != s.Pool || !w.said(index)[Event{Kind: KindNetwork}] {
		t.Errorf("got %+v", got)
	}
	w.joins("p2", "other", "host-a", at(11))
	if o := w.overlay("account-other"); o.VNI != 2 || o.CIDR != p("172.17.0.0/16") {
		t.Errorf("the next overlay is %+v", o)
	}
	w.check()
}

func TestPoliciesAreChecked(t *testing.T) {
	w := newWorld(t).settle()
	w.refused(fleet.CodeInvalid, PutDataCenter{fleet.DataCenter{ID: "dc-1", Underlay: "open"}})
	w.refused(fleet.CodeInvalid, UpdateAccount{Account: "acme", Egress: ptr(fleet.Egress("some"))})
	w.refused(fleet.CodeInvalid, PutAccount{fleet.Account{ID: "new", Egress: "some"}})
	if a := w.must(UpdateAccount{Account: "acme", Egress: ptr(fleet.EgressNone)}).(fleet.Account); a.Egress != fleet.EgressNone || a.Name != "Acme" {
		t.Errorf("got %+v", a)
	}
	w.check()
}

// detail returns what an error says of a field.
func detail(err error) string {
	if e, ok := err.(*fleet.Error); ok && len(e.Details) > 0 { //nolint:errorlint // results are of that type
		return e.Details[0]
	}
	return fmt.Sprint(err)
}

func TestNoVNIIsTwoOverlays(t *testing.T) {
	s := smallNetworks()
	s.FirstVNI = maxVNI - 1 // two of them
	w := networked(t, s)
	w.joins("p1", "acme", "host-a", at(10))
	w.joins("p2", "other", "host-a", at(10))
	w.must(PutAccount{fleet.Account{ID: "third"}})
	w.refused(fleet.CodeNoCapacity, CreatePods{Pods: []NewPod{{Pod: inNetwork("p3", "third", "host-a", at(10)), HostEpoch: 1}}})
	s.FirstVNI--
	w.must(PutNetworkSettings{s})
	w.joins("p3", "third", "host-a", at(10))
	if o := w.overlay("account-third"); o.VNI != maxVNI-2 {
		t.Errorf("got %+v", o)
	}
	w.check()
}
