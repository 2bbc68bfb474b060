package scheduler

import (
	"context"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/control"
	"gantry/scheduler/state"
)

// runningCluster makes a cluster of two on host-a and host-b, with a rule for failures, and has both members run.
func (w *world) runningCluster(on fleet.OnFailure) fleet.ClusterPods {
	w.t.Helper()
	made, _, err := w.svc.CreateCluster(context.Background(), member(acme), fleet.ClusterRequest{Type: fleet.ClusterTraining, Count: 2, OnFailure: on, Pod: gpuPod(2)})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, v := range made.Pods {
		w.report(v.Pod.ID, fleet.EventRunning)
	}
	return made
}

// mind looks after clusters until a condition holds.
func (w *world) mind(t *testing.T, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	care := &control.Clusters{Store: w.store, Node: w, Pods: w.svc, Every: time.Millisecond, Log: w.svc.Log, Clock: w.clock}
	done := make(chan error, 1)
	go func() { done <- care.Run(ctx) }()
	for {
		_, seen, _ := w.store.Events(0)
		if holds() || w.store.Wait(ctx, seen) != nil {
			break
		}
	}
	cancel()
	if err := <-done; err != nil || !holds() {
		t.Errorf("it did not come about: %v\n%s", err, w.logged())
	}
}

// TestOwnersRestartClusters: what runs begins anew where it is, what ended where there is room, or nothing does.
func TestOwnersRestartClusters(t *testing.T) {
	w := newWorld(t)
	for _, id := range []fleet.HostID{"host-a", "host-b"} {
		w.addHost(id, "dc-1", h100, 4)
	}
	made := w.runningCluster("")
	first, second := made.Pods[0].Pod.ID, made.Pods[1].Pod.ID
	w.report(second, fleet.EventFailed)
	if _, err := w.svc.RestartCluster(t.Context(), member(other), made.Cluster.ID); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("another account's: %v", err)
	}
	lost := w.pod(second).Host
	w.lose(lost)
	before := w.pod(first)
	if _, err := w.svc.RestartCluster(t.Context(), member(acme), made.Cluster.ID); fleet.CodeOf(err) != fleet.CodeNoCapacity || w.pod(first).Rev != before.Rev {
		t.Errorf("without room for the second: %v", err)
	}
	w.addHost("host-c", "dc-1", h100, 4)
	w.addHost("host-d", "dc-2", h100, 4)
	got, err := w.svc.RestartCluster(t.Context(), member(acme), made.Cluster.ID)
	if err != nil || got.Status != fleet.ClusterStarting || len(got.Faults) > 0 {
		t.Errorf("restarted: %+v, %v", got, err)
	}
	now := [2]fleet.Pod{w.pod(first), w.pod(second)}
	if now[0].Host != before.Host || now[0].Incarnation != before.Incarnation+1 || now[1].Host != "host-c" || now[1].ClusterAddr() != made.Pods[1].Pod.ClusterAddr() {
		t.Errorf("the members are %+v", now)
	}
	w.unreserved()
}

// TestAFailedClusterRestartsByItself after its pause, in a look of whoever leads, and not before.
func TestAFailedClusterRestartsByItself(t *testing.T) {
	w := newWorld(t)
	for _, id := range []fleet.HostID{"host-a", "host-b"} {
		w.addHost(id, "dc-1", h100, 4)
	}
	made := w.runningCluster(fleet.OnFailureRestart)
	id := made.Pods[1].Pod.ID
	w.report(id, fleet.EventFailed)
	if err := w.svc.RestartFailedCluster(t.Context(), made.Cluster.ID); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("before it is due: %v", err)
	}
	w.pass(time.Second)
	w.mind(t, func() bool { return w.pod(id).Status == fleet.StatusProvisioning })
	got, err := w.svc.ClusterByID(t.Context(), member(acme), made.Cluster.ID)
	if err != nil || got.Cluster.Tries != 1 || w.pod(made.Pods[0].Pod.ID).Status != fleet.StatusStarting {
		t.Errorf("after a restart %+v, %v", got.Cluster, err)
	}
	if err := w.svc.RestartFailedCluster(t.Context(), "nothere"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("one that is gone: %v", err)
	}
}

// TestAFailedClusterStops: all members are told to stop.
func TestAFailedClusterStops(t *testing.T) {
	w := newWorld(t)
	for _, id := range []fleet.HostID{"host-a", "host-b"} {
		w.addHost(id, "dc-1", h100, 4)
	}
	made := w.runningCluster(fleet.OnFailureStop)
	w.report(made.Pods[1].Pod.ID, fleet.EventFailed)
	w.mind(t, func() bool { p := w.pod(made.Pods[0].Pod.ID); return p.Stopping() })
}

// TestAMemberOfALostHostIsReplaced once an operator vouches that it does not run there, with its rank and address, as soon as another host
// has room; the others run on.
func TestAMemberOfALostHostIsReplaced(t *testing.T) {
	w := newWorld(t)
	for _, id := range []fleet.HostID{"host-a", "host-b"} {
		w.addHost(id, "dc-1", h100, 4)
	}
	made := w.runningCluster(fleet.OnFailureNone)
	gone, stays := made.Pods[0].Pod, w.pod(made.Pods[1].Pod.ID)
	w.lose(gone.Host)
	if err := w.svc.ReplaceMember(t.Context(), gone.ID); err != nil || w.pod(gone.ID).Host != gone.Host {
		t.Errorf("before it is fenced: %v", err)
	}
	if _, err := w.svc.FenceHost(t.Context(), gone.Host); err != nil {
		t.Fatal(err)
	}
	if err := w.svc.ReplaceMember(t.Context(), gone.ID); fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Errorf("without room: %v", err)
	}
	w.addHost("host-c", "dc-1", h100, 4)
	w.mind(t, func() bool { return w.pod(gone.ID).Host == "host-c" })
	if p := w.pod(gone.ID); p.Rank != 0 || p.ClusterAddr() != gone.ClusterAddr() || p.Status != fleet.StatusProvisioning {
		t.Errorf("the new member is %+v", p)
	}
	if p := w.pod(stays.ID); p.Rev != stays.Rev {
		t.Errorf("the other one became %+v", p)
	}
	w.view(func(v *state.View) {
		if todo := v.ClustersInNeed(w.clock()); len(todo) > 0 {
			t.Errorf("still to do: %+v", todo)
		}
	})
}
