package place

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gantry/fleet"
)

// keeping makes a host of 8 GPUs and 16 cores that keeps so much for them.
func keeping(id string, percent int) Candidate {
	return host(id, gpus(id, h100, 8, 8)...).but(func(c *Candidate) { c.Keep = percent })
}

func TestBesideLeavesTheShareOfFreeGPUs(t *testing.T) {
	for _, tc := range []struct {
		rule string
		host Candidate
		gpus int
		want fleet.Resources
	}{
		{"half of each free GPU's share", keeping("a", 50), 0, fleet.Resources{MilliCPU: 8000, MemoryMB: 32_000, DiskGB: 1000}},
		{"those of the free GPUs alone", keeping("a", 50).only(1, 5), 0, fleet.Resources{MilliCPU: 14_000, MemoryMB: 56_000, DiskGB: 1000}},
		{"not those of the GPUs that it takes", keeping("a", 50), 6, fleet.Resources{MilliCPU: 14_000, MemoryMB: 56_000, DiskGB: 1000}},
		{"all of it", keeping("a", 100), 0, fleet.Resources{DiskGB: 1000}},
		{"everything where none is free", keeping("a", 100).only(), 0, fleet.Resources{MilliCPU: 16_000, MemoryMB: 64_000, DiskGB: 1000}},
		{"everything where nothing is kept", keeping("a", 0), 0, fleet.Resources{MilliCPU: 16_000, MemoryMB: 64_000, DiskGB: 1000}},
		{"everything of a host without GPUs", host("a").but(func(c *Candidate) { c.Keep = 100 }), 0, fleet.Resources{MilliCPU: 16_000, MemoryMB: 64_000, DiskGB: 1000}},
		{
			"nothing rather than less", keeping("a", 50).but(func(c *Candidate) { c.Free.MilliCPU, c.Free.MemoryMB = 5000, -1 }), 0,
			fleet.Resources{MemoryMB: -1, DiskGB: 1000},
		},
	} {
		if got := tc.host.Beside(tc.gpus); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.rule, got, tc.want)
		}
	}
}

func TestRefusalSaysWhatIsKeptForGPUs(t *testing.T) {
	memory := with(wantCPU(), func(r *Request) { r.Need.MemoryMB = 40_000 })
	hosts := []Candidate{
		keeping("a", 50).but(func(c *Candidate) { c.Free.MilliCPU = 9500 }),
		keeping("b", 50).but(func(c *Candidate) { c.Free.MilliCPU = 8000 }),
		host("c").but(func(c *Candidate) { c.Free.MilliCPU = 0 }),
	}
	for _, tc := range []struct {
		req   Request
		hosts []Candidate
		want  []fleet.Exclusion
	}{
		{wantCPU(), hosts, []fleet.Exclusion{
			{Reason: "CPU: needs 2 cores, at most 0 free", Hosts: 1},
			{Reason: "CPU: needs 2 cores, at most 1.5 free; 16 cores kept for GPUs", Hosts: 2},
		}},
		{memory, []Candidate{keeping("a", 50)}, []fleet.Exclusion{
			{Reason: "memory: needs 40 GB, at most 32 GB free; 32 GB kept for GPUs", Hosts: 1},
		}},
	} {
		_, err := pick(t, tc.req, tc.hosts)
		var e *fleet.Error
		if !errors.As(err, &e) {
			t.Fatalf("got %v", err)
		}
		if d := cmp.Diff(tc.want, e.Excluded); d != "" {
			t.Error(d)
		}
	}
	if n := stock(t, wantCPU(), []Candidate{keeping("a", 50)}); n != 4 {
		t.Errorf("a stock of %d CPU pods beside the 8 cores that are kept, want 4", n)
	}
}

// TestFreeGPUsKeepTheirShare puts pods on a host and takes them away: as long as no pod with GPUs needs more than the kept part
// of its own, each free GPU has what was promised, and a whole host without pods of GPUs takes one of all GPUs.
func TestFreeGPUsKeepTheirShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percent := rapid.IntRange(1, 100).Draw(t, "percent")
		count := rapid.IntRange(1, 8).Draw(t, "GPUs")
		c := host("a", gpus("a", h100, count, 4)...)
		c.Keep = percent
		c.Host.Inventory.Total = fleet.Resources{
			MilliCPU: rapid.Int64Range(0, 256_000).Draw(t, "cores"), MemoryMB: rapid.Int64Range(0, 2_000_000).Draw(t, "memory"), DiskGB: 10_000,
		}
		c.Free = c.Host.Inventory.Total
		part := func(gpus int) fleet.Resources {
			n, total, of := int64(percent), &c.Host.Inventory.Total, int64(100*count)
			return fleet.Resources{MilliCPU: total.MilliCPU * n / of * int64(gpus), MemoryMB: total.MemoryMB * n / of * int64(gpus)}
		}
		type pod struct {
			gpus []fleet.GPU
			need fleet.Resources
		}
		var pods []pod
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if len(pods) > 0 && rapid.IntRange(0, 3).Draw(t, "ends") == 0 {
				i := rapid.IntRange(0, len(pods)-1).Draw(t, "which")
				c = c.Less(nil, fleet.Resources{MilliCPU: -pods[i].need.MilliCPU, MemoryMB: -pods[i].need.MemoryMB}, -1)
				c.FreeGPUs, c.sum = append(slices.Clone(c.FreeGPUs), pods[i].gpus...), nil
				pods = slices.Delete(pods, i, i+1)
				continue
			}
			req := Request{Cloud: fleet.CloudSecure, Need: fleet.Resources{
				MilliCPU: rapid.Int64Range(0, 64_000).Draw(t, "need CPU"), MemoryMB: rapid.Int64Range(0, 500_000).Draw(t, "need memory"),
			}}
			if rapid.IntRange(0, 2).Draw(t, "wants GPUs") == 0 {
				n := rapid.IntRange(1, count).Draw(t, "count")
				req.GPU, req.Need = &fleet.GPURequest{Type: h100, Count: n}, part(n)
			}
			got, err := pick(t, req, []Candidate{c})
			if err != nil {
				continue
			}
			need := req.Need
			if req.GPU != nil { // what it gets on top leaves the others theirs
				beside := c.Beside(req.GPU.Count)
				need.MilliCPU, need.MemoryMB = max(need.MilliCPU, beside.MilliCPU), max(need.MemoryMB, beside.MemoryMB)
			}
			taken := pod{need: need}
			for _, g := range c.FreeGPUs {
				if slices.Contains(got.GPUs, g.UUID) {
					taken.gpus = append(taken.gpus, g)
				}
			}
			pods, c = append(pods, taken), c.Less(got.GPUs, need, 1)
		}
		for n := 1; n <= len(c.FreeGPUs); n++ {
			req := Request{Cloud: fleet.CloudSecure, GPU: &fleet.GPURequest{Type: h100, Count: n}, Need: part(n)}
			if _, err := pick(t, req, []Candidate{c}); err != nil {
				t.Fatalf("%d of %d free GPUs cannot have what was kept for them: %v", n, len(c.FreeGPUs), err)
			}
		}
	})
}
