package clients

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"gantry/test/devtest"
)

type cluster struct {
	ID, Name, Status string
	Pods             struct {
		Total    int
		ByStatus map[string]int
	}
	Primary struct{ PodID string }
}

// member is what the tests read of a pod of a cluster.
type member struct {
	ID      string
	Env     map[string]string
	Cluster struct {
		ID   string
		Rank int
		IP   string
	}
}

// TestClusterTools plays a day of a user who trains on two hosts, in real containers.
func TestClusterTools(t *testing.T) {
	dev, err := suite.site.Start(filepath.Join(t.TempDir(), "dev"), "--agents", "2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			dev.PrintLogs(t.Output())
		}
	})
	info, err := dev.Info()
	if err != nil {
		t.Fatal(err)
	}
	m := startMCP(t, info.API, info.APIKey)
	shape := args{"gpuTypeId": devtest.GPUType, "gpuCountPerPod": 1, "podCount": 3}
	create := args{"name": "train", "type": "TRAINING", "image": devtest.Image, "args": "sh -c '" + devtest.Sleeper + "'", "compute": shape}
	m.refused(t, 400, "no_capacity", "create-cluster", body(create)) // there are two hosts
	if got := m.tool(t, "create-cluster", body(create)); !strings.Contains(got.text, "but 3 are needed in one data center") {
		t.Errorf("a cluster without room: %s", got.text)
	}
	shape["podCount"] = 2
	var made cluster
	m.good(t, &made, "create-cluster", body(create))
	err = devtest.Until(reachTimeout, func() error {
		m.good(t, &made, "get-cluster", args{"id": made.ID})
		if made.Status != "READY" || made.Pods.ByStatus["RUNNING"] != 2 {
			return fmt.Errorf("the cluster is %+v", made)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var pods struct{ Pods []member }
	m.good(t, &pods, "list-cluster-pods", args{"id": made.ID})
	if len(pods.Pods) != 2 || pods.Pods[0].Cluster.Rank+pods.Pods[1].Cluster.Rank != 1 || pods.Pods[0].Cluster.IP == pods.Pods[1].Cluster.IP {
		t.Fatalf("members: %+v", pods)
	}
	reachEachOther(t, dev, pods.Pods)
	m.refused(t, 409, "not_allowed", "pod-action", of(pods.Pods[0].ID, args{"action": "stop"}))
	var seen struct{ Pods []pod }
	m.good(t, &seen, "list-pods", nil)
	if len(seen.Pods) != 0 {
		t.Errorf("members among pods: %+v", seen)
	}
	m.good(t, &seen, "list-pods", args{"includeClusterPods": true})
	if len(seen.Pods) != 2 {
		t.Errorf("pods with members: %+v", seen)
	}
	m.good(t, &made, "update-cluster", of(made.ID, args{"name": "renamed"}))
	var all struct{ Clusters []cluster }
	m.good(t, &all, "list-clusters", nil)
	if len(all.Clusters) != 1 || all.Clusters[0].Name != "renamed" {
		t.Errorf("clusters: %+v", all)
	}
	var bill struct {
		Metadata struct{ Totals map[string]float64 }
	}
	err = devtest.Until(reachTimeout, func() error { // whole seconds are charged
		m.good(t, &bill, "list-cluster-billing", args{"lastN": 1, "bucketSize": "hour"})
		if bill.Metadata.Totals["totalAmount"] <= 0 {
			return fmt.Errorf("two pods that run cost %+v", bill)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	m.good(t, nil, "delete-cluster", args{"id": made.ID})
	m.refused(t, 404, "not_found", "get-cluster", args{"id": made.ID})
	for _, p := range pods.Pods {
		if err := devtest.Until(reachTimeout, func() error { return suite.site.NothingLeft(p.ID) }); err != nil {
			t.Error(err)
		}
	}
	for _, name := range m.tools(t) {
		if strings.Contains(name, "cluster") && !m.used[name] {
			t.Errorf("the tool %s was not called", name)
		}
	}
}

// reachEachOther has each member of a cluster say who it is, and the primary be reached on the cluster's interface.
func reachEachOther(t *testing.T, dev *devtest.Dev, pods []member) {
	t.Helper()
	for _, p := range pods {
		const script = `echo "$NODE_RANK $NUM_NODES $WORLD_SIZE $NODE_ADDR $NCCL_SOCKET_IFNAME"; ip -o -4 addr show ens1; ping -c 1 -W 5 "$PRIMARY_ADDR"`
		cmd, err := dev.Command(t.Context(), "pod", "exec", p.ID, "--", "sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.CombinedOutput()
		said := fmt.Sprintf("%d 2 2 %s ens1\n", p.Cluster.Rank, p.Cluster.IP)
		if err != nil || !strings.Contains(string(out), said) || !strings.Contains(string(out), "inet "+p.Cluster.IP+"/") ||
			!strings.Contains(string(out), "1 packets received") {
			t.Errorf("rank %d, want %q: %v\n%s", p.Cluster.Rank, said, err, out)
		}
	}
}
