package simhost

import (
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// store does at once what a host with the storage role is to do for network volumes: all of it is said to be done, and
// what is measured holds nothing.
func (h *Host) store(set *agentrpc.StorageSet) {
	out := &agentrpc.StorageReports{}
	for _, root := range set.GetRoots() {
		for _, v := range root.GetVolumes() {
			r := &agentrpc.StorageReport{VolumeId: v.GetVolumeId(), Gone: v.GetGone(), Measured: v.GetMeasure()}
			if r.GetGone() {
				h.fleet.census.removed(fleet.VolumeID(v.GetVolumeId()))
			} else {
				r.ProvisionedGb = v.GetSizeGb()
			}
			out.Volumes = append(out.Volumes, r)
		}
	}
	if len(out.GetVolumes()) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reply(&agentrpc.Up{Kind: &agentrpc.Up_Storage{Storage: out}})
}
