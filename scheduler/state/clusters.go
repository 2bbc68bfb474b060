package state

import (
	"cmp"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
	"gantry/scheduler/state/table"
)

// The type numbers of commands about clusters; see numbers.go.
const (
	numCreateCluster uint64 = 112 + iota
	numPutCluster
	numDeleteCluster
)

func (CreateCluster) number() uint64 { return numCreateCluster }

// CreateCluster creates a cluster with all its members and its network, or nothing. Value: fleet.Cluster, or Replay. Errors: those of
// Put and of CreatePods.
type CreateCluster struct {
	Cluster fleet.Cluster `cbor:"1,keyasint"`
	Pods    []NewPod      `cbor:"2,keyasint"` // by rank, as many as Cluster says
	Once    *fleet.Once   `cbor:"3,keyasint,omitempty"`
}

func (c CreateCluster) apply(t *txn) (any, error) {
	var out any
	err := t.Steps(1+min(len(c.Pods), MaxPods), func(i int) (err error) {
		if i == 0 {
			if out, err = clusters().apply(t, &c.Cluster, c.Once); err == nil {
				err = c.check(t, out)
			}
			return err
		}
		if _, again := out.(Replay); !again {
			_, err = CreatePods{Pods: c.Pods}.create(t, i-1)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, again := out.(Replay); !again {
		t.shareFabric(c.Cluster.ID)
		t.sizeNetwork(c.Cluster.ID)
	}
	return out, nil
}

// check refuses members that are not the cluster's, or that its account cannot pay for an hour together.
func (c CreateCluster) check(t *txn, out any) error {
	if _, again := out.(Replay); again {
		return nil
	}
	if len(c.Pods) != c.Cluster.Count {
		return fleet.Invalid("$.pods", "must be as many as the cluster has")
	}
	var hourly fleet.Money
	prices := storagePrices(t.base.catalog.Get(t.Txn, onlyKey))
	for i := range c.Pods {
		p := &c.Pods[i].Pod
		hourly += meter.Running(&p.Spec, p.HourlyRate, prices).Total()
		if p.Account != c.Cluster.Account || p.Owner != c.Cluster.ID.Owner() || p.Rank != i {
			return fleet.Invalid("$.pods", "must be the cluster's, by rank")
		}
	}
	return t.solvent(c.Cluster.Account, hourly, c.Cluster.CreatedAt, "Your account balance is too low to rent a cluster")
}

// clusters declares clusters. What they are made of is in their members.
func clusters() *noun[fleet.ClusterID, fleet.Cluster] {
	return &noun[fleet.ClusterID, fleet.Cluster]{
		put: numPutCluster, remove: numDeleteCluster, name: "cluster", once: onceCluster,
		of: func(tb *tables) *table.Index[fleet.AccountID, fleet.ClusterID, fleet.Cluster] {
			return tb.clustersOf
		},
		id:      func(r *fleet.Cluster) fleet.ClusterID { return r.ID },
		created: func(r *fleet.Cluster) time.Time { return r.CreatedAt },
		clone:   func(r *fleet.Cluster) fleet.Cluster { return *r },
		rev:     func(r *fleet.Cluster) *uint64 { return &r.Rev },
		counts: func(*fleet.Cluster) (out fleet.Counts) {
			out[fleet.LimitClusters] = 1
			return out
		},
		check: func(_ *txn, in *fleet.Cluster) error {
			switch in.OnFailure {
			case "", fleet.OnFailureNone, fleet.OnFailureRestart, fleet.OnFailureStop:
			default:
				return fleet.Invalid("$.onFailure", "must be none, restart or stop")
			}
			if in.Count < fleet.MinClusterPods || in.Count > MaxPods {
				return fleet.Invalid("$.compute.podCount", "must be 2 to 250")
			}
			return cmp.Or(checkID("$.id", string(in.ID)), in.ID.Owner().Check())
		},
		dropped: (*txn).endMembers,
	}
}

// endMembers terminates what is left of a cluster's members.
func (t *txn) endMembers(id fleet.ClusterID) {
	for _, pod := range t.base.membersOf.Keys(t.Txn, id) {
		old := t.base.pods.Get(t.Txn, pod)
		if old.Status == fleet.StatusTerminated {
			continue
		}
		next := *old
		ActPod{At: t.now}.terminate(t, &next)
		t.putPod(&next)
	}
}

// leave removes the addresses of a pod that was a cluster's member, and with the last one the cluster's network.
func (t *txn) leave(p *fleet.Pod) {
	id := memberOf(p)
	if id == "" {
		return
	}
	overlay := fleet.ClusterOverlay(id)
	for _, at := range p.Overlays {
		if at.Overlay == overlay {
			t.base.overlayMembers.Drop(t.Txn, memberKey(overlay, at.Addr))
		}
	}
	if t.base.membersOf.Count(t.Txn, id) == 0 && t.base.overlays.Get(t.Txn, overlay) != nil {
		t.base.overlays.Drop(t.Txn, overlay)
	}
	t.Note(KindNetwork, string(overlay))
}

// memberOf returns the cluster that a pod is or was a member of; empty: of none.
func memberOf(p *fleet.Pod) fleet.ClusterID {
	if p.Owner.Kind != fleet.OwnerCluster {
		return ""
	}
	return fleet.ClusterID(p.Owner.ID)
}

// MembersOf returns the members of a cluster that are not terminated, by rank. They are the state's own and must not be changed.
func (v *View) MembersOf(id fleet.ClusterID) (out []*fleet.Pod) {
	for _, p := range v.tb.membersOf.Rows[id] {
		if p.Status != fleet.StatusTerminated {
			out = append(out, p)
		}
	}
	return byRank(out)
}

// byRank sorts members by rank.
func byRank(members []*fleet.Pod) []*fleet.Pod {
	slices.SortFunc(members, func(a, b *fleet.Pod) int { return cmp.Or(a.Rank-b.Rank, cmp.Compare(a.ID, b.ID)) })
	return members
}

// Clusters returns all clusters, in no order. They are the state's own and must not be changed.
func (v *View) Clusters() (out []*fleet.Cluster) {
	for _, c := range v.tb.clusters.Rows {
		out = append(out, c)
	}
	return out
}

// MayCluster refuses a new cluster with its members that its account may not have, as Apply does. Errors: quota_exceeded.
func (v *View) MayCluster(c *fleet.Cluster, members []NewPod) error {
	more, prices := clusters().counts(c), storagePrices(v.tb.catalog.Rows[onlyKey])
	for i := range members {
		p := &members[i].Pod
		for what, n := range rented(nil, p.Owner, &p.Spec, p.HourlyRate, prices) {
			more[what] += n
		}
	}
	return v.mayHave(c.Account, more)
}
