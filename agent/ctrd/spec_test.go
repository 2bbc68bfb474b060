package ctrd

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"gantry/agent/pod"
	"gantry/fleet"
)

func TestSpecGrantsNothingThatImageOrPodAskFor(t *testing.T) {
	base := pod.ContainerSpec{
		Pod: "p", Image: "x", NetNS: "/run/netns/p", ResolvConf: "/a", Hosts: "/b", HostnameTxt: "/c",
		Limits: fleet.Resources{MilliCPU: 1500, MemoryMB: 1000}, PIDs: 100, ShmMB: 64,
	}
	h := host{limits: hostLimits{files: 1024, oomAdj: -500}, cgroup: "gantry/n/p", swapMax: true}
	plain, err := buildSpec(base, &image{config: ocispec.ImageConfig{Cmd: []string{"a"}}}, specs.User{}, h)
	if err != nil {
		t.Fatal(err)
	}
	hostile := base
	hostile.Args = `{"entrypoint":["/proc/self/exe"],"cmd":["--privileged"]}`
	hostile.Env = map[string]string{"LD_PRELOAD": "/x.so"}
	got, err := buildSpec(hostile, &image{config: ocispec.ImageConfig{
		Env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all", "=x", "noequals"}, WorkingDir: "../../..",
		Volumes: map[string]struct{}{"/": {}, "/proc": {}}, ExposedPorts: map[string]struct{}{"22/tcp": {}},
		Labels: map[string]string{"io.containerd.runc.privileged": "true"}, StopSignal: "SIGKILL",
	}}, specs.User{UID: 7}, h)
	if err != nil {
		t.Fatal(err)
	}
	if got.Process.Cwd != "/" || got.Process.User.UID != 7 || !slices.Equal(got.Process.Args, []string{"/proc/self/exe", "--privileged"}) {
		t.Errorf("process %+v", got.Process)
	}
	if strings.Contains(strings.Join(got.Process.Env, " "), "NVIDIA") || !slices.Contains(got.Process.Env, "PATH="+defaultPath) {
		t.Errorf("env %v", got.Process.Env)
	}
	got.Process.Args, got.Process.Env, got.Process.User = plain.Process.Args, plain.Process.Env, plain.Process.User
	if !reflect.DeepEqual(got, plain) {
		t.Error("the spec differs beyond command, environment and user")
	}
	if !got.Process.NoNewPrivileges || got.Linux.Seccomp == nil || got.Linux.Seccomp.DefaultAction != specs.ActErrno || got.Hooks != nil {
		t.Error("no-new-privileges, seccomp or hooks")
	}
	for _, c := range []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_PTRACE", "CAP_MKNOD", "CAP_BPF"} {
		if slices.Contains(got.Process.Capabilities.Bounding, c) {
			t.Errorf("capability %s", c)
		}
	}
	if *got.Process.OOMScoreAdj != 0 || got.Process.Rlimits[0].Hard != 1024 || len(got.Linux.Namespaces) != 6 {
		t.Errorf("oom score, files or namespaces: %+v", got.Linux.Namespaces)
	}
	res := got.Linux.Resources
	if len(res.Devices) != 1 || res.Devices[0].Allow || *res.Memory.Limit != 1000001536 || *res.Memory.Swap != *res.Memory.Limit ||
		*res.CPU.Quota != 150000 || *res.CPU.Shares != 1536 || *res.Pids.Limit != 100 {
		t.Errorf("resources %+v %+v %+v", res.Devices, res.Memory, res.CPU)
	}
	for _, m := range got.Mounts {
		for _, o := range []string{"ro", "nodev", "nosuid", "noexec"} {
			if m.Type == "bind" && !slices.Contains(m.Options, o) {
				t.Errorf("mount %+v without %s", m, o)
			}
		}
	}
}

func TestCommandOfImageAndArgs(t *testing.T) {
	cfg := ocispec.ImageConfig{Entrypoint: []string{"/e"}, Cmd: []string{"c", "d"}}
	for args, want := range map[string]string{
		"": "/e c d", "x 'y z'": "/e x|y z", `{"cmd":["x"]}`: "/e x", `{"cmd":[]}`: "/e", `{"entrypoint":["f"]}`: "f c d",
		`{"entrypoint":[],"cmd":["x"]}`: "x",
	} {
		got, err := command(args, cfg)
		if want = strings.ReplaceAll(want, " ", "|"); strings.Contains(want, "y|z") {
			want = "/e|x|y z"
		}
		if err != nil || strings.Join(got, "|") != want {
			t.Errorf("%s: %q, %v", args, got, err)
		}
	}
	for _, args := range []string{`{"entrypoint":[],"cmd":[]}`, `'`, `{"other":1}`, `""`} {
		if _, err := command(args, ocispec.ImageConfig{}); err == nil {
			t.Errorf("%s: no error", args)
		} else {
			wantFault(t, err, pod.Fatal, "")
		}
	}
}

func TestEnvironmentWithZeroBytesIsRefused(t *testing.T) {
	for _, env := range []map[string]string{{"A\x00": "b"}, {"A": "b\x00"}, {"": "b"}, {"A=B": "c"}} {
		_, err := environment(nil, env, nil)
		wantFault(t, err, pod.Fatal, "environment")
	}
}

func TestEnvironmentIsBounded(t *testing.T) {
	most := strings.Repeat("x", maxString-len("A="))
	if _, err := environment(nil, map[string]string{"A": most}, nil); err != nil {
		t.Errorf("the largest variable: %v", err)
	}
	_, err := environment([]string{"A=" + most + "x"}, nil, nil)
	wantFault(t, err, pod.Fatal, "a variable of the environment")
	var many []string
	for i := range 9 {
		many = append(many, string(rune('A'+i))+"="+most)
	}
	if _, err := environment(many[:7], nil, nil); err != nil {
		t.Errorf("0.9 MB: %v", err)
	}
	_, err = environment(many, nil, nil)
	wantFault(t, err, pod.Fatal, "the environment of image and pod together")
	var small []string
	for i := range 100_000 { // 1.6 MB to the kernel
		small = append(small, strconv.Itoa(i)+"=")
	}
	_, err = environment(small, nil, nil)
	wantFault(t, err, pod.Fatal, "the environment of image and pod together")
	for _, words := range [][]string{{"x", most + "xxx"}, slices.Repeat([]string{most}, 5)} {
		_, err = command("", ocispec.ImageConfig{Cmd: words})
		wantFault(t, err, pod.Fatal, "the command of image and pod is larger")
	}
}

func TestSpecOfDevicesAndLimits(t *testing.T) {
	s := pod.ContainerSpec{
		Pod: "p", NetNS: "/run/netns/p", IDBase: 65536, CPUs: "0-3,8", Profile: "/d/profile", ShmMB: 4000,
		Devices: pod.Devices{
			Nodes: []pod.DeviceNode{{Host: "/dev/nvidia3", Path: "/dev/nvidia0", Major: 195, Minor: 3}, {Host: "/dev/nvidiactl", Path: "/dev/nvidiactl", Major: 195, Minor: 255}},
			Files: []pod.Mount{{Source: "/usr/lib/libcuda.so.1", Target: "/usr/local/nvidia/lib64/libcuda.so.1"}},
		},
		Mounts: []pod.Mount{{Source: "/run/x/0", Target: "/data"}},
	}
	h := host{limits: hostLimits{files: 9, locked: 8 << 20}, users: "/run/g/users/p", hugepages: []string{"2MB", "1GB"}}
	got, err := buildSpec(s, &image{config: ocispec.ImageConfig{Cmd: []string{"a"}}}, specs.User{}, h)
	if err != nil {
		t.Fatal(err)
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 65536, Size: 65536}}
	if !slices.Equal(got.Linux.UIDMappings, ids) || !slices.Equal(got.Linux.GIDMappings, ids) ||
		!slices.Contains(got.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: h.users}) {
		t.Errorf("user namespace: %+v", got.Linux)
	}
	if want := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 9, Soft: 9}, {Type: "RLIMIT_MEMLOCK", Hard: 8 << 20, Soft: 8 << 20}, {Type: "RLIMIT_CORE"}}; !slices.Equal(got.Process.Rlimits, want) {
		t.Errorf("limits %+v", got.Process.Rlimits)
	}
	bound := h
	bound.limits.bound = true
	if got, err := buildSpec(s, &image{config: ocispec.ImageConfig{Cmd: []string{"a"}}}, specs.User{}, bound); err != nil || got.Process.Rlimits != nil {
		t.Errorf("a daemon that may set no limits is to set %+v, %v", got.Process.Rlimits, err)
	}
	bound.users = ""
	if got, err := buildSpec(s, &image{config: ocispec.ImageConfig{Cmd: []string{"a"}}}, specs.User{}, bound); err != nil || len(got.Process.Rlimits) != 3 {
		t.Errorf("of root's own it is to set %+v, %v", got.Process.Rlimits, err)
	}
	for status, want := range map[string]bool{
		"Name:\tx\nCapEff:\t000001ffffffffff\n": true, "CapEff:\t000001fffeffffff\n": false, "CapEff:\t?\n": true, "": true,
	} {
		if maySetLimits([]byte(status)) != want {
			t.Errorf("%q: want %v", status, want)
		}
	}
	res := got.Linux.Resources
	if res.CPU.Cpus != s.CPUs || len(res.HugepageLimits) != 2 || res.HugepageLimits[0] != (specs.LinuxHugepageLimit{Pagesize: "2MB"}) {
		t.Errorf("resources %+v %+v", res.CPU, res.HugepageLimits)
	}
	// No rule but the first stands for more than one device.
	if len(res.Devices) != 3 || res.Devices[0].Allow || *res.Devices[1].Major != 195 || *res.Devices[1].Minor != 3 || res.Devices[2].Access != "rw" {
		t.Errorf("devices %+v", res.Devices)
	}
	want := []specs.Mount{
		bind("/d/profile", profileFile, "ro", "nosuid", "nodev", "noexec"),
		bind("/dev/nvidia3", "/dev/nvidia0", "rw", "nosuid", "noexec"), bind("/dev/nvidiactl", "/dev/nvidiactl", "rw", "nosuid", "noexec"),
		bind("/usr/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "ro", "nosuid", "nodev"),
		bind("/run/x/0", "/data", "rw", "nosuid", "nodev"),
	}
	if have := got.Mounts[len(got.Mounts)-len(want):]; !reflect.DeepEqual(have, want) {
		t.Errorf("mounts %+v", have)
	}
	if len(got.Linux.Devices) > 0 {
		t.Error("devices are made")
	}
	s.Devices.Nodes[0].Host = "dev/nvidia3"
	wantFault(t, checkPaths(s), pod.Fatal, "not absolute")
}

func TestHugepagesAreLimitedWhereTheKernelCan(t *testing.T) {
	dir := t.TempDir()
	c := cgroupFS{root: filepath.Join(dir, "cgroup"), pages: filepath.Join(dir, "pages")}
	for _, d := range []string{"pages/hugepages-2048kB", "pages/hugepages-1048576kB", "pages/hugepages-64kB", "pages/other", "cgroup"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.hugepages(); got != nil {
		t.Errorf("without the controller: %v", got)
	}
	want := []string{"1GB", "2MB", "64KB"}
	if err := os.Mkdir(filepath.Join(c.root, "hugetlb"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := c.hugepages(); !slices.Equal(got, want) {
		t.Errorf("version 1: %v", got)
	}
	for text, want := range map[string][]string{"cpu memory\n": nil, "cpu hugetlb memory\n": want} {
		if err := os.WriteFile(filepath.Join(c.root, "cgroup.controllers"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := c.hugepages(); !slices.Equal(got, want) {
			t.Errorf("version 2 with %s: %v", text, got)
		}
	}
}

func TestHardLimits(t *testing.T) {
	text := []byte("Limit   Soft Limit  Hard Limit  Units\nMax open files   1024   4096   files\nMax locked memory  65536   unlimited  bytes\n")
	if n := hardLimit(text, "Max open files"); n != 4096 {
		t.Error(n)
	}
	if n := hardLimit(text, "Max locked memory"); n != math.MaxUint64 {
		t.Error(n)
	}
}

// TestAMemberOfAClusterHasItsAdaptersAlone: their nodes, locked memory, and no right to raw packets unless by its own user namespace.
func TestAMemberOfAClusterHasItsAdaptersAlone(t *testing.T) {
	s := pod.ContainerSpec{Pod: "p", NetNS: "/run/netns/p", IDBase: 65536, Devices: pod.Devices{
		Nodes:    []pod.DeviceNode{{Host: "/dev/infiniband/uverbs3", Path: "/dev/infiniband/uverbs3", Major: 231, Minor: 195}},
		Adapters: []pod.Adapter{{Device: "mlx5_3", Verbs: "uverbs3"}},
	}}
	build := func(s pod.ContainerSpec, h host) *specs.Spec {
		t.Helper()
		got, err := buildSpec(s, &image{config: ocispec.ImageConfig{Cmd: []string{"a"}}}, specs.User{}, h)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	locked := func(spec *specs.Spec) uint64 { return spec.Process.Rlimits[1].Hard }
	raw := func(spec *specs.Spec) bool {
		return slices.Contains(spec.Process.Capabilities.Effective, "CAP_NET_RAW")
	}
	h := host{limits: hostLimits{files: 9, locked: 8 << 20}, users: "/run/g/users/p"}
	got := build(s, h)
	if rules := got.Linux.Resources.Devices; len(rules) != 2 || rules[0].Allow || *rules[1].Major != 231 || *rules[1].Minor != 195 || rules[1].Access != "rw" {
		t.Errorf("device rules %+v", rules)
	}
	if locked(got) != unix.RLIM_INFINITY || !raw(got) {
		t.Errorf("in a user namespace: %d bytes locked, raw packets %v", locked(got), raw(got))
	}
	h.users = ""
	if got = build(s, h); raw(got) {
		t.Error("root of the host may send raw packets")
	}
	s.Devices = pod.Devices{}
	if got = build(s, h); locked(got) != 8<<20 || !raw(got) {
		t.Errorf("a pod without adapters: %d bytes locked, raw packets %v", locked(got), raw(got))
	}
}
