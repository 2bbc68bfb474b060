package ctrd

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

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
		_, err := environment(nil, env)
		wantFault(t, err, pod.Fatal, "environment")
	}
}
