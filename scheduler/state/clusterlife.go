package state

import (
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

const (
	numRestartCluster uint64 = 103 + iota
	numStopCluster
)

func (RestartCluster) number() uint64 { return numRestartCluster }
func (StopCluster) number() uint64    { return numStopCluster }

// The pauses before a cluster restarts by itself: each is twice the one before, until its members ran for so long.
const (
	firstPause = time.Second
	mostPause  = 5 * time.Minute
	calm       = 10 * time.Minute
)

// reasonClusterStopped is the reason of members that were stopped since another one failed.
const reasonClusterStopped = "its cluster was stopped: another of its pods failed"

// RestartCluster starts all members of a cluster anew, or none: those that run where they are, those that ended where Starts says. Those
// on their way go on. Value: fleet.Cluster. Errors: not_found, not_allowed (a member is being stopped, or was terminated, or an
// automatic restart is not due), stale (the cluster or a member changed), and those of a start.
type RestartCluster struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	ID      fleet.ClusterID `cbor:"2,keyasint"`
	Rev     uint64          `cbor:"3,keyasint"` // of the cluster; 0: any
	At      time.Time       `cbor:"4,keyasint"`
	Starts  []MemberStart   `cbor:"5,keyasint,omitempty"`
	Auto    bool            `cbor:"6,keyasint,omitempty"` // since a member failed
}

// MemberStart says where a member that ended starts.
type MemberStart struct {
	Pod  fleet.PodID `cbor:"1,keyasint"`
	Rev  uint64      `cbor:"2,keyasint"`
	Bind Binding     `cbor:"3,keyasint"`
}

// StopCluster stops all members of a cluster of which one failed and that is to stop then. Value: fleet.Cluster. Errors: not_found, stale.
type StopCluster struct {
	Account fleet.AccountID `cbor:"1,keyasint"`
	ID      fleet.ClusterID `cbor:"2,keyasint"`
	At      time.Time       `cbor:"3,keyasint"`
}

func (c RestartCluster) apply(t *txn) (any, error) {
	old, members, err := t.ownCluster(c.Account, c.ID)
	switch {
	case err != nil:
		return nil, err
	case c.Rev != 0 && c.Rev != old.Rev:
		return nil, fleet.Stale("the cluster changed")
	case len(members) != old.Count:
		return nil, fleet.NotAllowed("pods of the cluster were terminated: delete it and create another")
	case c.Auto && (old.OnFailure != fleet.OnFailureRestart || !RestartDue(old, members, c.At)):
		return nil, fleet.NotAllowed("the cluster is not to restart by itself now")
	}
	if err := c.payable(t, members); err != nil {
		return nil, err
	}
	if err := t.Steps(len(members), func(i int) error { return c.restart(t, members[i].ID) }); err != nil {
		return nil, err
	}
	t.shareFabric(c.ID)
	t.sizeNetwork(c.ID)
	next := *old
	if next.Tries = 0; c.Auto {
		next.Tries = triesBefore(old, c.At) + 1
	}
	next.RestartedAt = c.At
	return clusters().write(t, &next), nil
}

// payable refuses starts that a prepaid account cannot pay for an hour together.
func (c RestartCluster) payable(t *txn, members []*fleet.Pod) error {
	var hourly fleet.Money
	prices := storagePrices(t.base.catalog.Get(t.Txn, onlyKey))
	for _, p := range members {
		if start := c.start(p.ID); start != nil && !p.Status.Active() {
			hourly += meter.Running(&p.Spec, start.Bind.HourlyRate, prices).Total()
		}
	}
	return t.solvent(c.Account, hourly, c.At, "Your account balance is too low to restart the cluster")
}

// start returns where a member starts; nil: it is not said.
func (c RestartCluster) start(id fleet.PodID) *MemberStart {
	for i := range c.Starts {
		if c.Starts[i].Pod == id {
			return &c.Starts[i]
		}
	}
	return nil
}

// restart starts one member anew.
func (c RestartCluster) restart(t *txn, id fleet.PodID) error {
	old := t.base.pods.Get(t.Txn, id)
	pod := *old
	switch start := c.start(id); {
	case old.Stopping():
		return fleet.NotAllowed("a pod of the cluster is being stopped")
	case old.Status == fleet.StatusRunning:
		if err := t.compared(old.Host); err != nil {
			return err
		}
		pod.Status = fleet.StatusStarting
		if err := begin(t, &pod, c.At); err != nil {
			return err
		}
	case old.Status.Active():
		return nil
	case start == nil || start.Rev != old.Rev:
		return fleet.Stale("a pod of the cluster changed")
	default:
		if err := (ActPod{At: c.At, Bind: &start.Bind}).start(t, old, &pod); err != nil {
			return err
		}
	}
	t.putPod(&pod)
	return nil
}

func (c StopCluster) apply(t *txn) (any, error) {
	old, members, err := t.ownCluster(c.Account, c.ID)
	switch {
	case err != nil:
		return nil, err
	case old.OnFailure != fleet.OnFailureStop || failedAt(members).IsZero():
		return nil, fleet.Stale("the cluster is not to stop now")
	}
	for _, p := range members {
		if !p.Status.Active() || p.Stopping() {
			continue
		}
		pod := *p
		ActPod{At: c.At}.stop(t, &pod)
		pod.Reason = reasonClusterStopped
		t.putPod(&pod)
	}
	next := *old
	return clusters().write(t, &next), nil
}

// ownCluster returns a cluster of an account with its members that are not terminated. Errors: not_found.
func (t *txn) ownCluster(account fleet.AccountID, id fleet.ClusterID) (*fleet.Cluster, []*fleet.Pod, error) {
	c := t.base.clusters.Get(t.Txn, id)
	if c == nil || c.Account != account {
		return nil, nil, fleet.NotFound("cluster")
	}
	var members []*fleet.Pod
	for _, id := range t.base.membersOf.Keys(t.Txn, id) {
		if p := t.base.pods.Get(t.Txn, id); p.Status != fleet.StatusTerminated {
			members = append(members, p)
		}
	}
	return c, byRank(members), nil
}

// failedAt is when the last of the members failed that failed; zero: none did.
func failedAt(members []*fleet.Pod) (out time.Time) {
	for _, p := range members {
		if p.Status == fleet.StatusError {
			out = latest(out, p.EndedAt)
		}
	}
	return out
}

// LostHost reports whether a pod ended since its host was fenced.
func LostHost(p *fleet.Pod) bool { return p.Status == fleet.StatusError && p.Reason == reasonFenced }

// triesBefore counts the restarts of a cluster that did not help, when it fails at a time.
func triesBefore(c *fleet.Cluster, failed time.Time) int {
	if failed.Sub(c.RestartedAt) >= calm {
		return 0
	}
	return c.Tries
}

// RestartDue reports whether a cluster that restarts by itself is to do so: a member failed so long ago, and no member was stopped for want
// of credit.
func RestartDue(c *fleet.Cluster, members []*fleet.Pod, now time.Time) bool {
	failed := failedAt(members)
	if failed.IsZero() {
		return false
	}
	for _, p := range members {
		if p.Reason == reasonNoCredit || p.Stopping() {
			return false
		}
	}
	const doublings = 9 // beyond, the pause is the longest
	pause := min(mostPause, firstPause<<min(triesBefore(c, failed), doublings))
	return !now.Before(failed.Add(pause))
}

// ClusterCare is what is to be done for a cluster of which a member failed.
type ClusterCare struct {
	Cluster fleet.Cluster
	Restart bool // all members
	Stop    bool
	Replace []fleet.PodID // members whose hosts were fenced, which start elsewhere
}

// ClustersInNeed returns what is to be done for clusters now, in no order.
func (v *View) ClustersInNeed(now time.Time) (out []ClusterCare) {
	for id, c := range v.tb.clusters.Rows {
		failed, care := false, ClusterCare{}
		for _, p := range v.tb.membersOf.Rows[id] {
			failed = failed || p.Status == fleet.StatusError
		}
		if !failed {
			continue
		}
		members := v.MembersOf(id)
		switch care.Cluster = *c; c.OnFailure {
		case fleet.OnFailureRestart:
			care.Restart = RestartDue(c, members, now)
		case fleet.OnFailureStop:
			for _, p := range members {
				care.Stop = care.Stop || p.Status.Active() && !p.Stopping()
			}
		default:
			for _, p := range members {
				if LostHost(p) {
					care.Replace = append(care.Replace, p.ID)
				}
			}
		}
		if care.Restart || care.Stop || len(care.Replace) > 0 {
			out = append(out, care)
		}
	}
	return out
}
