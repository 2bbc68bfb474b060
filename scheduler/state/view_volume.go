package state

import (
	"time"

	"gantry/fleet"
)

// Volume returns a network volume as its owner sees it, whoever that is: one that is being deleted is not there.
func (v *View) Volume(id fleet.VolumeID) (fleet.Volume, bool) {
	volume, ok := v.VolumeRecord(id)
	if !ok || volume.State == fleet.VolumeDeleting {
		return fleet.Volume{}, false
	}
	return volume, true
}

// VolumesOf returns the network volumes of an account in the order in which they were created, without those that
// are being deleted.
func (v *View) VolumesOf(account fleet.AccountID) []fleet.Volume {
	rows := map[fleet.VolumeID]*fleet.Volume{}
	for id, row := range v.tb.volumesOf.Rows[account] {
		if row.State != fleet.VolumeDeleting {
			rows[id] = row
		}
	}
	return byAgeOf(rows, func(r *fleet.Volume) (time.Time, string) { return r.CreatedAt, string(r.ID) }, cloneVolume)
}

// VolumeRecord returns a network volume, whoever owns it, also one that is being deleted.
func (v *View) VolumeRecord(id fleet.VolumeID) (fleet.Volume, bool) {
	volume := v.tb.volumes.Rows[id]
	if volume == nil {
		return fleet.Volume{}, false
	}
	return cloneVolume(volume), true
}

// AllVolumes returns the network volumes of all accounts by id, with those that are being deleted.
func (v *View) AllVolumes() []fleet.Volume { return cloneVolumes(v.tb.volumes.Rows) }

// VolumesOn returns the network volumes on a backend by id, with those that are being deleted.
func (v *View) VolumesOn(id fleet.BackendID) []fleet.Volume {
	return cloneVolumes(v.tb.volumesOn.Rows[id])
}

// StorageWork returns the network volumes on a backend, by id, for which a host with the storage role has
// something to do: those that are to be made, enlarged or removed, and all of a backend that only measures.
func (v *View) StorageWork(id fleet.BackendID) []fleet.Volume {
	if b := v.tb.backends.Rows[id]; b != nil && b.Measured() {
		return v.VolumesOn(id)
	}
	return cloneVolumes(v.tb.unfinishedOn.Rows[id])
}

// BackendUse returns how many network volumes are on a backend, with those that are being deleted, and the sum of
// their sizes.
func (v *View) BackendUse(id fleet.BackendID) (volumes int, sizeGB int64) {
	for _, volume := range v.tb.volumesOn.Rows[id] {
		sizeGB += int64(volume.SizeGB)
	}
	return len(v.tb.volumesOn.Rows[id]), sizeGB
}

// VolumePods returns the pods with a network volume, by id: those that are not terminated, and those that a host
// may still have.
func (v *View) VolumePods(id fleet.VolumeID) []fleet.Pod {
	out := []fleet.Pod{}
	for _, pod := range sortedKeys(v.tb.podsWith.Rows[id]) {
		if p := v.tb.podsWith.Rows[id][pod]; p.Held || p.Status != fleet.StatusTerminated {
			out = append(out, clonePod(p))
		}
	}
	return out
}

// VolumeHeld reports whether a host may still have a pod of the account with the volume.
func (v *View) VolumeHeld(account fleet.AccountID, id fleet.VolumeID) bool {
	for _, p := range v.tb.podsWith.Rows[id] {
		if p.Held && p.Account == account {
			return true
		}
	}
	return false
}

// Backend returns a backend of network volumes.
func (v *View) Backend(id fleet.BackendID) (fleet.Backend, bool) {
	b := v.tb.backends.Rows[id]
	if b == nil {
		return fleet.Backend{}, false
	}
	return cloneBackend(b), true
}

// Backends returns the backends of network volumes by id.
func (v *View) Backends() []fleet.Backend {
	return v.backends(func(*fleet.Backend) bool { return true })
}

// BackendsOf returns the backends of network volumes of a data center by id.
func (v *View) BackendsOf(center fleet.DataCenterID) []fleet.Backend {
	return v.backends(func(b *fleet.Backend) bool { return b.DataCenter == center })
}

func (v *View) backends(match func(*fleet.Backend) bool) []fleet.Backend {
	out := []fleet.Backend{}
	for _, id := range sortedKeys(v.tb.backends.Rows) {
		if b := v.tb.backends.Rows[id]; match(b) {
			out = append(out, cloneBackend(b))
		}
	}
	return out
}

// HostsWith returns the hosts that an operator gave a role, by id, but for those that are gone.
func (v *View) HostsWith(role fleet.HostRole) []fleet.HostID {
	out := []fleet.HostID{}
	for _, id := range sortedKeys(v.tb.roles) {
		if v.tb.roles[id].Has(role) {
			out = append(out, id)
		}
	}
	return out
}

func cloneVolumes(rows map[fleet.VolumeID]*fleet.Volume) []fleet.Volume {
	out := make([]fleet.Volume, 0, len(rows))
	for _, id := range sortedKeys(rows) {
		out = append(out, cloneVolume(rows[id]))
	}
	return out
}
