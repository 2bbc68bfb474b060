package state

import (
	"slices"

	"gantry/fleet"
)

// podsOfVolume is where txn.written has the pods of a volume; see owned. No table has this name.
const podsOfVolume = "pods of a volume"

// volumeIndex is what is derived from volumes, and of pods by their volumes. Rows of one batch come in any order:
// what one of them leaves may be another's by now.
type volumeIndex struct {
	on      map[fleet.BackendID]map[fleet.VolumeID]*fleet.Volume
	pending map[fleet.BackendID]map[fleet.VolumeID]*fleet.Volume // of on, those for which something is to be done
	dirs    map[string]fleet.VolumeID
	bases   map[fleet.DataCenterID]*baseUse
	pods    map[fleet.VolumeID]map[fleet.PodID]*fleet.Pod
}

// baseUse is how many volumes of a data center have each base.
type baseUse struct {
	n  int
	of [volumeSlots]uint8
}

func newVolumeIndex() volumeIndex {
	return volumeIndex{
		on:      map[fleet.BackendID]map[fleet.VolumeID]*fleet.Volume{},
		pending: map[fleet.BackendID]map[fleet.VolumeID]*fleet.Volume{},
		dirs:    map[string]fleet.VolumeID{},
		bases:   map[fleet.DataCenterID]*baseUse{},
		pods:    map[fleet.VolumeID]map[fleet.PodID]*fleet.Pod{},
	}
}

// take replaces old by v, either of which may be nil.
func (x *volumeIndex) take(old, v *fleet.Volume) {
	if old != nil {
		leave(x.on, old.Backend, old.ID)
		leave(x.pending, old.Backend, old.ID)
		if x.dirs[old.Dir] == old.ID {
			delete(x.dirs, old.Dir)
		}
		x.count(old, -1)
	}
	if v != nil {
		enter(x.on, v.Backend, v.ID, v)
		if unfinished(v) {
			enter(x.pending, v.Backend, v.ID, v)
		}
		x.dirs[v.Dir] = v.ID
		x.count(v, 1)
	}
}

// count says that a volume has its base, or has it no more.
func (x *volumeIndex) count(v *fleet.Volume, n int) {
	i, ok := slotOf(v)
	if !ok {
		return
	}
	use := x.bases[v.DataCenter]
	if use == nil {
		use = &baseUse{}
		x.bases[v.DataCenter] = use
	}
	use.n += n
	use.of[i] += uint8(n) // of -1, one less
	if use.n == 0 {
		delete(x.bases, v.DataCenter)
	}
}

// takePod replaces old by pod, either of which may be nil.
func (x *volumeIndex) takePod(old, pod *fleet.Pod) {
	if old != nil && old.Spec.Network != nil {
		leave(x.pods, old.Spec.Network.Volume, old.ID)
	}
	if pod != nil && pod.Spec.Network != nil {
		enter(x.pods, pod.Spec.Network.Volume, pod.ID, pod)
	}
}

// enter puts a value into one of some maps; leave takes it out.
func enter[A, B comparable, T any](maps map[A]map[B]T, a A, b B, value T) {
	if maps[a] == nil {
		maps[a] = map[B]T{}
	}
	maps[a][b] = value
}

func leave[A, B comparable, T any](maps map[A]map[B]T, a A, b B) {
	delete(maps[a], b)
	if len(maps[a]) == 0 {
		delete(maps, a)
	}
}

// unfinished reports whether a volume is to be made, enlarged or removed.
func unfinished(v *fleet.Volume) bool {
	return v.State != fleet.VolumeReady || v.ProvisionedGB < v.SizeGB
}

// dirTaken reports whether a volume has a directory of that name, as the batch has them.
func (t *txn) dirTaken(dir string) bool {
	for id := range t.volumes {
		if v := get(t, &t.base.volumes, id); v != nil && v.Dir == dir {
			return true
		}
	}
	id, ok := t.base.stored.dirs[dir]
	_, written := t.volumes[id]
	return ok && !written
}

// volumesOn returns how many volumes are on a backend, as the batch has them.
func (t *txn) volumesOn(backend fleet.BackendID) int {
	n := len(t.base.stored.on[backend])
	for id := range t.volumes {
		if _, had := t.base.stored.on[backend][id]; had {
			n--
		}
		if v := get(t, &t.base.volumes, id); v != nil && v.Backend == backend {
			n++
		}
	}
	return n
}

// eachVolumeOn calls fn with every volume on a backend, by id, as the batch has them.
func (t *txn) eachVolumeOn(backend fleet.BackendID, fn func(fleet.VolumeID)) {
	ids := sortedKeys(t.base.stored.on[backend])
	for id := range t.volumes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if v := get(t, &t.base.volumes, id); v != nil && v.Backend == backend {
			fn(id)
		}
	}
}

// podsWith returns the pods with a volume, by id, as the batch and the command at hand have them.
func (t *txn) podsWith(volume fleet.VolumeID) []*fleet.Pod {
	ids := sortedKeys(t.base.stored.pods[volume])
	for id := range t.written[owned{podsOfVolume, fleet.AccountID(volume)}] {
		ids = append(ids, fleet.PodID(id))
	}
	slices.Sort(ids)
	var out []*fleet.Pod
	for _, id := range slices.Compact(ids) {
		if p := get(t, &t.base.pods, id); p != nil && p.Spec.Network != nil && p.Spec.Network.Volume == volume {
			out = append(out, p)
		}
	}
	return out
}
