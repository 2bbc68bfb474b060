package e2e

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// rayProgram stands in for Ray, which the tests' machines cannot have.
//
//go:embed testdata/ray.py
var rayProgram string

// rayNode is what docs/clusters.md has a pod of a RAY cluster run, once ray is there.
const rayNode = `printf %s "$RAY_PROGRAM" >/usr/local/bin/ray; chmod 755 /usr/local/bin/ray; start & trap "exit 0" TERM
if [ "$NODE_RANK" = 0 ]; then ray start --block --head --port=6379 --node-ip-address="$NODE_ADDR" &
else ray start --block --address="$RAY_ADDRESS" --node-ip-address="$NODE_ADDR" & fi
while :; do sleep 0.2; done`

// rayJoins is a RAY cluster of four pods with a network volume: each node joins the head and meets all others.
func rayJoins(t *testing.T, d *devtest.Dev) {
	t.Helper()
	c := user(t, d)
	center := must[devtest.Info](t)(d.Info()).DataCenterID
	volume := must[client.Answer[v2.NetworkVolume]](t)(c.CreateVolume(t.Context(), v2.CreateNetworkVolumeRequest{Name: "shared", Size: 10, DataCenter: center})).Value
	made := must[client.Answer[v2.InstantCluster]](t)(c.CreateCluster(t.Context(), v2.CreateClusterRequest{
		Name: "ray", Type: string(fleet.ClusterRay), Image: new(clusterImage), Env: map[string]string{"RAY_PROGRAM": rayProgram},
		Args:    new(fmt.Sprintf(`{"entrypoint":["sh","-c"],"cmd":[%q]}`, rayNode)),
		Mounts:  &v2.Mounts{Network: []v2.NetworkMount{{VolumeID: volume.ID, Path: "/workspace"}}},
		Compute: v2.ClusterCompute{GPUTypeID: devtest.GPUType, GPUCountPerPod: 1, PodCount: 4},
	})).Value
	_, pods := ready(t, d, made.ID)
	var addresses []string
	for _, p := range pods {
		addresses = append(addresses, p.Cluster.IP)
	}
	for rank, p := range pods {
		role := "RAY_WORKER"
		if rank == 0 {
			role = "RAY_HEAD"
		}
		if p.Cluster.Role != role || *p.Cluster.Rank != rank {
			t.Errorf("pod %d is %+v", rank, p.Cluster)
		}
		logHas(t, d, p.ID, "ray joined "+strings.Join(addresses, " "))
	}
	sharedByAll(t, d, made.ID, len(pods))
	variablesEverywhere(t, d, made.ID, addresses)
	if err := c.DeleteCluster(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if err := devtest.Until(reachTimeout, func() error { return suite.site.NothingLeft(p.ID) }); err != nil {
			t.Error(err)
		}
	}
	if err := c.DeleteVolume(t.Context(), volume.ID); err != nil {
		t.Error(err)
	}
}

// sharedByAll has every pod of a cluster write, change and read files of the network volume at /workspace.
func sharedByAll(t *testing.T, d *devtest.Dev, id string, pods int) {
	t.Helper()
	var lines, names string
	for rank := range pods {
		on(t, d, id, rank, "echo from $NODE_RANK >>/workspace/all; touch /workspace/made-by-$NODE_RANK")
		lines, names = lines+fmt.Sprintf("from %d\n", rank), names+fmt.Sprintf("/workspace/made-by-%d\n", rank)
	}
	for rank := range pods {
		if got := on(t, d, id, rank, "cat /workspace/all; ls /workspace/made-by-*"); got != lines+names {
			t.Errorf("rank %d finds %q", rank, got)
		}
	}
	for rank := range pods {
		on(t, d, id, rank, fmt.Sprintf("rm /workspace/made-by-%d; mkdir /workspace/folder-$NODE_RANK", (rank+1)%pods))
	}
	if got := on(t, d, id, 0, "ls -d /workspace/*"); got != "/workspace/all\n/workspace/folder-0\n/workspace/folder-1\n/workspace/folder-2\n/workspace/folder-3\n" {
		t.Errorf("after all had removed and made something there is %q", got)
	}
}

// variablesEverywhere has all kinds of shells print the environment of distributed programs: of the container, login shells, commands and
// login shells over SSH from another pod, and commands over SSH from elsewhere with the image's own keys.
func variablesEverywhere(t *testing.T, d *devtest.Dev, id string, addresses []string) {
	t.Helper()
	head := addresses[0]
	for rank, addr := range addresses {
		want := "HOST_NODE_ADDR=" + head + ":29500\nMASTER_ADDR=" + head + "\nMASTER_PORT=29500\nNCCL_SOCKET_IFNAME=ens1\nNODE_ADDR=" + addr +
			fmt.Sprintf("\nNODE_RANK=%d\nNUM_NODES=4\nNUM_TRAINERS=1\nPRIMARY_ADDR=%s\nPRIMARY_PORT=29500\nRAY_ADDRESS=%s:6379\nWORLD_SIZE=4\n", rank, head, head)
		const print = `env | grep -E "^((PRIMARY|MASTER)_(ADDR|PORT)|NODE_(ADDR|RANK)|NUM_(NODES|TRAINERS)|HOST_NODE_ADDR|WORLD_SIZE|RAY_ADDRESS|NCCL_SOCKET_IFNAME)=" | LC_ALL=C sort`
		other := (rank + 1) % len(addresses)
		for what, in := range map[string]struct {
			rank int
			line string
		}{
			"a command":              {rank, print},
			"a login shell":          {rank, "env -i /bin/bash -lc '" + print + "'"},
			"a login shell of sh":    {rank, "env -i /bin/sh -lc '" + print + "'"},
			"a command over SSH":     {other, fmt.Sprintf("ssh node-%d '%s'", rank, print)},
			"a login shell over SSH": {other, fmt.Sprintf("echo '%s' | ssh node-%d", print, rank)},
			"a command over SSH as a guest's": {rank, `test -e /root/k || { ssh-keygen -q -t ed25519 -N "" -f /root/k; mkdir -p -m 700 /root/.ssh; cat /root/k.pub >>/root/.ssh/authorized_keys; }
ssh -F none -i /root/k -o StrictHostKeyChecking=no -o LogLevel=ERROR 127.0.0.1 '` + print + "'"},
		} {
			if got := on(t, d, id, in.rank, in.line); !strings.HasSuffix("\n"+got, "\n"+want) { // sshd may greet
				t.Errorf("rank %d, %s:\n%s, want\n%s", rank, what, got, want)
			}
		}
		shm := on(t, d, id, rank, `shm=$(df -B1000000 --output=size /dev/shm | tail -n 1); echo $((100 * shm / RUNPOD_MEM_GB / 1000))`)
		if n := 0; shm == "" {
			t.Errorf("rank %d has no shared memory", rank)
		} else if _, err := fmt.Sscan(shm, &n); err != nil || n < 45 || n > 55 {
			t.Errorf("rank %d: %s %% of the memory may be shared", rank, shm)
		}
	}
}
