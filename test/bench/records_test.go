package bench

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
	"gantry/test/simhosts/simhost"
)

// newGPUPlane is a control plane of hosts with eight GPUs.
func newGPUPlane(b *testing.B, hosts int) *controlPlane {
	b.Helper()
	return newControlPlaneOf(b, hosts, fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 128_000, MemoryMB: 1_024_000, DiskGB: 8000}, CUDA: "12.8",
	}, func(i int) []fleet.GPU {
		var out []fleet.GPU
		for j := range 8 {
			out = append(out, fleet.GPU{UUID: fmt.Sprintf("GPU-%d-%d", i, j), Type: simhost.DefaultGPU, MemoryMB: 81_559, NUMA: j / 4})
		}
		return out
	})
}

// BenchmarkFleetRecords fills a fleet of hosts that are records only, without sessions, in one process with its
// clients: what a create costs where nobody runs the pod. BENCH_HOSTS=10000 makes it 80,000 pods.
func BenchmarkFleetRecords(b *testing.B) {
	hosts := hostsOf(b, 1000)
	p := newGPUPlane(b, hosts)
	post := func() (*http.Request, error) { return p.postOf(onGPU) }
	b.ResetTimer()
	took, rate := load(b, 64, 8*hosts, http.StatusCreated, post)
	b.StopTimer()
	b.ReportMetric(rate, "creates/s")
	b.ReportMetric(took.median("took"), "create-p50-ms")
	b.ReportMetric(took.at("took", 0.99), "create-p99-ms")
	took, rate = load(b, 64, 2000, http.StatusBadRequest, post) // nothing is left
	b.ReportMetric(rate, "refusals/s")
	b.ReportMetric(took.at("took", 0.99), "refusal-p99-ms")
	p.checkGPUs(b, 8*hosts)
	b.ReportMetric(0, "ns/op")
}

// checkGPUs fails unless so many GPUs are held, each by one pod.
func (p *controlPlane) checkGPUs(b *testing.B, want int) {
	b.Helper()
	seen := map[string]fleet.PodID{}
	err := p.store.View(func(v *state.View) error {
		for _, pod := range v.PodsOf(p.who.Account) {
			for _, uuid := range pod.GPUs {
				if other, twice := seen[uuid]; twice {
					b.Errorf("GPU %s has the pods %s and %s", uuid, other, pod.ID)
				}
				seen[uuid] = pod.ID
			}
		}
		return nil
	})
	if err != nil || len(seen) != want {
		b.Errorf("%d GPUs are held, want %d: %v", len(seen), want, err)
	}
}

// BenchmarkFleetPacking creates pods of one to eight GPUs in a mixed order until half of the fleet is taken, ends every
// third, and fills up to nine tenths: how many hosts have GPUs free and are not whole, beyond what the best packing
// would need.
func BenchmarkFleetPacking(b *testing.B) {
	const hosts = 500
	p := newGPUPlane(b, hosts)
	ctx := context.Background()
	counts := []int{1, 2, 1, 4, 1, 8, 2, 1, 4, 2, 1, 8}
	var pods []fleet.Pod
	used := 0
	fill := func(until int) {
		for i := 0; used < until; i++ {
			count := counts[(i*7+i/5)%len(counts)]
			v, err := p.svc.CreatePod(ctx, p.who, fleet.PodRequest{
				Name: "bench", Image: "busybox", GPU: &fleet.GPURequest{Type: simhost.DefaultGPU, Count: count},
			})
			if err != nil {
				b.Fatal(err)
			}
			pods, used = append(pods, *v.Pod), used+count
		}
	}
	fill(hosts * 8 / 2)
	b.ReportMetric(p.wasted(b, used), "wasted-hosts-at-half")
	for i := 0; i < len(pods); i += 3 {
		p.end(ctx, b, pods[i])
		used -= len(pods[i].GPUs)
	}
	pods = slices.Clone(pods[:0])
	b.ReportMetric(p.wasted(b, used), "wasted-hosts-after-ends")
	fill(hosts * 8 * 9 / 10)
	b.ReportMetric(p.wasted(b, used), "wasted-hosts-at-nine-tenths")
	b.ReportMetric(0, "ns/op")
}

// end terminates a pod, and has its host say that it is gone.
func (p *controlPlane) end(ctx context.Context, b *testing.B, pod fleet.Pod) {
	b.Helper()
	if _, err := p.svc.ActPod(ctx, p.who, pod.ID, fleet.ActionTerminate); err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	p.propose(ctx, b, []state.Command{state.ReportPods{Host: pod.Host, Epoch: 1, At: now, Reports: []state.PodReport{
		{Pod: pod.ID, Incarnation: pod.Incarnation + 1, Event: state.ReportGone, At: now},
	}}})
}

// wasted is how many hosts are in use beyond those that the GPUs in use would fill.
func (p *controlPlane) wasted(b *testing.B, used int) float64 {
	b.Helper()
	broken := 0
	err := p.store.View(func(v *state.View) error {
		v.Fleet().All(func(c *place.Candidate) {
			if len(c.FreeGPUs) < len(c.Host.Inventory.GPUs) {
				broken++
			}
		})
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return float64(broken - (used+7)/8)
}
