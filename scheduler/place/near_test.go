package place

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

// at makes a host of eight GPUs in a leaf switch, a rack and an NVLink domain, as "leaf/rack/domain"; each may be empty.
func placedAt(id, where string) Candidate {
	return host(id, gpus(id, h100, 8, 8)...).but(func(c *Candidate) {
		c.Host.DataCenter, c.Host.Labels = "dc-1", map[string]string{}
		part := strings.Split(where, "/")
		for i, label := range []string{fleet.LabelLeaf, fleet.LabelRack, fleet.LabelNVLink} {
			if part[i] != "" {
				c.Host.Labels[label] = part[i]
			}
		}
	})
}

// TestGangsAreOnHostsNearEachOther: of one NVLink domain, else of one rack, else below one leaf switch, else below few.
func TestGangsAreOnHostsNearEachOther(t *testing.T) {
	hosts := map[string]string{ // in the order of their ids; the first ones are those that are picked without labels
		"a1": "l1/r1/", "a2": "l1/r2/", "a3": "l2/r3/", "b1": "l2/r4/n1", "b2": "l2/r4/n1", "b3": "l2/r4/n2", "b4": "l2/r4/n2", "b5": "l2/r4/n2",
		"c1": "l3/r5/", "c2": "l3/r5/", "c3": "l3/r6/", "c4": "l3/r6/", "z1": "//", "z2": "//",
	}
	for name, c := range map[string]struct {
		count int
		busy  []string
		want  string
	}{
		"the smallest domain that is enough":      {2, nil, "b1 b2"},
		"a larger domain":                         {3, nil, "b3 b4 b5"},
		"no domain: one rack, domains together":   {4, nil, "b3 b4 b5 b1"},
		"a whole rack":                            {5, nil, "b3 b4 b5 b1 b2"},
		"no rack: below one leaf":                 {6, nil, "b3 b4 b5 b1 b2 a3"},
		"a smaller leaf is enough":                {4, []string{"b1", "b2", "a3"}, "c1 c2 c3 c4"},
		"no leaf: the fewest":                     {8, nil, "b3 b4 b5 b1 b2 a3 a1 a2"},
		"nearly all, those that say nothing last": {13, nil, "b3 b4 b5 b1 b2 a3 c1 c2 c3 c4 a1 a2 z1"},
	} {
		var all []Candidate
		for id, where := range hosts {
			one := placedAt(id, where)
			if slices.Contains(c.busy, id) {
				one = one.only(0)
			}
			all = append(all, one)
		}
		g := Group{Request: wantGPUs(h100, 8), Count: c.count, OneCenter: true, OnePerHost: true}
		choices, err := indexOf(all).PickGroup(g, nil)
		var got []string
		for _, choice := range choices {
			got = append(got, string(choice.Host))
			if len(choice.GPUs) != 8 || choice.DataCenter != "dc-1" {
				t.Errorf("%s: %+v", name, choice)
			}
		}
		if text := strings.Join(got, " "); err != nil || text != c.want {
			t.Errorf("%s: %s, want %s: %v", name, text, c.want, err)
		}
	}
}

// TestNearHostsThatDoNotDo: hosts that are reserved, or that Hold refuses, are left out, and too many refusals end the search for near ones.
func TestNearHostsThatDoNotDo(t *testing.T) {
	x := indexOf([]Candidate{placedAt("a", "//n1"), placedAt("b", "//n1"), placedAt("c", "//n1"), placedAt("d", "//n2"), placedAt("e", "//n2")})
	g := Group{Request: wantGPUs(h100, 8), Count: 2, OneCenter: true, OnePerHost: true}
	refuse := ""
	g.Hold = func(_ int, c Choice, _ *Candidate) (fleet.Resources, bool) {
		return fleet.Resources{}, !strings.Contains(refuse, string(c.Host))
	}
	half := placedAt("d", "//n2").only(3)
	for name, c := range map[string]struct {
		refuse, want string
		instead      Instead
	}{
		"all":               {"", "d e", nil},
		"one is refused":    {"d", "a b", nil},
		"one is reserved":   {"", "a b", Instead{"e": nil}},
		"one is half taken": {"", "a b", Instead{"d": &half}},
		"few are left":      {"abd", "c e", nil},
	} {
		refuse = c.refuse
		choices, err := x.PickGroup(g, c.instead)
		var got []string
		for _, choice := range choices {
			got = append(got, string(choice.Host))
		}
		if text := strings.Join(slices.Sorted(slices.Values(got)), " "); err != nil || text != c.want {
			t.Errorf("%s: %s, want %s: %v", name, text, c.want, err)
		}
	}
	refuse = "abcde"
	times := map[fleet.HostID]int{}
	g.Hold = func(_ int, c Choice, _ *Candidate) (fleet.Resources, bool) {
		times[c.Host]++
		return fleet.Resources{}, false
	}
	if _, err := x.PickGroup(g, nil); fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Errorf("without any host: %v", err)
	}
	if d := cmp.Diff(map[fleet.HostID]int{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, times); d != "" {
		t.Errorf("hosts that were refused, and how often: %s", d)
	}
}

// BenchmarkPickNear picks 250 whole hosts of 8 GPUs near each other among 10,000, of which a third is free: 32 hosts to a rack, 8 to an
// NVLink domain, 256 to a leaf switch.
func BenchmarkPickNear(b *testing.B) {
	hosts := benchFleet(10_000)
	for i := range hosts {
		hosts[i].Host.DataCenter = "dc-1"
		hosts[i].Host.Labels = map[string]string{
			fleet.LabelLeaf: fmt.Sprint("leaf", i/256), fleet.LabelRack: fmt.Sprint("rack", i/32), fleet.LabelNVLink: fmt.Sprint("nvl", i/8),
		}
	}
	x := indexOf(hosts)
	g := Group{Request: wantGPUs(h100, 8), Count: 250, OneCenter: true, OnePerHost: true}
	var took []time.Duration
	for b.Loop() {
		at := time.Now()
		if _, err := x.PickGroup(g, nil); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
}
