package sim

import (
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// workforce is what a log tells of the workers of endpoints.
type workforce struct {
	now     time.Time // of the newest command that says it
	before  map[fleet.EndpointID]bounds
	drained map[fleet.HostID]time.Time // when a host was last seen to be drained
	yielded int                        // frozen workers that gave their place to another pod
}

// bounds is how many workers an endpoint could have before its owner said less.
type bounds struct {
	most  int
	until time.Time
}

// late is how long what a leader has looked at may be on its way into the log.
const late = 30 * time.Second

func newWorkforce() workforce {
	return workforce{before: map[fleet.EndpointID]bounds{}, drained: map[fleet.HostID]time.Time{}}
}

// lowers notes before a command which endpoints may have fewer workers from then on.
func (f *workforce) lowers(v *state.View, cmd state.Command, at time.Time) {
	if at.After(f.now) {
		f.now = at
	}
	put, ok := cmd.(state.Put[fleet.Endpoint])
	if !ok {
		return
	}
	old, there := state.Find[fleet.Endpoint](v, put.Record.ID)
	if there && old.Spec.Workers.Max > put.Record.Spec.Workers.Max {
		f.before[old.ID] = bounds{old.Spec.Workers.Max, f.now.Add(late)}
	}
}

// grows checks after a command that started or thawed workers that their endpoint has not more than it may have. With those of an
// earlier release, and those that leave their hosts, it may have one more. Workers out of reach do not count.
func (f *workforce) grows(w *world, v *state.View, index uint64, cmd state.Command) {
	var id fleet.EndpointID
	switch c := cmd.(type) {
	case state.CreatePods:
		if p, made := v.Pod(c.Pods[0].Pod.ID); made && p.Owner.Kind == fleet.OwnerEndpoint {
			id = fleet.EndpointID(p.Owner.ID)
		}
	case state.FreezeWorker:
		if p, there := v.Pod(c.Pod); there && c.Thaw && p.Frozen.IsZero() {
			id = fleet.EndpointID(p.Owner.ID)
		}
	}
	e, there := state.Find[fleet.Endpoint](v, id)
	if !there {
		return
	}
	most, have, stale := e.Spec.Workers.Max, 0, 0
	if b := f.before[id]; b.until.After(f.now) {
		most = max(most, b.most)
	}
	for _, p := range v.WorkersOf(id) {
		host, _ := v.Host(p.Host)
		lost, drained := v.Standing(p.Host)
		if drained {
			f.drained[p.Host] = f.now
		}
		if p.Goal != fleet.GoalRun || !p.Status.Active() || !p.Frozen.IsZero() || lost || f.now.Sub(host.SeenAt) < late {
			continue
		}
		if have++; p.Release != e.Version() || f.now.Sub(f.drained[p.Host]) < late {
			stale = 1
		}
	}
	if have > most+stale {
		w.broke("endpoints: entry %d makes it %d workers of endpoint %s, which may have %d (%T)", index, have, id, most, cmd)
	}
}

// leaves checks that no worker but a frozen one is ended so that another pod has its place.
func (f *workforce) leaves(w *world, index uint64, cmd state.Command, old, rec fleet.Pod) {
	if old.Owner.Kind != fleet.OwnerEndpoint || old.Stopping() || !old.Status.Active() || !rec.Stopping() && rec.Status != fleet.StatusTerminated {
		return
	}
	switch c := cmd.(type) {
	case state.CreatePods, state.MovePod:
	case state.ActPod:
		if c.Pod == old.ID {
			return
		}
	default:
		return
	}
	if f.yielded++; old.Frozen.IsZero() {
		w.broke("endpoints: entry %d ends worker %s, which is not frozen, for another pod (%T): %+v", index, old.ID, cmd, old)
	}
}
