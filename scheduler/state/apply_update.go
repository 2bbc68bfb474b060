package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
)

// maxDiskGB bounds what a disk may be asked to have, so that sums never wrap round.
const maxDiskGB = 1 << 40

func (c UpdatePod) apply(t *txn) (any, error) {
	old := t.base.pods.Get(t.Txn, c.Pod)
	switch {
	case old == nil || old.Account != c.Account || old.Owner != (fleet.Owner{}):
		return nil, fleet.NotFound("pod")
	case c.Rev != old.Rev:
		return nil, fleet.Stale("the pod changed")
	case old.Status == fleet.StatusTerminated:
		return nil, fleet.NotAllowed("a pod that is %s cannot be changed", old.Status)
	case old.Locked && c.Locked && c.Restart:
		return nil, fleet.NotAllowed("the pod is locked")
	}
	if err := c.check(t, old); err != nil {
		return nil, err
	}
	pod := *old
	pod.Spec, pod.Locked = c.Spec, c.Locked
	if c.HourlyRate > 0 && old.Locked != c.Locked && old.Spec.Spot != nil {
		pod.HourlyRate = c.HourlyRate
	}
	if err := t.enlargeable(old, &pod, c.At); err != nil {
		return nil, err
	}
	if c.Restart && pod.Moving {
		stay(&pod)
	}
	var err error
	if c.Restart && old.Status.Active() && !old.Stopping() {
		err = c.restart(t, old, &pod)
	} else {
		err = c.record(t, old, &pod)
	}
	if err != nil {
		return nil, err
	}
	return clonePod(t.putPod(&pod)), nil
}

// enlargeable refuses what a change adds to a pod when its account may not have it or cannot pay an hour of all of the pod.
func (t *txn) enlargeable(old, pod *fleet.Pod, at time.Time) error {
	was, is := t.rates(old, termsOf(old)).Total(), t.rates(pod, termsOf(pod)).Total()
	more := countsOf(pod)
	more[fleet.LimitSpend] = int64(is)
	if err := t.within(pod.Account, grown(old, more, was)); err != nil {
		return err
	}
	if !growsDisk(&old.Spec, &pod.Spec) {
		return nil
	}
	return t.solvent(pod.Account, is, at, "Your account balance is too low to enlarge the pod's disks")
}

// growsDisk reports whether a disk of a pod grows.
func growsDisk(was, is *fleet.PodSpec) bool {
	return is.DiskGB > was.DiskGB || is.Persistent != nil && was.Persistent != nil && is.Persistent.SizeGB > was.Persistent.SizeGB
}

// check refuses a specification that the pod cannot have.
func (c UpdatePod) check(t *txn, old *fleet.Pod) error {
	was, is := &old.Spec, &c.Spec
	switch {
	case !equalPtr(was.GPU, is.GPU) || !equalPtr(was.CPU, is.CPU):
		return fleet.Invalid("$.gpu", "the GPU or CPU of a pod cannot be changed")
	case (was.Spot == nil) != (is.Spot == nil) || was.Spot != nil && was.Spot.Bid != is.Spot.Bid:
		return fleet.Invalid("$.bidPerGpu", "changes with a start only")
	case was.Cloud != is.Cloud:
		return fleet.Invalid("$.cloud", "cannot be changed")
	case !slices.Equal(was.Centers, is.Centers):
		return fleet.Invalid("$.dataCenterIds", "cannot be changed")
	case (was.Persistent == nil) != (is.Persistent == nil) || (was.Network == nil) != (is.Network == nil):
		return fleet.Invalid("$.mounts", "the kind of mount cannot be changed")
	case was.Network != nil && was.Network.Volume != is.Network.Volume:
		return fleet.Invalid("$.mounts.network", "the network volume cannot be changed")
	case was.Persistent != nil && was.Persistent.SizeGB > is.Persistent.SizeGB:
		return fleet.Invalid("$.mounts.persistent.size", "can grow only")
	case !c.Restart && old.Status.Active() && !old.Stopping() && !maps.Equal(tcpPorts(was), tcpPorts(is)):
		return fleet.Invalid("$.ports", "tcp ports of a pod that runs change with a restart only")
	}
	if err := cmp.Or(checkDisks(is), is.CheckHTTP()); err != nil {
		return err
	}
	if err := cmp.Or(t.checkRegistry(old.Account, is.Registry), t.checkSecrets(old.Account, is.Env)); err != nil {
		return err
	}
	if was.Template == is.Template {
		return nil // its owner may have made it private since
	}
	return t.checkTemplate(old.Account, is.Template)
}

// checkDisks refuses sizes that no disk has.
func checkDisks(spec *fleet.PodSpec) error {
	if spec.DiskGB < 0 || spec.DiskGB > maxDiskGB {
		return fleet.Invalid("$.disk", "must not be negative")
	}
	if m := spec.Persistent; m != nil && (m.SizeGB < 1 || m.SizeGB > maxDiskGB) {
		return fleet.Invalid("$.mounts.persistent.size", "must be positive")
	}
	return nil
}

// checkNeed refuses shares that cannot be meant: what is below zero, and a disk on which the data that
// is part of it has no room.
func checkNeed(need fleet.Resources, spec *fleet.PodSpec) error {
	switch {
	case need.MilliCPU < 0 || need.MemoryMB < 0 || need.DiskGB < 0:
		return fleet.Invalid("$.need", "must not be negative")
	case spec.Persistent != nil && need.DiskGB < int64(spec.Persistent.SizeGB):
		return fleet.Invalid("$.need", "must hold the pod's data")
	}
	return nil
}

// checkTemplate refuses a template that the account may not use, or that is not there any more.
func (t *txn) checkTemplate(account fleet.AccountID, id fleet.TemplateID) error {
	if id == "" {
		return nil
	}
	if m := t.base.templates.Get(t.Txn, id); m == nil || m.Account != account && !m.Public {
		return fleet.Stale("the template is gone")
	}
	return nil
}

// restart begins an incarnation of the new specification. The GPUs stay, so it is on the same host.
func (c UpdatePod) restart(t *txn, old, pod *fleet.Pod) error {
	host := t.base.hosts.Get(t.Txn, pod.Host)
	if host == nil {
		return fleet.Stale("the host is gone")
	}
	if err := t.compared(host.ID); err != nil {
		return err
	}
	if err := checkNeed(c.Need, &pod.Spec); err != nil {
		return err
	}
	on := t.occupants(pod.Host)
	if err := growable(host, on, minus(c.Need, old.Need)); err != nil {
		return err
	}
	mappings, err := mappable(host, on, pod, c.Mappings)
	if err != nil {
		return err
	}
	next, _ := old.Status.Next(fleet.ActionUpdate)
	pod.Status, pod.Need, pod.Mappings = next, c.Need, mappings
	return begin(t, pod, c.At)
}

// record changes the record alone. Only data that grows takes more of the host at once; a container disk
// has its new size from the next start on.
func (c UpdatePod) record(t *txn, old, pod *fleet.Pod) error {
	if !pod.KeepsData() {
		return nil
	}
	more := fleet.Resources{DiskGB: int64(pod.Spec.Persistent.SizeGB) - int64(old.Spec.Persistent.SizeGB)}
	host := t.base.hosts.Get(t.Txn, pod.Host)
	if host == nil {
		return fleet.Stale("the host is gone")
	}
	if err := growable(host, t.occupants(pod.Host), more); err != nil {
		return err
	}
	pod.Need.DiskGB += more.DiskGB
	return nil
}

// growable checks that a host can give more than its pods have. What shrinks needs nothing, also on a
// host that has less than its pods hold.
func growable(host *fleet.Host, on []*fleet.Pod, more fleet.Resources) error {
	used, _, _ := usedBy(on)
	return place.Shortage(atLeastZero(more), atLeastZero(minus(host.Inventory.Total, used)))
}

// atLeastZero raises what is below zero.
func atLeastZero(r fleet.Resources) fleet.Resources {
	return fleet.Resources{MilliCPU: max(0, r.MilliCPU), MemoryMB: max(0, r.MemoryMB), DiskGB: max(0, r.DiskGB)}
}

// equalPtr compares what two pointers point to; nil equals nil alone.
func equalPtr[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}
