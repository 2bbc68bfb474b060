package place

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gantry/fleet"
)

// drawHost draws a host of a fleet in which many are alike.
func drawHost(t *rapid.T, id string) Candidate {
	var all []fleet.GPU
	switch rapid.IntRange(0, 4).Draw(t, "machine") {
	case 0:
	case 1:
		all = gpus(id, a40, 4, 1)
	case 2:
		all = append(gpus(id, h100, 2, 2), gpus(id+"x", a40, 2, 1)...)
	default:
		all = gpus(id, h100, 8, 4)
	}
	c := host(id, all...)
	c.Host.DataCenter = rapid.SampledFrom([]fleet.DataCenterID{"dc-1", "dc-1", "dc-2"}).Draw(t, "center")
	c.Host.Cloud = rapid.SampledFrom([]fleet.Cloud{fleet.CloudSecure, fleet.CloudSecure, fleet.CloudCommunity}).Draw(t, "cloud")
	c.Host.Inventory.CUDA = rapid.SampledFrom([]string{"", "12.4", "12.8"}).Draw(t, "cuda")
	c.Host.Inventory.Volumes = rapid.SampledFrom([][]fleet.BackendKind{nil, {fleet.BackendNFS}, {fleet.BackendCeph, fleet.BackendNFS}}).Draw(t, "mounts")
	c.Host.Inventory.Models = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"m", "n"}), 0, 2, rapid.ID).Draw(t, "models")
	c.Host.Inventory.Images = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 0, 3, rapid.ID).Draw(t, "images")
	total := &c.Host.Inventory.Total
	total.MilliCPU = rapid.SampledFrom([]int64{16_000, 16_000, 15_999, 0}).Draw(t, "cores")
	total.MemoryMB = rapid.SampledFrom([]int64{64_000, 64_000, 63_500, 128_000}).Draw(t, "memory")
	return drawUse(t, c)
}

// drawUse draws what is free on a host and how it stands.
func drawUse(t *rapid.T, c Candidate) Candidate {
	return c.but(func(c *Candidate) {
		c.Host.State = rapid.SampledFrom([]fleet.HostState{
			fleet.HostReady, fleet.HostReady, fleet.HostReady, fleet.HostReady, fleet.HostUnreachable, fleet.HostJoining, fleet.HostFenced, fleet.HostGone,
		}).Draw(t, "state")
		c.Host.Eligibility = rapid.SampledFrom([]fleet.Eligibility{fleet.EligibilityOpen, fleet.EligibilityOpen, fleet.EligibilityCordoned, fleet.EligibilityDraining}).Draw(t, "eligibility")
		if rapid.Bool().Draw(t, "tunnel") {
			c.Host.Tunnel, c.Host.Inventory.Tunnel.PublicKey = netip.MustParseAddr("100.127.0.1"), "key"
		}
		if rapid.Bool().Draw(t, "fabric") {
			c.Host.Inventory.Fabric = fabricOf(rapid.SampledFrom([]string{fleet.LinkInfiniBand, fleet.LinkEthernet}).Draw(t, "link"), 100_000)
		}
		c.Host.Behind = rapid.IntRange(0, 9).Draw(t, "behind") == 0
		c.FreeGPUs = nil
		full := rapid.IntRange(0, 2).Draw(t, "full")
		for _, g := range c.Host.Inventory.GPUs {
			if full == 0 || full == 1 && rapid.Bool().Draw(t, "free") {
				c.FreeGPUs = append(c.FreeGPUs, g)
			}
		}
		step := rapid.SampledFrom([]int64{1, 1, 1, 2, 4, 7}).Draw(t, "use")
		total := c.Host.Inventory.Total
		c.Free = fleet.Resources{MilliCPU: total.MilliCPU / step, MemoryMB: total.MemoryMB / step, DiskGB: total.DiskGB / step}
		if rapid.Bool().Draw(t, "odd") {
			c.Free.MemoryMB = rapid.Int64Range(0, total.MemoryMB).Draw(t, "free memory")
		}
		c.Pods = rapid.IntRange(0, 2).Draw(t, "pods")
	})
}

// drawRequest draws what somebody may ask of such a fleet.
func drawRequest(t *rapid.T, hosts []Candidate) Request {
	req := wantCPU()
	if rapid.Bool().Draw(t, "wants GPUs") {
		req = wantGPUs(rapid.SampledFrom([]string{h100, h100, a40, "none"}).Draw(t, "kind"), rapid.IntRange(0, 9).Draw(t, "count"))
	}
	one := func() fleet.HostID {
		if len(hosts) == 0 {
			return "nobody"
		}
		return rapid.SampledFrom(hosts).Draw(t, "of").Host.ID
	}
	req.Cloud = rapid.SampledFrom([]fleet.Cloud{fleet.CloudSecure, fleet.CloudSecure, fleet.CloudCommunity}).Draw(t, "tier")
	req.Centers = rapid.SampledFrom([][]fleet.DataCenterID{nil, nil, {"dc-1"}, {"dc-2", "dc-1"}, {"dc-3"}}).Draw(t, "centers")
	req.Image = rapid.SampledFrom([]string{"", "x", "y", "unknown"}).Draw(t, "image")
	req.Model = rapid.SampledFrom([]string{"", "", "m", "n", "unknown"}).Draw(t, "model")
	req.CUDA = rapid.SampledFrom([]*fleet.CUDARange{nil, nil, {}, {Min: "12.8"}, {Allowed: []string{"12.4"}}}).Draw(t, "range")
	req.VolumeKind = rapid.SampledFrom([]fleet.BackendKind{"", "", fleet.BackendNFS, fleet.BackendLocal}).Draw(t, "volume")
	req.Networked = rapid.IntRange(0, 3).Draw(t, "networked") == 0
	req.Fabric = rapid.SampledFrom([]string{"", "", "", fleet.FabricRoCE, "InfiniBand fe80"}).Draw(t, "of fabric")
	req.MinMemoryMB = rapid.SampledFrom([]int64{0, 0, 64_000}).Draw(t, "least memory")
	req.MinMilliCPU = rapid.SampledFrom([]int64{0, 0, 16_000}).Draw(t, "least CPU")
	req.Need.MilliCPU = rapid.SampledFrom([]int64{0, 1000, 4001, 17_000}).Draw(t, "need CPU")
	req.Need.MemoryMB = rapid.Int64Range(0, 40_000).Draw(t, "need memory")
	switch rapid.IntRange(0, 5).Draw(t, "host") {
	case 0:
		req.Pinned = one()
	case 1, 2:
		req.Prefer = one()
	}
	return req
}

// drawInstead draws hosts that a pick sees otherwise: with less, or not at all.
func drawInstead(t *rapid.T, hosts []Candidate) Instead {
	out := Instead{}
	for i := range hosts {
		c := &hosts[i]
		switch rapid.IntRange(0, 7).Draw(t, "instead") {
		case 0:
			out[c.Host.ID] = nil
		case 1:
			var gpus []string
			if len(c.FreeGPUs) > 0 {
				gpus = []string{c.FreeGPUs[0].UUID}
			}
			less := c.Less(gpus, fleet.Resources{MilliCPU: 100, MemoryMB: 100}, 1)
			out[c.Host.ID] = &less
		}
	}
	return out
}

// TestIndexPicksAsAScanDoes changes a fleet host by host, and picks.
func TestIndexPicksAsAScanDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, hosts := NewIndex(), []Candidate(nil)
		keep := rapid.SampledFrom([]int{0, 50, 50, 100}).Draw(t, "keep")
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch what := rapid.IntRange(0, 9).Draw(t, "step"); {
			case what < 5 || len(hosts) == 0:
				c := drawHost(t, fmt.Sprintf("host%03d", rapid.IntRange(0, 999).Draw(t, "number")))
				c.Keep = keep
				hosts = slices.DeleteFunc(hosts, func(o Candidate) bool { return o.Host.ID == c.Host.ID })
				hosts = append(hosts, c)
				x.Put(c)
			case what == 5:
				i := rapid.IntRange(0, len(hosts)-1).Draw(t, "gone")
				x.Remove(hosts[i].Host.ID)
				hosts = slices.Delete(hosts, i, i+1)
			default:
				i := rapid.IntRange(0, len(hosts)-1).Draw(t, "changed")
				hosts[i] = drawUse(t, hosts[i])
				x.Put(hosts[i])
			}
			if step%4 > 0 {
				continue
			}
			var instead Instead
			if rapid.Bool().Draw(t, "otherwise") {
				instead = drawInstead(t, hosts)
			}
			req := drawRequest(t, hosts)
			_, _ = pickOf(t, x, req, hosts, instead)
			req.Pinned = ""
			if n := x.Stock(req, math.MaxInt32); n != stock(t, req, hosts) {
				t.Fatalf("a stock of %d", n)
			}
			consistent(t, x, len(hosts))
		}
	})
}

// TestIndexForgetsWhatIsGone leaves nothing behind.
func TestIndexForgetsWhatIsGone(t *testing.T) {
	x := NewIndex()
	for round := range 3 {
		for i := range 50 {
			id := fmt.Sprintf("h%02d", i)
			x.Put(host(id, gpus(id, h100, 8, 4)...).only(slices.Collect(func(yield func(int) bool) {
				for j := range i % 9 {
					if j < 8 && !yield(j) {
						return
					}
				}
			})...).but(func(c *Candidate) { c.Host.Inventory.Images = []string{"x", fmt.Sprint(i + round)} }))
		}
		consistent(t, x, 50)
	}
	for i := range 50 {
		x.Remove(fleet.HostID(fmt.Sprintf("h%02d", i)))
		x.Remove("nobody")
	}
	if len(x.hosts)+len(x.shapes)+len(x.menus)+len(x.images) != 0 {
		t.Errorf("%d hosts, %d shapes, %d menus and %d images are left", len(x.hosts), len(x.shapes), len(x.menus), len(x.images))
	}
}

// consistent checks that every host is where it belongs, and every tree what it should be.
func consistent(t failer, x *Index, hosts int) {
	t.Helper()
	n := 0
	for _, s := range x.shapes {
		in := 0
		for _, p := range s.pools {
			if p.root == nil {
				t.Fatalf("a pool is empty")
			}
			in += p.root.check(t, p, "", "\xff")
		}
		if in != s.hosts {
			t.Fatalf("a shape of %d hosts counts %d", in, s.hosts)
		}
		n += in
	}
	if n != hosts || x.Len() != hosts {
		t.Fatalf("%d hosts in pools and %d by id, want %d", n, x.Len(), hosts)
	}
}

func (n *node) check(t failer, p *pool, above, below fleet.HostID) int {
	t.Helper()
	if n == nil {
		return 0
	}
	id := n.c.Host.ID
	if n.pool != p || id <= above || id >= below {
		t.Fatalf("%s is in the wrong place", id)
	}
	was := *n
	n.sum()
	if was.size != n.size || was.pods != n.pods || was.free != n.free || was.open != n.open || was.kept != n.kept || was.used != n.used || was.total != n.total || was.smallest != n.smallest {
		t.Fatalf("%s does not know what is below", id)
	}
	if size := n.left.check(t, p, above, id) + 1 + n.right.check(t, p, id, below); size != n.size {
		t.Fatalf("%d hosts below %s, which counts %d", size, id, n.size)
	}
	return n.size
}

// TestIndexPicksAmongHostsThatAreAlike has hosts that differ in little, so that what is compared last decides.
func TestIndexPicksAmongHostsThatAreAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, hosts := NewIndex(), []Candidate(nil)
		imaged := rapid.IntRange(0, 9).Draw(t, "have the image")
		for i := range rapid.IntRange(2, 25).Draw(t, "hosts") {
			id := fmt.Sprintf("host%03d", i*37%101)
			c := host(id, gpus(id, h100, 2, 2)...).but(func(c *Candidate) {
				c.Host.DataCenter = rapid.SampledFrom([]fleet.DataCenterID{"dc-1", "dc-2", "dc-3"}).Draw(t, "center")
				if rapid.IntRange(0, 9).Draw(t, "image") < imaged {
					c.Host.Inventory.Images = []string{"x"}
				}
				if rapid.Bool().Draw(t, "full") {
					c.FreeGPUs = nil
				}
				c.Pods = rapid.IntRange(0, 2).Draw(t, "pods")
				c.Free.MilliCPU -= rapid.SampledFrom([]int64{0, 0, 0, 4000}).Draw(t, "used")
			})
			hosts = append(hosts, c)
			x.Put(c)
		}
		req := wantGPUs(h100, 1)
		req.Image = rapid.SampledFrom([]string{"", "x"}).Draw(t, "wanted")
		req.Need.MilliCPU = rapid.SampledFrom([]int64{0, 1000, 13_000}).Draw(t, "need")
		if rapid.Bool().Draw(t, "prefers") {
			req.Prefer = rapid.SampledFrom(hosts).Draw(t, "of").Host.ID
		}
		instead := Instead{}
		for i := range hosts {
			if rapid.IntRange(0, 5).Draw(t, "otherwise") == 0 {
				c := hosts[i].Less(nil, fleet.Resources{MilliCPU: rapid.Int64Range(0, 1).Draw(t, "less")}, 0)
				instead[c.Host.ID] = &c
			}
		}
		_, _ = pickOf(t, x, req, hosts, instead)
	})
}
