package state

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// policyCluster creates a cluster of two running members, and has the second fail.
func policyCluster(w *world, on fleet.OnFailure) {
	c := clusterOf(theCluster, "p1", "p2")
	c.Cluster.OnFailure = on
	w.must(c)
	w.must(w.report("p1", fleet.EventRunning), w.report("p2", fleet.EventRunning), failed(w, "p2"))
}

// failed is the report of a process that ended in an error.
func failed(w *world, id fleet.PodID) ReportPods {
	r := w.report(id, fleet.EventFailed)
	r.Reports[0].Reason, r.Reports[0].LogTail = "exit code 1", "no NIC"
	return r
}

// startOf is where a member starts again: where it was.
func startOf(w *world, id fleet.PodID) MemberStart {
	p := w.pod(id)
	host := w.host(p.Host)
	need := p.Need
	return MemberStart{Pod: id, Rev: p.Rev, Bind: Binding{Host: p.Host, HostEpoch: host.Epoch, GPUs: clusterOf(theCluster, "p1", "p2").Pods[p.Rank].Pod.GPUs, Need: &need, HourlyRate: p.HourlyRate}}
}

// TestAClusterRestartsAsAWhole: what runs begins anew where it is, what failed where it is told; or nothing changes.
func TestAClusterRestartsAsAWhole(t *testing.T) {
	w := newWorld(t).settle().furnish()
	policyCluster(w, "")
	before := [2]fleet.Pod{w.pod("p1"), w.pod("p2")}
	refuse := func(code fleet.Code, change func(*RestartCluster)) {
		t.Helper()
		c := RestartCluster{Account: "acme", ID: theCluster, At: at(100), Starts: []MemberStart{startOf(w, "p2")}}
		change(&c)
		w.refused(code, c)
		if w.pod("p1").Rev != before[0].Rev || w.pod("p2").Rev != before[1].Rev {
			t.Error("a refused restart changed a member")
		}
	}
	refuse(fleet.CodeNotFound, func(c *RestartCluster) { c.Account = "other" })
	refuse(fleet.CodeStale, func(c *RestartCluster) { c.Rev = 9 })
	refuse(fleet.CodeStale, func(c *RestartCluster) { c.Starts = nil })
	refuse(fleet.CodeStale, func(c *RestartCluster) { c.Starts[0].Rev++ })
	refuse(fleet.CodeStale, func(c *RestartCluster) { c.Starts[0].Bind.HostEpoch = 99 })
	refuse(fleet.CodeNotAllowed, func(c *RestartCluster) { c.Auto = true }) // it is not to restart by itself
	prepaid := true
	w.must(UpdateAccount{Account: "acme", Prepaid: &prepaid})
	refuse(fleet.CodeNoCredit, func(*RestartCluster) {})
	prepaid = false
	w.must(UpdateAccount{Account: "acme", Prepaid: &prepaid})
	made := w.must(RestartCluster{Account: "acme", ID: theCluster, Rev: 1, At: at(100), Starts: []MemberStart{startOf(w, "p2")}}).(fleet.Cluster)
	if made.Rev != 2 || made.Tries != 0 || !made.RestartedAt.Equal(at(100)) {
		t.Errorf("restarted: %+v", made)
	}
	for i, want := range []fleet.PodStatus{fleet.StatusStarting, fleet.StatusProvisioning} {
		p := w.pod(before[i].ID)
		was, is := before[i].ClusterAddr(), p.ClusterAddr()
		if p.Status != want || p.Incarnation != before[i].Incarnation+1 || p.Goal != fleet.GoalRun || was != is || p.Reason != "" {
			t.Errorf("rank %d: %s, incarnation %d, address %s was %s", i, p.Status, p.Incarnation, is, was)
		}
	}
	w.must(RestartCluster{Account: "acme", ID: theCluster, At: at(101)}) // both are on their way
	w.must(ActPod{Account: "acme", Pod: "p2", Owner: theCluster.Owner(), Action: fleet.ActionStop, At: at(102)})
	w.refused(fleet.CodeNotAllowed, RestartCluster{Account: "acme", ID: theCluster, At: at(103)})
	w.must(ActPod{Account: "acme", Pod: "p2", Owner: theCluster.Owner(), Action: fleet.ActionTerminate, At: at(104)})
	w.refused(fleet.CodeNotAllowed, RestartCluster{Account: "acme", ID: theCluster, At: at(105)})
	w.check()
}

// TestPausesBetweenRestarts: 1 s, then twice as long each time up to 5 minutes, and 1 s again after all ran for ten minutes.
func TestPausesBetweenRestarts(t *testing.T) {
	for _, c := range []struct {
		tries int
		ran   time.Duration // since the last restart, when a member fails
		pause time.Duration
	}{
		{0, 0, time.Second},
		{1, time.Minute, 2 * time.Second},
		{5, time.Minute, 32 * time.Second},
		{8, time.Minute, 256 * time.Second},
		{9, time.Minute, 5 * time.Minute},
		{1000, time.Minute, 5 * time.Minute},
		{9, 10 * time.Minute, time.Second},
	} {
		cluster := &fleet.Cluster{Tries: c.tries, RestartedAt: at(0)}
		failed := at(0).Add(c.ran)
		members := []*fleet.Pod{{Status: fleet.StatusRunning, Goal: fleet.GoalRun}, {Status: fleet.StatusError, EndedAt: failed}}
		if RestartDue(cluster, members, failed.Add(c.pause-1)) || !RestartDue(cluster, members, failed.Add(c.pause)) {
			t.Errorf("after %d tries, %v later: not due after %v", c.tries, c.ran, c.pause)
		}
		other := []*fleet.Pod{members[0], members[1], {Status: fleet.StatusExited, EndedAt: failed.Add(time.Hour)}}
		if !RestartDue(cluster, other, failed.Add(c.pause)) {
			t.Error("a member that ended well puts it off")
		}
		members[0].Reason = reasonNoCredit
		if RestartDue(cluster, members, failed.Add(time.Hour)) {
			t.Error("due though the account has no credit")
		}
		if RestartDue(cluster, members[:1], failed.Add(time.Hour)) {
			t.Error("due though no member failed")
		}
	}
}

// TestAClusterThatRestartsByItself counts its tries, and is not restarted before it is due, whoever says so.
func TestAClusterThatRestartsByItself(t *testing.T) {
	w := newWorld(t).settle().furnish()
	policyCluster(w, fleet.OnFailureRestart)
	ended := w.pod("p2").EndedAt
	again := func(at time.Time) RestartCluster {
		return RestartCluster{Account: "acme", ID: theCluster, At: at, Auto: true, Starts: []MemberStart{startOf(w, "p2")}}
	}
	need := func(now time.Time) (out []ClusterCare) {
		w.view(func(v *View) { out = v.ClustersInNeed(now) })
		return out
	}
	if got := need(ended); len(got) > 0 {
		t.Errorf("at once: %+v", got)
	}
	if got := need(ended.Add(time.Second)); len(got) != 1 || !got[0].Restart || got[0].Stop || len(got[0].Replace) > 0 {
		t.Errorf("a second later: %+v", got)
	}
	w.refused(fleet.CodeNotAllowed, again(ended))
	if made := w.must(again(ended.Add(time.Second))).(fleet.Cluster); made.Tries != 1 {
		t.Errorf("after the first restart %+v", made)
	}
	w.must(w.report("p2", fleet.EventRunning), failed(w, "p2"))
	ended = w.pod("p2").EndedAt
	w.refused(fleet.CodeNotAllowed, again(ended.Add(time.Second)))
	if made := w.must(again(ended.Add(2 * time.Second))).(fleet.Cluster); made.Tries != 2 {
		t.Errorf("after the second restart %+v", made)
	}
	w.check()
}

// TestAClusterThatStops: when a member failed, all others are stopped and say why; a cluster with another rule is not.
func TestAClusterThatStops(t *testing.T) {
	w := newWorld(t).settle().furnish()
	policyCluster(w, fleet.OnFailureStop)
	w.view(func(v *View) {
		if got := v.ClustersInNeed(at(500)); len(got) != 1 || !got[0].Stop {
			t.Errorf("to do: %+v", got)
		}
	})
	w.refused(fleet.CodeNotFound, StopCluster{Account: "other", ID: theCluster, At: at(100)})
	w.must(StopCluster{Account: "acme", ID: theCluster, At: at(100)})
	if p := w.pod("p1"); !p.Stopping() || p.Reason != reasonClusterStopped {
		t.Errorf("%+v", p)
	}
	w.must(w.report("p1", fleet.EventExited))
	if p := w.pod("p1"); p.Status != fleet.StatusExited || p.Reason != reasonClusterStopped {
		t.Errorf("%s, %q", p.Status, p.Reason)
	}
	w.view(func(v *View) {
		if got := v.ClustersInNeed(at(500)); len(got) > 0 {
			t.Errorf("still to do: %+v", got)
		}
	})
	w.check()
}

// TestAClusterWithARuleOfNone: nothing is done when a member fails, and one whose host was fenced is replaced.
func TestAClusterWithARuleOfNone(t *testing.T) {
	w := newWorld(t).settle().furnish()
	policyCluster(w, "")
	w.view(func(v *View) {
		if got := v.ClustersInNeed(at(5000)); len(got) > 0 {
			t.Errorf("to do: %+v", got)
		}
	})
	w.refused(fleet.CodeStale, StopCluster{Account: "acme", ID: theCluster, At: at(100)})
	host := w.pod("p1").Host
	w.must(SetHostState{Host: host, State: fleet.HostUnreachable, Epoch: w.host(host).Epoch, At: at(200)}, FenceHost{Host: host, At: at(201)})
	w.view(func(v *View) {
		if got := v.ClustersInNeed(at(5000)); len(got) != 1 || len(got[0].Replace) != 1 || got[0].Replace[0] != "p1" {
			t.Errorf("to do: %+v", got)
		}
	})
}

// TestAnExhaustedAccountKeepsItsClusters: their members are stopped, whatever they keep, and start again together when there is credit.
func TestAnExhaustedAccountKeepsItsClusters(t *testing.T) {
	w := newWorld(t).settle().furnish()
	c := clusterOf(theCluster, "p1", "p2")
	w.must(c)
	w.must(w.report("p1", fleet.EventRunning), w.report("p2", fleet.EventRunning))
	prepaid := true
	w.must(UpdateAccount{Account: "acme", Prepaid: &prepaid}, ExhaustAccounts{Accounts: []fleet.AccountID{"acme"}, At: at(50)})
	for _, id := range []fleet.PodID{"p1", "p2"} {
		if p := w.pod(id); !p.Stopping() || p.Reason != reasonNoCredit {
			t.Errorf("%s is %s, %q", id, p.Status, p.Reason)
		}
		w.must(w.report(id, fleet.EventExited))
	}
	starts := []MemberStart{startOf(w, "p1"), startOf(w, "p2")}
	w.refused(fleet.CodeNoCredit, RestartCluster{Account: "acme", ID: theCluster, At: at(60), Starts: starts})
	w.must(AddCredit{Account: "acme", Amount: 100 * fleet.Dollar, At: at(61)})
	w.must(RestartCluster{Account: "acme", ID: theCluster, At: at(62), Starts: starts})
	w.check()
}

// TestAFenceAfterARestoreRestartsNoCluster whose host has not connected since: its owner may have deleted it after the copy was made.
func TestAFenceAfterARestoreRestartsNoCluster(t *testing.T) {
	for _, on := range []fleet.OnFailure{fleet.OnFailureRestart, fleet.OnFailureNone} {
		for what, back := range map[string]bool{"never came back": false, "was compared": true} {
			w := newWorld(t).settle().furnish()
			c := clusterOf(theCluster, "p1", "p2")
			c.Cluster.OnFailure = on
			w.must(c)
			w.must(w.report("p1", fleet.EventRunning), w.report("p2", fleet.EventRunning))
			w.must(restore(7), w.back("host-b"))
			if back {
				w.must(w.back("host-a", w.runs("p1"), w.runs("p2")))
			}
			if w.host("host-a").State == fleet.HostReady {
				w.lose("host-a")
			}
			w.must(FenceHost{Host: "host-a", At: at(3000)})
			w.view(func(v *View) {
				if got := v.ClustersInNeed(at(5000)); len(got) > 0 != back {
					t.Errorf("%s, the host %s: %+v", on, what, got)
				}
			})
			if p := w.pod("p1"); !back && (p.Status != fleet.StatusExited || !strings.Contains(p.Reason, "restored from a copy")) {
				t.Errorf("%s: got %+v", on, p)
			}
			w.check()
		}
	}
}

// TestARestoreLeavesFailedMembers: a cluster may have restarted since the copy was made, and its owner may have deleted it after that.
func TestARestoreLeavesFailedMembers(t *testing.T) {
	for _, on := range []fleet.OnFailure{fleet.OnFailureRestart, fleet.OnFailureNone} {
		w := newWorld(t).settle().furnish()
		policyCluster(w, on)
		w.must(restore(7), w.back("host-a"), w.back("host-b"))
		w.view(func(v *View) {
			if got := v.ClustersInNeed(at(5000)); len(got) > 0 {
				t.Errorf("%s: %+v", on, got)
			}
		})
		if p := w.pod("p2"); p.Status != fleet.StatusExited || !strings.Contains(p.Reason, "restored from a copy") {
			t.Errorf("%s: got %+v", on, p)
		}
		w.check()
	}
}
