package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gantry/agent/pod"
	"gantry/fleet"
)

// machine is a copy of /sys with adapters, of which it moves the network interfaces.
type machine struct {
	t         *testing.T
	sys       string
	exclusive bool
	fault     error
	at        map[string]string // where a link is that is not the host's
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, sys: t.TempDir(), at: map[string]string{}}
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	path = filepath.Join(m.sys, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text+"\n"), 0o644)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) link(path, to string) {
	m.t.Helper()
	path = filepath.Join(m.sys, path)
	rel, err := filepath.Rel(filepath.Dir(path), filepath.Join(m.sys, to))
	if err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(rel, path)); err != nil {
		m.t.Fatal(err)
	}
}

// adapter adds one that is plugged in somewhere, with its verbs node; of is the adapter that it is a function of.
func (m *machine) adapter(name, pci, of string, verbs int, layer, state string) {
	m.t.Helper()
	at := "devices/pci0000:00/" + pci
	ib, node := at+"/infiniband/"+name, fmt.Sprintf("%s/infiniband_verbs/uverbs%d", at, verbs)
	m.write(ib+"/node_guid", "b8ce:f603:0011:22"+fmt.Sprintf("%02d", verbs))
	m.write(ib+"/ports/1/link_layer", layer)
	m.write(ib+"/ports/1/state", state)
	m.write(ib+"/ports/1/rate", "100 Gb/sec (4X EDR)")
	m.write(ib+"/ports/1/gids/0", "fe80:0000:0000:0000:b8ce:f603:0011:22"+fmt.Sprintf("%02d", verbs))
	m.link(ib+"/device", at)
	m.write(at+"/net/net"+name+"/mtu", "1500")
	m.write(node+"/ibdev", name)
	m.write(node+"/dev", fmt.Sprintf("231:%d", 192+verbs))
	m.link("class/infiniband/"+name, ib)
	m.link(fmt.Sprintf("class/infiniband_verbs/uverbs%d", verbs), node)
	m.write("class/infiniband_verbs/abi_version", "6")
	m.write("class/misc/rdma_cm/dev", "10:58")
	if of != "" {
		m.link(at+"/physfn", "devices/pci0000:00/"+of)
	}
}

func (m *machine) RDMAExclusive() (bool, error) { return m.exclusive, nil }

// netDir is where a copy of /sys shows the link of a device on the host.
func (m *machine) netDir(device string) string {
	dir, err := filepath.EvalSymlinks(filepath.Join(m.sys, "class/infiniband", device, "device"))
	if err != nil {
		m.t.Fatal(err)
	}
	return filepath.Join(dir, "net")
}

func (m *machine) GiveFunction(_ context.Context, namespace, link, as, device string) error {
	if m.fault != nil {
		return m.fault
	}
	want := namespace + " " + as
	if have := m.at[link]; have != "" && have != want {
		m.t.Errorf("link %s of %s goes to %s", link, have, want)
	}
	m.at[link] = want
	return os.RemoveAll(filepath.Join(m.netDir(device), link))
}

func (m *machine) TakeFunction(_ context.Context, namespace, link, as, device string) error {
	if m.fault != nil {
		return m.fault
	}
	if m.at[link] == namespace+" "+as {
		delete(m.at, link)
		return os.MkdirAll(filepath.Join(m.netDir(device), link), 0o755)
	}
	return nil
}

func (m *machine) open(dir string, mode fleet.FabricMode) *Host {
	m.t.Helper()
	h, err := Open(m.t.Context(), Config{
		Mode: mode, Dir: dir, Sys: m.sys, Links: m, Namespace: func(id fleet.PodID) string { return "ns-" + string(id) }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(h.Close)
	return h
}

// gpuHost is a machine with two adapters of InfiniBand, each with two functions, and one for Ethernet.
func gpuHost(t *testing.T) *machine {
	m := newMachine(t)
	for i, name := range []string{"mlx5_0", "mlx5_1"} {
		pf := fmt.Sprintf("0000:0%d:00.0", i+1)
		m.adapter(name, pf, "", 3*i, "InfiniBand", "4: ACTIVE")
		for n := range 2 {
			m.adapter(fmt.Sprintf("%sv%d", name, n), fmt.Sprintf("0000:0%d:00.%d", i+1, n+1), pf, 3*i+n+1, "InfiniBand", "1: DOWN")
		}
	}
	m.adapter("mlx5_9", "0000:09:00.0", "", 9, "Ethernet", "4: ACTIVE")
	return m
}

func devicesOf(d pod.Devices) (out []string) {
	for _, a := range d.Adapters {
		out = append(out, a.Device)
	}
	return out
}

// TestWhatAHostHasOfAFabric, and why members get none.
func TestWhatAHostHasOfAFabric(t *testing.T) {
	m := gpuHost(t)
	f := m.open(t.TempDir(), fleet.FabricShared).Fabric()
	if len(f.Ports) != 3 || f.Kind() != fleet.LinkInfiniBand || f.Mbps() != 200_000 {
		t.Errorf("shared: %+v", f)
	}
	want := fleet.FabricPort{
		Device: "mlx5_1", Port: 1, Netdev: "netmlx5_1", Link: "InfiniBand", State: "ACTIVE", Mbps: 100_000, Subnet: "fe80:0000:0000:0000",
		GUID: "b8ce:f603:0011:2203",
	}
	if f.Ports[1] != want {
		t.Errorf("a port is %+v", f.Ports[1])
	}
	if f = m.open(t.TempDir(), fleet.FabricFunctions).Fabric(); f.Members() != 2 || f.Ports[2].Functions != 0 {
		t.Errorf("functions: %+v", f)
	}
	down := newMachine(t)
	down.adapter("rxe0", "0000:01:00.0", "", 0, "Ethernet", "1: DOWN")
	apart := gpuHost(t)
	apart.exclusive = true
	for why, c := range map[string]struct {
		m    *machine
		mode fleet.FabricMode
	}{
		"no InfiniBand or RoCE device": {newMachine(t), fleet.FabricShared},
		"no port is active":            {down, fleet.FabricShared},
		"no adapter has virtual":       {down, fleet.FabricFunctions},
		"pods cannot share them":       {apart, fleet.FabricShared},
	} {
		h := c.m.open(t.TempDir(), c.mode)
		f := h.Fabric()
		got := h.Conditions()
		if len(got) != 1 || !strings.Contains(got[0].Text, why) || f.Kind() != "" {
			t.Errorf("%s: %v, %+v", why, got, f)
		}
	}
}

// TestSharedDevicesAreTheHostsAdapters: those of one fabric, described to the container, which sees no others.
func TestSharedDevicesAreTheHostsAdapters(t *testing.T) {
	m := gpuHost(t)
	h := m.open(t.TempDir(), fleet.FabricShared)
	for _, id := range []fleet.PodID{"p1", "p2"} {
		got, err := h.Give(t.Context(), id, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		nodes := []pod.DeviceNode{
			{Host: "/dev/infiniband/uverbs0", Path: "/dev/infiniband/uverbs0", Major: 231, Minor: 192},
			{Host: "/dev/infiniband/uverbs3", Path: "/dev/infiniband/uverbs3", Major: 231, Minor: 195},
			{Host: "/dev/infiniband/rdma_cm", Path: "/dev/infiniband/rdma_cm", Major: 10, Minor: 58},
		}
		if !slices.Equal(got.Nodes, nodes) || !slices.Equal(got.Env, []string{"NCCL_IB_HCA==mlx5_0:1,mlx5_1:1"}) || len(got.Files) != 2 {
			t.Errorf("%s gets %+v", id, got)
		}
		for _, f := range got.Files {
			list := names(f.Source)
			if want := map[string]string{"/sys/class/infiniband": "mlx5_0 mlx5_1", "/sys/class/infiniband_verbs": "uverbs0 uverbs3"}[f.Target]; strings.Join(list, " ") != want {
				t.Errorf("%s sees %v in %s", id, list, f.Target)
			}
			for _, name := range list { // where the container has it, the link leads to the device
				to, err := os.Readlink(filepath.Join(f.Source, name))
				if _, err2 := os.Stat(filepath.Join(m.sys, strings.TrimPrefix(f.Target, "/sys"), to)); err != nil || err2 != nil {
					t.Errorf("%s leads to %s: %v, %v", name, to, err, err2)
				}
			}
		}
		if word(filepath.Join(h.classes(id), "infiniband_verbs/abi_version")) != "6" {
			t.Error("the version of the interface is not there")
		}
	}
	if len(m.at) != 0 {
		t.Errorf("shared devices were moved: %v", m.at)
	}
	if err := h.Take(t.Context(), "p1"); err != nil || len(names(h.classes("p1"))) != 0 {
		t.Errorf("taken back: %v", err)
	}
}

// TestAFunctionIsOneMembers, also after the agent ended at any moment, until it is back on the host.
func TestAFunctionIsOneMembers(t *testing.T) {
	m, dir := gpuHost(t), t.TempDir()
	h := m.open(dir, fleet.FabricFunctions)
	give := func(id fleet.PodID, want ...string) {
		t.Helper()
		got, err := h.Give(t.Context(), id, 1, false)
		var e *pod.Error
		if len(want) == 0 {
			if !errors.As(err, &e) || e.Class != pod.Retry || !strings.Contains(e.Sentence, "to be free") {
				t.Errorf("%s gets %v, %v", id, devicesOf(got), err)
			}
			return
		}
		if err != nil || !slices.Equal(devicesOf(got), want) {
			t.Errorf("%s gets %v, %v; want %v", id, devicesOf(got), err, want)
		}
	}
	give("p1", "mlx5_0v0", "mlx5_1v0")
	give("p1", "mlx5_0v0", "mlx5_1v0") // again
	give("p2", "mlx5_0v1", "mlx5_1v1")
	give("p3")
	want := map[string]string{
		"netmlx5_0v0": "ns-p1 fabric0", "netmlx5_1v0": "ns-p1 fabric1", "netmlx5_0v1": "ns-p2 fabric0", "netmlx5_1v1": "ns-p2 fabric1",
	}
	if !maps.Equal(m.at, want) {
		t.Errorf("moved: %v", m.at)
	}
	h.look()
	if f := h.Fabric(); f.Members() != 2 {
		t.Errorf("with all functions taken the host has %+v", f)
	}
	h = m.open(dir, fleet.FabricFunctions) // another agent
	give("p3")
	give("p2", "mlx5_0v1", "mlx5_1v1")
	m.fault = errors.New("busy")
	if err := h.Take(t.Context(), "p1"); err == nil {
		t.Error("a fault of taking back is not told")
	}
	m.fault = nil
	give("p3") // it may be with p1 yet
	if err := h.Take(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
	m.fault = errors.New("busy") // p3 has it from here on, though it is not there
	if _, err := h.Give(t.Context(), "p3", 1, false); err == nil {
		t.Error("a fault of moving is not told")
	}
	m.fault = nil
	h = m.open(dir, fleet.FabricFunctions)
	give("p4")
	give("p3", "mlx5_0v0", "mlx5_1v0")
	if err := h.Take(t.Context(), "p9"); err != nil {
		t.Errorf("what has nothing is taken from: %v", err)
	}
}

// TestWhatALostPodHasIsNotGivenAway as long as its link is not back.
func TestWhatALostPodHasIsNotGivenAway(t *testing.T) {
	m, dir := gpuHost(t), t.TempDir()
	h := m.open(dir, fleet.FabricFunctions)
	for _, id := range []fleet.PodID{"p1", "p2"} {
		if _, err := h.Give(t.Context(), id, 1, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Keep(func(id fleet.PodID) bool { return id == "p2" }); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Give(t.Context(), "p3", 1, false); err == nil {
		t.Error("what p1 has is given to p3")
	}
	for _, device := range []string{"mlx5_0v0", "mlx5_1v0"} { // its namespace goes
		if err := m.TakeFunction(t.Context(), "ns-p1", "net"+device, map[bool]string{true: "fabric0", false: "fabric1"}[device == "mlx5_0v0"], device); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := h.Give(t.Context(), "p3", 1, false); err != nil || devicesOf(got)[0] != "mlx5_0v0" {
		t.Errorf("p3 gets %v, %v", devicesOf(got), err)
	}
}

// TestAContainerKeepsTheDevicesThatItWasMadeFor: numbers of devices may be others' after a reboot.
func TestAContainerKeepsTheDevicesThatItWasMadeFor(t *testing.T) {
	m := newMachine(t)
	m.adapter("mlx5_0", "0000:01:00.0", "", 0, "InfiniBand", "4: ACTIVE")
	h := m.open(t.TempDir(), fleet.FabricShared)
	fatal := func(what string, incarnation uint64) {
		t.Helper()
		var e *pod.Error
		if _, err := h.Give(t.Context(), "p1", incarnation, true); !errors.As(err, &e) || e.Class != pod.Fatal {
			t.Errorf("%s: %v", what, err)
		}
	}
	fatal("nothing is known of it", 1)
	if _, err := h.Give(t.Context(), "p1", 1, false); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Give(t.Context(), "p1", 1, true); err != nil {
		t.Errorf("with the devices that it has: %v", err)
	}
	fatal("another incarnation's", 2)
	m.write("devices/pci0000:00/0000:01:00.0/infiniband_verbs/uverbs0/dev", "231:200")
	fatal("other numbers", 1)
	if _, err := h.Give(t.Context(), "p1", 2, false); err != nil {
		t.Errorf("the next container: %v", err)
	}
}

// TestADamagedRecordStopsTheAgent rather than that functions are given twice.
func TestADamagedRecordStopsTheAgent(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "given.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Mode: fleet.FabricShared, Dir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("it goes on")
	}
}
