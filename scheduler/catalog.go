package scheduler

import (
	"cmp"
	"context"
	"maps"
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
		w := newWarehouse(v, cmp.Or(q.Cloud, fleet.CloudSecure), q.Countries)
		out.Centers, out.VolumeTypes = w.centers, tiersOf(v)
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
	hosts   *place.Index
	view    *state.View
	yielded place.Instead               // thawed, and hosts without their interruptible pods; nil: not looked at yet
	thawed  place.Instead               // hosts with frozen workers, without these; nil: not looked at yet
	within  map[fleet.DataCenterID]bool // centers in the countries asked for; nil: anywhere
	cloud   fleet.Cloud
	machines
}

func newWarehouse(v *state.View, cloud fleet.Cloud, countries []string) *warehouse {
	w := &warehouse{view: v, centers: v.DataCenters(), hosts: v.Fleet(), cloud: cloud, machines: machinesOf(v.Fleet())}
	if len(countries) == 0 {
		return w
	}
	w.within = map[fleet.DataCenterID]bool{}
	for _, dc := range w.centers {
		if dc.Country != "" && slices.Contains(countries, dc.Country) {
			w.within[dc.ID] = true
		}
	}
	return w
}

// machines is what the hosts of a fleet are, whatever is free on them.
type machines struct {
	most map[tiered]int      // GPUs of a type, of one host of the tier
	cuda map[string][]string // versions of the hosts that have a GPU type

	fabrics map[string]map[string]int64 // rates, by GPU type and kind
}

// tiered is a GPU type in a tier.
type tiered struct {
	gpu   string
	cloud fleet.Cloud
}

func machinesOf(hosts *place.Index) machines {
	out := machines{map[tiered]int{}, map[string][]string{}, map[string]map[string]int64{}}
	well := map[string]int{} // GPUs of a host that are in service, by type
	hosts.All(func(c *place.Candidate) {
		clear(well)
		inv := &c.Host.Inventory
		for i := range inv.GPUs {
			n := 1
			if inv.GPUs[i].Out() != "" {
				n = 0
			}
			well[inv.GPUs[i].Type] += n
		}
		kind := inv.Fabric.Kind()
		for gpu, n := range well {
			if kind != "" {
				out.addFabric(gpu, kind, inv.Fabric.Mbps())
			}
			at := tiered{gpu, c.Host.Cloud}
			out.most[at] = max(out.most[at], n)
			if inv.CUDA != "" && !slices.Contains(out.cuda[gpu], inv.CUDA) {
				out.cuda[gpu] = append(out.cuda[gpu], inv.CUDA)
			}
		}
	})
	for _, versions := range out.cuda {
		slices.SortFunc(versions, func(a, b string) int { return compareCUDA(b, a) })
	}
	return out
}

func (m *machines) addFabric(gpu, kind string, mbps int64) {
	if m.fabrics[gpu] == nil {
		m.fabrics[gpu] = map[string]int64{}
	}
	m.fabrics[gpu][kind] = max(m.fabrics[gpu][kind], mbps)
}

func (w *warehouse) gpus(t fleet.GPUType, q fleet.CatalogQuery) fleet.GPUOffer {
	spec := fleet.PodSpec{GPU: &fleet.GPURequest{Type: t.ID, Count: max(q.Count, 1)}, DiskGB: defaultDiskGPU}
	req := place.Request{GPU: spec.GPU, Need: leastNeed(&spec), Cloud: w.cloud}
	if len(q.CUDA.Allowed) > 0 || q.CUDA.Min != "" {
		req.CUDA = &q.CUDA
	}
	out := fleet.GPUOffer{
		GPUType: t, MaxSecure: w.most[tiered{t.ID, fleet.CloudSecure}], MaxCommunity: w.most[tiered{t.ID, fleet.CloudCommunity}],
		CUDA: w.cuda[t.ID],
	}
	for _, kind := range slices.Sorted(maps.Keys(w.fabrics[t.ID])) {
		out.Fabrics = append(out.Fabrics, fleet.FabricOffer{Kind: kind, Mbps: w.fabrics[t.ID][kind]})
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
	within := []fleet.DataCenterID{}
	for _, dc := range w.centers {
		n := 0
		if w.within == nil || w.within[dc.ID] {
			req.Centers = []fleet.DataCenterID{dc.ID}
			n = w.room(req)
			within = append(within, dc.ID)
		}
		per = append(per, fleet.CenterStock{Center: dc, Stock: inWords(n)})
	}
	if w.within != nil && len(within) == 0 {
		return fleet.AvailableNone, per
	}
	if req.Centers = nil; w.within != nil {
		req.Centers = within
	}
	return inWords(w.room(req)), per
}

// roomier returns the hosts as a pod on demand like req finds them that are also without their frozen workers, and for one with GPUs without
// interruptible pods.
func (w *warehouse) roomier(req place.Request) place.Instead {
	if req.GPU == nil {
		return w.thawed
	}
	if w.yielded == nil {
		w.yielded = maps.Clone(w.thawed)
		for id := range w.view.Yielding() {
			if on := w.hosts.Get(id, w.thawed); on != nil {
				more := withoutFrozen(on, yieldingOn(w.view, id, &fleet.Pod{}))
				w.yielded[id] = &more
			}
		}
	}
	return w.yielded
}

// room counts the pods like req that the hosts could take, also in the place of those that make room, up to stockMedium.
func (w *warehouse) room(req place.Request) int {
	n := w.hosts.Stock(req, stockMedium)
	if n >= stockMedium {
		return n
	}
	if w.thawed == nil {
		w.thawed = place.Instead{}
		for id := range w.view.Frozen() {
			if on := w.hosts.Get(id, nil); on != nil {
				more := withoutFrozen(on, frozenOn(w.view, id, true))
				w.thawed[id] = &more
			}
		}
	}
	for id, c := range w.roomier(req) {
		more, _ := place.Room(req, c)
		had, _ := place.Room(req, w.hosts.Get(id, nil))
		n += max(0, more-had)
	}
	return min(n, stockMedium)
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
