package scheduler

import (
	"cmp"
	"errors"
	"hash/fnv"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// What every GPU brings along at least.
const (
	milliCPUPerGPU = 2000
	memoryMBPerGPU = 8000
)

// rateOf returns what a pod costs per hour of compute; a worker of an endpoint has the price of serverless, where there is one. Errors:
// invalid (not in the catalog).
func rateOf(cat fleet.Catalog, p *fleet.Pod) (fleet.Money, error) {
	spec, worker := &p.Spec, p.Owner.Kind == fleet.OwnerEndpoint
	if spec.GPU == nil {
		f, ok := flavorOf(cat, spec.CPU.Flavor)
		if !ok {
			return 0, unknownFlavor(cat, spec.CPU.Flavor)
		}
		price := f.SecureVCPU
		if worker {
			price = cmp.Or(f.Serverless, price)
		}
		return price * fleet.Money(spec.CPU.VCPU), nil
	}
	t, ok := gpuTypeOf(cat, spec.GPU.Type)
	if !ok {
		return 0, unknownGPU(cat, spec.GPU.Type)
	}
	price, spot := t.Prices(spec.Cloud)
	if spec.Spot != nil && !p.Locked { // a locked one is as sure of its place as one on demand
		if spec.Spot.Bid < spot || spot == 0 {
			return 0, bidTooLow(spot)
		}
		price = min(spec.Spot.Bid, price)
	}
	if worker {
		price = cmp.Or(t.Serverless, price)
	}
	return price * fleet.Money(spec.GPU.Count), nil
}

// leastNeed is what a pod holds of any host at least.
func leastNeed(spec *fleet.PodSpec) fleet.Resources {
	if spec.GPU != nil {
		n := int64(spec.GPU.Count)
		return fleet.Resources{
			MilliCPU: max(milliCPUPerGPU, 1000*int64(spec.MinVCPUPerGPU)) * n,
			MemoryMB: max(memoryMBPerGPU, 1000*int64(spec.MinRAMPerGPU)) * n,
			DiskGB:   diskOf(spec),
		}
	}
	return fleet.Resources{
		MilliCPU: 1000 * int64(spec.CPU.VCPU), MemoryMB: int64(spec.CPU.MemoryGB) * 1000, DiskGB: diskOf(spec),
	}
}

// diskOf returns GB of the host's disk: the container's and what outlives it.
func diskOf(spec *fleet.PodSpec) int64 {
	disk := int64(spec.DiskGB)
	if spec.Persistent != nil {
		disk += int64(spec.Persistent.SizeGB)
	}
	return disk
}

// demand is what a pod needs of the fleet.
type demand struct {
	req  place.Request
	need fleet.Resources // what the pod holds at least; of it, req.Need must be free
	not  []fleet.HostID  // hosts that have another member of the pod's cluster
	with string          // name of the fabric that those have; see fleet.Host.FabricName
}

// demandOf states what a specification needs. Errors: rule (no data center can have it).
func demandOf(v *state.View, cat fleet.Catalog, spec *fleet.PodSpec) (demand, error) {
	centers, err := centersFor(v, cat, spec)
	if err != nil {
		return demand{}, err
	}
	need := leastNeed(spec)
	out := demand{need: need, req: place.Request{
		GPU: spec.GPU, Need: need, Cloud: spec.Cloud, Centers: centers, Image: spec.Image, CUDA: spec.CUDA,
		Networked: spec.GlobalNetworking,
	}}
	if len(spec.Models) > 0 {
		ref, _ := fleet.ParseModelRef(spec.Models[0]) // its endpoint was checked
		out.req.Model = ref.String()
	}
	if spec.Network != nil {
		volume, _ := v.Volume(spec.Network.Volume)
		backend, _ := v.Backend(volume.Backend)
		out.req.VolumeKind = backend.Kind
	}
	if spec.GPU != nil {
		n := int64(spec.GPU.Count)
		out.req.MinMemoryMB = 1000 * int64(spec.MinRAMPerGPU) * n
		out.req.MinMilliCPU = 1000 * int64(spec.MinVCPUPerGPU) * n
	}
	return out, nil
}

// centersFor returns the data centers that a pod may go to; empty: any.
func centersFor(v *state.View, cat fleet.Catalog, spec *fleet.PodSpec) ([]fleet.DataCenterID, error) {
	centers := spec.Centers
	if spec.Network != nil {
		volume, _ := v.Volume(spec.Network.Volume)
		if len(centers) > 0 && !slices.Contains(centers, volume.DataCenter) {
			return nil, fleet.BreaksRule("the network volume is in none of the data centers of dataCenterIds")
		}
		centers = []fleet.DataCenterID{volume.DataCenter}
	}
	if !spec.GlobalNetworking {
		return centers, nil
	}
	return networkedCenters(v, cat, spec, centers)
}

func errNotNetworked() error { return fleet.BreaksRule("globalNetworking needs an NVIDIA GPU") }

// networkedCenters returns those of the allowed data centers that have global networking.
func networkedCenters(
	v *state.View, cat fleet.Catalog, spec *fleet.PodSpec, allowed []fleet.DataCenterID,
) ([]fleet.DataCenterID, error) {
	if spec.GPU == nil {
		return nil, errNotNetworked()
	}
	if t, ok := gpuTypeOf(cat, spec.GPU.Type); ok && t.Manufacturer != "NVIDIA" {
		return nil, errNotNetworked()
	}
	var out []fleet.DataCenterID
	for _, dc := range v.DataCenters() {
		if dc.GlobalNetwork && (len(allowed) == 0 || slices.Contains(allowed, dc.ID)) {
			out = append(out, dc.ID)
		}
	}
	if len(out) == 0 {
		return nil, fleet.BreaksRule("globalNetworking needs a data center with global networking, and none that is allowed has it")
	}
	return out, nil
}

// bound is where a pod goes.
type bound struct {
	state.Binding
	center fleet.DataCenterID
}

// bind picks a host with its GPUs and public ports for the pod, reserves them, and says what the pod holds
// there; its rate is left to the caller. Errors: no_capacity, and those of reserver.reserve.
func (d *demand) bind(v *state.View, pod *fleet.Pod, mine *reserver) (state.Binding, error) {
	all, err := d.bindAll(v, []*fleet.Pod{pod}, place.Group{}, mine)
	if err != nil {
		return state.Binding{}, err
	}
	return all[0].Binding, nil
}

// bindAll is bind for pods of which each is to have what is wanted, all or none; of group, it heeds where they may be.
func (d *demand) bindAll(v *state.View, pods []*fleet.Pod, group place.Group, mine *reserver) (all []bound, err error) {
	err = mine.reserve(v, func(hosts *place.Index, less place.Instead, ports func(fleet.HostID) []int) ([]*reservation, error) {
		var err error
		all, err = d.choose(v, pods, group, hosts, less, ports)
		if fleet.CodeOf(err) == fleet.CodeNoCapacity {
			all, err = d.chooseFrozen(v, pods, group, hosts, less, ports, err)
		}
		if fleet.CodeOf(err) == fleet.CodeNoCapacity {
			all, err = d.chooseYielding(v, pods, group, hosts, less, ports, err)
		}
		if err != nil {
			return nil, err
		}
		reservations := make([]*reservation, len(all))
		for i := range all {
			b, pod := &all[i], pods[i]
			reservations[i] = &reservation{
				pod: pod.ID, rev: pod.Rev, host: b.Host, gpus: b.GPUs, need: d.taken(*b.Need), ports: publicOf(b.Mappings),
			}
		}
		return reservations, nil
	})
	return all, err
}

// taken is what a pod that needs so much takes of a host's free resources: its own data is there already.
func (d *demand) taken(need fleet.Resources) fleet.Resources {
	need.DiskGB -= d.need.DiskGB - d.req.Need.DiskGB
	return need
}

// choose is bindAll on what is given, without a reservation. A member of a cluster whose others have a fabric goes to a host of that, if
// one has room.
func (d *demand) choose(
	v *state.View, pods []*fleet.Pod, group place.Group, hosts *place.Index, less place.Instead, ports func(fleet.HostID) []int,
) ([]bound, error) {
	if d.with != "" {
		near := *d
		near.with, near.req.Fabric = "", d.with
		if all, err := near.choose(v, pods, group, hosts, less, ports); err == nil {
			return all, nil
		}
	}
	return d.chooseAmong(v, pods, group, hosts, less, ports)
}

func (d *demand) chooseAmong(
	v *state.View, pods []*fleet.Pod, group place.Group, hosts *place.Index, less place.Instead, ports func(fleet.HostID) []int,
) ([]bound, error) {
	all, full, other := make([]bound, 0, len(pods)), 0, 0
	group.Request, group.Count = d.req, len(pods)
	group.Hold = func(i int, choice place.Choice, on *place.Candidate) (fleet.Resources, bool) {
		all = all[:i]
		if slices.Contains(d.not, choice.Host) {
			other++
			return fleet.Resources{}, false
		}
		reserved := ports(on.Host.ID)
		for _, b := range all {
			if b.Host == choice.Host {
				reserved = append(reserved, publicOf(b.Mappings)...)
			}
		}
		mappings, ok := publish(v, on.Host, pods[i], nil, reserved)
		if !ok {
			full++
			return fleet.Resources{}, false
		}
		need := d.share(on)
		all = append(all, bound{center: choice.DataCenter, Binding: state.Binding{
			Host: choice.Host, HostEpoch: on.Host.Epoch, GPUs: choice.GPUs, Need: &need, Mappings: mappings,
		}})
		return d.taken(need), true
	}
	if _, err := hosts.PickGroup(group, less); err != nil {
		return nil, without(without(err, "public ports", full), "one pod per host", other)
	}
	return all, nil
}

// share gives a GPU pod its fair share of the host: as much of processors and memory as its GPUs are
// of the host's, as far as that is free and not kept for other free GPUs, and at least what it needs.
func (d *demand) share(on *place.Candidate) fleet.Resources {
	need, inv := d.need, on.Host.Inventory
	total := int64(len(inv.GPUs))
	if d.req.GPU == nil || total == 0 {
		return need
	}
	count, free := int64(d.req.GPU.Count), on.Beside(d.req.GPU.Count)
	need.MilliCPU = max(need.MilliCPU, min(inv.Total.MilliCPU*count/total, free.MilliCPU))
	need.MemoryMB = max(need.MemoryMB, min(inv.Total.MemoryMB*count/total, free.MemoryMB))
	return need
}

// without adds the hosts that were left out for a reason.
func without(err error, reason string, hosts int) error {
	var e *fleet.Error
	if hosts == 0 || !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Excluded = append(slices.Clone(e.Excluded), fleet.Exclusion{Reason: reason, Hosts: hosts})
	return &out
}

// publish chooses a public port of the host for each tcp port of a pod: those of kept that are still
// wanted stay, new ones are looked for from a place on that follows from the pod, so that pods that are
// made at the same time seldom choose the same; those that are reserved are left alone. A host that
// publishes none gives none. It is false when the host has no port left.
func publish(
	v *state.View, host *fleet.Host, pod *fleet.Pod, kept []fleet.PortMapping, reserved []int,
) ([]fleet.PortMapping, bool) {
	from, to := host.Inventory.PortFrom, host.Inventory.PortTo
	if from <= 0 || to < from {
		return nil, true
	}
	var out []fleet.PortMapping
	fresh := 0
	for _, p := range pod.Spec.Ports {
		if p.Protocol != "tcp" {
			continue
		}
		m := fleet.PortMapping{Private: p.Number}
		still := func(k fleet.PortMapping) bool {
			return k.Private == p.Number && k.Public >= from && k.Public <= to && state.PortFits(&pod.Spec, k.Private, k.Public)
		}
		if i := slices.IndexFunc(kept, still); i >= 0 {
			m.Public = kept[i].Public
		} else {
			fresh++
		}
		out = append(out, m)
	}
	if fresh == 0 {
		return out, true
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(pod.ID)) // a hash never fails
	most := fresh + len(reserved) + len(pod.Spec.Ports)
	free, _ := v.FreePorts(host.ID, most, int(hash.Sum32()>>1)) // or all that there are
	free = slices.DeleteFunc(free, func(port int) bool { return slices.Contains(reserved, port) })
	return out, assign(&pod.Spec, out, free)
}

// assign gives a free public port to each mapping without one: first to those of symmetrical ports, which not every
// one fits. It is false when there are not enough.
func assign(spec *fleet.PodSpec, mappings []fleet.PortMapping, free []int) bool {
	for _, symmetrical := range []bool{true, false} {
		for i := range mappings {
			m := &mappings[i]
			if m.Public != 0 || fleet.Symmetrical(m.Private) != symmetrical {
				continue
			}
			at := slices.IndexFunc(free, func(port int) bool { return state.PortFits(spec, m.Private, port) })
			if at < 0 {
				return false
			}
			m.Public = free[at]
			free = slices.Delete(free, at, at+1)
		}
	}
	return true
}
