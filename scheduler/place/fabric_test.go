package place

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
)

// fabricOf is a fabric of one port.
func fabricOf(link string, mbps int64) fleet.Fabric {
	p := fleet.FabricPort{Device: "mlx5_0", Port: 1, Link: link, State: fleet.PortActive, Mbps: mbps}
	if link == fleet.LinkInfiniBand {
		p.Subnet = "fe80"
	}
	return fleet.Fabric{Mode: fleet.FabricShared, Ports: []fleet.FabricPort{p}}
}

// TestAGroupSharesAFabric: the fastest that has enough hosts, then hosts without any, and both kinds only where nothing else is left.
func TestAGroupSharesAFabric(t *testing.T) {
	ib := fabricOf(fleet.LinkInfiniBand, 400_000)
	for what, c := range map[string]struct {
		ib, roce, none, count int
		full                  int // of those of InfiniBand, whose virtual functions are taken
		want                  string
	}{
		"the fastest":                          {4, 4, 4, 4, 0, "ib ib ib ib"},
		"the one that has enough":              {3, 4, 4, 4, 0, "roce roce roce roce"},
		"none, rather than a mixture":          {3, 3, 4, 4, 0, "none none none none"},
		"a mixture where nothing is left":      {1, 1, 1, 3, 0, "ib none roce"},
		"one whose function is taken has none": {4, 0, 3, 4, 1, "ib none none none"},
	} {
		x := NewIndex()
		add := func(kind string, n int, f fleet.Fabric, full int) {
			for i := range n {
				h := host(fmt.Sprintf("%s-%d", kind, i), gpus(fmt.Sprint(kind, i), h100, 8, 8)...).but(func(c *Candidate) {
					c.Host.Inventory.Fabric = f
					if i < full {
						c.Host.Inventory.Fabric.Mode, c.Fabrics = fleet.FabricFunctions, 1
						c.Host.Inventory.Fabric.Ports = slices.Clone(f.Ports)
						c.Host.Inventory.Fabric.Ports[0].Functions = 1
					}
				})
				x.Put(h)
			}
		}
		add("ib", c.ib, ib, c.full)
		add("roce", c.roce, fabricOf(fleet.LinkEthernet, 200_000), 0)
		add("none", c.none, fleet.Fabric{}, 0)
		choices, err := x.PickGroup(Group{Request: wantGPUs(h100, 8), Count: c.count, OneCenter: true, OnePerHost: true}, nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		var got []string
		for _, choice := range choices {
			kind, _, _ := strings.Cut(string(choice.Host), "-")
			got = append(got, kind)
		}
		if slices.Sort(got); strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", what, got, c.want)
		}
	}
}

// TestAHostThatDoesNotDoLeavesAFabricTooSmall: then hosts without any are taken, rather than a mixture.
func TestAHostThatDoesNotDoLeavesAFabricTooSmall(t *testing.T) {
	x := indexOf([]Candidate{placedAt("c", "//"), placedAt("d", "//"), placedAt("e", "//")})
	for _, id := range []string{"a", "b"} {
		x.Put(placedAt(id, "//").but(func(c *Candidate) { c.Host.Inventory.Fabric = fabricOf(fleet.LinkEthernet, 1) }))
	}
	g := Group{Request: wantGPUs(h100, 8), Count: 2, OneCenter: true, OnePerHost: true}
	g.Hold = func(_ int, c Choice, _ *Candidate) (fleet.Resources, bool) { return fleet.Resources{}, c.Host != "a" }
	choices, err := x.PickGroup(g, nil)
	if got, want := fmt.Sprint(hostsOf(choices)), "map[c:1 d:1]"; err != nil || got != want {
		t.Errorf("%s, want %s: %v", got, want, err)
	}
}

// TestAPickWithinAFabric refuses all other hosts, and says so.
func TestAPickWithinAFabric(t *testing.T) {
	x := NewIndex()
	x.Put(host("a", gpus("a", h100, 8, 8)...))
	x.Put(host("b", gpus("b", h100, 8, 8)...).but(func(c *Candidate) { c.Host.Inventory.Fabric = fabricOf(fleet.LinkEthernet, 1) }))
	req := wantGPUs(h100, 8)
	if req.Fabric = fleet.FabricRoCE; true {
		if got, err := x.Pick(req, nil); err != nil || got.Host != "b" {
			t.Errorf("%v, %v", got, err)
		}
	}
	req.Fabric = "InfiniBand fe80"
	_, err := x.Pick(req, nil)
	if err == nil || !strings.Contains(fmt.Sprint(err.(*fleet.Error).Excluded), "not of the cluster's fabric") { //nolint:errorlint // its own type
		t.Errorf("%v", err)
	}
}
