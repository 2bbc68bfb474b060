//go:build guest

package guest

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

const (
	fabricPatience = 2 * time.Minute // the guest is emulated
	toolsImage     = "docker.io/library/rdma:1"
	fabricDir      = "/fabric"
)

// agentProgram stands in the agent's place: it adds the mode that is set, and waits while there is a file hold. With vf it shows the agent a
// /sys in which the second device is a virtual function of the first, whose network interface is vf0; all other mounts are everybody's.
const agentProgram = `#!/bin/sh
while [ -e /fabric/hold ]; do sleep 0.1; done
[ "$1" = run ] || exec /gantry/agent "$@"
read mode </fabric/mode
[ $mode = share ] && exec /gantry/agent "$@" --rdma share
exec busybox unshare -m --propagation shared sh -c '
mount --make-private /sys && mount --bind /fabric/infiniband /sys/devices/virtual/infiniband && exec /gantry/agent "$@" --rdma vf' sh "$@"
`

// fabricWorld is a Gantry of two hosts that share the guest's soft RoCE.
type fabricWorld struct {
	testing.TB
	dev  *devtest.Dev
	user *client.Client
	ops  *client.Client
}

// TestClustersOnAFabric makes clusters over the API on hosts that joined with --rdma share, and then with vf.
func TestClustersOnAFabric(t *testing.T) {
	softRoCE(t)
	disk(t, fabricDir, 6<<30, "ext4", "")
	must(t, os.Rename("/gantry/bin/gantry-agent", "/gantry/agent"))
	must(t, os.WriteFile("/gantry/bin/gantry-agent", []byte(agentProgram), 0o755))
	setMode(t, fleet.FabricShared)
	archive := fabricDir + "/tools.tar"
	imageOfTools(t, archive)
	site := devtest.SiteAt("/gantry", fabricDir, archive)
	site.Up = fabricPatience
	dev, err := site.Start(fabricDir+"/dev", "--agents", "2")
	must(t, err)
	w := &fabricWorld{TB: t, dev: dev}
	t.Cleanup(func() {
		if err := dev.Stop(); err != nil { // also when something is left behind
			t.Error(err)
		}
		if t.Failed() {
			dev.PrintLogs(t.Output())
		}
	})
	w.user, err = dev.Client()
	must(t, err)
	w.ops, err = dev.Admin()
	must(t, err)
	t.Cleanup(w.user.Close)
	t.Cleanup(w.ops.Close)
	if !t.Run("shared", func(t *testing.T) { w.on(t).shared() }) {
		return
	}
	t.Run("functions", func(t *testing.T) { w.on(t).functions() })
}

func (w fabricWorld) on(t *testing.T) *fabricWorld { w.TB = t; return &w }

// softRoCE makes a device that is up, and one that is down.
func softRoCE(t *testing.T) {
	for _, line := range []string{
		"ip link add eth7 type veth peer name eth8", "ip link add eth9 type veth peer name eth10", "ip addr add 192.0.2.1/24 dev eth7",
		"ip link set eth7 up", "ip link set eth8 up", "rdma link add rxe0 type rxe netdev eth7", "rdma link add rxe1 type rxe netdev eth9",
	} {
		words := strings.Fields(line)
		run(t, words[0], words[1:]...)
	}
	t.Cleanup(func() { // the next test makes its own
		run(t, "ip", "link", "del", "eth7")
		run(t, "ip", "link", "del", "eth9")
	})
}

func setMode(t testing.TB, mode fleet.FabricMode) {
	t.Helper()
	must(t, os.WriteFile(fabricDir+"/mode", []byte(string(mode)+"\n"), 0o600))
}

// imageOfTools makes an image of busybox, the programs that try RDMA, and their libraries, all of which are the guest's own.
func imageOfTools(t *testing.T, archive string) {
	t.Helper()
	files := fabricDir + "/tools"
	f, err := os.Create(files)
	must(t, err)
	w := tar.NewWriter(f)
	add := func(h tar.Header, body io.Reader) {
		must(t, w.WriteHeader(&h))
		_, err := io.Copy(w, body)
		must(t, err)
	}
	for _, dir := range []string{"tmp/", "root/", "proc/", "sys/", "dev/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o777}, strings.NewReader(""))
	}
	for name, to := range map[string]string{"lib": "usr/lib", "lib64": "usr/lib", "bin": "usr/sbin"} {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}, strings.NewReader(""))
	}
	for _, applet := range []string{"sh", "sleep", "ls", "cat", "cut"} {
		add(tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/sbin/" + applet, Linkname: "busybox"}, strings.NewReader(""))
	}
	paths := []string{
		"/usr/sbin/busybox", "/usr/sbin/ibv_rc_pingpong", "/etc/passwd", "/etc/group", "/etc/libibverbs.d/rxe.driver",
		"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so", "/usr/lib/ld-linux-x86-64.so.2",
	}
	for _, lib := range []string{"libibverbs.so*", "libnl-3.so*", "libnl-route-3.so*", "libc.so*", "libpthread*"} {
		found, err := filepath.Glob("/usr/lib/" + lib)
		must(t, err)
		paths = append(paths, found...)
	}
	for _, path := range paths {
		body, err := os.ReadFile(path)
		must(t, err)
		add(tar.Header{Typeflag: tar.TypeReg, Name: path[1:], Mode: 0o755, Size: int64(len(body))}, strings.NewReader(string(body)))
	}
	must(t, errors.Join(w.Close(), f.Close()))
	run(t, "/gantry/bin/busyboximage", "--ref", toolsImage, "--rootfs", files, "--command", "sh", archive)
}

func (w *fabricWorld) await(what string, check func() error) {
	w.Helper()
	if err := devtest.Until(fabricPatience, check); err != nil {
		w.Fatalf("%s: after %v: %v", what, fabricPatience, err)
	}
}

// hosts waits until both hosts have a fabric in a mode.
func (w *fabricWorld) hosts(mode fleet.FabricMode) (out []admin.Host) {
	w.Helper()
	w.await("hosts with a fabric", func() error {
		list, err := w.ops.Hosts(w.Context())
		out = list.Value.Hosts
		for _, h := range out {
			if h.Fabric == nil || h.Fabric.Mode != string(mode) || h.State != fleet.HostReady {
				return fmt.Errorf("host %s is %s with %+v, %v", h.Name, h.State, h.Fabric, h.Conditions)
			}
		}
		return err
	})
	return out
}

const waits = `{"entrypoint":["sh","-c"],"cmd":["trap 'exit 0' TERM; sleep 100000 & wait"]}`

// cluster makes one of two pods and waits until they run.
func (w *fabricWorld) cluster(name string) (string, []v2.Pod) {
	w.Helper()
	made, err := w.user.CreateCluster(w.Context(), v2.CreateClusterRequest{
		Name: name, Type: string(fleet.ClusterTraining), Image: new(toolsImage), Args: new(waits), Disk: new(1),
		Compute: v2.ClusterCompute{GPUTypeID: devtest.GPUType, GPUCountPerPod: 1, PodCount: 2},
	})
	must(w, err)
	w.await("the cluster is ready", func() error {
		c, err := w.user.InstantCluster(w.Context(), made.Value.ID)
		if err == nil && c.Value.Status != string(fleet.ClusterReady) {
			err = fmt.Errorf("it is %s, %+v", c.Value.Status, c.Value.Faults)
		}
		return err
	})
	return made.Value.ID, w.pods(made.Value.ID)
}

func (w *fabricWorld) pods(cluster string) []v2.Pod {
	w.Helper()
	list, err := w.user.ClusterPods(w.Context(), cluster)
	must(w, err)
	return list.Value.Pods
}

// says runs a shell line in a pod and returns what it wrote.
func (w *fabricWorld) says(pod, line string) (string, error) {
	ctx, cancel := context.WithTimeout(w.Context(), fabricPatience)
	defer cancel()
	e, err := w.user.ExecPod(ctx, pod, v2.ExecRequest{Command: []string{"sh", "-c", line}})
	if err != nil {
		return "", err
	}
	var out strings.Builder
	res, err := e.Run(client.ExecStreams{Stdout: &out, Stderr: &out})
	if err == nil && res.Code != 0 {
		err = fmt.Errorf("exit code %d: %s%s", res.Code, out.String(), res.Error)
	}
	return out.String(), err
}

func (w *fabricWorld) wants(pod, line, want string) {
	w.Helper()
	if got, err := w.says(pod, line); err != nil || got != want {
		w.Errorf("%s: %q, %v; want %q", line, got, err, want)
	}
}

// sees lists what a pod has of RDMA devices.
const sees = `ls /dev/infiniband /sys/class/infiniband 2>/dev/null; ulimit -l; echo "$NCCL_IB_HCA"`

// shared has the members of a cluster talk over the device, which a pod beside them does not see.
func (w *fabricWorld) shared() {
	for _, h := range w.hosts(fleet.FabricShared) {
		if h.Fabric.Kind != fleet.FabricRoCE {
			w.Errorf("%s has %+v", h.Name, h.Fabric)
		}
	}
	if kinds := w.catalog(); len(kinds) != 1 || kinds[0].Kind != fleet.FabricRoCE {
		w.Errorf("the catalog has %+v", kinds)
	}
	id, pods := w.cluster("shared")
	for _, p := range pods {
		if p.Cluster.Fabric != fleet.FabricRoCE {
			w.Errorf("rank %d is on %q", p.Cluster.Rank, p.Cluster.Fabric)
		}
		w.wants(p.ID, sees, "/dev/infiniband:\nrdma_cm\nuverbs0\n\n/sys/class/infiniband:\nrxe0\nunlimited\n=rxe0:1\n")
	}
	body := devtest.CPUPod("plain", devtest.Sleeper)
	body.Image, body.Disk = new(toolsImage), new(1)
	plain, err := w.user.CreatePod(w.Context(), body)
	must(w, err)
	w.await("a pod beside them runs", func() error {
		p, err := w.user.Pod(w.Context(), plain.Value.ID)
		if err == nil && p.Value.Status != fleet.StatusRunning {
			err = fmt.Errorf("it is %s (%s)", p.Value.Status, p.Value.StatusReason)
		}
		return err
	})
	w.wants(plain.Value.ID, `ls /dev/infiniband /sys/class/infiniband 2>/dev/null; test "$(ulimit -l)" != unlimited && echo limited $NCCL_IB_HCA`,
		"/sys/class/infiniband:\nlimited\n")
	w.pingPong(pods)
	must(w, w.user.DeletePod(w.Context(), plain.Value.ID))
	must(w, w.user.DeleteCluster(w.Context(), id))
	w.gone(pods)
}

// catalog reads which fabrics clusters of the hosts' GPUs can have.
func (w *fabricWorld) catalog() []v2.Fabric {
	w.Helper()
	info, err := w.dev.Info()
	must(w, err)
	req, err := http.NewRequestWithContext(w.Context(), http.MethodGet, info.API+"/v2/catalog/gpus?include=AVAILABILITY&product=CLUSTER", http.NoBody)
	must(w, err)
	req.Header.Set("Authorization", "Bearer "+info.APIKey)
	res, err := (&http.Client{Timeout: fabricPatience}).Do(req)
	must(w, err)
	defer func() { _ = res.Body.Close() }()
	var list v2.GPUList
	must(w, json.NewDecoder(res.Body).Decode(&list))
	i := slices.IndexFunc(list.GPUs, func(g v2.GPUType) bool { return g.ID == devtest.GPUType })
	if i < 0 {
		w.Fatalf("%s: the catalog has %+v", res.Status, list)
	}
	return list.GPUs[i].Fabrics
}

// pingPong sends by RDMA from one member to the other, which names itself over the cluster's network.
func (w *fabricWorld) pingPong(pods []v2.Pod) {
	const ping = "ibv_rc_pingpong -d rxe0 -g 1 -n 200 "
	server := make(chan error, 1)
	go func() {
		_, err := w.says(pods[0].ID, ping)
		server <- err
	}()
	w.await("ping", func() error { // until the server listens
		out, err := w.says(pods[1].ID, ping+"node-0")
		if err == nil && !strings.Contains(out, "200 iters") {
			err = errors.New(out)
		}
		if err == nil {
			w.Logf("ping from one member to the other:\n%s", out)
		}
		return err
	})
	if err := <-server; err != nil {
		w.Errorf("the server: %v", err)
	}
}

// gone waits until nothing of pods is left.
func (w *fabricWorld) gone(pods []v2.Pod) {
	w.Helper()
	for _, p := range pods {
		w.await("pod "+p.ID+" is gone", func() error {
			left, err := devtest.CensusOf(p.ID)
			if err == nil && len(left) > 0 {
				err = errors.New(strings.Join(left, "; "))
			}
			return err
		})
	}
}

// madeUp writes the part of /sys in which the second device is a function of the first, and gives each host the function's link.
func (w *fabricWorld) madeUp() (hosts []string) {
	w.Helper()
	for i, name := range []string{"rxe0", "rxe1"} {
		at, plug := fabricDir+"/infiniband/"+name, fmt.Sprintf("%s/0000:01:00.%d", fabricDir, i)
		must(w, errors.Join(os.MkdirAll(plug, 0o755), os.MkdirAll(at, 0o755), os.Symlink(plug, at+"/device")))
		for _, file := range []string{"node_guid", "ports/1/link_layer", "ports/1/state", "ports/1/rate", "ports/1/gids/0"} {
			text, err := os.ReadFile("/sys/class/infiniband/" + name + "/" + file)
			must(w, errors.Join(err, os.MkdirAll(filepath.Dir(at+"/"+file), 0o755), os.WriteFile(at+"/"+file, text, 0o644)))
		}
	}
	function := fabricDir + "/0000:01:00.1"
	must(w, errors.Join(os.Symlink(fabricDir+"/0000:01:00.0", function+"/physfn"), os.MkdirAll(function+"/net/vf0", 0o755)))
	hosts, err := filepath.Glob("/run/netns/gantry-dev-*")
	must(w, err)
	for i, host := range hosts {
		hosts[i] = filepath.Base(host)
		run(w, "ip", "-n", hosts[i], "link", "add", "vf0", "type", "dummy")
	}
	return hosts
}

// agents returns their processes.
func (w *fabricWorld) agents() (out []int) {
	w.Helper()
	info, err := w.dev.Info()
	must(w, err)
	for _, p := range info.Processes {
		if p.Role == "agent" {
			out = append(out, p.PID)
		}
	}
	return out
}

// kill ends agents at once; others are started.
func (w *fabricWorld) kill(agents ...int) {
	w.Helper()
	for _, pid := range agents {
		must(w, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// functionsOn counts the hosts on which the function's link is.
func functionsOn(hosts []string) (n int) {
	for _, host := range hosts {
		if exec.Command("ip", "-n", host, "link", "show", "vf0").Run() == nil {
			n++
		}
	}
	return n
}

// functions has members keep their functions while agents die, and hosts get them back from those that are gone.
func (w *fabricWorld) functions() {
	hosts := w.madeUp()
	setMode(w, fleet.FabricFunctions)
	w.kill(w.agents()...)
	w.hosts(fleet.FabricFunctions)
	const has = `cat /sys/class/net/fabric0/operstate /proc/1/stat | cut -d' ' -f1,22; echo $NCCL_IB_HCA; ls /dev/infiniband`
	id, pods := w.cluster("functions")
	if len(hosts) != 2 || functionsOn(hosts) != 0 {
		w.Fatalf("%d of the hosts %v have their function while members run", functionsOn(hosts), hosts)
	}
	before := map[string]string{}
	for _, p := range pods {
		text, err := w.says(p.ID, has)
		if err != nil || !strings.Contains(text, "=rxe1:1\nrdma_cm\nuverbs1\n") {
			w.Errorf("rank %d has %q, %v", p.Cluster.Rank, text, err)
		}
		before[p.ID] = text
	}
	w.kill(w.agents()...)
	for _, p := range pods {
		w.await("the member answers another agent", func() error {
			text, err := w.says(p.ID, has)
			if err == nil && text != before[p.ID] {
				err = fmt.Errorf("it has %q, had %q", text, before[p.ID])
			}
			return err
		})
	}
	if functionsOn(hosts) != 0 {
		w.Error("a member lost its function")
	}
	// One agent dies before it can hear of the end, the other one right after it may have.
	agents := w.agents()
	if len(agents) != 2 {
		w.Fatalf("agents %v", agents)
	}
	must(w, os.WriteFile(fabricDir+"/hold", nil, 0o600))
	w.kill(agents[0])
	must(w, w.user.DeleteCluster(w.Context(), id))
	w.kill(agents[1])
	must(w, os.Remove(fabricDir+"/hold"))
	w.await("hosts have their functions back", func() error {
		if n := functionsOn(hosts); n != 2 {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	w.gone(pods)
}
