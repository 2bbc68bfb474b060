package scheduler

import (
	"context"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// TestAMemberHasTheEnvironmentOfItsRank: addresses of the cluster's network, and what its owner set of NCCL.
func TestAMemberHasTheEnvironmentOfItsRank(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 4)
	w.addHost("host-b", "dc-1", h100, 4)
	req := gpuPod(2)
	req.Env = map[string]string{"GLOO_SOCKET_IFNAME": "eth0"}
	made, _, err := w.svc.CreateCluster(context.Background(), member(acme), fleet.ClusterRequest{Type: fleet.ClusterRay, Count: 2, Pod: req})
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[fleet.HostID]bool{}
	for rank, v := range made.Pods {
		hosts[v.Pod.Host] = true
		env, err := w.svc.Environment(&v.Pod)
		if err != nil {
			t.Fatal(err)
		}
		first, _ := made.Pods[0].Pod.ClusterPlace()
		own, _ := v.Pod.ClusterPlace()
		primary := first.Addr.String()
		for name, want := range map[string]string{
			"MASTER_ADDR": primary, "PRIMARY_ADDR": primary, "MASTER_PORT": "29500", "HOST_NODE_ADDR": primary + ":29500", "NODE_ADDR": own.Addr.String(),
			"NODE_RANK": string(rune('0' + rank)), "NUM_NODES": "2", "NUM_TRAINERS": "2", "WORLD_SIZE": "4", "NCCL_SOCKET_IFNAME": "ens1",
			"GLOO_SOCKET_IFNAME": "eth0", "RAY_ADDRESS": primary + ":6379", "GANTRY_CLUSTER_ID": string(made.Cluster.ID),
		} {
			if env[name] != want {
				t.Errorf("rank %d: %s is %q, want %q", rank, name, env[name], want)
			}
		}
	}
	if len(hosts) != 2 || made.Overlay.VNI == 0 {
		t.Errorf("on %v in network %+v", hosts, made.Overlay)
	}
	if err := w.svc.DeleteCluster(context.Background(), member(acme), made.Cluster.ID); err != nil {
		t.Fatal(err)
	}
	w.view(func(v *state.View) {
		if left := v.MembersOf(made.Cluster.ID); len(left) > 0 {
			t.Errorf("%d members are left", len(left))
		}
	})
}
