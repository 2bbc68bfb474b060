package dispatch

import (
	"cmp"
	"slices"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/scheduler/state"
)

// encodeBackend says how a host reaches a backend: as the user that every host is, or with admin as the one that may
// set quotas. The key goes nowhere but into this message.
func encodeBackend(b *fleet.Backend, secrets fleet.BackendSecrets, admin bool) *link.VolumeBackend {
	out := &link.VolumeBackend{Id: string(b.ID), Kind: string(b.Kind), SizedByHost: b.StoragePath != ""}
	switch {
	case b.NFS != nil:
		out.Server, out.Path, out.Options = b.NFS.Server, b.NFS.Export, b.NFS.Options
	case b.Ceph != nil:
		out.Monitors, out.FileSystem, out.Path = b.Ceph.Monitors, b.Ceph.FileSystem, b.Ceph.Path
		if out.User, out.Key = b.Ceph.User, secrets.Key.Reveal(); admin {
			out.User, out.Key = cmp.Or(b.Ceph.AdminUser, b.Ceph.User), secrets.AdminKey.Reveal()
		}
	case b.Local != nil:
		out.Path = b.Local.Path
	}
	return out
}

// encodeVolume is a network volume as hosts that mount it need it.
func encodeVolume(v *fleet.Volume, backend *link.VolumeBackend) *link.NetworkVolume {
	return &link.NetworkVolume{
		VolumeId: string(v.ID), Backend: backend, Dir: v.Dir, IdBase: v.IDBase, ReadOnly: v.ReadOnly, Ready: v.State == fleet.VolumeReady,
	}
}

// openBackend encodes a backend with the keys that its hosts need. Without them it is of no use, and nil.
func (s *Server) openBackend(b *fleet.Backend, admin bool) *link.VolumeBackend {
	var secrets fleet.BackendSecrets
	if s.BackendSecrets != nil {
		var err error
		if secrets, err = s.BackendSecrets(b); err != nil {
			s.Log.Error("open the keys of a backend of network volumes", "backend", b.ID, "err", err)
			return nil
		}
	}
	return encodeBackend(b, secrets, admin)
}

// volume returns the network volume of a pod that is to run; nil: it has none. When its keys cannot be opened the pod is
// assigned all the same, with a volume that is not ready, and waits.
func (x *session) volume(p *fleet.Pod) *link.NetworkVolume {
	m := p.Spec.Network
	if m == nil || p.Goal != fleet.GoalRun {
		return nil
	}
	var volume fleet.Volume
	var backend fleet.Backend
	var known bool
	err := x.server.Store.View(func(v *state.View) error {
		if volume, known = v.VolumeRecord(m.Volume); known {
			backend, known = v.Backend(volume.Backend)
		}
		return nil
	})
	out := &link.NetworkVolume{VolumeId: string(m.Volume), Path: m.Path}
	if err != nil || !known || volume.Account != p.Account {
		x.server.Log.Error("find the network volume of a pod", "pod", p.ID, "volume", m.Volume, "err", err)
		return out
	}
	opened := x.server.openBackend(&backend, false)
	if out = encodeVolume(&volume, opened); opened == nil {
		out.Backend, out.Ready = encodeBackend(&backend, fleet.BackendSecrets{}, false), false
	}
	out.Path = m.Path
	return out
}

// decodeKinds reads the kinds of backends that a host can mount; what is not known is left out.
func decodeKinds(in []string) []fleet.BackendKind {
	var out []fleet.BackendKind
	for _, kind := range []fleet.BackendKind{fleet.BackendCeph, fleet.BackendLocal, fleet.BackendNFS} {
		if slices.Contains(in[:min(len(in), maxKinds)], string(kind)) {
			out = append(out, kind)
		}
	}
	return out
}

// maxKinds bounds the kinds that are read of an inventory.
const maxKinds = 16
