package scheduler

import (
	"cmp"
	"maps"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state"
)

// enough is how many hosts with room in the place of frozen workers a pick looks at for each pod. There are more only where it hardly
// matters which is taken.
const enough = 64

// chooseFrozen is choose where the room of frozen workers is needed, which the pods take: first of those that keep it for the shortest.
// instead is what the hosts were seen as that had no room, and why the error of that.
func (d *demand) chooseFrozen(
	v *state.View, pods []*fleet.Pod, group place.Group, hosts *place.Index, instead place.Instead, ports func(fleet.HostID) []int, why error,
) ([]bound, error) {
	for _, all := range []bool{false, true} {
		room := place.Instead{}
		for id := range v.Frozen() {
			on, frozen := hosts.Get(id, instead), frozenOn(v, id, all)
			if on == nil || len(frozen) == 0 {
				continue
			}
			more := withoutFrozen(on, frozen)
			if n, _ := place.Room(d.req, &more); n > 0 {
				room[id] = &more
			}
			if len(room) >= enough*len(pods) {
				break
			}
		}
		if len(room) == 0 {
			continue
		}
		seen := maps.Clone(instead)
		if seen == nil {
			seen = place.Instead{}
		}
		maps.Copy(seen, room)
		bounds, err := d.choose(v, pods, group, hosts, seen, ports)
		if err == nil {
			d.evict(bounds, hosts, instead, func(on fleet.HostID) []*fleet.Pod { return frozenOn(v, on, all) })
			return bounds, nil
		}
		why = err
	}
	return nil, why
}

// evict names the pods whose places the pods take, and no others, of those that make room on a host: the first ones first.
func (d *demand) evict(bounds []bound, hosts *place.Index, instead place.Instead, of func(fleet.HostID) []*fleet.Pod) {
	frozen, free := map[fleet.HostID][]*fleet.Pod{}, map[fleet.HostID]fleet.Resources{}
	for i := range bounds {
		b := &bounds[i]
		if _, seen := free[b.Host]; !seen {
			frozen[b.Host], free[b.Host] = of(b.Host), hosts.Get(b.Host, instead).Free
		}
		need, left := d.taken(*b.Need), free[b.Host]
		take := func(in func(p *fleet.Pod) bool) {
			frozen[b.Host] = slices.DeleteFunc(frozen[b.Host], func(p *fleet.Pod) bool {
				out := in(p)
				if out {
					b.Evict, left = append(b.Evict, p.ID), plus(left, p.Need)
				}
				return out
			})
		}
		take(func(p *fleet.Pod) bool {
			return slices.ContainsFunc(p.GPUs, func(uuid string) bool { return slices.Contains(b.GPUs, uuid) })
		})
		take(func(*fleet.Pod) bool {
			return left.MilliCPU < need.MilliCPU || left.MemoryMB < need.MemoryMB || left.DiskGB < need.DiskGB
		})
		free[b.Host] = plus(left, fleet.Resources{MilliCPU: -need.MilliCPU, MemoryMB: -need.MemoryMB, DiskGB: -need.DiskGB})
	}
}

func plus(a, b fleet.Resources) fleet.Resources {
	return fleet.Resources{MilliCPU: a.MilliCPU + b.MilliCPU, MemoryMB: a.MemoryMB + b.MemoryMB, DiskGB: a.DiskGB + b.DiskGB}
}

// frozenOn lists the frozen workers of a host, those first that are to go first: the longest frozen of those whose endpoints do not have
// PRIORITY_FLASHBOOT, then, if all are asked for, of those.
func frozenOn(v *state.View, host fleet.HostID, all bool) (out []*fleet.Pod) {
	last := map[fleet.PodID]int{}
	for id, p := range v.Frozen()[host] {
		if e, ok := state.Find[fleet.Endpoint](v, fleet.EndpointID(p.Owner.ID)); ok && e.Spec.FlashBoot == fleet.FlashBootPriority {
			last[id] = 1
		}
		if all || last[id] == 0 {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *fleet.Pod) int {
		return cmp.Or(last[a.ID]-last[b.ID], a.Frozen.Compare(b.Frozen), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// withoutFrozen is a host as it is when some of its pods have gone.
func withoutFrozen(on *place.Candidate, frozen []*fleet.Pod) place.Candidate {
	var gpus []string
	var free fleet.Resources
	for _, p := range frozen {
		gpus, free = append(gpus, p.GPUs...), plus(free, p.Need)
	}
	return on.More(gpus, free, len(frozen))
}
