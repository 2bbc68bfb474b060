package state

import (
	"time"

	"gantry/fleet"
)

func (c MovePod) apply(t *txn) (any, error) {
	old, host, err := t.drainable(c.Pod, c.Rev)
	switch {
	case err != nil:
		return nil, err
	case old.Locked:
		return nil, fleet.NotAllowed("the pod is locked")
	case old.KeepsData():
		return nil, fleet.NotAllowed("the pod keeps data on its host")
	case !old.Spec.Movable:
		return nil, fleet.NotAllowed("the pod's owner did not allow it to be moved")
	case host.KeepRunning:
		return nil, fleet.NotAllowed("the drain moves no pods")
	}
	pod := *old
	target, err := t.reserve(&pod, c.To, c.At)
	if err != nil {
		return nil, err
	}
	ActPod{At: c.At}.stop(t, &pod)
	pod.Moving, pod.Target, pod.Reason = true, target, reasonMoving
	return clonePod(t.putPod(&pod)), nil
}

// drainable reads a pod that runs on a host which is drained, at a revision, and the host.
func (t *txn) drainable(id fleet.PodID, rev uint64) (*fleet.Pod, *fleet.Host, error) {
	pod := t.base.pods.Get(t.Txn, id)
	if pod == nil {
		return nil, nil, fleet.NotFound("pod")
	}
	host := t.base.hosts.Get(t.Txn, pod.Host)
	switch {
	case rev != pod.Rev:
		return nil, nil, fleet.Stale("the pod changed")
	case !pod.Status.Active():
		return nil, nil, fleet.NotAllowed("the pod is %s and cannot be moved", pod.Status)
	case pod.Stopping():
		return nil, nil, fleet.NotAllowed("the pod is being stopped")
	case host.Eligibility != fleet.EligibilityDraining:
		return nil, nil, fleet.NotAllowed("the pod's host is not being drained")
	}
	return pod, host, t.compared(pod.Host) // since the copy its owner may have ended it
}

// reserve checks that a pod can start at its destination, and returns what is kept there for it. Whatever would refuse
// that start later refuses the move, so that nothing is stopped that could not start again.
func (t *txn) reserve(pod *fleet.Pod, to *Binding, at time.Time) (*fleet.Reservation, error) {
	switch {
	case to == nil || to.Need == nil:
		return nil, fleet.Invalid("$.to", "must say where the pod goes and what it holds there")
	case to.Host == pod.Host:
		return nil, fleet.Invalid("$.to.host", "must be another host")
	}
	if err := t.affordable(pod.Account, &pod.Spec, to.HourlyRate, at); err != nil {
		return nil, err
	}
	if err := t.elsewhere(pod); err != nil {
		return nil, err
	}
	there, bind := *pod, *to
	there.Need = *to.Need
	host, err := t.bindable(&there, &bind)
	if err != nil {
		return nil, err
	}
	return &fleet.Reservation{Host: host.ID, GPUs: bind.GPUs, Need: there.Need, Mappings: bind.Mappings}, nil
}

func (c EvictPod) apply(t *txn) (any, error) {
	old, host, err := t.drainable(c.Pod, c.Rev)
	switch {
	case err != nil:
		return nil, err
	case host.Drain == nil || host.Drain.Deadline.IsZero() || c.At.Before(host.Drain.Deadline):
		return nil, fleet.NotAllowed("the drain's deadline has not come")
	}
	pod := *old
	ActPod{At: c.At}.stop(t, &pod)
	if pod.Reason = reasonDrained; host.Drain.Reason != "" {
		pod.Reason += ": " + host.Drain.Reason
	}
	return clonePod(t.putPod(&pod)), nil
}
