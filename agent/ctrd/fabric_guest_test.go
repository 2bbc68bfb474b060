//go:build guest

package ctrd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"gantry/agent/fabric"
	"gantry/agent/pod"
	"gantry/fleet"
)

// shared stands for a kernel whose RDMA devices are in all network namespaces.
type shared struct{}

func (shared) RDMAExclusive() (bool, error) { return false, nil }

func (shared) GiveFunction(context.Context, string, string, string, string) error { return nil }
func (shared) TakeFunction(context.Context, string, string, string, string) error { return nil }

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return string(out)
}

// container prepares one of the guest's own files, with what a host gives it.
func container(t *testing.T, name string, given pod.Devices, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	root, text := filepath.Join(dir, "rootfs"), filepath.Join(dir, "text")
	must(t, os.Mkdir(root, 0o755))
	must(t, os.WriteFile(text, nil, 0o644))
	must(t, unix.Mount("/", root, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	spec, err := buildSpec(pod.ContainerSpec{
		Pod: fleet.PodID(name), NetNS: "/run/netns/" + name, ResolvConf: text, Hosts: text, HostnameTxt: text, Hostname: name, Devices: given,
		Env: map[string]string{"GANTRY_GUEST": "1", "GANTRY_INSIDE": "1"},
	}, &image{config: ocispec.ImageConfig{Cmd: args}}, specs.User{}, host{
		limits: hostLimits{files: 1024, locked: 8 << 20}, cgroup: "test/" + name, hidden: hiddenDevices("/sys", given.Adapters),
	})
	must(t, err)
	body, err := json.Marshal(spec)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), body, 0o600))
	cmd := exec.Command("runc", "run", "--bundle", dir, fmt.Sprintf("%s-%d", name, time.Now().UnixNano()))
	cmd.WaitDelay = time.Second
	return cmd
}

func say(words ...any) { _, _ = fmt.Fprintln(os.Stdout, words...) }

// TestInsideAContainer tells what a container sees. Outside of one it does nothing.
func TestInsideAContainer(t *testing.T) {
	if os.Getenv("GANTRY_INSIDE") == "" {
		return
	}
	for _, dir := range []string{"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/infiniband_mad", "/dev/infiniband"} {
		say("SEES", dir, strings.Join(entries(dir), " "))
	}
	for _, device := range []string{"rxe0", "rxe1"} {
		guid, _ := os.ReadFile("/sys/devices/virtual/infiniband/" + device + "/node_guid")
		say("GUID", device, len(bytes.TrimSpace(guid)) > 0)
	}
	for _, node := range entries("/dev/infiniband") {
		f, err := os.OpenFile("/dev/infiniband/"+node, os.O_RDWR, 0)
		if err == nil {
			_ = f.Close()
		}
		say("OPEN", node, err)
	}
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	say("LOCKED", limit.Max == unix.RLIM_INFINITY)
	raw, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err == nil {
		_ = unix.Close(raw)
	}
	say("RAW", err)
}

// TestMembersSeeTheirSoftRoCE alone: in containers as the host makes them, one that is no member has nothing of it, and no member has the
// other device. test/nfslab/guest has members that use theirs.
func TestMembersSeeTheirSoftRoCE(t *testing.T) {
	run(t, "ip", "link", "add", "eth7", "type", "veth", "peer", "name", "eth8")
	run(t, "ip", "link", "add", "eth9", "type", "veth", "peer", "name", "eth10")
	for _, args := range []string{"addr add 192.0.2.1/24 dev eth7", "link set eth7 up", "link set eth8 up"} {
		run(t, "ip", strings.Fields(args)...)
	}
	run(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth7")
	run(t, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "eth9") // it is down
	t.Log(run(t, "rdma", "link"), run(t, "rdma", "system"))
	for _, ns := range []string{"a", "b", "c"} {
		run(t, "ip", "netns", "add", ns)
	}
	h, err := fabric.Open(t.Context(), fabric.Config{
		Mode: fleet.FabricShared, Dir: t.TempDir(), Links: shared{}, Namespace: func(id fleet.PodID) string { return string(id) }, Log: slog.Default(),
	})
	must(t, err)
	t.Cleanup(h.Close)
	if f := h.Fabric(); f.Kind() != fleet.FabricRoCE || len(f.Ports) != 2 || len(f.Usable()) != 1 || f.Usable()[0].Netdev != "eth7" {
		t.Fatalf("the host has %+v", f)
	}
	member := func(id fleet.PodID) pod.Devices {
		given, err := h.Give(t.Context(), id, 1, false)
		must(t, err)
		return given
	}
	inside := func(name string, given pod.Devices) string {
		cmd := container(t, name, given, "/tests/agent-ctrd.test", "-test.run", "^TestInsideAContainer$")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("in %s: %v: %s", name, err, out)
		}
		t.Logf("%s:\n%s", name, out)
		return string(out)
	}
	wants := func(name, text string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains("\n"+text, "\n"+line+"\n") {
				t.Errorf("%s does not say %q", name, line)
			}
		}
	}
	wants("a member", inside("a", member("a")),
		"SEES /sys/class/infiniband rxe0", "SEES /sys/class/infiniband_verbs abi_version uverbs0", "SEES /sys/class/infiniband_mad ",
		"SEES /dev/infiniband rdma_cm uverbs0", "GUID rxe0 true", "GUID rxe1 false", "OPEN uverbs0 <nil>", "OPEN rdma_cm <nil>", "LOCKED true",
		"RAW operation not permitted")
	wants("no member", inside("c", pod.Devices{}),
		"SEES /sys/class/infiniband ", "SEES /sys/class/infiniband_verbs ", "SEES /dev/infiniband ", "GUID rxe0 false", "LOCKED false", "RAW <nil>")
	other := member("b") // with a node that the rules of its control group do not name
	other.Files = append(other.Files, pod.Mount{Source: "/dev/infiniband/uverbs1", Target: "/dev/infiniband/uverbs1"})
	wants("a member with another's node", inside("b", other), "OPEN uverbs0 <nil>", "OPEN uverbs1 open /dev/infiniband/uverbs1: permission denied")
}
