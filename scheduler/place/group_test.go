package place

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

// inCenter is a host with four GPUs in a data center.
func inCenter(id string, center fleet.DataCenterID) Candidate {
	return host(id, gpus(id, h100, 4, 4)...).but(func(c *Candidate) { c.Host.DataCenter = center })
}

func hostsOf(choices []Choice) map[fleet.HostID]int {
	out := map[fleet.HostID]int{}
	for _, c := range choices {
		out[c.Host]++
	}
	return out
}

func TestPickGroupSeesWhatPodsBeforeTook(t *testing.T) {
	x := indexOf([]Candidate{inCenter("a", "dc-1"), inCenter("b", "dc-1")})
	choices, err := x.PickGroup(Group{Request: wantGPUs(h100, 1), Count: 8}, nil)
	if err != nil || len(choices) != 8 {
		t.Fatalf("%d of 8 pods on 8 GPUs: %v", len(choices), err)
	}
	taken := map[string]bool{}
	for _, c := range choices {
		if taken[c.GPUs[0]] {
			t.Fatalf("GPU %s is picked twice", c.GPUs[0])
		}
		taken[c.GPUs[0]] = true
	}
}

func TestPickGroupIsAllOrNothing(t *testing.T) {
	x := indexOf([]Candidate{inCenter("a", "dc-1"), inCenter("b", "dc-2")})
	for _, g := range []Group{
		{Request: wantGPUs(h100, 1), Count: 9},
		{Request: wantGPUs(h100, 1), Count: 5, OneCenter: true},
		{Request: wantGPUs(h100, 1), Count: 3, OnePerHost: true},
		{Request: wantGPUs(h100, 1), Count: 2, OneCenter: true, OnePerHost: true},
	} {
		choices, err := x.PickGroup(g, nil)
		if err == nil || choices != nil || fleet.CodeOf(err) != fleet.CodeNoCapacity {
			t.Errorf("count %d, one center %v, one per host %v: %v, %v", g.Count, g.OneCenter, g.OnePerHost, choices, err)
		}
	}
}

func TestPickGroupOnePerHost(t *testing.T) {
	x := indexOf([]Candidate{inCenter("a", "dc-1"), inCenter("b", "dc-1"), inCenter("c", "dc-2")})
	choices, err := x.PickGroup(Group{Request: wantGPUs(h100, 1), Count: 3, OnePerHost: true}, nil)
	if on := hostsOf(choices); err != nil || len(on) != 3 {
		t.Fatalf("three pods are on %v: %v", on, err)
	}
}

// The best host is in a center too small for the group: the group goes where all of it fits.
func TestPickGroupFindsTheCenterForAll(t *testing.T) {
	small := inCenter("a", "dc-1").only(0)
	x := indexOf([]Candidate{small, inCenter("b", "dc-2"), inCenter("c", "dc-3"), inCenter("d", "dc-3")})
	if first, err := x.Pick(wantGPUs(h100, 1), nil); err != nil || first.Host != "a" {
		t.Fatalf("the best host for one is %q: %v", first.Host, err)
	}
	choices, err := x.PickGroup(Group{Request: wantGPUs(h100, 1), Count: 6, OneCenter: true}, nil)
	if on := hostsOf(choices); err != nil || on["c"]+on["d"] != 6 {
		t.Fatalf("six pods are on %v: %v", on, err)
	}
}

func TestPickGroupStaysInTheCenterOfTheBestHost(t *testing.T) {
	x := indexOf([]Candidate{inCenter("a", "dc-1"), inCenter("z", "dc-9")})
	req := with(wantGPUs(h100, 1), func(r *Request) { r.Prefer = "z" })
	choices, err := x.PickGroup(Group{Request: req, Count: 2, OneCenter: true}, nil)
	if on := hostsOf(choices); err != nil || on["z"] != 2 {
		t.Fatalf("two pods that prefer z are on %v: %v", on, err)
	}
}

func TestPickGroupHolds(t *testing.T) {
	x := indexOf([]Candidate{inCenter("a", "dc-1"), inCenter("b", "dc-1"), inCenter("c", "dc-1")})
	g := Group{Request: wantGPUs(h100, 1), Count: 4}
	g.Hold = func(_ int, c Choice, _ *Candidate) (fleet.Resources, bool) {
		return fleet.Resources{MilliCPU: 8000, MemoryMB: 1000, DiskGB: 20}, c.Host != "a"
	}
	choices, err := x.PickGroup(g, nil)
	if got, want := fmt.Sprint(hostsOf(choices)), "map[b:2 c:2]"; err != nil || got != want {
		t.Fatalf("got %s, want %s: %v", got, want, err)
	}
	g.Count = 5
	if _, err := x.PickGroup(g, nil); fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Fatalf("a fifth pod, with half of a host's processors each: %v", err)
	}
}

// TestAGroupOfHostsIsRefusedWithTheReasonOfEachHost: also where hosts had room for one pod each, in any center, but are too few.
func TestAGroupOfHostsIsRefusedWithTheReasonOfEachHost(t *testing.T) {
	x := indexOf([]Candidate{
		inCenter("a", "dc-1"), inCenter("b", "dc-1"), inCenter("c", "dc-1").only(0), inCenter("d", "dc-2"), inCenter("e", "dc-2"), inCenter("f", "dc-2"),
		inCenter("g", "dc-3").only(), inCenter("h", "dc-3").but(func(c *Candidate) { c.Host.Cloud = fleet.CloudCommunity }), inCenter("i", "dc-4"),
	})
	g := Group{Request: with(wantGPUs(h100, 2), func(r *Request) { r.Prefer = "a" }), Count: 4, OneCenter: true, OnePerHost: true}
	g.Hold = func(_ int, c Choice, _ *Candidate) (fleet.Resources, bool) { return g.Need, c.Host != "f" }
	for name, c := range map[string]struct {
		centers []fleet.DataCenterID
		apart   bool
		want    string
	}{
		"in one center": {nil, false, "[{cloud tier 1} {0 of 4 GPUs free 1} {1 of 4 GPUs free 1} {room for one pod each in dc-1, but 4 are needed in one data center 2} " +
			"{room for one pod each in dc-2, but 4 are needed in one data center 2} {room for one pod each in dc-4, but 4 are needed in one data center 1}]"},
		"in some centers": {[]fleet.DataCenterID{"dc-1", "dc-3"}, false, "[{data center 4} {cloud tier 1} {0 of 4 GPUs free 1} {1 of 4 GPUs free 1} " +
			"{room for one pod each in dc-1, but 4 are needed in one data center 2}]"},
		"anywhere": {nil, true, "[{cloud tier 1} {0 of 4 GPUs free 1} {1 of 4 GPUs free 1} {room for one pod each, but 6 are needed 5}]"},
	} {
		in := g
		if in.Centers = c.centers; c.apart {
			in.OneCenter, in.Count = false, 6
		}
		_, err := x.PickGroup(in, nil)
		var e *fleet.Error
		if !errors.As(err, &e) || e.Code != fleet.CodeNoCapacity || fmt.Sprint(e.Excluded) != c.want {
			t.Errorf("%s: %v\n%v, want\n%s", name, err, e.Excluded, c.want)
		}
	}
}

// TestHostsOfAGroupAreThoseOfPicksOneByOne, where nothing says which hosts are near each other.
func TestHostsOfAGroupAreThoseOfPicksOneByOne(t *testing.T) {
	x, hosts := indexOf(benchFleet(300)), benchFleet(300)
	for name, req := range benchRequests() {
		for _, prefer := range []fleet.HostID{"", "host000123", "host000003"} {
			req.Prefer, req.Centers = prefer, []fleet.DataCenterID{"dc-3"}
			half := hosts[33].only(0, 1, 2)
			instead := Instead{hosts[3].Host.ID: nil, hosts[33].Host.ID: &half}
			g := Group{Request: req, Count: 19, OneCenter: true, OnePerHost: true}
			g.Hold = func(_ int, c Choice, _ *Candidate) (fleet.Resources, bool) {
				return g.Need, hashOf(string(c.Host))%3 > 0
			}
			got, err := x.PickGroup(g, instead)
			want, all := x.pickAll(&g, instead)
			if d := cmp.Diff(want, got); (err == nil) != (all == nil) || err == nil && d != "" {
				t.Errorf("%s, prefers %q: %v and %v: %s", name, prefer, err, all, d)
			}
		}
	}
}

func TestPickGroupLeavesInsteadAlone(t *testing.T) {
	x := indexOf([]Candidate{inCenter("a", "dc-1"), inCenter("b", "dc-1")})
	instead := Instead{"a": nil}
	choices, err := x.PickGroup(Group{Request: wantGPUs(h100, 2), Count: 2}, instead)
	if on := hostsOf(choices); err != nil || on["b"] != 2 || len(instead) != 1 || instead["a"] != nil {
		t.Fatalf("pods are on %v, instead is %v: %v", on, instead, err)
	}
}

// BenchmarkPickGroup picks whole hosts of eight GPUs for 250 pods in one data center.
func BenchmarkPickGroup(b *testing.B) {
	x := indexOf(benchFleet(10_000))
	g := Group{Request: wantGPUs(h100, 8), Count: 250, OneCenter: true, OnePerHost: true}
	for b.Loop() {
		if _, err := x.PickGroup(g, nil); err != nil {
			b.Fatal(err)
		}
	}
}
