package rest

import (
	"gantry/api/v2"
	"gantry/fleet"
)

// mountParts returns the mounts in the service's form.
func mountParts(m *v2.Mounts) (persistent *fleet.PersistentMount, network *fleet.NetworkMount) {
	if m != nil && m.Persistent != nil {
		persistent = &fleet.PersistentMount{SizeGB: m.Persistent.Size, Path: m.Persistent.Path}
	}
	if m != nil && len(m.Network) > 0 {
		network = &fleet.NetworkMount{Volume: fleet.VolumeID(m.Network[0].VolumeID), Path: m.Network[0].Path}
	}
	return persistent, network
}

// mountsOf shows the mounts of a specification.
func mountsOf(spec *fleet.PodSpec) v2.Mounts {
	var out v2.Mounts
	if p := spec.Persistent; p != nil {
		out.Persistent = &v2.PersistentMount{Size: p.SizeGB, Path: p.Path}
	}
	if n := spec.Network; n != nil {
		out.Network = []v2.NetworkMount{{VolumeID: string(n.Volume), Path: n.Path}}
	}
	return out
}
