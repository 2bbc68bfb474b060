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
// that places pods: what is not NONE can be created with the defaults.
func (s *Service) Catalog(ctx context.Context, q fleet.CatalogQuery) (fleet.CatalogView, error) {
	var out fleet.CatalogView
	if len(q.CUDA.Allowed) > 0 && q.CUDA.Min != "" {
		return out, fleet.BreaksRule("cudaVersions and minCudaVersion exclude each other")
	}
	err := s.read(ctx, func(v *state.View) error {
		cat := v.Catalog()
		w := &warehouse{centers: v.DataCenters(), hosts: v.Candidates(), cloud: cmp.Or(q.Cloud, fleet.CloudSecure)}
		w.narrow(q.Countries)
		out.Centers = w.centers
		for _, t := range cat.GPUs {
			out.GPUs = append(out.GPUs, w.gpus(t, q))
		}
		for _, f := range cat.CPUs {
			out.CPUs = append(out.CPUs, w.cpus(f, q.VCPU))
		}
		return nil
	})
	return out, err
}

// warehouse counts what is free.
type warehouse struct {
	centers []fleet.DataCenter
	hosts   []place.Candidate
	within  []place.Candidate // those of hosts that are in the countries asked for
	cloud   fleet.Cloud
}

// narrow leaves the hosts of some countries; none given: all.
func (w *warehouse) narrow(countries []string) {
	w.within = w.hosts
	if len(countries) == 0 {
		return
	}
	wanted := map[fleet.DataCenterID]bool{}
	for _, dc := range w.centers {
		wanted[dc.ID] = dc.Country != "" && slices.Contains(countries, dc.Country)
	}
	w.within = slices.DeleteFunc(slices.Clone(w.hosts), func(c place.Candidate) bool { return !wanted[c.Host.DataCenter] })
}

func (w *warehouse) gpus(t fleet.GPUType, q fleet.CatalogQuery) fleet.GPUOffer {
	spec := fleet.PodSpec{GPU: &fleet.GPURequest{Type: t.ID, Count: max(q.Count, 1)}, DiskGB: defaultDiskGPU}
	req := place.Request{GPU: spec.GPU, Need: leastNeed(&spec), Cloud: w.cloud}
	if len(q.CUDA.Allowed) > 0 || q.CUDA.Min != "" {
		req.CUDA = &q.CUDA
	}
	out := fleet.GPUOffer{
		GPUType: t, MaxSecure: most(w.hosts, t.ID, fleet.CloudSecure), MaxCommunity: most(w.hosts, t.ID, fleet.CloudCommunity),
		CUDA: cudaOf(w.hosts, t.ID),
	}
	out.Stock, out.Centers = w.stock(req)
	return out
}

// cpus counts pods of a flavor; vcpu 0 stands for the flavor's least. There are none of a number of
// vCPUs that the flavor does not come with.
func (w *warehouse) cpus(f fleet.CPUFlavor, vcpu int) fleet.CPUOffer {
	vcpu = cmp.Or(vcpu, f.MinVCPU)
	spec := fleet.PodSpec{
		CPU: &fleet.CPURequest{Flavor: f.ID, VCPU: vcpu, MemoryGB: memoryOf(f, vcpu)}, DiskGB: defaultDisk(f, vcpu),
	}
	out := fleet.CPUOffer{CPUFlavor: f}
	if !offers(f, vcpu) {
		out.Stock = fleet.AvailableNone
		for _, dc := range w.centers {
			out.Centers = append(out.Centers, fleet.CenterStock{Center: dc, Stock: fleet.AvailableNone})
		}
		return out
	}
	out.Stock, out.Centers = w.stock(place.Request{Need: leastNeed(&spec), Cloud: w.cloud})
	return out
}

// stock counts what is free, in all and in each data center.
func (w *warehouse) stock(req place.Request) (fleet.Availability, []fleet.CenterStock) {
	per := make([]fleet.CenterStock, 0, len(w.centers))
	for _, dc := range w.centers {
		req.Centers = []fleet.DataCenterID{dc.ID}
		per = append(per, fleet.CenterStock{Center: dc, Stock: inWords(place.Stock(req, w.within))})
	}
	req.Centers = nil
	return inWords(place.Stock(req, w.within)), per
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
	slices.SortFunc(out, func(a, b string) int { return compareCUDA(b, a) })
	return out
}

// compareCUDA compares versions number by number; what cannot be read is older than the rest.
func compareCUDA(a, b string) int {
	aMajor, aMinor, aOK := fleet.ParseCUDA(a)
	bMajor, bMinor, bOK := fleet.ParseCUDA(b)
	if aOK != bOK {
		if aOK {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(aMajor, bMajor), cmp.Compare(aMinor, bMinor), cmp.Compare(a, b))
}
