package state

import (
	"time"

	"gantry/fleet"
)

// MaxVolumeReports is how many volumes one ReportVolumes may be about.
const MaxVolumeReports = 1000

// LooksAfter reports whether a host may make, enlarge, measure and remove the volumes on a backend.
func LooksAfter(h *fleet.Host, b *fleet.Backend) bool {
	return h.Has(fleet.RoleStorage) && h.DataCenter == b.DataCenter && (b.StorageHost == "" || b.StorageHost == h.ID)
}

func (c ReportVolumes) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	switch {
	case !ok:
		return nil, fleet.NotFound("host")
	case host.Epoch != c.Epoch:
		return nil, fleet.Stale("the host has a newer session")
	case len(c.Volumes) > MaxVolumeReports:
		return nil, fleet.Invalid("$.volumes", "must be at most 1000")
	}
	since := map[fleet.DataCenterID]time.Time{}
	for i := range c.Volumes {
		r := &c.Volumes[i]
		old := t.base.volumes.Get(t.Txn, r.Volume)
		if old == nil {
			continue
		}
		b := t.base.backends.Get(t.Txn, old.Backend)
		switch {
		case b == nil || !LooksAfter(&host, b):
		case old.State == fleet.VolumeDeleting:
			if _, known := since[old.DataCenter]; !known {
				since[old.DataCenter] = t.unsettled(old.DataCenter)
			}
			if r.Gone && !t.volumeHeld(r.Volume) && !old.CreatedAt.Before(since[old.DataCenter]) {
				t.base.volumes.Drop(t.Txn, r.Volume)
				t.noteVolume(old)
			}
		default:
			c.record(t, r, old, b.Measured())
		}
	}
	return nil, nil
}

// record takes what is said of a volume that is not being deleted. Hosts that have its pods are told when it is
// made, and when it may be written to no more, or again.
func (c ReportVolumes) record(t *txn, r *VolumeReport, old *fleet.Volume, measured bool) {
	v := *old
	if r.ProvisionedGB > 0 && r.ProvisionedGB <= fleet.VolumeMostGB {
		v.ProvisionedGB, v.State = r.ProvisionedGB, fleet.VolumeReady
		t.useBackend(old.Backend)
	}
	if r.ReadOnly != nil {
		v.ReadOnly = measured && *r.ReadOnly
	}
	if v == *old {
		return
	}
	t.putVolume(&v)
	if v.State != old.State || v.ReadOnly != old.ReadOnly {
		t.tellHolders(v.ID)
	}
}

// useBackend notes that a volume was made on a backend.
func (t *txn) useBackend(id fleet.BackendID) {
	if old := t.base.backends.Get(t.Txn, id); !old.Used {
		b := cloneBackend(old)
		b.Used = true
		t.base.backends.Put(t.Txn, id, &b)
		t.Note(KindStorage, string(id))
	}
}

// volumeHeld reports whether a host may still have a pod with a volume.
func (t *txn) volumeHeld(id fleet.VolumeID) bool {
	return t.base.podsWith.CountIf(t.Txn, id, func(p *fleet.Pod) bool { return p.Held }) > 0
}

// tellHolders gives the assignments of a volume's pods new generations, so that their hosts are told what is now.
func (t *txn) tellHolders(id fleet.VolumeID) {
	for _, old := range t.podsWith(id) {
		if !old.Held {
			continue
		}
		pod := *old
		t.renumber(&pod)
		t.putPod(&pod)
	}
}

// remeasure says of a volume of before a restore that nobody knows which size it has: it may have grown since the
// copy was made.
func (t *txn) remeasure(v fleet.Volume) {
	if v.State != fleet.VolumeDeleting && v.ProvisionedGB != 0 {
		v.ProvisionedGB = 0
		t.putVolume(&v)
	}
}
