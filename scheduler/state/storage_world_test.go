package state

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"gantry/fleet"
)

// nfsBackend is a STANDARD backend of dc-1 that only measures, and that any host with the storage role looks after.
func nfsBackend(id fleet.BackendID) fleet.Backend {
	return fleet.Backend{
		ID: id, DataCenter: "dc-1", Type: fleet.VolumeStandard, Kind: fleet.BackendNFS, CreatedAt: at(2),
		NFS: &fleet.NFSBackend{Server: "192.0.2.7", Export: "/export/" + string(id)},
	}
}

// localBackend is a HIGH_PERFORMANCE backend of dc-1 that host-a looks after.
func localBackend(id fleet.BackendID) fleet.Backend {
	return fleet.Backend{
		ID: id, DataCenter: "dc-1", Type: fleet.VolumeFast, Kind: fleet.BackendLocal, CreatedAt: at(2),
		Local: &fleet.LocalBackend{Path: "/srv/" + string(id)}, StorageHost: "host-a",
	}
}

// newVolume is a record to create: a volume of acme of 10 GB, on a backend of nfsBackend, or of localBackend when its
// id says fast.
func newVolume(id fleet.VolumeID, on fleet.BackendID) fleet.Volume {
	v := fleet.Volume{
		ID: id, Account: "acme", Name: "v", SizeGB: 10, DataCenter: "dc-1", Type: fleet.VolumeStandard, CreatedAt: at(2),
		Backend: on, Dir: dirOf(string(id)),
	}
	if strings.Contains(string(on), "fast") {
		v.Type = fleet.VolumeFast
	}
	return v
}

// dirOf makes the name of a directory of a seed.
func dirOf(seed string) string {
	sum := sha256.Sum256([]byte(seed))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:26])
}

// volume returns a volume's record.
func (w *world) volume(id fleet.VolumeID) (out fleet.Volume) {
	w.t.Helper()
	w.view(func(v *View) {
		var ok bool
		if out, ok = v.VolumeRecord(id); !ok {
			w.t.Fatalf("volume %s is not there", id)
		}
	})
	return out
}

// provides makes a report of volumes by a host's present session.
func (w *world) provides(host fleet.HostID, reports ...VolumeReport) ReportVolumes {
	return ReportVolumes{Host: host, Epoch: w.host(host).Epoch, Volumes: reports, At: at(45)}
}

// kinds returns the events after an index as kinds with ids.
func (w *world) said(index uint64) map[Event]bool {
	w.t.Helper()
	evs, _, ok := w.s.Events(index)
	if !ok {
		w.t.Fatal("events are missing")
	}
	out := map[Event]bool{}
	for _, e := range evs {
		out[Event{Kind: e.Kind, ID: e.ID}] = true
	}
	return out
}

// ofStorage adds what a view shows of network volumes.
func (d *dump) ofStorage(v *View) {
	d.Backends, d.AllVolumes = v.Backends(), v.AllVolumes()
	d.On, d.Work = map[fleet.BackendID][]fleet.Volume{}, map[fleet.BackendID][]fleet.Volume{}
	for _, b := range d.Backends {
		d.On[b.ID], d.Work[b.ID] = v.VolumesOn(b.ID), v.StorageWork(b.ID)
	}
	d.VolumePods = map[fleet.VolumeID][]fleet.Pod{}
	for _, volume := range d.AllVolumes {
		d.VolumePods[volume.ID] = v.VolumePods(volume.ID)
	}
	d.With = map[fleet.HostRole][]fleet.HostID{}
	for _, role := range []fleet.HostRole{fleet.RoleStorage, fleet.RoleS3} {
		d.With[role] = v.HostsWith(role)
	}
}
