package gpu

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/fakenvml"
)

const patience = 2 * time.Minute

// config is that of a host with the fake driver; everything goes fast.
func config(t *testing.T, d *fakenvml.Driver) Config {
	t.Helper()
	return Config{
		Data: t.TempDir(), Helper: helperPath, Library: d.Library, DriverRoot: d.Root, DevRoot: d.Root, Wanted: true, Boot: "boot-1",
		Sys: t.TempDir(), Env: []string{d.Env}, Log: slog.New(slog.DiscardHandler),
		Rescan: 100 * time.Millisecond, Answer: patience, Unknown: patience, First: patience, Again: 20 * time.Millisecond, UseTick: 20 * time.Millisecond,
	}
}

func open(t *testing.T, c Config) *Host {
	t.Helper()
	h, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// until waits until what is found is as wanted, as Changed tells.
func until(t *testing.T, h *Host, what string, ok func(Found) bool) Found {
	t.Helper()
	deadline := time.After(patience)
	for {
		found := h.Found()
		if ok(found) {
			return found
		}
		select {
		case <-h.Changed():
		case <-deadline:
			t.Fatalf("%s: not within %v; found %+v", what, patience, found)
		}
	}
}

func sickness(f Found, uuid string) string {
	for _, g := range f.GPUs {
		if g.UUID == uuid {
			return g.Sick
		}
	}
	return "not found"
}

func TestAllGPUsAreFound(t *testing.T) {
	for _, n := range []int{1, 2, 4, 8, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			m := fakenvml.Healthy(n)
			c := config(t, fakenvml.New(t, m))
			for i := range n {
				dir := filepath.Join(c.Sys, "bus/pci/devices", fmt.Sprintf("0000:%02x:00.0", 0x10+i))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "numa_node"), fmt.Appendln(nil, i/4), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			found := open(t, c).Found()
			if found.Driver != "570.124.06" || found.CUDA != "12.8" || len(found.Conditions) != 0 || len(found.GPUs) != n {
				t.Fatalf("found %+v", found)
			}
			for i, g := range found.GPUs {
				want := fleet.GPU{UUID: m.GPUs[i].UUID, Type: "NVIDIA H100 80GB HBM3", MemoryMB: 85_520, NUMA: i / 4, Island: i, PCI: fmt.Sprintf("0000:%02x:00.0", 0x10+i)}
				if g != want {
					t.Errorf("GPU %d: %+v, want %+v", i, g, want)
				}
			}
		})
	}
}

func TestIslandsAreWhatNVLinkJoins(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(7)
	join := func(a, b int) {
		m.GPUs[a].Links = append(m.GPUs[a].Links, fakenvml.Link{Peer: m.GPUs[b].PCI})
		m.GPUs[b].Links = append(m.GPUs[b].Links, fakenvml.Link{Peer: m.GPUs[a].PCI})
	}
	join(0, 1)
	join(1, 2) // 0 and 2 through 1
	for _, i := range []int{4, 6} {
		m.GPUs[i].Links = []fakenvml.Link{{Peer: "00000000:85:00.0", Switch: true}}
	}
	var islands []int
	for _, g := range open(t, config(t, fakenvml.New(t, m))).Found().GPUs {
		islands = append(islands, g.Island)
	}
	if !slices.Equal(islands, []int{0, 0, 0, 3, 4, 5, 4}) {
		t.Errorf("islands %v", islands)
	}
}

func TestMIGInstancesAreGPUsOfTheirOwn(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(2)
	d := fakenvml.New(t, m)
	h := open(t, config(t, d))
	m.GPUs[0].MIG = true
	m.GPUs[0].Instances = []fakenvml.Instance{
		{Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", UUID: "MIG-00000000-0000-0000-0000-000000000001", GI: 7, Slices: 1, MemoryMiB: 9728},
		{Name: "NVIDIA H100 80GB HBM3", UUID: "MIG-00000000-0000-0000-0000-000000000002", GI: 3, Slices: 3, MemoryMiB: 40448},
	}
	d.Set(m)
	whole := m.GPUs[0].UUID
	found := until(t, h, "two instances and a whole GPU", func(f Found) bool { return len(f.GPUs) == 3 })
	want := []fleet.GPU{
		{UUID: m.GPUs[1].UUID, Type: "NVIDIA H100 80GB HBM3", MemoryMB: 85_520, Island: 1, PCI: "0000:11:00.0"},
		{UUID: "MIG-00000000-0000-0000-0000-000000000001", Type: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", MemoryMB: 10_200, PCI: "0000:10:00.0", Parent: whole},
		{UUID: "MIG-00000000-0000-0000-0000-000000000002", Type: "NVIDIA H100 80GB HBM3 MIG 3g.40gb", MemoryMB: 42_412, PCI: "0000:10:00.0", Parent: whole},
	}
	if !slices.Equal(found.GPUs, want) {
		t.Errorf("found %+v", found.GPUs)
	}
	m.XIDs = []fakenvml.XID{{Serial: 10, GPU: 0, Code: 95}}
	d.Set(m)
	until(t, h, "the instances of a GPU with an error are sick, the other GPU is not", func(f Found) bool {
		return sickness(f, want[0].UUID) == "" && strings.Contains(sickness(f, want[1].UUID), "XID 95") && strings.Contains(sickness(f, want[2].UUID), "XID 95")
	})
	m.GPUs[0].MIG, m.GPUs[0].Instances = false, nil
	d.Set(m)
	until(t, h, "the GPU is whole again", func(f Found) bool {
		return len(f.GPUs) == 2 && strings.Contains(sickness(f, whole), "XID 95")
	})
}

func TestXIDErrorsThatSaySoTakeAGPUOutOfService(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(2)
	d := fakenvml.New(t, m)
	c := config(t, d)
	h := open(t, c)
	for i, xid := range []int{13, 31, 43, 45, 68, 63} {
		m.XIDs = append(m.XIDs, fakenvml.XID{Serial: 10 + i, Code: xid})
	}
	m.XIDs = append(m.XIDs, fakenvml.XID{Serial: 20, GPU: 1, Code: 79})
	m.GPUs[1].Lost = true // it does not even tell its UUID
	d.Set(m)
	found := until(t, h, "the second GPU is sick", func(f Found) bool {
		return len(f.GPUs) == 2 && f.GPUs[1].Sick != "" && f.GPUs[1].Sick != disappeared
	})
	if why := sickness(found, m.GPUs[1].UUID); why != "the driver reported XID 79: it has fallen off the bus" {
		t.Errorf("it is sick because %q", why)
	}
	if why := sickness(found, m.GPUs[0].UUID); why != "" {
		t.Errorf("errors of programs make a GPU sick: %s", why)
	}
	// It is kept over a restart of the agent, and not over one of the machine.
	h.Close()
	d.Set(fakenvml.Healthy(2))
	again := open(t, c)
	if sickness(again.Found(), m.GPUs[1].UUID) == "" {
		t.Error("a restart of the agent has healed it")
	}
	again.Close()
	c.Boot = "boot-2"
	if why := sickness(open(t, c).Found(), m.GPUs[1].UUID); why != "" {
		t.Errorf("after a reboot it is sick because %s", why)
	}
}

func TestFatalAndHarmlessXIDs(t *testing.T) {
	for _, xid := range []uint64{48, 62, 64, 74, 79, 94, 95, 119, 120, 140, 143, 999} {
		if verdict(xid) == "" {
			t.Errorf("XID %d is passed over", xid)
		}
	}
	for _, xid := range []uint64{8, 13, 31, 43, 45, 63, 68, 109, 154} {
		if verdict(xid) != "" {
			t.Errorf("XID %d takes a GPU out of service", xid)
		}
	}
}

func TestWhatTheDriverCountsMakesAGPUSick(t *testing.T) {
	for name, x := range map[string]struct {
		change    func(g *fakenvml.GPU)
		sick      string
		condition string
	}{
		"uncorrectable errors":  {func(g *fakenvml.GPU) { g.ECC = 2 }, "2 uncorrectable memory errors since the driver was loaded", ""},
		"a row is not replaced": {func(g *fakenvml.GPU) { g.RemapFailure = true }, "a broken row of its memory could not be replaced", ""},
		"unreadable":            {func(g *fakenvml.GPU) { g.Unreadable = true }, "the driver does not tell its memory: Unknown Error", ""},
		"a row waits":           {func(g *fakenvml.GPU) { g.RemapPending = true }, "", ConditionReset},
		"lost":                  {func(g *fakenvml.GPU) { g.Lost = true }, disappeared, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := fakenvml.Healthy(2)
			d := fakenvml.New(t, m)
			h := open(t, config(t, d))
			bad := m.GPUs[0].UUID
			x.change(&m.GPUs[0])
			d.Set(m)
			until(t, h, "the first GPU is as it is", func(f Found) bool {
				if len(f.GPUs) != 2 || sickness(f, m.GPUs[1].UUID) != "" || sickness(f, bad) != x.sick {
					return false
				}
				return x.condition == "" && len(f.Conditions) == 0 || len(f.Conditions) == 1 && f.Conditions[0].Code == x.condition && strings.Contains(f.Conditions[0].Text, bad)
			})
			d.Set(fakenvml.Healthy(2))
			until(t, h, "it is well again", func(f Found) bool { return sickness(f, bad) == "" && len(f.Conditions) == 0 })
		})
	}
}

// helperPID returns the process id of the host's helper, once it answers.
func helperPID(t *testing.T, h *Host) int {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		h.mu.Lock()
		p := h.helper
		h.mu.Unlock()
		if p != nil {
			return p.PID()
		}
	}
	t.Fatal("no helper")
	return 0
}

func TestAKilledHelperIsReplacedUnseen(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(2)
	d := fakenvml.New(t, m)
	h := open(t, config(t, d))
	before := helperPID(t, h)
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); helperPID(t, h) == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no other helper")
		}
		if f := h.Found(); len(f.GPUs) != 2 || f.GPUs[0].Sick != "" {
			t.Fatalf("a restart of the helper shows: %+v", f)
		}
	}
}

func TestHealthIsUnknownWhileTheDriverHangsOrCrashes(t *testing.T) {
	for name, change := range map[string]func(m *fakenvml.Machine){
		"hangs":   func(m *fakenvml.Machine) { m.Hang = "nvmlDeviceGetMemoryInfo" },
		"crashes": func(m *fakenvml.Machine) { m.Crash = "nvmlDeviceGetMemoryInfo" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := fakenvml.Healthy(2)
			d := fakenvml.New(t, m)
			c := config(t, d)
			c.Answer, c.Unknown = 500*time.Millisecond, time.Second
			h := open(t, c)
			change(&m)
			d.Set(m)
			found := until(t, h, "health is unknown", func(f Found) bool {
				return len(f.GPUs) == 2 && strings.HasPrefix(f.GPUs[0].Sick, "health unknown: ") && strings.HasPrefix(f.GPUs[1].Sick, "health unknown: ")
			})
			if len(found.Conditions) != 1 || found.Conditions[0].Code != ConditionHealthUnknown {
				t.Errorf("conditions %+v", found.Conditions)
			}
			if _, err := h.Devices(t.Context(), []string{m.GPUs[0].UUID}); err == nil {
				t.Error("a GPU of unknown health is given to a container")
			}
			d.Set(fakenvml.Healthy(2))
			until(t, h, "health is known again", func(f Found) bool {
				return len(f.GPUs) == 2 && f.GPUs[0].Sick == "" && f.GPUs[1].Sick == "" && len(f.Conditions) == 0
			})
		})
	}
}

func TestUseIsReadWhileItIsWanted(t *testing.T) {
	t.Parallel()
	m := fakenvml.Healthy(2)
	m.GPUs[0].Util, m.GPUs[0].Used = 37, m.GPUs[0].Memory/2+1
	h := open(t, config(t, fakenvml.New(t, m)))
	uuids := []string{m.GPUs[1].UUID, "GPU-sim-0123456789ab", m.GPUs[0].UUID}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		got := h.Use(t.Context(), uuids)
		if got == nil && time.Now().Before(deadline) {
			continue
		}
		if !slices.Equal(got, []fleet.GPUUse{{}, {}, {Util: 37, MemoryUtil: 50}}) {
			t.Errorf("use %+v", got)
		}
		break
	}
	if got := h.Use(t.Context(), []string{"GPU-nobody"}); got != nil {
		t.Errorf("use of an unknown GPU: %+v", got)
	}
}

func TestAMachineWithoutDriverOrHelper(t *testing.T) {
	empty := func(t *testing.T) Config {
		return Config{Data: t.TempDir(), Helper: helperPath, Sys: t.TempDir(), DriverRoot: t.TempDir(), Log: slog.New(slog.DiscardHandler), Again: 20 * time.Millisecond}
	}
	t.Run("and without GPUs", func(t *testing.T) {
		t.Parallel()
		if f := open(t, empty(t)).Found(); len(f.GPUs)+len(f.Conditions) != 0 {
			t.Errorf("found %+v", f)
		}
	})
	t.Run("with GPUs", func(t *testing.T) {
		t.Parallel()
		c := empty(t)
		dir := filepath.Join(c.Sys, "bus/pci/devices/0000:3b:00.0")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"vendor": "0x10de\n", "class": "0x030200\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := open(t, c).Found()
		if len(f.GPUs) != 0 || len(f.Conditions) != 1 || f.Conditions[0].Code != ConditionNoDriver || !strings.Contains(f.Conditions[0].Text, "libnvidia-ml.so.1 was not found") {
			t.Errorf("found %+v", f)
		}
	})
	t.Run("wanted, without the helper", func(t *testing.T) {
		t.Parallel()
		c := empty(t)
		c.Wanted, c.Helper = true, filepath.Join(t.TempDir(), "nothing")
		f := open(t, c).Found()
		if len(f.GPUs) != 0 || len(f.Conditions) != 1 || f.Conditions[0].Code != ConditionNoDriver || f.Conditions[0].Severe {
			t.Errorf("found %+v", f)
		}
	})
}
