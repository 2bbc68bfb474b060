package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

const clusterImage = "docker.io/library/cluster:1"

// clusterDev starts four hosts that have the image of deploy/images/cluster.
func clusterDev(t *testing.T) *devtest.Dev {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // Debian's packages are fetched when it was not built before
	defer cancel()
	cmd := exec.CommandContext(ctx, "scripts/cluster-image.sh", clusterImage)
	cmd.Dir, cmd.Stderr = filepath.Dir(filepath.Dir(must[string](t)(os.Getwd()))), testWriter{t}
	archive := must[[]byte](t)(cmd.Output())
	site := *suite.site
	site.Archive = strings.TrimSpace(string(archive))
	d := must[*devtest.Dev](t)(site.Start(filepath.Join(t.TempDir(), "cluster"), "--agents", "4"))
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			d.PrintLogs(testWriter{t})
		}
	})
	return d
}

// ready waits until all pods of a cluster run and are done with their start, and returns it with them.
func ready(t *testing.T, d *devtest.Dev, id string) (v2.InstantCluster, []v2.Pod) {
	t.Helper()
	out, pods := running(t, d, id)
	for _, p := range pods {
		logHas(t, d, p.ID, "is ready")
	}
	return out, pods
}

// running waits until all pods of a cluster run, and returns it with them.
func running(t *testing.T, d *devtest.Dev, id string) (v2.InstantCluster, []v2.Pod) {
	t.Helper()
	c := user(t, d)
	var out v2.InstantCluster
	await(t, func() error {
		got, err := c.InstantCluster(t.Context(), id)
		if out = got.Value; err != nil || out.Status != string(fleet.ClusterReady) {
			return fmt.Errorf("the cluster is %s, %+v: %w", out.Status, out.Faults, err)
		}
		return nil
	})
	return out, must[client.Answer[v2.PodList]](t)(c.ClusterPods(t.Context(), id)).Value.Pods
}

// on runs a shell line in a cluster's pod of a rank.
func on(t *testing.T, d *devtest.Dev, id string, rank int, line string) string {
	t.Helper()
	out, diag, code := cli(t, d, "cluster", "exec", id, "--rank", fmt.Sprint(rank), "--", "sh", "-c", line)
	if code != 0 {
		t.Errorf("rank %d, %s: code %d\n%s%s", rank, line, code, out, diag)
	}
	t.Logf("node-%d$ %s\n%s", rank, line, out)
	return out
}

// TestClusterRunsMPISlurmAndRay is a SLURM cluster of four pods, whose user does nothing but start jobs, and then a RAY cluster.
func TestClusterRunsMPISlurmAndRay(t *testing.T) {
	t.Parallel()
	d := clusterDev(t)
	c := user(t, d)
	made := must[client.Answer[v2.InstantCluster]](t)(c.CreateCluster(t.Context(), v2.CreateClusterRequest{
		Name: "hpc", Type: string(fleet.ClusterSlurm), Image: new(clusterImage), OnFailure: string(fleet.OnFailureRestart),
		Compute: v2.ClusterCompute{GPUTypeID: devtest.GPUType, GPUCountPerPod: 2, PodCount: 4},
	})).Value
	_, pods := ready(t, d, made.ID)
	has := func(text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(text) {
				t.Errorf("no %q in\n%s", w, text)
			}
		}
	}
	has(on(t, d, made.ID, 1, "cat /etc/gantry/hostfile; ls -l /etc/gantry/ssh/id_ed25519; hostname -I; tail -n 4 /etc/hosts"),
		"node-0 slots=2\nnode-1 slots=2\nnode-2 slots=2\nnode-3 slots=2\n", `-rw------- 1 root root`, pods[1].Cluster.IP, pods[0].Cluster.IP+" node-0 node-0.gantry.internal")
	has(on(t, d, made.ID, 3, "ssh node-2 'hostname; echo rank $NODE_RANK of $NUM_NODES, primary $MASTER_ADDR'; ssh "+pods[0].Cluster.IP+" hostname; ssh node-1.gantry.internal hostname"),
		"^node-2\nrank 2 of 4, primary "+pods[0].Cluster.IP+"\nnode-0\nnode-1\n$")
	has(on(t, d, made.ID, 0, `mpirun --allow-run-as-root --hostfile /etc/gantry/hostfile python3 -c '
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.Get_rank())
print(MPI.Get_processor_name(), "rank", world.Get_rank(), "of", world.Get_size(), "sum", total)'`),
		`node-0 rank \d of 8 sum 28`, `node-1 rank \d of 8 sum 28`, `node-2 rank \d of 8 sum 28`, `node-3 rank \d of 8 sum 28`)
	await(t, func() error {
		out, diag, _ := cli(t, d, "cluster", "exec", made.ID, "--rank", "0", "sinfo", "-h", "-o", "%D %t")
		if strings.TrimSpace(out) != "4 idle" {
			return fmt.Errorf("sinfo: %s%s", out, diag)
		}
		return nil
	})
	has(on(t, d, made.ID, 0, "sinfo"), `main\* +up +infinite +4 +idle node-\[0-3\]`)
	has(on(t, d, made.ID, 0, "timeout 60 srun -N 4 --gres=gpu:2 hostname | sort"), "^node-0\nnode-1\nnode-2\nnode-3\n$")
	has(on(t, d, made.ID, 0, `printf '#!/bin/sh\nsrun hostname | sort\n' >job && timeout 60 sbatch --wait -N 4 -o job.out job && cat job.out`),
		"Submitted batch job 2\nnode-0\nnode-1\nnode-2\nnode-3\n")
	rayJoins(t, d)
	other := failingCluster(t, d)
	if here, there := keyOf(t, d, made.ID), keyOf(t, d, other.ID); here == there || here != keyOf(t, d, made.ID) {
		t.Errorf("the keys of two clusters are %s and %s", here, there)
	}
	addr := pods[0].Cluster.IP
	if out, diag, code := cli(t, d, "cluster", "exec", other.ID, "--rank", "0", "ssh", "-o", "ConnectTimeout=3", "-o", "StrictHostKeyChecking=no", addr, "hostname"); code == 0 {
		t.Errorf("a pod of another cluster was let in: %s%s", out, diag)
	}
	clustersOfTwoAccounts(t, d, made.ID, pods[3].Cluster.IP)
	failureRestartsAll(t, d, other.ID)
	if err := c.DeleteCluster(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if err := devtest.Until(reachTimeout, func() error { return suite.site.NothingLeft(p.ID) }); err != nil {
			t.Error(err)
		}
	}
}

// clustersOfTwoAccounts makes one of another account on the same hosts: neither its keys nor its pods reach the pod that the first one has at
// an address, though they reach each other.
func clustersOfTwoAccounts(t *testing.T, d *devtest.Dev, first, address string) {
	admin := must[devtest.Info](t)(d.Info()).AdminKey
	account := done[made](t, d, admin, "POST", "/admin/v1/accounts", `{"name":"neighbour"}`).ID
	key := done[struct{ APIKey string }](t, d, admin, "POST", "/admin/v1/accounts/"+account+"/keys", `{"name":"k","preset":"all"}`).APIKey
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	id := done[made](t, d, key, "POST", "/v2/clusters", fmt.Sprintf(`{"name":"foreign","type":"TRAINING","image":%q,`+
		`"args":"{\"entrypoint\":[\"sh\",\"-c\"],\"cmd\":[\"trap 'exit 0' TERM; start & while :; do sleep 0.2; done\"]}","compute":{"gpuTypeId":%q,"gpuCountPerPod":1,"podCount":2}}`,
		clusterImage, devtest.GPUType)).ID
	defer ask(t, d, key, "DELETE", "/v2/clusters/"+id, "")
	// What answers must be an SSH server: elsewhere a machine on the way out may take connections to any address.
	reaches := func(host string) (string, int) {
		out, diag, code := cli(t, d, "--api-key-file", file, "cluster", "exec", id, "--rank", "0", "--", "timeout", "3", "bash", "-c", "exec 3<>/dev/tcp/"+host+"/22; head -c 4 <&3 | grep SSH-")
		return out + diag, code
	}
	await(t, func() error {
		if text, code := reaches("node-1"); code != 0 {
			return fmt.Errorf("its pods do not reach each other: %d, %s", code, text)
		}
		return nil
	})
	if text, code := reaches(address); code == 0 {
		t.Errorf("a pod of another account's cluster reaches %s: %s", address, text)
	}
	for _, path := range []string{"/v2/clusters/" + first, "/v2/clusters/" + first + "/pods"} {
		if status, text := ask(t, d, key, "GET", path, ""); status != http.StatusNotFound {
			t.Errorf("%s for another account: %d %s", path, status, text)
		}
	}
}

// failingCluster creates a cluster of two pods that restarts by itself; a pod fails when there is a file /fail in it.
func failingCluster(t *testing.T, d *devtest.Dev) v2.InstantCluster {
	t.Helper()
	made := must[client.Answer[v2.InstantCluster]](t)(user(t, d).CreateCluster(t.Context(), v2.CreateClusterRequest{
		Name: "other", Type: string(fleet.ClusterTraining), Image: new(clusterImage), OnFailure: string(fleet.OnFailureRestart),
		Args:    new(`{"entrypoint":["sh","-c"],"cmd":["trap 'exit 0' TERM; start & while [ ! -e /fail ]; do sleep 0.2; done; echo no NIC; exit 3"]}`),
		Compute: v2.ClusterCompute{GPUTypeID: devtest.GPUType, GPUCountPerPod: 1, PodCount: 2},
	})).Value
	ready(t, d, made.ID)
	return made
}

// keyOf names the SSH key of a cluster by a hash.
func keyOf(t *testing.T, d *devtest.Dev, id string) string {
	t.Helper()
	return on(t, d, id, 1, "sha256sum </etc/gantry/ssh/id_ed25519")
}

// failureRestartsAll has a pod fail and kills the scheduler: both pods begin anew, with their addresses, and the image's names are there again.
func failureRestartsAll(t *testing.T, d *devtest.Dev, id string) {
	t.Helper()
	before := must[client.Answer[v2.PodList]](t)(user(t, d).ClusterPods(t.Context(), id)).Value.Pods
	on(t, d, id, 1, "touch /fail")
	kill9(t, d, "scheduler")
	var after []v2.Pod
	await(t, func() error {
		list, err := user(t, d).ClusterPods(t.Context(), id)
		after = list.Value.Pods
		for i := range after {
			if after[i].Status != fleet.StatusRunning || after[i].Incarnation == before[i].Incarnation {
				return fmt.Errorf("rank %d is %s, incarnation %d: %w", i, after[i].Status, after[i].Incarnation, err)
			}
		}
		return err
	})
	got, _ := ready(t, d, id)
	if got.Restarts != 1 || got.OnFailure != string(fleet.OnFailureRestart) {
		t.Errorf("after a restart %+v", got)
	}
	for i := range after {
		if after[i].ID != before[i].ID || after[i].Cluster.IP != before[i].Cluster.IP {
			t.Errorf("rank %d is %s at %s, was %s at %s", i, after[i].ID, after[i].Cluster.IP, before[i].ID, before[i].Cluster.IP)
		}
	}
	await(t, func() error { // its log says of the run before, too, that it was ready
		out, diag, _ := cli(t, d, "cluster", "exec", id, "--rank", "0", "--", "ssh", "node-1", "hostname")
		if out != "node-1\n" {
			return fmt.Errorf("after the restart, node-1 says %q, %s", out, diag)
		}
		return nil
	})
	if err := user(t, d).DeleteCluster(t.Context(), id); err != nil {
		t.Error(err)
	}
}
