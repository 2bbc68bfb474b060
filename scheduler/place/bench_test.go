package place

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
)

// benchFleet makes hosts of eight GPUs, of which two thirds are in part taken, with a hundred different uses.
func benchFleet(n int) []Candidate {
	hosts := make([]Candidate, n)
	images := make([]string, 150)
	for j := range images {
		images[j] = fmt.Sprintf("registry/image%03d:tag", j)
	}
	for i := range hosts {
		id := fmt.Sprintf("host%06d", i)
		hosts[i] = host(id, gpus(id, h100, 8, 4)...).but(func(c *Candidate) {
			c.Host.DataCenter = fleet.DataCenterID(fmt.Sprintf("dc-%d", i%5))
			c.Host.Inventory.CUDA = "12.8"
			c.Host.Inventory.Images = images[i%50 : i%50+100]
			if i%3 != 0 {
				taken := 1 + i%7
				c.FreeGPUs = c.FreeGPUs[taken:]
				c.Free.MilliCPU -= int64(taken)*1500 + int64(i%10)*37
				c.Free.MemoryMB -= int64(taken)*6000 + int64(i%100)*11
				c.Pods = taken
			}
		})
	}
	return hosts
}

func benchRequests() map[string]Request {
	return map[string]Request{
		"gpu":   with(wantGPUs(h100, 2), func(r *Request) { r.Image = "registry/image077:tag" }),
		"whole": with(wantGPUs(h100, 8), func(r *Request) { r.Need = fleet.Resources{MilliCPU: 8000, MemoryMB: 32_000, DiskGB: 20} }),
		"cpu":   with(wantCPU(), func(r *Request) { r.Image = "registry/image149:tag" }),
		"full":  wantGPUs(h100, 9),
		"cuda": with(wantGPUs(h100, 2), func(r *Request) {
			r.CUDA, r.MinMemoryMB, r.MinMilliCPU = &fleet.CUDARange{Min: "12.4"}, 32_000, 8_000
			r.Centers = []fleet.DataCenterID{"dc-3"}
		}),
	}
}

// BenchmarkPlace decides where a pod goes: the host that the last pod was put on has changed, and the index
// follows. The floor is a look at every host, as a pick means it.
func BenchmarkPlace(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		hosts := benchFleet(n)
		x := indexOf(hosts)
		ready := make([]Candidate, n) // as the index has them, for the scan
		for i := range hosts {
			ready[i] = *x.Get(hosts[i].Host.ID, nil)
		}
		for name, req := range benchRequests() {
			b.Run(fmt.Sprintf("%s/hosts=%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				var took []time.Duration
				for i := 0; b.Loop(); i++ {
					at := time.Now()
					x.Put(hosts[i%n])
					_, _ = x.Pick(req, nil)
					took = append(took, time.Since(at))
				}
				began := time.Now()
				_, _ = scan(req, ready)
				scanned := time.Since(began)
				slices.Sort(took)
				at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Nanoseconds()) / 1000 }
				b.ReportMetric(at(0.5), "p50-us")
				b.ReportMetric(at(0.99), "p99-us")
				b.ReportMetric(float64(scanned.Nanoseconds())/1000/at(0.5), "scan/index")
			})
		}
	}
}
