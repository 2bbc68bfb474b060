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

// WorkersOf returns the workers of an endpoint that are not terminated, by id. They are the state's own and must not be changed.
func (v *View) WorkersOf(id fleet.EndpointID) (out []*fleet.Pod) {
	rows := v.tb.workersOf.Rows[id]
	for _, pod := range sortedKeys(rows) {
		out = append(out, rows[pod])
	}
	return out
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
