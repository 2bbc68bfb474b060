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
	maxStranded     = 100 // hosts that Capacity names
	maxStrandedPods = 8   // of each
)

// Placement returns the operator's setting of where pods go.
func (s *Service) Placement(ctx context.Context) (fleet.Placement, error) {
	var out fleet.Placement
	err := s.read(ctx, func(v *state.View) error { out = v.Placement(); return nil })
	return out, err
}

// PutPlacement replaces the setting of where pods go; pods keep what they have. Errors: invalid.
func (s *Service) PutPlacement(ctx context.Context, placement fleet.Placement) (fleet.Placement, error) {
	out, err := propose[fleet.Placement](ctx, s, state.PutPlacement{Placement: placement})
	if err == nil {
		s.Log.Info("placement settings changed", "keepPercent", out.KeepPercent)
	}
	return out, err
}

// Capacity returns what the fleet has room for, and up to 100 hosts with free GPUs that no pod can have, most such GPUs first.
func (s *Service) Capacity(ctx context.Context) (fleet.Capacity, error) {
	var out fleet.Capacity
	err := s.read(ctx, func(v *state.View) error {
		out.GPUs, out.Stranded = CapacityOf(v)
		out.Busy = s.busyHosts(v)
		out.Stranded = out.Stranded[:min(len(out.Stranded), maxStranded)]
		for i := range out.Stranded {
			on := &out.Stranded[i]
			host, _ := v.Host(on.Host)
			on.Name, on.Pods = host.Name, inTheWay(&host, v.HostPods(on.Host), on.Short)
		}
		return nil
	})
	return out, err
}

// busyHosts returns how busy the GPUs are that pods hold, by host. A scheduler that does not lead hears of none.
func (s *Service) busyHosts(v *state.View) []fleet.BusyHost {
	var out []fleet.BusyHost
	for _, h := range v.HostRows() {
		if len(h.Inventory.GPUs) == 0 {
			continue
		}
		sum, n := 0, 0
		for _, p := range v.HostPods(h.ID) {
			live := s.Dispatch.Live(h.ID, p.ID)
			if len(p.GPUs) == 0 || live == nil {
				continue
			}
			for _, g := range live.GPUs {
				sum, n = sum+g.Util, n+1
			}
		}
		if n > 0 {
			out = append(out, fleet.BusyHost{Host: h.ID, Util: sum / n})
		}
	}
	slices.SortFunc(out, func(a, b fleet.BusyHost) int { return cmp.Compare(a.Host, b.Host) })
	return out
}

// CapacityOf returns what a fleet has room for by the rules by which pods are placed, by GPU type, and the hosts with free GPUs
// that no pod can have, most such GPUs first; it names neither them nor their pods.
func CapacityOf(v *state.View) ([]fleet.GPUCapacity, []fleet.StrandedGPUs) {
	types := map[string]*fleet.GPUCapacity{}
	var stranded []fleet.StrandedGPUs
	count := func(of string) *fleet.GPUCapacity {
		if types[of] == nil {
			types[of] = &fleet.GPUCapacity{Type: of, Fit: map[int]int{}, Stranded: map[fleet.Shortage]int{}}
		}
		return types[of]
	}
	v.Fleet().All(func(c *place.Candidate) {
		for i := range c.Host.Inventory.GPUs {
			count(c.Host.Inventory.GPUs[i].Type).Total++
		}
		if takes, _ := c.Host.Takes(); !takes {
			return
		}
		free := map[string]int{}
		for i := range c.FreeGPUs {
			free[c.FreeGPUs[i].Type]++
		}
		for of, n := range free {
			if lost := addHost(count(of), c, n); lost.GPUs > 0 {
				stranded = append(stranded, lost)
			}
		}
	})
	var out []fleet.GPUCapacity
	for _, of := range slices.Sorted(maps.Keys(types)) {
		out = append(out, *types[of])
	}
	slices.SortFunc(stranded, func(a, b fleet.StrandedGPUs) int {
		return cmp.Or(b.GPUs-a.GPUs, cmp.Compare(a.Host, b.Host), cmp.Compare(a.Type, b.Type))
	})
	return out, stranded
}

// addHost counts a host that has so many GPUs of the type free, and returns those that no pod can have.
func addHost(t *fleet.GPUCapacity, c *place.Candidate, free int) fleet.StrandedGPUs {
	t.Free += free
	t.Most = max(t.Most, free)
	for _, n := range fleet.WholeGPUs() {
		fit, _ := place.Room(leastOf(t.Type, n, c.Host.Cloud), c)
		t.Fit[n] += fit
	}
	usable, short := free, fleet.Shortage("")
	for ; usable > 0; usable-- {
		fit, why := place.Room(leastOf(t.Type, usable, c.Host.Cloud), c)
		if fit > 0 {
			break
		}
		if usable == free { // what all of them together lack
			short = why
		}
	}
	if usable < free {
		t.Stranded[short] += free - usable
	}
	return fleet.StrandedGPUs{Host: c.Host.ID, Type: t.Type, GPUs: free - usable, Short: short}
}

// leastOf asks for so many GPUs with the least that such a pod holds.
func leastOf(of string, gpus int, cloud fleet.Cloud) place.Request {
	spec := fleet.PodSpec{GPU: &fleet.GPURequest{Type: of, Count: gpus}, DiskGB: defaultDiskGPU}
	return place.Request{GPU: spec.GPU, Need: leastNeed(&spec), Cloud: cloud}
}

// inTheWay returns those of a host's pods that hold more of a resource than falls to their GPUs, what holds most first.
func inTheWay(host *fleet.Host, pods []fleet.Pod, short fleet.Shortage) []fleet.PodID {
	amount := func(r *fleet.Resources) int64 {
		switch short {
		case fleet.ShortOfCPU:
			return r.MilliCPU
		case fleet.ShortOfMemory:
			return r.MemoryMB
		case fleet.ShortOfDisk:
			return r.DiskGB
		}
		return 0
	}
	total, all := amount(&host.Inventory.Total), int64(max(1, len(host.Inventory.GPUs)))
	over := func(p *fleet.Pod) int64 { return amount(&p.Need) - total*int64(len(p.GPUs))/all }
	pods = slices.DeleteFunc(pods, func(p fleet.Pod) bool { return !p.Held || over(&p) <= 0 })
	slices.SortFunc(pods, func(a, b fleet.Pod) int { return cmp.Or(cmp.Compare(over(&b), over(&a)), cmp.Compare(a.ID, b.ID)) })
	var out []fleet.PodID
	for i := range pods[:min(len(pods), maxStrandedPods)] {
		out = append(out, pods[i].ID)
	}
	return out
}
