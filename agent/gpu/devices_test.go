package gpu

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"gantry/agent/pod"
	"gantry/test/fakenvml"
	"gantry/test/program"
)

func paths(nodes []pod.DeviceNode) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Path)
	}
	slices.Sort(out)
	return out
}

func TestAContainerGetsItsGPUAndTheDriver(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(3)
	d := fakenvml.New(t, m)
	h := open(t, config(t, d))
	got, err := h.Devices(t.Context(), []string{m.GPUs[1].UUID, "GPU-sim-0123456789ab"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1", "/dev/nvidiactl"}; !slices.Equal(paths(got.Nodes), want) {
		t.Errorf("device nodes %v, want %v", paths(got.Nodes), want)
	}
	for _, n := range got.Nodes {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(d.Root, n.Path), &st); err != nil {
			t.Fatal(err)
		}
		if n.Host != filepath.Join(d.Root, n.Path) || unix.Mkdev(uint32(n.Major), uint32(n.Minor)) != st.Rdev { //nolint:gosec // numbers of devices
			t.Errorf("node %+v, want number %x", n, st.Rdev)
		}
	}
	if !slices.Equal(got.Env, []string{"LD_LIBRARY_PATH=/usr/local/nvidia/lib64", "PATH=/usr/local/nvidia/bin", "NVIDIA_VISIBLE_DEVICES=void"}) {
		t.Errorf("environment %v", got.Env)
	}
	targets := map[string]string{}
	for _, f := range got.Files {
		targets[f.Target] = f.Source
		if !strings.HasPrefix(f.Source, d.Root) || !strings.HasPrefix(f.Target, "/usr/local/nvidia/") {
			t.Errorf("file %+v", f)
		}
	}
	for _, want := range []string{
		"bin/nvidia-smi", "lib64/libnvidia-ml.so.1", "lib64/libnvidia-ml.so.570.124.06", "lib64/libcuda.so", "lib64/libcuda.so.1", "lib64/libcuda.so.570.124.06",
		"lib64/libnvidia-ptxjitcompiler.so.1", "lib64/libnvcuvid.so.1",
	} {
		if targets["/usr/local/nvidia/"+want] == "" {
			t.Errorf("%s is not among %v", want, targets)
		}
	}
	if none, err := h.Devices(t.Context(), []string{"GPU-sim-0123456789ab"}); err != nil || len(none.Nodes)+len(none.Files)+len(none.Env) != 0 {
		t.Errorf("a pretended GPU gives %+v, %v", none, err)
	}
	var e *pod.Error
	if _, err := h.Devices(t.Context(), []string{"GPU-nobody"}); !errors.As(err, &e) || e.Class != pod.Retry {
		t.Errorf("of an unknown GPU: %v", err)
	}
}

func TestNoDeviceDescriptionHasHooks(t *testing.T) {
	t.Parallel()
	c := config(t, fakenvml.New(t, fakenvml.Healthy(2)))
	h := open(t, c)
	path := filepath.Join(c.Data, "cdi", "nvidia.com-gpu.json")
	spec, err := cdi.ReadSpec(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Devices) != 2 || strings.Contains(string(text), "hook") {
		t.Errorf("device descriptions:\n%s", text)
	}
	hooked := strings.Replace(string(text), `"containerEdits":{`, `"containerEdits":{"hooks":[{"hookName":"createContainer","path":"/bin/sh"}],`, 1)
	if _, err := h.writeSpec([]byte(hooked)); err == nil || !strings.Contains(err.Error(), "run on the host") {
		t.Errorf("one with a hook passes: %v", err)
	}
}

func TestProcessorsNearGPUs(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(3)
	c := config(t, fakenvml.New(t, m))
	for i, node := range []int{0, 1, 1} {
		files := map[string]string{
			fmt.Sprintf("bus/pci/devices/0000:%02x:00.0/numa_node", 0x10+i): fmt.Sprintln(node),
			fmt.Sprintf("devices/system/node/node%d/cpulist", node):         fmt.Sprintf("%d-%d\n", 8*node, 8*node+7),
		}
		for name, text := range files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(c.Sys, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(c.Sys, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := open(t, c)
	for _, x := range []struct {
		gpus []int
		want string
	}{{[]int{0}, "0-7"}, {[]int{1, 2}, "8-15"}, {[]int{0, 1}, ""}} {
		var uuids []string
		for _, i := range x.gpus {
			uuids = append(uuids, m.GPUs[i].UUID)
		}
		got, err := h.Devices(t.Context(), uuids)
		if err != nil || got.NUMA != x.want {
			t.Errorf("GPUs %v: processors %q, %v; want %q", x.gpus, got.NUMA, err, x.want)
		}
	}
}

// withCapabilities returns a program that starts gantry-gpu where /proc says which devices guard MIG instances.
func withCapabilities(t *testing.T, minors string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "helper")
	text := "#!/bin/sh\nset -e\nmount -t tmpfs none /proc/driver\nmkdir /proc/driver/nvidia-caps\nprintf '" + minors + "' >/proc/driver/nvidia-caps/mig-minors\nexec '" + helperPath + "' \"$@\"\n"
	program.Write(t, path+".sh", text)
	program.Write(t, path, "#!/bin/sh\nexec unshare -m --propagation private '"+path+".sh' \"$@\"\n")
	return path
}

func TestAContainerGetsItsMIGInstance(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(1)
	m.GPUs[0].MIG = true
	for i, uuid := range []string{"MIG-00000000-0000-0000-0000-000000000001", "MIG-00000000-0000-0000-0000-000000000002"} {
		m.GPUs[0].Instances = append(m.GPUs[0].Instances, fakenvml.Instance{Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", UUID: uuid, GI: 7 + i, Slices: 1, MemoryMiB: 9728})
	}
	d := fakenvml.New(t, m)
	if err := os.Mkdir(filepath.Join(d.Root, "dev/nvidia-caps"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, n := range []int{66, 67, 75, 76} {
		path := filepath.Join(d.Root, "dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", n))
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(237, uint32(i+1)))); err != nil { //nolint:gosec // small
			t.Fatal(err)
		}
	}
	c := config(t, d)
	c.Helper = withCapabilities(t, `gpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu0/gi8/access 75\ngpu0/gi8/ci0/access 76\n`)
	h := open(t, c)
	got, err := h.Devices(t.Context(), []string{m.GPUs[0].Instances[1].UUID})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0", "/dev/nvidiactl"}
	if !slices.Equal(paths(got.Nodes), want) {
		t.Errorf("device nodes %v, want %v", paths(got.Nodes), want)
	}
	if _, err := h.Devices(t.Context(), []string{m.GPUs[0].UUID}); err == nil {
		t.Error("a GPU that is cut into instances is given as a whole")
	}
}

// holder starts a process that has files open, in a process namespace of its own or in ours.
func holder(t *testing.T, own bool, files ...string) (pid int) {
	t.Helper()
	script := ""
	for i, f := range files {
		script += fmt.Sprintf("exec %d<'%s'; ", 3+i, f)
	}
	args := []string{"sh", "-c", script + "echo ready; exec sleep 1000"}
	if own {
		args = append([]string{"unshare", "--pid", "--fork", "--kill-child"}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestAGPUIsBusyWhileAProcessHoldsIt(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(2)
	d := fakenvml.New(t, m)
	c := config(t, d)
	c.Answer = 2 * time.Second
	h := open(t, c)
	uuid, other := m.GPUs[0].UUID, m.GPUs[1].UUID
	helperPID(t, h)
	busy := func(uuid string) string {
		t.Helper()
		who, err := h.Busy(t.Context(), []string{uuid})
		if err != nil {
			t.Fatal(err)
		}
		return who
	}
	if who := busy(uuid); who != "" {
		t.Errorf("nothing runs, and %s", who)
	}
	t.Run("a process that the driver lists", func(t *testing.T) {
		with := fakenvml.Healthy(2)
		with.GPUs[0].Processes = []int{os.Getpid(), 4711}
		d.Set(with)
		if who := busy(uuid); !strings.HasPrefix(who, fmt.Sprintf("process %d (gpu.test) still works on GPU", os.Getpid())) {
			t.Errorf("busy: %q", who)
		}
		if who := busy(other); who != "" {
			t.Errorf("the other GPU: %q", who)
		}
		d.Set(m)
	})
	t.Run("a process in a container", func(t *testing.T) {
		holder(t, true, d.Node(0))
		if who := busy(uuid); !strings.Contains(who, ") still has GPU "+uuid+" open") {
			t.Errorf("busy: %q", who)
		}
		if who := busy(other); who != "" {
			t.Errorf("the other GPU: %q", who)
		}
	})
	t.Run("a service that watches", func(t *testing.T) {
		holder(t, false, d.Node(0))
		if who := busy(uuid); who != "" {
			t.Errorf("busy: %q", who)
		}
	})
	t.Run("a program of the host's that computes", func(t *testing.T) {
		pid := holder(t, false, d.Node(0), filepath.Join(d.Root, "dev/nvidia-uvm"))
		if who := busy(uuid); !strings.HasPrefix(who, fmt.Sprintf("process %d ", pid)) {
			t.Errorf("busy: %q", who)
		}
	})
	for deadline := time.Now().Add(patience); busy(uuid) != ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is busy after all have ended")
		}
	}
	hang := fakenvml.Healthy(2)
	hang.Hang = "nvmlDeviceGetComputeRunningProcesses_v3"
	d.Set(hang)
	began := time.Now()
	var e *pod.Error
	if _, err := h.Busy(t.Context(), []string{uuid}); !errors.As(err, &e) || e.Class != pod.Retry || time.Since(began) > patience {
		t.Errorf("while the driver hangs: %v after %v", err, time.Since(began))
	}
}
