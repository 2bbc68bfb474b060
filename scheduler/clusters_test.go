package scheduler

import (
	"context"
	"fmt"
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
		env, err := w.svc.Environment(v.Pod)
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

// TestAClusterWithoutRoomSaysWhyOfEachHost, its dry run, too: what each host lacks, and how many had room for one pod.
func TestAClusterWithoutRoomSaysWhyOfEachHost(t *testing.T) {
	w := newWorld(t)
	for _, id := range []fleet.HostID{"host-a", "host-b", "host-c"} {
		w.addHost(id, "dc-1", h100, 8, publicPorts(30_000, 30_000))
	}
	req := gpuPod(1)
	req.Ports = []fleet.Port{{Number: 22, Protocol: "tcp"}}
	taken := w.create(req) // the one public port of its host
	w.addHost("host-d", "dc-1", h100, 4)
	w.addHost("host-e", "dc-2", h100, 8)
	req.GPU = &fleet.GPURequest{Type: h100, Count: 6}
	want := "[{4 of 4 GPUs free 1} {room for one pod each in dc-1, but 4 are needed in one data center 2} " +
		"{room for one pod each in dc-2, but 4 are needed in one data center 1} {public ports 1}]"
	cluster := fleet.ClusterRequest{Type: fleet.ClusterTraining, Count: 4, Pod: req}
	_, planned := w.svc.PlanCluster(context.Background(), member(acme), cluster)
	_, _, made := w.svc.CreateCluster(context.Background(), member(acme), cluster)
	for what, err := range map[string]error{"dry run": planned, "creation": made} {
		if got := fmt.Sprint(excludedOf(err)); fleet.CodeOf(err) != fleet.CodeNoCapacity || got != want {
			t.Errorf("%s beside %s: %v\n%s, want\n%s", what, taken.Host, err, got, want)
		}
	}
	w.unreserved()
}
