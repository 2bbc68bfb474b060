package state

import (
	"slices"
	"time"

	"gantry/fleet"
)

// comparison sets right what the state says of a host's pods by what the host's ledger holds: once after the
// control plane was restored from a copy, and when a fenced host comes back, all of whose containers go.
type comparison struct {
	t    *txn
	host *fleet.Host // as it will be
	on   []*fleet.Pod
	at   time.Time
	adds bool // what runs there may be adopted
	// Of pods that the host runs, what it says of them.
	runs map[fleet.PodID]*HostPod
	has  map[fleet.PodID]*HostPod // those that it does not run, too
}

// compare compares where that is due, and forgets leftovers that have ended.
func (c ConnectHost) compare(t *txn, was, host *fleet.Host) {
	back := was.State == fleet.HostFenced || was.State == fleet.HostJoining
	behind := was.Lineage != t.lineage()
	x := comparison{
		t: t, host: host, at: c.At, adds: behind && was.State != fleet.HostFenced,
		runs: map[fleet.PodID]*HostPod{}, has: map[fleet.PodID]*HostPod{},
	}
	for i := range c.Pods {
		p := &c.Pods[i]
		if p.Incarnation == 0 || x.has[p.Pod] != nil || !t.mayKnow(p.Pod, p.Incarnation) {
			continue
		}
		x.has[p.Pod] = p
		if !p.Ended {
			x.runs[p.Pod] = p
		}
	}
	host.Leftovers = x.remaining(was.Leftovers)
	switch {
	case behind || back:
		x.all()
	case c.Generation > was.Generation:
		x.forgotten(was)
	}
	host.Lineage = t.lineage()
	if behind || back && len(x.has) > 0 || !slices.Equal(host.Leftovers, was.Leftovers) {
		x.renumber(behind)
	}
}

// remaining returns those of the leftovers that the host does not say to have ended, with the incarnations that
// its ledger has: it follows no order of a lower one.
func (x *comparison) remaining(lefts []fleet.Leftover) (out []fleet.Leftover) {
	for _, left := range lefts {
		p := x.has[left.Pod]
		switch {
		case p != nil && p.Ended && !left.Gone && p.Incarnation >= left.Incarnation:
			continue
		case p != nil:
			left.Incarnation = max(left.Incarnation, p.Incarnation)
		}
		out = append(out, left)
	}
	return out
}

// all compares every pod that the state or the host has there.
func (x *comparison) all() {
	for _, old := range x.t.podsOn(x.host.ID) {
		pod := *old
		x.on = append(x.on, &pod)
	}
	var grants []*fleet.Pod
	for _, id := range sortedKeys(x.runs) {
		if pod := x.claimed(id); pod != nil {
			grants = append(grants, pod)
			continue
		}
		x.host.Leftovers = addLeftover(x.host.Leftovers, fleet.Leftover{Pod: id, Incarnation: x.runs[id].Incarnation})
	}
	for _, pod := range x.on {
		p := x.has[pod.ID]
		switch {
		case pod.Held && x.runs[pod.ID] == nil:
			x.over(pod)
		case p != nil && !slices.Contains(grants, pod):
			catchUp(pod, p.Incarnation) // an order of a lower one is not followed
		}
	}
	held := map[fleet.PodID]fleet.Pod{}
	for _, pod := range grants {
		held[pod.ID] = *pod
		pod.GPUs, pod.Mappings = nil, nil // its shares stay reserved until it is its turn
	}
	// First what the state has as active: the rest gets what that leaves.
	for _, first := range []bool{true, false} {
		for _, pod := range grants {
			if was := held[pod.ID]; was.Status.Active() == first {
				x.adopt(pod, &was)
			}
		}
	}
}

// forgotten compares after the control plane's files were put back by hand, with its lineage: the host is ahead, and what it does not
// know of any more has ended there since. It must not be started a second time under the same incarnation.
func (x *comparison) forgotten(was *fleet.Host) {
	for _, old := range x.t.podsOn(x.host.ID) {
		if !old.Held || x.has[old.ID] != nil {
			continue
		}
		pod := *old
		release(&pod)
		if pod.Status.Active() {
			pod.EndedAt = latest(was.SeenAt, pod.Steps[fleet.StepCreated])
			pod.Status, _ = pod.Status.Next(fleet.EventExited)
			pod.Goal, pod.ExitCode = fleet.GoalStop, nil
			pod.Reason = "the control plane went back to an older state, and the pod did not run any more; start it again if it should"
		}
		pod.Generation = x.host.Generation // which is new: the host is ahead
		x.t.putPod(&pod)
	}
}

// claimed returns the pod of the state that a container of the host is, nil when there is none: then it goes.
func (x *comparison) claimed(id fleet.PodID) *fleet.Pod {
	i := slices.IndexFunc(x.on, func(p *fleet.Pod) bool { return p.ID == id })
	if !x.adds || slices.ContainsFunc(x.host.Leftovers, func(left fleet.Leftover) bool { return left.Pod == id }) {
		return nil
	}
	if i >= 0 {
		return x.on[i]
	}
	old := x.t.base.pods.Get(x.t.Txn, id)
	switch {
	case old == nil:
		return nil
	case old.Host != x.host.ID && !x.movedHere(old):
		return nil
	case old.Status == fleet.StatusTerminated && old.KeepsData():
		return nil // its data was let go before
	}
	pod := *old
	if pod.Host != x.host.ID {
		x.t.reassigned(pod.Host)
		release(&pod)
		pod.Host, pod.DataCenter = x.host.ID, x.host.DataCenter
	}
	x.on = with(x.on, &pod, byID)
	return &pod
}

// movedHere reports whether a pod that the copy has on another host was started here later: then nothing of
// it is left on the other.
func (x *comparison) movedHere(old *fleet.Pod) bool {
	if old.Status == fleet.StatusTerminated || old.KeepsData() || x.runs[old.ID].Incarnation <= old.Incarnation {
		return false
	}
	if m := old.Spec.Network; m != nil {
		if v := x.t.base.volumes.Get(x.t.Txn, m.Volume); v == nil || v.DataCenter != x.host.DataCenter {
			return false
		}
	}
	other := x.t.base.hosts.Get(x.t.Txn, old.Host)
	return !old.Held || other == nil || other.Lineage != x.t.lineage()
}

// over says of a pod that holds something, and that the host does not run, that its container is gone.
func (x *comparison) over(pod *fleet.Pod) {
	if p := x.has[pod.ID]; p != nil {
		catchUp(pod, p.Incarnation)
	}
	if pod.Status == fleet.StatusTerminated {
		holdData(pod) // the host may not have heard of it: it removes data, and a log of a pod that it knows no more, when ordered
		return
	}
	release(pod)
	if pod.EndedAt.IsZero() {
		pod.EndedAt = latest(x.copied(), pod.Steps[fleet.StepCreated])
	}
	if pod.Goal == fleet.GoalStop {
		pod.Status, pod.Reason = fleet.StatusExited, stoppedReason(pod.Reason)
		return
	}
	pod.Status, _ = pod.Status.Next(fleet.EventExited)
	pod.Goal, pod.ExitCode = fleet.GoalStop, nil
	pod.Reason = "the control plane was restored from a copy of " + x.copied().UTC().Format(time.RFC3339) +
		", and the pod did not run any more; start it again if it should"
}

// copied is when the copy was made that the control plane was restored from: nobody knows of a later time
// that a pod ran.
func (x *comparison) copied() time.Time {
	c := x.t.base.cluster.Get(x.t.Txn, onlyKey)
	switch {
	case c == nil:
		return x.at
	case c.SnapshotAt.IsZero() || c.SnapshotAt.After(c.RestoredAt):
		return c.RestoredAt
	}
	return c.SnapshotAt
}

// stoppedSince reports whether the pod was stopped after the control plane was restored: that stands.
func (x *comparison) stoppedSince(was *fleet.Pod) bool {
	c := x.t.base.cluster.Get(x.t.Txn, onlyKey)
	return c != nil && was.Goal != fleet.GoalRun && was.Status != fleet.StatusError && was.EndedAt.After(c.RestoredAt)
}

// adopt makes the pod's record what the host runs. Was is the record of before.
func (x *comparison) adopt(pod, was *fleet.Pod) {
	p := x.runs[pod.ID]
	newer := p.Incarnation > pod.Incarnation
	catchUp(pod, p.Incarnation)
	full := x.grant(pod, was, p)
	switch {
	case pod.Status == fleet.StatusTerminated:
		return // it is ordered gone, and holds what it has until then
	case !full || p.Goal != fleet.GoalRun || x.stoppedSince(was):
		x.stop(pod)
	case !was.Status.Active() || was.Goal != fleet.GoalRun && newer:
		x.resume(pod)
	case was.Goal == fleet.GoalRun && p.Incarnation < pod.Incarnation:
		x.stop(pod) // the newer one was never there, and nothing is started by itself
	}
}

// resume says that a pod which the copy has as ended runs, and is charged from now on.
func (x *comparison) resume(pod *fleet.Pod) {
	if !pod.Status.Active() {
		pod.Status, _ = pod.Status.Next(fleet.EventAdopted)
	}
	pod.Goal, pod.Moving, pod.Target, pod.Reason, pod.ExitCode, pod.LogTail = fleet.GoalRun, false, nil, "", nil, ""
	pod.EndedAt = time.Time{}
	pod.Steps, pod.StartedAt = firstStep(x.at), x.at
}

// stop orders the end of what runs.
func (x *comparison) stop(pod *fleet.Pod) {
	if !pod.Status.Active() {
		pod.Status, _ = pod.Status.Next(fleet.EventAdopted)
	}
	if pod.EndedAt.IsZero() {
		pod.EndedAt = latest(x.at, pod.Steps[fleet.StepCreated])
	}
	pod.Goal = fleet.GoalStop
	if !pod.Moving {
		pod.Reason = reasonStopping
	}
}

// grant lets the pod hold what the host says that its container has, as far as no other holds it, and reports
// whether that is all. What the record of before held of shares is not asked about.
func (x *comparison) grant(pod, was *fleet.Pod, p *HostPod) (full bool) {
	others := without(slices.Clone(x.on), pod, byID)
	full = true
	var gpus []string
	for _, uuid := range p.GPUs {
		has := gpuOf(x.host, uuid) != nil || slices.Contains(was.GPUs, uuid) // it may be out of order by now
		if !has || slices.Contains(gpus, uuid) || holder(others, uuid) != nil {
			full = false
			continue
		}
		gpus = append(gpus, uuid)
	}
	var mappings []fleet.PortMapping
	taken, tcp := heldPorts(others, pod.ID), tcpPorts(&pod.Spec)
	for _, m := range p.Mappings {
		if !tcp[m.Private] || taken[m.Public] || m.Public < minPublicPort || m.Public > maxPublicPort {
			full = false
			continue
		}
		tcp[m.Private], taken[m.Public] = false, true
		mappings = append(mappings, m)
	}
	used, _, _ := usedBy(others)
	most := atLeastZero(minus(x.host.Inventory.Total, used))
	if was.Held {
		most = larger(most, was.Need)
	}
	want := atLeastZero(p.Need)
	need := fleet.Resources{
		MilliCPU: min(want.MilliCPU, most.MilliCPU), MemoryMB: min(want.MemoryMB, most.MemoryMB), DiskGB: min(want.DiskGB, most.DiskGB),
	}
	full = full && (was.Held || need == want)
	if m := pod.Spec.Persistent; m != nil {
		need.DiskGB = max(need.DiskGB, int64(m.SizeGB))
	}
	pod.Held, pod.GPUs, pod.Mappings, pod.Need = true, gpus, mappings, need
	return full
}

// larger returns the larger of each.
func larger(a, b fleet.Resources) fleet.Resources {
	return fleet.Resources{
		MilliCPU: max(a.MilliCPU, b.MilliCPU), MemoryMB: max(a.MemoryMB, b.MemoryMB), DiskGB: max(a.DiskGB, b.DiskGB),
	}
}

// renumber writes what was compared under a new generation, so that no order of before stands against it.
func (x *comparison) renumber(all bool) {
	x.host.Generation = x.t.reassigned(x.host.ID)
	if !all {
		return
	}
	for _, pod := range x.on {
		pod.Generation = x.host.Generation
		x.t.putPod(pod)
	}
}

// leaveMove ends the move of a pod of the copy: it may have been finished since, and its owner may have ended the pod
// after that.
func (t *txn) leaveMove(pod fleet.Pod) {
	if !pod.Moving {
		return
	}
	stay(&pod)
	if !pod.Status.Active() {
		pod.Reason = "the control plane was restored from a copy, in which the pod was being moved to another host; start it again if it should run"
	}
	t.putPod(&pod)
}

// leaveReturn has pods of the copy not start by themselves, which an interrupted one does, and a cluster's member that failed: it may have
// started since, and its owner may have ended it after that.
func (t *txn) leaveReturn(pod fleet.Pod) {
	what := ""
	switch {
	case pod.Status == fleet.StatusTerminated:
	case !pod.Interrupted.IsZero() && pod.Spec.Spot != nil && pod.Spec.Spot.Return:
		pod.Spec.Spot = &fleet.Spot{Bid: pod.Spec.Spot.Bid}
		what = "was interrupted; start it again if it should run"
	case memberOf(&pod) != "" && pod.Status == fleet.StatusError:
		pod.Status = fleet.StatusExited
		what = "had failed; restart its cluster if it should run"
	}
	if what != "" {
		pod.Reason = "the control plane was restored from a copy, in which the pod " + what
		t.putPod(&pod)
	}
}

// compared refuses to begin an incarnation on a host that was not compared since the control plane was
// restored: the pod may run elsewhere.
func (t *txn) compared(id fleet.HostID) error {
	if h := t.base.hosts.Get(t.Txn, id); h != nil && h.Lineage != t.lineage() {
		return fleet.NotAllowed("the control plane was restored from a copy, and the pod's host has not connected since")
	}
	return nil
}

// elsewhere refuses the start of a pod of before a restore while a host that was not compared since may run
// it. A pod with data runs where that is.
func (t *txn) elsewhere(pod *fleet.Pod) error {
	lineage := t.lineage()
	if pod.KeepsData() || pod.Incarnation > lineageFloor(lineage) {
		return nil
	}
	behind := t.base.hosts.Count(t.Txn, func(h *fleet.Host) bool {
		return h.Lineage != lineage && h.State != fleet.HostFenced && h.State != fleet.HostGone
	})
	if behind == 0 {
		return nil
	}
	return fleet.NotAllowed("the control plane was restored from a copy, and the pod may run on a host that has not connected since; " +
		"it can be started once every host has connected or was fenced or removed")
}
