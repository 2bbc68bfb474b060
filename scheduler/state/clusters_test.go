package state

import (
	"testing"
	"time"

	"gantry/fleet"
)

// clusterOf is a command that creates a cluster with members on host-a.
func clusterOf(id fleet.ClusterID, pods ...fleet.PodID) CreateCluster {
	set := setOf(id.Owner(), pods...)
	for i := range set.Pods {
		set.Pods[i].Pod.Rank = i
	}
	return CreateCluster{Pods: set.Pods, Cluster: fleet.Cluster{
		ID: id, Account: "acme", Name: "train", Type: fleet.ClusterTraining, GPU: fleet.GPURequest{Type: "gpu", Count: 1}, Count: len(pods),
		DataCenter: "dc-1", CreatedAt: at(1),
	}}
}

const theCluster = fleet.ClusterID("cluster0000001")

// TestAClusterIsCreatedWhole: with all its members, whose addresses go by rank, or not at all.
func TestAClusterIsCreatedWhole(t *testing.T) {
	w := newWorld(t).settle().furnish()
	refuse := func(code fleet.Code, change func(*CreateCluster)) {
		t.Helper()
		c := clusterOf(theCluster, "p1", "p2", "p3")
		change(&c)
		w.refused(code, c)
		w.view(func(v *View) {
			if _, there := v.Pod("p1"); there || len(v.Clusters()) > 0 || len(v.OverlaysOf("acme")) > 0 {
				t.Error("something of a refused cluster is left")
			}
		})
	}
	refuse(fleet.CodeStale, func(c *CreateCluster) { c.Pods[2].HostEpoch = 99 })
	refuse(fleet.CodeInvalid, func(c *CreateCluster) { c.Pods = c.Pods[:2] })
	refuse(fleet.CodeInvalid, func(c *CreateCluster) { c.Cluster.Count, c.Pods = 1, c.Pods[:1] })
	refuse(fleet.CodeInvalid, func(c *CreateCluster) { c.Pods[1].Pod.Rank = 2 })
	refuse(fleet.CodeInvalid, func(c *CreateCluster) { c.Pods[1].Pod.Owner = fleet.Owner{} })
	refuse(fleet.CodeNotFound, func(c *CreateCluster) { c.Cluster.Account = "nobody" })
	prepaid := true
	w.must(UpdateAccount{Account: "acme", Prepaid: &prepaid}, AddCredit{Account: "acme", Amount: 2 * fleet.Dollar, At: at(1)})
	refuse(fleet.CodeNoCredit, func(*CreateCluster) {}) // enough for one of them, and not for all
	prepaid = false
	w.must(UpdateAccount{Account: "acme", Prepaid: &prepaid})
	c := clusterOf(theCluster, "p1", "p2", "p3")
	c.Once = sampleOnce()
	if made := w.must(c).(fleet.Cluster); made.Rev != 1 || made.Count != 3 {
		t.Errorf("made %+v", made)
	}
	w.view(func(v *View) {
		o, _ := v.Overlay(fleet.ClusterOverlay(theCluster))
		for i, p := range v.MembersOf(theCluster) {
			place, on := p.ClusterPlace()
			if p.Rank != i || !on || place.Addr != addrAt(o.CIDR, uint32(firstAddr+i)) {
				t.Errorf("member %d: %+v", i, p)
			}
		}
		if used := v.Used("acme"); used[fleet.LimitClusters] != 1 || used[fleet.LimitPods] != 3 {
			t.Errorf("it counts for %v", used)
		}
	})
	again := clusterOf("cluster0000002", "p8", "p9")
	again.Once = sampleOnce()
	if r, ok := w.must(again).(Replay); !ok || r.Value.(fleet.Cluster).ID != theCluster {
		t.Error("the repeated create is not answered with the cluster of then")
	}
	w.view(func(v *View) {
		if _, there := v.Pod("p8"); there {
			t.Error("the repeated create made a pod")
		}
	})
	w.check()
}

// TestADeletedClusterLeavesNothing: its members are terminated with it, and its network goes with the last of them.
func TestADeletedClusterLeavesNothing(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(clusterOf(theCluster, "p1", "p2"))
	w.refused(fleet.CodeNotFound, Delete[fleet.Cluster]{Account: "other", ID: string(theCluster)})
	w.must(Delete[fleet.Cluster]{Account: "acme", ID: string(theCluster)})
	w.refused(fleet.CodeNotFound, Delete[fleet.Cluster]{Account: "acme", ID: string(theCluster)})
	for _, id := range []fleet.PodID{"p1", "p2"} {
		if p := w.pod(id); p.Status != fleet.StatusTerminated || p.Goal != fleet.GoalGone {
			t.Errorf("%s is %s", id, p.Status)
		}
		w.must(w.report(id, ReportGone))
	}
	left := func() (overlays, addresses int) {
		w.view(func(v *View) { overlays, addresses = len(v.OverlaysOf("acme")), len(v.tb.overlayMembers.Rows) })
		return overlays, addresses
	}
	w.must(PurgePods{Pods: []fleet.PodID{"p1"}, Before: at(9000), At: at(9000)})
	if overlays, addresses := left(); overlays != 1 || addresses != 1 {
		t.Errorf("with one member %d networks with %d addresses", overlays, addresses)
	}
	w.must(PurgePods{Pods: []fleet.PodID{"p2"}, Before: at(9000), At: at(9000)})
	if overlays, addresses := left(); overlays != 0 || addresses != 0 {
		t.Errorf("%d networks with %d addresses are left", overlays, addresses)
	}
	w.check()
}

// TestAClusterCostsFromItsBeginToItsEnd: deletion charges its members up to the log's time, and a leader's wrong clock changes no time.
func TestAClusterCostsFromItsBeginToItsEnd(t *testing.T) {
	w := newWorld(t)
	w.settle()
	w.must(tick(at(0)))
	c := clusterOf(theCluster, "p1", "p2")
	c.Cluster.CreatedAt = at(0).Add(time.Hour) // far beyond what the log believes
	for i := range c.Pods {
		c.Pods[i].Pod.CreatedAt, c.Pods[i].Pod.HourlyRate = c.Cluster.CreatedAt, fleet.Dollar
	}
	made := w.must(c).(fleet.Cluster)
	if latest := at(0).Add(leap); made.CreatedAt.After(latest) || w.pod("p1").CreatedAt.After(latest) {
		t.Errorf("the cluster is of %v and a member of %v", made.CreatedAt, w.pod("p1").CreatedAt)
	}
	w.must(tick(at(0)))
	before := w.spent(made.CreatedAt)
	w.ticks(made.CreatedAt, made.CreatedAt.Add(30*time.Minute))
	end := made.CreatedAt.Add(30 * time.Minute)
	w.must(Delete[fleet.Cluster]{Account: "acme", ID: string(theCluster), At: end})
	if p := w.pod("p1"); !p.TerminatedAt.Equal(end) {
		t.Errorf("a member ended at %v", p.TerminatedAt)
	}
	w.ticks(end, end.Add(time.Hour))
	if got := w.spent(end.Add(time.Hour)) - before; (got - time.Hour).Abs() > time.Minute {
		t.Errorf("two members of half an hour cost %v of a dollar an hour", got)
	}
}
