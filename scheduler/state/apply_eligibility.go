package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// The reasons of pods whose hosts are taken out.
const (
	reasonMoving = "it is being moved to another host: its own is drained"
	reasonFenced = "its host was fenced"
	// of a cluster's member, whose host has not connected since the control plane was restored
	reasonFencedBehind = "its host was fenced before it had connected to the control plane that was restored from a copy; restart its cluster if it should run"
	// reasonDrained is the beginning; what the operator said may follow.
	reasonDrained = "an operator stopped it: its host is being drained"
)

// maxAlarm is the most bytes of an alarm.
const maxAlarm = 4 << 10

// maxDrainReason is the most bytes of the reason of a drain.
const maxDrainReason = 1 << 10

// usable reports whether pods may be bound to a host; see fleet.Host.Takes. The eligibility of one that is promised does not
// count.
func (t *txn) usable(h *fleet.Host, promised bool) bool {
	host := *h
	if promised {
		host.Eligibility = fleet.EligibilityOpen
	}
	host.Behind = host.Lineage != t.lineage()
	host.Crowded = len(t.podsOn(h.ID)) >= fleet.MostPods
	ok, _ := host.Takes()
	return ok
}

// promised reports whether a host is a place that a pod on the move can rely on: its destination, or, where that is lost
// and nothing else has room, the host that it is moved from.
func promised(pod *fleet.Pod, id fleet.HostID) bool {
	return pod.Moving && (pod.Host == id || pod.Target != nil && pod.Target.Host == id)
}

// mayHold reports whether a host is there that pods can hold something of.
func (t *txn) mayHold(id fleet.HostID) bool {
	h := t.base.hosts.Get(t.Txn, id)
	return h != nil && h.State != fleet.HostFenced && h.State != fleet.HostGone
}

// known reads the record of a host that is not gone.
func (t *txn) known(id fleet.HostID) (fleet.Host, error) {
	host, ok := t.host(id)
	switch {
	case !ok:
		return host, fleet.NotFound("host")
	case host.State == fleet.HostGone:
		return host, fleet.NotAllowed("the host was removed")
	}
	return host, nil
}

func (c SetHostEligibility) apply(t *txn) (any, error) {
	host, err := t.known(c.Host)
	if err != nil {
		return nil, err
	}
	switch {
	case c.Eligibility != fleet.EligibilityOpen && c.Eligibility != fleet.EligibilityCordoned && c.Eligibility != fleet.EligibilityDraining:
		return nil, fleet.Invalid("$.eligibility", "must be open, cordoned or draining")
	case c.Eligibility == fleet.EligibilityOpen && host.State == fleet.HostFenced:
		return nil, fleet.NotAllowed("the host is fenced; it can be opened when it has connected again")
	case c.Eligibility == fleet.EligibilityOpen && len(host.Leftovers) > 0:
		return nil, fleet.NotAllowed("the host has not removed everything yet that ran there before")
	}
	drain := &fleet.Drain{Since: c.At, Reason: c.Reason, Deadline: c.Deadline}
	switch {
	case len(c.Reason) > maxDrainReason:
		return nil, fleet.Invalid("$.reason", "is too long")
	case c.Eligibility != fleet.EligibilityDraining && (c.Reason != "" || !c.Deadline.IsZero()):
		return nil, fleet.Invalid("$.eligibility", "only a drain has a reason and a deadline")
	case c.Eligibility != fleet.EligibilityDraining:
		drain = nil
	case host.Drain != nil:
		drain.Since = host.Drain.Since
	}
	host.Eligibility, host.KeepRunning, host.Drain = c.Eligibility, c.Eligibility == fleet.EligibilityDraining && c.KeepRunning, drain
	return t.putHost(host), nil
}

func (c SetHostLabels) apply(t *txn) (any, error) {
	host, err := t.known(c.Host)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	maps.Copy(labels, host.Labels)
	for _, name := range c.Unset {
		if _, both := c.Set[name]; both {
			return nil, fleet.Invalid("$.labels", "cannot both set and remove a label")
		}
		delete(labels, name)
	}
	maps.Copy(labels, c.Set)
	if err := fleet.CheckLabels(labels); err != nil {
		return nil, err
	}
	host.Labels = nil
	if len(labels) > 0 {
		host.Labels = labels
	}
	return t.putHost(host), nil
}

func (c SetHostRoles) apply(t *txn) (any, error) {
	host, err := t.known(c.Host)
	if err != nil {
		return nil, err
	}
	roles := slices.Sorted(slices.Values(c.Roles))
	for i, role := range roles {
		switch {
		case role != fleet.RoleStorage && role != fleet.RoleS3:
			return nil, fleet.Invalid("$.roles", "each must be storage or s3")
		case i > 0 && role == roles[i-1]:
			return nil, fleet.Invalid("$.roles", "must not name a role twice")
		}
	}
	host.Roles = roles
	t.noteBackends(func(b *fleet.Backend) bool { return b.DataCenter == host.DataCenter })
	return t.putHost(host), nil
}

func (c AlarmHost) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	switch {
	case !ok:
		return nil, fleet.NotFound("host")
	case len(c.Text) > maxAlarm:
		return nil, fleet.Invalid("$.text", "is too long")
	case c.Text == host.Alarm:
		return nil, nil
	}
	host.Alarm, host.AlarmAt = c.Text, c.At
	if c.Text == "" {
		host.AlarmAt = time.Time{}
	}
	t.putHost(host)
	return nil, nil
}

func (c FenceHost) apply(t *txn) (any, error) {
	host, err := t.known(c.Host)
	if err != nil {
		return nil, err
	}
	if host.State == fleet.HostReady {
		return nil, fleet.NotAllowed("the host is connected; only one that cannot be reached is fenced")
	}
	generation := t.reassigned(host.ID)
	for _, old := range t.podsOn(host.ID) {
		if !old.Held {
			continue
		}
		pod := *old
		host.Leftovers = addLeftover(host.Leftovers, leftoverOf(&pod))
		c.free(&pod)
		if host.Lineage != t.lineage() && memberOf(&pod) != "" && LostHost(&pod) { // its owner may have deleted the cluster after the copy was made
			pod.Status, pod.Reason = fleet.StatusExited, reasonFencedBehind
		}
		pod.Generation = generation
		t.putPod(&pod)
	}
	for _, place := range t.reservedOn(host.ID) {
		pod := *t.base.pods.Get(t.Txn, place.ID)
		pod.Target = nil
		t.putPod(&pod)
	}
	host.State, host.SeenAt, host.Generation = fleet.HostFenced, c.At, generation
	host.Eligibility, host.KeepRunning, host.Drain = fleet.EligibilityCordoned, false, nil
	host.Epoch++
	return t.putHost(host), nil
}

// free says that nothing is left of a pod's container. After an accepted stop it does not matter how it ended.
func (c FenceHost) free(pod *fleet.Pod) {
	release(pod)
	if !pod.Status.Active() {
		return
	}
	if pod.EndedAt.IsZero() {
		pod.EndedAt = latest(c.At, pod.Steps[fleet.StepCreated])
	}
	pod.ExitCode = nil
	if pod.Goal == fleet.GoalStop {
		pod.Status, pod.Reason = fleet.StatusExited, stoppedReason(pod.Reason)
		return
	}
	pod.Status, _ = pod.Status.Next(fleet.EventFenced)
	pod.Goal, pod.Reason = fleet.GoalStop, reasonFenced
}

// leftoverOf is what a host may have of a pod. Data of one that is terminated goes with it; that of others stays
// theirs.
func leftoverOf(pod *fleet.Pod) fleet.Leftover {
	return fleet.Leftover{Pod: pod.ID, Incarnation: pod.Incarnation, Gone: pod.Status == fleet.StatusTerminated}
}

// addLeftover returns leftovers, sorted by pod, with another one, which may be known.
func addLeftover(lefts []fleet.Leftover, left fleet.Leftover) []fleet.Leftover {
	i, there := slices.BinarySearchFunc(lefts, left, func(a, b fleet.Leftover) int { return cmp.Compare(a.Pod, b.Pod) })
	out := slices.Clone(lefts)
	if there {
		out[i].Incarnation = max(out[i].Incarnation, left.Incarnation)
		out[i].Gone = out[i].Gone || left.Gone
		return out
	}
	return slices.Insert(out, i, left)
}

func (c RemoveHost) apply(t *txn) (any, error) {
	host, ok := t.host(c.Host)
	switch {
	case !ok:
		return nil, fleet.NotFound("host")
	case host.State == fleet.HostGone:
		return t.shown(host), nil
	case host.State != fleet.HostFenced && host.Lineage != t.lineage():
		return nil, fleet.BreaksRule("the host may run pods that this control plane, which was restored, does not know: " +
			"it must connect, or be fenced, first")
	case host.State != fleet.HostFenced && len(host.Leftovers) > 0:
		return nil, fleet.BreaksRule("the host has not removed everything yet that ran there before")
	}
	for _, p := range t.occupants(host.ID) {
		if p.Held || p.KeepsData() {
			return nil, fleet.BreaksRule("pods hold something of the host or keep data there")
		}
	}
	if t.base.backends.Count(t.Txn, func(b *fleet.Backend) bool { return b.StorageHost == host.ID }) > 0 {
		return nil, fleet.BreaksRule("a backend of network volumes names the host as the one that looks after them")
	}
	host.State, host.SeenAt = fleet.HostGone, c.At
	host.Eligibility, host.KeepRunning, host.Drain, host.Leftovers = fleet.EligibilityCordoned, false, nil, nil
	host.Alarm, host.AlarmAt, host.Roles = "", time.Time{}, nil
	host.Epoch++
	return t.putHost(host), nil
}

// shown is a host's record as a result that nothing was changed for.
func (t *txn) shown(h fleet.Host) fleet.Host { return cloneHost(&h) }

func (c PurgeHosts) apply(t *txn) (any, error) {
	if err := t.forgetting(c.At, c.Before); err != nil {
		return nil, err
	}
	n := 0
	for _, id := range t.base.hosts.Keys(t.Txn, 0, table.All) {
		if !forgettable(t.base.hosts.Get(t.Txn, id), c.Before) {
			continue
		}
		t.base.hosts.Drop(t.Txn, id)
		t.base.generations.Drop(t.Txn, id)
		t.Note(KindHost, string(id))
		n++
	}
	return n, nil
}

// forgettable reports whether a host's record may be forgotten.
func forgettable(h *fleet.Host, before time.Time) bool {
	return h.State == fleet.HostGone && h.SeenAt.Before(before)
}
