package state

import (
	"maps"
	"slices"
	"time"

	"gantry/fleet"
)

// ReadyWorkers says that workers of serverless endpoints have asked for their first job: they are charged from then on. Others than
// those that run and were not ready are left out. Value: how many it changed. Errors: invalid.
type ReadyWorkers struct {
	Pods []fleet.PodID `cbor:"1,keyasint"` // at most MaxPods
	At   time.Time     `cbor:"2,keyasint"`
}

func (c ReadyWorkers) apply(t *txn) (any, error) {
	if len(c.Pods) > MaxPods {
		return nil, fleet.Invalid("$.pods", "must be at most 250")
	}
	if c.At.IsZero() {
		return nil, fleet.Invalid("$.at", "must be set")
	}
	n := 0
	for _, id := range c.Pods {
		old := t.base.pods.Get(t.Txn, id)
		if old == nil || old.Owner.Kind != fleet.OwnerEndpoint || !old.Status.Active() || !old.Ready.IsZero() {
			continue
		}
		pod := *old
		pod.Ready = c.At
		t.putPod(&pod)
		n++
	}
	return n, nil
}

// FreezeWorker freezes a worker of a serverless endpoint that waits for jobs, or thaws it. A frozen one is not charged and does not count
// for the running pods of its account; it holds its place until a pod is bound that takes it (Binding.Evict). Value: fleet.Pod. Errors:
// not_found, not_allowed (it is no worker that runs and was ready, or is so already); of a thaw quota_exceeded, low_balance, rule.
type FreezeWorker struct {
	Pod  fleet.PodID `cbor:"1,keyasint"`
	Thaw bool        `cbor:"2,keyasint,omitempty"`
	At   time.Time   `cbor:"3,keyasint"`
}

func (c FreezeWorker) apply(t *txn) (any, error) {
	if c.At.IsZero() {
		return nil, fleet.Invalid("$.at", "must be set")
	}
	old := t.base.pods.Get(t.Txn, c.Pod)
	switch {
	case old == nil:
		return nil, fleet.NotFound("pod")
	case old.Status != fleet.StatusRunning || old.Goal != fleet.GoalRun || old.Ready.IsZero():
		return nil, fleet.NotAllowed("the pod is no worker that waits for jobs")
	case c.Thaw == old.Frozen.IsZero():
		return nil, fleet.NotAllowed("the worker is frozen already, or was thawed")
	}
	pod := *old
	if pod.Frozen = c.At; c.Thaw {
		pod.Frozen = time.Time{}
		if err := t.rentable(old, &pod, pod.HourlyRate, c.At); err != nil {
			return nil, err
		}
	}
	t.renumber(&pod)
	return clonePod(t.putPod(&pod)), nil
}

// evict terminates frozen workers on a host and interrupts pods that yield to the one that comes, and has what they held free for
// others, also in on: the host's occupants.
func (t *txn) evict(host fleet.HostID, evicted []fleet.PodID, comes *fleet.Pod, on []*fleet.Pod) error {
	if len(evicted) > MaxPods {
		return fleet.Invalid("$.evict", "must be at most 250")
	}
	for _, id := range evicted {
		at := slices.IndexFunc(on, func(p *fleet.Pod) bool { return p.ID == id })
		if at < 0 {
			return fleet.Stale("a pod is not there any more that was to make room")
		}
		old := on[at]
		pod := *old
		switch {
		case frozenOn(old) == host:
			ActPod{At: t.now}.terminate(t, &pod)
			pod.GPUs, pod.Need = nil, fleet.Resources{}
		case yieldsOn(old) == host && old.YieldsTo(comes):
			t.interrupt(&pod)
		default:
			return fleet.Stale("a pod does not make room any more")
		}
		t.putPod(&pod)
		on[at] = &pod
	}
	return nil
}

// Frozen returns the frozen workers of each host. They are the state's own and must not be changed.
func (v *View) Frozen() map[fleet.HostID]map[fleet.PodID]*fleet.Pod { return v.tb.frozenOn.Rows }

// frozenOn returns the host on which a pod is frozen; empty: it is not.
func frozenOn(p *fleet.Pod) fleet.HostID {
	if p.Frozen.IsZero() || !endable(p) {
		return ""
	}
	return p.Host
}

// Endpoint returns the record of an endpoint, whoever owns it; nil: there is none. It is the state's own and must not be changed.
func (v *View) Endpoint(id fleet.EndpointID) *fleet.Endpoint { return v.tb.endpoints.Rows[id] }

// WorkersOf returns the workers of an endpoint that are not terminated, by id. They are the state's own and must not be changed.
func (v *View) WorkersOf(id fleet.EndpointID) (out []*fleet.Pod) {
	rows := v.tb.workersOf.Rows[id]
	for _, pod := range sortedKeys(rows) {
		out = append(out, rows[pod])
	}
	return out
}

// WorkedOn returns the endpoints that have workers on a host, each once for each worker, without copying any.
func (v *View) WorkedOn(host fleet.HostID) (out []fleet.EndpointID) {
	for _, p := range v.tb.onHost[host] {
		if id := workerOf(p); id != "" {
			out = append(out, id)
		}
	}
	return out
}

// Standing tells whether a host is out of reach, and whether a drain takes what runs there. It copies nothing of the host.
func (v *View) Standing(id fleet.HostID) (lost, drained bool) {
	h := v.tb.hosts.Rows[id]
	if h == nil {
		return false, false
	}
	return h.State == fleet.HostUnreachable, h.Eligibility == fleet.EligibilityDraining && !h.KeepRunning
}

// Worked returns the endpoints that have such workers, in no order.
func (v *View) Worked() []fleet.EndpointID {
	return slices.Collect(maps.Keys(v.tb.workersOf.Rows))
}

// workerOf returns the endpoint that a pod is a worker of; empty: of none, or it is terminated.
func workerOf(p *fleet.Pod) fleet.EndpointID {
	if p.Status == fleet.StatusTerminated || p.Owner.Kind != fleet.OwnerEndpoint {
		return ""
	}
	return fleet.EndpointID(p.Owner.ID)
}
