package scheduler

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gantry/fleet"
)

// clusterOfTwo makes a cluster of an account on two hosts.
func (w *world) clusterOfTwo(who fleet.Principal, kind fleet.ClusterType) fleet.ClusterPods {
	w.t.Helper()
	made, _, err := w.svc.CreateCluster(context.Background(), who, fleet.ClusterRequest{Type: kind, Count: 2, Pod: gpuPod(2)})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

// fileOf returns a file that a member finds in its container.
func fileOf(t *testing.T, setup *fleet.MemberSetup, path string) fleet.PodFile {
	t.Helper()
	for _, f := range setup.Files {
		if f.Path == path {
			return f
		}
	}
	t.Fatalf("no file %s", path)
	return fleet.PodFile{}
}

// TestAMemberFindsTheOthersByName: names by rank in /etc/hosts and the hostfile, and SSH to each without a question.
func TestAMemberFindsTheOthersByName(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 4)
	w.addHost("host-b", "dc-1", h100, 4)
	made := w.clusterOfTwo(member(acme), fleet.ClusterTraining)
	one := made.Pods[1].Pod
	setup, err := w.svc.MemberSetup(one)
	if err != nil {
		t.Fatal(err)
	}
	first, second := made.Pods[0].Pod.ClusterAddr(), one.ClusterAddr()
	if want := fmt.Sprintf("%s node-0 node-0.gantry.internal\n%s node-1 node-1.gantry.internal\n", first, second); setup.Hosts != want || setup.Hostname != "node-1" {
		t.Errorf("host name %q, hosts %q, want %q", setup.Hostname, setup.Hosts, want)
	}
	if f := fileOf(t, setup, hostfilePath); f.Text != "node-0 slots=2\nnode-1 slots=2\n" || f.Mode != 0o644 {
		t.Errorf("hostfile %o %q", f.Mode, f.Text.Reveal())
	}
	key := fileOf(t, setup, clusterKeyPath)
	if block, _ := pem.Decode([]byte(key.Text.Reveal())); key.Mode != 0o600 || block == nil || block.Type != "OPENSSH PRIVATE KEY" {
		t.Errorf("the key has mode %o", key.Mode)
	}
	line := fileOf(t, setup, authorizedKeysPath).Text.Reveal()
	if !strings.HasPrefix(line, fmt.Sprintf("from=%q ssh-ed25519 ", made.Overlay.CIDR)) {
		t.Errorf("authorized keys %q", line)
	}
	client := fileOf(t, setup, sshClientPath).Text.Reveal()
	if !strings.HasPrefix(client, fmt.Sprintf("Host node-0 node-0.gantry.internal %s node-1 node-1.gantry.internal %s\n", first, second)) {
		t.Errorf("client %q", client)
	}
	server := fileOf(t, setup, sshServerPath).Text.Reveal()
	if !strings.HasPrefix(server, "SetEnv ") { // what comes after Match is not for commands from elsewhere
		t.Errorf("server %q", server)
	}
	for _, want := range []string{"Match User root Address " + made.Overlay.CIDR.String() + "\n", " NODE_RANK=1 ", " MASTER_ADDR=" + first.String() + " "} {
		if !strings.Contains(server, want) {
			t.Errorf("server %q lacks %q", server, want)
		}
	}
	for _, f := range setup.Files {
		if text := fmt.Sprintf("%v %+v %#v %q", f, f, f, f.Text); strings.Contains(text, "BEGIN") || strings.Contains(text, "slots") {
			t.Errorf("%s shows its text", f.Path)
		}
	}
}

// TestAClusterHasAKeyOfItsOwn: all members have one key, those of another cluster another, and OpenSSH reads it.
func TestAClusterHasAKeyOfItsOwn(t *testing.T) {
	w := newWorld(t)
	for _, id := range []fleet.HostID{"host-a", "host-b"} {
		w.addHost(id, "dc-1", h100, 8)
	}
	made, other := w.clusterOfTwo(member(acme), fleet.ClusterTraining), w.clusterOfTwo(member(acme), fleet.ClusterTraining)
	var texts []string
	for _, c := range []fleet.ClusterPods{made, other} {
		for _, v := range c.Pods {
			setup, err := w.svc.MemberSetup(v.Pod)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, fileOf(t, setup, clusterKeyPath).Text.Reveal())
		}
	}
	if texts[0] != texts[1] || texts[2] != texts[3] || texts[0] == texts[2] {
		t.Error("the keys are not one for each cluster")
	}
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(texts[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-y", "-f", path).CombinedOutput()
	key, keyErr := w.svc.clusterKey(made.Cluster.ID)
	if err != nil || keyErr != nil || strings.TrimSpace(string(out)) != authorizedKey(key) {
		t.Errorf("ssh-keygen says %v %s, want %s (%v)", err, out, authorizedKey(key), keyErr)
	}
	if len(key) != ed25519.PrivateKeySize {
		t.Error("no private key")
	}
}

// TestOnlyAMemberHasASetup: a pod whose cluster is gone gets none.
func TestOnlyAMemberHasASetup(t *testing.T) {
	w := newWorld(t)
	p := fleet.Pod{ID: "p1", Owner: fleet.ClusterID("c2p2w5k9x1m4q8").Owner()}
	if _, err := w.svc.MemberSetup(&p); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("a pod without a cluster: %v", err)
	}
}

// TestMembersOfASlurmClusterFindItsConfiguration: one munge key for each cluster, and what the members hold; clusters of other types have none.
func TestMembersOfASlurmClusterFindItsConfiguration(t *testing.T) {
	w := newWorld(t)
	for _, id := range []fleet.HostID{"host-a", "host-b"} {
		w.addHost(id, "dc-1", h100, 8)
	}
	made, other, plain := w.clusterOfTwo(member(acme), fleet.ClusterSlurm), w.clusterOfTwo(member(acme), fleet.ClusterSlurm), w.clusterOfTwo(member(acme), fleet.ClusterRay)
	of := func(c fleet.ClusterPods, rank int) *fleet.MemberSetup {
		setup, err := w.svc.MemberSetup(c.Pods[rank].Pod)
		if err != nil {
			t.Fatal(err)
		}
		return setup
	}
	const key = "/etc/munge/munge.key"
	one := fileOf(t, of(made, 0), key)
	if one.Mode != 0o600 || len(one.Text) < 32 || fileOf(t, of(made, 1), key).Text != one.Text || fileOf(t, of(other, 0), key).Text == one.Text {
		t.Error("the keys are not one for each cluster")
	}
	text := fileOf(t, of(made, 1), "/etc/slurm/slurm.conf").Text.Reveal()
	for rank, v := range made.Pods {
		p := v.Pod
		want := fmt.Sprintf("NodeName=node-%d NodeAddr=%s CPUs=%d RealMemory=%d Gres=gpu:2 State=UNKNOWN\n", rank, p.ClusterAddr(), p.Need.MilliCPU/1000, p.Need.MemoryMB*1_000_000>>20)
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if want := fmt.Sprintf("ClusterName=%s\nSlurmctldHost=node-0(%s)\n", made.Cluster.ID, made.Pods[0].Pod.ClusterAddr()); !strings.HasPrefix(text, want) {
		t.Errorf("slurm.conf begins with\n%s", text)
	}
	if got := fileOf(t, of(made, 0), "/etc/slurm/gres.conf").Text; got != "Name=gpu Count=2\n" {
		t.Errorf("gres.conf %q", got.Reveal())
	}
	for _, f := range of(plain, 0).Files {
		if strings.Contains(f.Path, "slurm") || strings.Contains(f.Path, "munge") {
			t.Errorf("a cluster of another type has %s", f.Path)
		}
	}
}
