package state

import (
	"slices"

	"gantry/fleet"
)

// takeable checks that GPUs of a host are of the pod's type and in service, and returns those that it gets:
// one that another pod holds is replaced by a free one that is as good. It is stale when there are not as
// many.
func takeable(host *fleet.Host, on []*fleet.Pod, pod *fleet.Pod, uuids []string) ([]string, error) {
	missing := 0
	for i, uuid := range uuids {
		if slices.Contains(uuids[:i], uuid) {
			return nil, fleet.Invalid("$.gpus", "must not name one twice")
		}
		gpu := gpuOf(host, uuid)
		if gpu == nil || gpu.Out() != "" || gpu.Type != pod.Spec.GPU.Type {
			return nil, fleet.Stale("a GPU is gone or out of service")
		}
		if holder(on, uuid) != nil {
			missing++
		}
	}
	if missing == 0 {
		return uuids, nil
	}
	return instead(host, on, uuids, missing)
}

// gpuOf returns a GPU of a host, nil when it has no such one.
func gpuOf(host *fleet.Host, uuid string) *fleet.GPU {
	i := slices.IndexFunc(host.Inventory.GPUs, func(g fleet.GPU) bool { return g.UUID == uuid })
	if i < 0 {
		return nil
	}
	return &host.Inventory.GPUs[i]
}

// holder returns the pod that holds a GPU, or nil.
func holder(on []*fleet.Pod, uuid string) *fleet.Pod {
	for _, p := range on {
		if p.Held && slices.Contains(p.GPUs, uuid) {
			return p
		}
	}
	return nil
}

// instead puts free GPUs of the same type in the place of those that are taken; missing is how many.
func instead(host *fleet.Host, on []*fleet.Pod, uuids []string, missing int) ([]string, error) {
	var free []fleet.GPU
	chosen := map[int]int{} // how many of each island
	for _, gpu := range host.Inventory.GPUs {
		switch {
		case gpu.Out() != "" || gpu.Type != gpuOf(host, uuids[0]).Type || holder(on, gpu.UUID) != nil:
		case slices.Contains(uuids, gpu.UUID):
			chosen[gpu.Island]++
		default:
			free = append(free, gpu)
		}
	}
	if len(free) < missing {
		return nil, fleet.Stale("a GPU is taken")
	}
	out := slices.Clone(uuids)
	for i, uuid := range out {
		if holder(on, uuid) == nil {
			continue
		}
		best := nearest(free, chosen, missing)
		out[i] = free[best].UUID
		chosen[free[best].Island]++
		free = slices.Delete(free, best, best+1)
		missing--
	}
	return out, nil
}

// nearest returns which of the free GPUs to take next: of the island of which most are chosen; then of the
// smallest island that has all that are missing, or of the largest; the first of several.
func nearest(free []fleet.GPU, chosen map[int]int, missing int) int {
	left := map[int]int{}
	for _, gpu := range free {
		left[gpu.Island]++
	}
	better := func(a, b int) bool {
		if chosen[a] != chosen[b] {
			return chosen[a] > chosen[b]
		}
		enough := left[a] >= missing
		if enough != (left[b] >= missing) {
			return enough
		}
		return left[a] != left[b] && (left[a] < left[b]) == enough
	}
	best := 0
	for i := range free {
		if better(free[i].Island, free[best].Island) {
			best = i
		}
	}
	return best
}
