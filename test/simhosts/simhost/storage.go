package simhost

import (
	"gantry/fleet"
	"gantry/internal/link"
)

// store does at once what a host with the storage role is to do for network volumes: all of it is said to be done, and
// what is measured holds nothing.
func (h *Host) store(set *link.StorageSet) {
	out := &link.StorageReports{}
	for _, root := range set.GetRoots() {
		for _, v := range root.GetVolumes() {
			r := &link.StorageReport{VolumeId: v.GetVolumeId(), Gone: v.GetGone(), Measured: v.GetMeasure()}
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
	h.reply(&link.Up{Kind: &link.Up_Storage{Storage: out}})
}
