package scheduler

import (
	"cmp"
	"context"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

const (
	stockLow    = 4
	stockMedium = 16
)

// Catalog returns what can be asked for and how much of it is free. The numbers come from the code
// that places pods.
func (s *Service) Catalog(ctx context.Context, q fleet.CatalogQuery) (fleet.CatalogView, error) {
	var out fleet.CatalogView
	err := s.read(ctx, func(v *state.View) error {
		cat, candidates, centers := v.Catalog(), v.Candidates(), v.DataCenters()
		cloud := cmp.Or(q.Cloud, fleet.CloudSecure)
		out.Centers = centers
		for _, t := range cat.GPUs {
			count := max(q.Count, 1)
			req := place.Request{
				GPU: &fleet.GPURequest{Type: t.ID, Count: count}, Cloud: cloud,
				Need: fleet.Resources{
					MilliCPU: milliCPUPerGPU * int64(count), MemoryMB: memoryMBPerGPU * int64(count), DiskGB: defaultDiskGPU,
				},
			}
			offer := fleet.GPUOffer{
				GPUType: t, MaxSecure: most(candidates, t.ID, fleet.CloudSecure), MaxCommunity: most(candidates, t.ID, fleet.CloudCommunity),
				CUDA: cudaOf(candidates, t.ID),
			}
			offer.Stock, offer.Centers = stock(req, candidates, centers)
			out.GPUs = append(out.GPUs, offer)
		}
		for _, f := range cat.CPUs {
			vcpu := max(q.VCPU, f.MinVCPU)
			req := place.Request{Cloud: cloud, Need: fleet.Resources{
				MilliCPU: 1000 * int64(vcpu), MemoryMB: int64(f.RAMPerVCPU*float64(vcpu)) * 1000, DiskGB: defaultDiskCPU,
			}}
			offer := fleet.CPUOffer{CPUFlavor: f}
			offer.Stock, offer.Centers = stock(req, candidates, centers)
			out.CPUs = append(out.CPUs, offer)
		}
		return nil
	})
	return out, err
}

// stock counts what is free, in all and in each data center that has hosts of the tier.
func stock(req place.Request, candidates []place.Candidate, centers []fleet.DataCenter) (fleet.Availability, []fleet.CenterStock) {
	per := make([]fleet.CenterStock, 0, len(centers))
	for _, dc := range centers {
		req.Centers = []fleet.DataCenterID{dc.ID}
		per = append(per, fleet.CenterStock{Center: dc, Stock: inWords(place.Stock(req, candidates))})
	}
	req.Centers = nil
	return inWords(place.Stock(req, candidates)), per
}

func inWords(n int) fleet.Availability {
	switch {
	case n == 0:
		return fleet.AvailableNone
	case n < stockLow:
		return fleet.AvailableLow
	case n < stockMedium:
		return fleet.AvailableMedium
	default:
		return fleet.AvailableHigh
	}
}

// most returns the largest number of GPUs of a type on one host of the tier.
func most(candidates []place.Candidate, typ string, cloud fleet.Cloud) int {
	best := 0
	for i := range candidates {
		if candidates[i].Host.Cloud != cloud {
			continue
		}
		n := 0
		for _, g := range candidates[i].Host.Inventory.GPUs {
			if g.Type == typ && g.Sick == "" {
				n++
			}
		}
		best = max(best, n)
	}
	return best
}

// cudaOf returns the CUDA versions of the hosts that have the GPU type, newest first.
func cudaOf(candidates []place.Candidate, typ string) []string {
	var out []string
	for i := range candidates {
		inv := candidates[i].Host.Inventory
		has := slices.ContainsFunc(inv.GPUs, func(g fleet.GPU) bool { return g.Type == typ })
		if has && inv.CUDA != "" && !slices.Contains(out, inv.CUDA) {
			out = append(out, inv.CUDA)
		}
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out
}
