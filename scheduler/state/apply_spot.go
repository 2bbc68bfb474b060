package state

import (
	"slices"
	"time"

	"gantry/fleet"
)

// The type numbers of the commands below.
const numEndPods uint64 = 96

func (EndPods) number() uint64 { return numEndPods }

// The reasons of pods that another pod or their own times ended.
const (
	reasonInterrupted    = "interrupted: a pod on demand, or with a higher bid, took its place"
	reasonStopAfter      = "stopped at the time of its stopAfter"
	reasonTerminateAfter = "terminated at the time of its terminateAfter"
)

// The keys of the index of pods with which the leader has something to do.
const (
	timedEnds    = "ends"    // it has a StopAfter or TerminateAfter
	timedReturns = "returns" // it is to start again
)

// EndPods does with pods what their StopAfter and TerminateAfter say that are not after At; others are left. A locked pod is not stopped
// until it is unlocked. Value: int, how many it changed. Errors: as of PurgePods, and invalid.
type EndPods struct {
	Pods []fleet.PodID `cbor:"1,keyasint"` // at most MaxPods
	At   time.Time     `cbor:"2,keyasint"`
}

func (c EndPods) apply(t *txn) (any, error) {
	if len(c.Pods) > MaxPods {
		return nil, fleet.Invalid("$.pods", "must be at most 250")
	}
	if c.At.IsZero() {
		return nil, fleet.Invalid("$.at", "must be set")
	}
	if err := t.final(c.At); err != nil {
		return nil, err
	}
	n := 0
	for _, id := range c.Pods {
		old := t.base.pods.Get(t.Txn, id)
		if old == nil || !Due(old, c.At) {
			continue
		}
		pod, act := *old, ActPod{At: c.At}
		switch terminates := passed(pod.Spec.TerminateAfter, c.At); {
		case terminates:
			act.terminate(t, &pod)
			pod.Reason = reasonTerminateAfter
		case pod.Moving:
			stay(&pod)
		case endable(&pod):
			act.stop(t, &pod)
			pod.Reason = reasonStopAfter
		}
		pod.Spec.StopAfter = time.Time{} // it is done once
		if pod.Status != fleet.StatusTerminated && pod.Spec.Spot != nil {
			pod.Spec.Spot = &fleet.Spot{Bid: pod.Spec.Spot.Bid}
		}
		t.putPod(&pod)
		n++
	}
	return n, nil
}

// passed reports whether a time is set and not after another.
func passed(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// Due reports whether EndPods with the same time would change a pod.
func Due(p *fleet.Pod, at time.Time) bool {
	if p.Status == fleet.StatusTerminated {
		return false
	}
	return passed(p.Spec.TerminateAfter, at) || passed(p.Spec.StopAfter, at) && !p.Locked
}

// interrupt stops a pod whose place another takes: what it held is free for that one, but for its data and its public ports. Its host ends
// its container after the notice.
func (t *txn) interrupt(pod *fleet.Pod) {
	ActPod{At: t.now}.stop(t, pod)
	pod.Reason, pod.Interrupted, pod.Notice = reasonInterrupted, t.now, placementOf(t.base.placement.Get(t.Txn, onlyKey)).Notice()
	pod.GPUs, pod.Need = nil, fleet.Resources{}
	if pod.KeepsData() {
		pod.Need.DiskGB = int64(pod.Spec.Persistent.SizeGB)
	}
}

// interrupts reports whether one of the pods that made room is given time to end: the pod that comes is not charged before its host has
// begun to make its container.
func (t *txn) interrupts(evicted []fleet.PodID) bool {
	return slices.ContainsFunc(evicted, func(id fleet.PodID) bool {
		p := t.base.pods.Get(t.Txn, id)
		return p != nil && !p.Interrupted.IsZero()
	})
}

// yieldsOn returns the host on which a pod would give its place to another; empty: on none.
func yieldsOn(p *fleet.Pod) fleet.HostID {
	if p.Spec.Spot == nil || p.Locked || !endable(p) {
		return ""
	}
	return p.Host
}

func timedFor(p *fleet.Pod) string {
	switch {
	case p.Status == fleet.StatusTerminated:
		return ""
	case !p.Spec.StopAfter.IsZero() || !p.Spec.TerminateAfter.IsZero():
		return timedEnds
	case p.Returns():
		return timedReturns
	}
	return ""
}

// Yielding returns the pods of each host that would give their place to others. They are the state's own and must not be changed.
func (v *View) Yielding() map[fleet.HostID]map[fleet.PodID]*fleet.Pod { return v.tb.yieldsOn.Rows }

// Ending returns the pods that are to be stopped or terminated at a time, Returning those that are to start again. They are the state's own
// and must not be changed.
func (v *View) Ending() map[fleet.PodID]*fleet.Pod { return v.tb.timed.Rows[timedEnds] }

// Returning see Ending.
func (v *View) Returning() []*fleet.Pod {
	var out []*fleet.Pod
	for _, kind := range []string{timedEnds, timedReturns} {
		for _, p := range v.tb.timed.Rows[kind] {
			if p.Returns() {
				out = append(out, p)
			}
		}
	}
	return out
}
