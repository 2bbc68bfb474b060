package netctl

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files")

func sample() Config {
	c := Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.16.0/20"), MTU: 1500}
	c.Deny = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("169.254.1.0/24")}
	for i, id := range []string{"m3k9x1q2", "a1b2c3d4"} {
		c = c.With(NewPod("0a1b", id, netip.AddrFrom4([4]byte{10, 88, 16, byte(2 + i)})))
	}
	return c
}

// apart is sample with a pod in a user namespace.
func apart() Config {
	c := sample()
	c.Pods[1].IDBase = 0x10030000
	return c
}

// published is sample with ports.
func published() Config {
	c := sample()
	c.Public = addrsOf("10.1.2.3", "203.0.113.7")
	c.Pods[0].Ports = []Port{{30_001, 22}, {30_002, 9000}}
	return c
}

// joined is sample with overlays.
func joined() Config {
	c := sample()
	c.Names, c.Flows = true, 32_768
	c.Barred = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:7000"), netip.MustParseAddrPort("192.0.2.10:7001")}
	c.Underlay = Underlay{
		Addr: netip.MustParseAddr("100.127.0.1"), Range: netip.MustParsePrefix("100.127.0.0/16"), Port: 4789, MTU: 1370,
		Plain: addrsOf("192.0.2.1", "192.0.2.2"),
	}
	member := func(last byte, via Via) Member {
		return Member{netip.AddrFrom4([4]byte{10, 64, 0, last}), fmt.Sprintf("0a:67:0a:40:00:%02x", last), via}
	}
	c.Overlays = []Overlay{
		{VNI: 4096, CIDR: netip.MustParsePrefix("10.64.0.0/16"), Members: []Member{
			member(2, Via{}), member(3, Via{netip.MustParseAddr("192.0.2.2"), false}), member(4, Via{netip.MustParseAddr("100.127.0.9"), true}),
		}},
		{VNI: 4097, CIDR: netip.MustParsePrefix("10.64.0.0/16")},
	}
	c.Pods[0].Overlays = []Place{{4096, netip.MustParseAddr("10.64.0.2"), "0a:67:0a:40:00:02", "podnet1"}, {4097, netip.MustParseAddr("10.64.0.2"), "0a:67:0a:40:00:02", "cluster0"}}
	c.Pods[0].Mbps, c.Pods[1].Closed = 100, true
	return c
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestTextForm(t *testing.T) {
	c := sample()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	golden(t, "config.txt", c.String())
	golden(t, "published.txt", published().String())
	golden(t, "apart.txt", apart().String())
	golden(t, "joined.txt", joined().String())
}

func TestDiff(t *testing.T) {
	have := sample()
	moved := have.With(NewPod("0a1b", "a1b2c3d4", netip.MustParseAddr("10.88.16.9")))
	wider := have.Clone()
	wider.MTU = 1400
	other := Config{Instance: "0a1c", Subnet: have.Subnet, MTU: 1500}.With(NewPod("0a1c", "a1b2c3d4", have.Pods[0].Addr))
	var b strings.Builder
	for _, row := range []struct {
		name       string
		have, want Config
	}{
		{"nothing to do", have, have.Clone()},
		{"from nothing", Config{Instance: "0a1b"}, have},
		{"one pod less", have, have.Without("m3k9x1q2")},
		{"a pod moves", have, moved},
		{"ports of a pod", have, published()},
		{"ids of a pod", have, apart()},
		{"ids of a pod that stands", have, apart().Keeping(have)},
		{"the host changes, one goes, one comes", have, wider.Without("a1b2c3d4").With(NewPod("0a1b", "z", netip.MustParseAddr("10.88.16.7")))},
		{"another instance", have, other},
		{"overlays come", have, joined()},
		{"a member goes, one comes, one moves", joined(), otherMembers()},
		{"overlays go", joined(), have},
	} {
		fmt.Fprintf(&b, "# %s\n%s", row.name, Text(Diff(row.have, row.want)))
	}
	golden(t, "diff.txt", b.String())
}

func TestValidateNamesMemberAndRule(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"instance: want 4 lower-case hexadecimal digits":                          func(c *Config) { *c = Config{Instance: "0A1B", Subnet: c.Subnet, MTU: 1500} },
		"subnet: want a masked IPv4 prefix of /8 to /29":                          func(c *Config) { c.Subnet = netip.MustParsePrefix("10.88.16.1/20") },
		"mtu: want 576 to 65535":                                                  func(c *Config) { c.MTU = 575 },
		"flows: want 0 to 1000000":                                                func(c *Config) { c.Flows = -1 },
		"deny[0]: want a masked IPv4 prefix":                                      func(c *Config) { c.Deny[0] = netip.MustParsePrefix("fd00::/8") },
		"deny[1]: want ascending prefixes":                                        func(c *Config) { c.Deny[1] = c.Deny[0] },
		"pods[0].id: want letters and digits, after the first also - and _":       func(c *Config) { c.Pods[0].ID = "../x" },
		"pods[0].id: want 1 to 64 characters":                                     func(c *Config) { c.Pods[0].ID = "" },
		"pods[0].namespace: want the name that follows from instance and id":      func(c *Config) { c.Pods[0].Namespace = "x" },
		"pods[0].addr: want an address of the subnet":                             func(c *Config) { c.Pods[0].Addr = netip.MustParseAddr("10.99.0.1") },
		"pods[0].addr: the subnet's first, gateway and last address are reserved": func(c *Config) { c.Pods[0].Addr = netip.MustParseAddr("10.88.16.1") },
		"pods[0].mac: want six lower-case octets with colons":                     func(c *Config) { c.Pods[0].MAC = "0A:58:0a:58:10:02" },
		"pods[0].mac: want a unicast address":                                     func(c *Config) { c.Pods[0].MAC = "01:58:0a:58:10:02" },
		"pods[1].id: want ascending ids":                                          func(c *Config) { c.Pods[0], c.Pods[1] = c.Pods[1], c.Pods[0] },
		"pods[1].id: address, hardware address or link name is another pod's":     func(c *Config) { c.Pods[1].MAC = c.Pods[0].MAC },
		"pods[1].id base: the first id is out of range":                           func(c *Config) { c.Pods[1].IDBase = 0xfffff000 },
		"barred[0]: want an IPv4 address and a port":                              func(c *Config) { c.Barred = make([]netip.AddrPort, 1) },
		"barred[1]: want ascending addresses":                                     func(c *Config) { c.Barred = joined().Barred; c.Barred[1] = c.Barred[0] },
		"barred: want at most 256":                                                func(c *Config) { c.Barred = make([]netip.AddrPort, 257) },
		"public[0]: want an IPv4 address that others can reach":                   func(c *Config) { c.Public = addrsOf("127.0.0.1") },
		"public[1]: want ascending addresses":                                     func(c *Config) { c.Public = addrsOf("203.0.113.7", "203.0.113.7") },
		"public: want at most 8 addresses":                                        func(c *Config) { c.Public = make([]netip.Addr, 9) },
		"pods[0].ports: want 1 to 65535":                                          func(c *Config) { c.Pods[0].Ports = []Port{{Public: 30_000}} },
		"pods[0].ports: want ascending public ports":                              func(c *Config) { c.Pods[0].Ports = []Port{{30_001, 1}, {30_001, 2}} },
		"pods[0].ports: want at most 256":                                         func(c *Config) { c.Pods[0].Ports = make([]Port, 257) },
		"pods[1].ports: a public port is another pod's": func(c *Config) {
			c.Pods[0].Ports, c.Pods[1].Ports = []Port{{30_001, 22}}, []Port{{30_001, 22}}
		},
		"mtu: want 576 to 65535\npods[0].namespace: want the name that follows from instance and id": func(c *Config) { c.MTU, c.Pods[0].Namespace = 0, "" },
	} {
		c := sample()
		change(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

func addrsOf(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// otherMembers is joined with other members.
func otherMembers() Config {
	c := joined()
	o := c.Overlays[0]
	o.Members = []Member{o.Members[0], o.Members[2], {netip.MustParseAddr("10.64.0.7"), "0a:67:0a:40:00:07", Via{}}}
	o.Members[1].Via.Addr = netip.MustParseAddr("100.127.0.10")
	return c.WithOverlay(o)
}

func TestValidateOverlays(t *testing.T) {
	if err := joined().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"overlays[0].vni: want 1 to 16777215":     func(c *Config) { c.Overlays[0].VNI = 1 << 24; c.Pods[0].Overlays = nil },
		"overlays[1].vni: want ascending numbers": func(c *Config) { c.Overlays[1].VNI = 4096; c.Pods[0].Overlays = nil },
		"overlays[0].cidr: want a masked IPv4 prefix of /8 to /29": func(c *Config) {
			c.Overlays[0].CIDR = netip.MustParsePrefix("fd00::/64")
			c.Pods[0].Overlays = nil
			c.Overlays[0].Members = nil
		},
		"overlays[0].members[0].addr: want an address of the overlay":            func(c *Config) { c.Overlays[0].Members[0].Addr = netip.MustParseAddr("10.65.0.1") },
		"overlays[0].members[1].addr: want ascending addresses":                  func(c *Config) { c.Overlays[0].Members[1].Addr = c.Overlays[0].Members[0].Addr },
		"overlays[0].members[0].mac: want a unicast address":                     func(c *Config) { c.Overlays[0].Members[0].MAC = "01:67:0a:40:00:02" },
		"overlays[0].members[1].mac: is another member's":                        func(c *Config) { c.Overlays[0].Members[1].MAC = c.Overlays[0].Members[0].MAC },
		"overlays[0].members[0].via: want an IPv4 address":                       func(c *Config) { c.Overlays[0].Members[0].Via.Tunnel = true },
		"pods[0].overlays[0].vni: is no overlay's":                               func(c *Config) { c.Overlays = c.Overlays[1:] },
		"pods[0].overlays[0].addr: want an address of the overlay":               func(c *Config) { c.Pods[0].Overlays[0].Addr = netip.MustParseAddr("10.65.0.1") },
		"pods[0].overlays[1].vni: want ascending numbers":                        func(c *Config) { c.Pods[0].Overlays[1].VNI = 4096 },
		"pods[0].overlays[1].link: is another place's":                           func(c *Config) { c.Pods[0].Overlays[1].Link = "podnet1" },
		"pods[0].overlays[0].link: want 1 to 15 of a-z 0-9, not eth0 or lo":      func(c *Config) { c.Pods[0].Overlays[0].Link = "eth0" },
		"pods[0].overlays[0].mac: want six lower-case octets with colons":        func(c *Config) { c.Pods[0].Overlays[0].MAC = "" },
		"pods[0].overlays: want at most 4":                                       func(c *Config) { c.Pods[0].Overlays = make([]Place, 5) },
		"pods[1].overlays[0].addr: address or hardware address is another pod's": func(c *Config) { c.Pods[1].Overlays = c.Pods[0].Overlays[:1] },
		"pods[0].mbps: want 0 to 1000000":                                        func(c *Config) { c.Pods[0].Mbps = -1 },
		"underlay.mtu: want 576 to 65535":                                        func(c *Config) { c.Underlay.MTU = 1 },
		"underlay.port: want 1 to 65535":                                         func(c *Config) { c.Underlay.Port = 0 },
		"underlay.range: want a masked IPv4 prefix":                              func(c *Config) { c.Underlay.Range = netip.MustParsePrefix("100.127.0.1/16") },
		"underlay.addr: want an address of the range":                            func(c *Config) { c.Underlay.Addr = netip.MustParseAddr("10.0.0.1") },
		"underlay.plain[1]: want ascending IPv4 addresses":                       func(c *Config) { c.Underlay.Plain[1] = c.Underlay.Plain[0] },
		"underlay.plain: want at most 4096 addresses":                            func(c *Config) { c.Underlay.Plain = make([]netip.Addr, 4097) },
	} {
		c := joined()
		change(&c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

func FuzzParseOverlayMarks(f *testing.F) {
	c := joined()
	f.Add(PlaceMark("0a1b", "x", 16, 1370, c.Pods[0].Overlays[0]))
	f.Add(OverlayMark("0a1b", c.Overlays[0]))
	f.Fuzz(func(t *testing.T, text string) {
		if instance, pod, at, err := ParsePlaceMark(text); err == nil && (CheckInstance(instance) != nil || CheckPodID(pod) != nil || at.check() != nil) {
			t.Errorf("%q read as an invalid place", text)
		}
		if instance, o, err := ParseOverlayMark(text); err == nil && OverlayMark(instance, o) != text {
			t.Errorf("%q is written as %q", text, OverlayMark(instance, o))
		}
	})
}

func TestPublicPortGoesToTheLastPod(t *testing.T) {
	c := sample()
	first, second := c.Pods[0], c.Pods[1]
	first.Ports = []Port{{30_001, 22}, {30_002, 9000}}
	second.Ports = []Port{{30_002, 22}}
	one := c.With(first)
	both := one.With(second)
	if d := cmp.Diff([]Port{{30_001, 22}}, both.Pods[0].Ports); d != "" || both.Validate() != nil {
		t.Errorf("%s%v", d, both.Validate())
	}
	if d := cmp.Diff(first.Ports, one.Pods[0].Ports); d != "" {
		t.Errorf("the original changed: %s", d)
	}
	if one.Equal(c) || one.Equal(both) || !both.Equal(both.Clone()) || !first.SamePlace(c.Pods[0]) || first.Equal(c.Pods[0]) {
		t.Error("ports do not count in comparisons, or too much")
	}
	again := both.Clone()
	again.Pods[1].Ports[0].Private = 1
	if both.Pods[1].Ports[0].Private != 22 {
		t.Error("a copy shares its ports")
	}
}

func TestWithAndWithoutShareNothing(t *testing.T) {
	c := sample()
	text := c.String()
	d := c.With(NewPod("0a1b", "b", netip.MustParseAddr("10.88.16.20"))).Without("a1b2c3d4")
	d.Deny[0] = netip.MustParsePrefix("192.0.2.0/24")
	barred := joined()
	barred.Clone().Barred[0] = netip.AddrPort{}
	if !barred.Equal(joined()) || barred.Equal(barred.WithPolicy(Policy{Names: true})) {
		t.Error("barred addresses are shared, or do not count in comparisons")
	}
	if c.String() != text || !c.Equal(sample()) || c.Equal(d) {
		t.Error("a copy shares memory with its original")
	}
}

func TestNamesFitTheKernel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}`).Draw(t, "id")
		link := LinkName("0a1b", id)
		if len(link) != 15 || !strings.HasPrefix(link, BridgeName("0a1b")) || link != LinkName("0a1b", id) {
			t.Errorf("link %q", link)
		}
		if CheckPodID(id) != nil {
			t.Errorf("id %q refused", id)
		}
	})
}

func TestNextAddr(t *testing.T) {
	small := netip.MustParsePrefix("10.88.0.0/29")
	used := map[netip.Addr]bool{}
	var got []string
	for {
		a, err := NextAddr(small, used)
		if err != nil {
			if !errors.Is(err, ErrNoFreeAddr) {
				t.Fatal(err)
			}
			break
		}
		got, used[a] = append(got, a.String()), true
	}
	if diff := cmp.Diff("10.88.0.2 10.88.0.3 10.88.0.4 10.88.0.5 10.88.0.6", strings.Join(got, " ")); diff != "" {
		t.Error(diff)
	}
	delete(used, netip.MustParseAddr("10.88.0.4"))
	if a, err := NextAddr(small, used); err != nil || a.String() != "10.88.0.4" {
		t.Errorf("freed address: %s, %v", a, err)
	}
	if _, err := NextAddr(netip.MustParsePrefix("fd00::/64"), nil); err == nil {
		t.Error("an IPv6 subnet passed")
	}
}

func TestPickSubnet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		instance := rapid.StringMatching(`[0-9a-f]{4}`).Draw(t, "instance")
		var taken []netip.Prefix
		for range 128 {
			p, err := PickSubnet(instance, taken)
			if err != nil || p.Bits() != 20 || p != p.Masked() || !Pool().Contains(p.Addr()) || overlapsAny(p, taken) {
				t.Fatalf("%s, %v", p, err)
			}
			taken = append(taken, p)
		}
		if _, err := PickSubnet(instance, taken); !errors.Is(err, ErrNoFreeSubnet) {
			t.Fatalf("a full pool: %v", err)
		}
	})
	if _, err := PickSubnet("x", nil); err == nil {
		t.Error("a bad instance passed")
	}
	if _, err := PickSubnet("0a1b", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}); !errors.Is(err, ErrNoFreeSubnet) {
		t.Errorf("a route over the pool: %v", err)
	}
}

func FuzzParseMark(f *testing.F) {
	c := sample()
	f.Add(Mark(c, c.Pods[0]))
	f.Add("gantry 1 0a1b x 10.88.16.2/20 0a:58:0a:58:10:02 1500")
	f.Add("gantry 1 0a1b x 10.88.16.1/20 0a:58:0a:58:10:02 01500")
	f.Fuzz(func(t *testing.T, text string) {
		host, pod, err := ParseMark(text)
		if err != nil {
			return
		}
		if err := host.With(pod).Validate(); err != nil {
			t.Errorf("%q read as an invalid value: %v", text, err)
		}
		if Mark(host, pod) != text {
			t.Errorf("%q is written as %q", text, Mark(host, pod))
		}
	})
}
