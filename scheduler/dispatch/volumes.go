package dispatch

import (
	"slices"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/state"
)

// volume returns the network volume of a pod that is to run; nil: it has none. When its keys cannot be opened the pod is
// assigned all the same, with a volume that is not ready, and waits.
func (x *session) volume(p *fleet.Pod) *agentrpc.NetworkVolume {
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
	out := &agentrpc.NetworkVolume{VolumeId: string(m.Volume), Path: m.Path}
	if err != nil || !known || volume.Account != p.Account {
		x.server.Log.Error("find the network volume of a pod", "pod", p.ID, "volume", m.Volume, "err", err)
		return out
	}
	opened := x.server.Backends.Open(&backend, false)
	if out = volumes.EncodeVolume(&volume, opened); opened == nil {
		out.Backend, out.Ready = volumes.EncodeBackend(&backend, fleet.BackendSecrets{}, false), false
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
