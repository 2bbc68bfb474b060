package gpu

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"tags.cncf.io/container-device-interface/pkg/cdi"

	"gantry/agent/gpu/wire"
	"gantry/fleet"
	"gantry/internal/ipc/process"
	"gantry/internal/sleep"
)

// Config says where the GPUs of a machine are found. Durations that are zero have the values in parentheses.
type Config struct {
	Data       string // the agent's data folder
	Helper     string // path of gantry-gpu
	Library    string // path of libnvidia-ml.so.1; empty: that of the driver
	DriverRoot string // folder below which the driver is installed; empty: /
	DevRoot    string // folder below which its device nodes are; empty: /
	// Wanted says that the operator counts on GPUs: that there are none is then told. Otherwise nothing is
	// looked for, or said, on a machine without NVIDIA's devices.
	Wanted bool
	Boot   string   // boot id of the machine
	Sys    string   // where sysfs is; empty: /sys
	Proc   string   // where procfs is; empty: /proc
	Env    []string // of the helper, "NAME=value"
	Log    *slog.Logger

	Rescan  time.Duration // between two looks at all GPUs (10 s)
	Answer  time.Duration // for one answer of the helper (10 s)
	Unknown time.Duration // without an answer after which the health of GPUs is unknown (30 s)
	First   time.Duration // that Open waits for the first look on a machine that it does not know yet (15 s)
	Again   time.Duration // least time between two helpers (200 ms); it grows to 30 s while they fail
	UseTick time.Duration // between two readings of how busy the GPUs are (2 s)
}

const (
	againMost = 30 * time.Second
	steady    = time.Minute      // a helper that lived so long is not one that fails again and again
	lookAgain = time.Minute      // for NVIDIA's devices on a machine without them
	logAgain  = time.Minute      // between two errors of a GPU in the log that say nothing against it
	useStale  = 10 * time.Second // after which a reading, or a question for one, is of the past
)

// Conditions of a host's GPUs.
const (
	ConditionNoDriver      = "gpu_driver_unusable"
	ConditionHealthUnknown = "gpu_health_unknown"
	ConditionReset         = "gpu_reset_wanted"
	ConditionNoDevices     = "gpu_devices_unknown"
)

// Host is what an agent knows of its machine's GPUs. It reads them through a helper process, so that a driver
// that hangs or crashes touches neither agent nor pods. Its methods are safe for concurrent use.
type Host struct {
	Config
	changed chan struct{}
	first   chan struct{} // closed after the first look, or the first failure
	begun   sync.Once     // closes first
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	helper   *helper    // nil while none is to be asked
	driver   string
	cuda     string
	gpus     map[string]wire.GPU  // by UUID, with those that have disappeared
	numa     map[string]int       // by UUID
	sick     map[string]string    // by UUID of a whole GPU: why its XID error takes it out of service
	logged   map[string]time.Time // by UUID of a whole GPU: when an error was that does not
	heard    time.Time            // when the helper answered last; zero: never on this machine
	trouble  string               // why it does not; empty while it does
	spec     *cdi.Spec            // nil: the devices are not described
	files    []driverFile         // of the driver, for containers
	specFor  []string             // what spec was made for
	specBad  string               // why it could not be made
	use      map[string]fleet.GPUUse
	useAt    time.Time
	useAsked time.Time
	said     Found // what changed was last told of
}

// Open begins to look after the GPUs of the machine, until Close. GPUs that an agent found earlier in the present run
// of the kernel are there at once; otherwise it waits for the first look, or until ctx ends.
func Open(ctx context.Context, c Config) (*Host, error) {
	h := newHost(c.complete())
	if err := os.MkdirAll(h.specDir(), 0o755); err != nil { //nolint:gosec // as CDI has its folders
		return nil, fmt.Errorf("make the folder of device descriptions: %w", err)
	}
	if err := h.load(); err != nil {
		h.Log.Warn("what was known of the GPUs is not", "err", err)
	}
	h.said = h.Found()
	life, cancel := context.WithCancel(context.WithoutCancel(ctx)) // pods may ask until Close
	h.stop = cancel
	h.wg.Go(func() { h.live(life) })
	h.wg.Go(func() { h.watch(life) })
	if h.known() {
		return h, nil
	}
	timer := time.NewTimer(h.First)
	defer timer.Stop()
	select {
	case <-h.first:
	case <-timer.C:
	case <-ctx.Done():
	}
	return h, nil
}

func newHost(c Config) *Host {
	return &Host{
		Config: c, changed: make(chan struct{}, 1), first: make(chan struct{}),
		gpus: map[string]wire.GPU{}, numa: map[string]int{}, sick: map[string]string{}, logged: map[string]time.Time{},
	}
}

func (c Config) complete() Config {
	c.DriverRoot, c.DevRoot = cmp.Or(c.DriverRoot, "/"), cmp.Or(c.DevRoot, "/")
	c.Sys, c.Proc = cmp.Or(c.Sys, "/sys"), cmp.Or(c.Proc, "/proc")
	c.Rescan, c.Answer = cmp.Or(c.Rescan, 10*time.Second), cmp.Or(c.Answer, 10*time.Second)
	c.Unknown, c.First = cmp.Or(c.Unknown, 30*time.Second), cmp.Or(c.First, 15*time.Second)
	c.Again, c.UseTick = cmp.Or(c.Again, 200*time.Millisecond), cmp.Or(c.UseTick, 2*time.Second)
	return c
}

// Close ends the helper. What is known of the GPUs stays.
func (h *Host) Close() {
	h.stop()
	h.wg.Wait()
}

// Changed receives when Found has become another.
func (h *Host) Changed() <-chan struct{} { return h.changed }

// Found returns what is known of the GPUs now.
func (h *Host) Found() Found {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := Found{CUDA: h.cuda, Driver: h.driver}
	var reset []string
	for _, g := range h.gpus {
		if g.MIG {
			continue
		}
		out.GPUs = append(out.GPUs, fleet.GPU{
			UUID: g.UUID, Type: g.Name, MemoryMB: g.MemoryMB, NUMA: max(h.numa[g.UUID], 0), Island: g.Island, PCI: g.PCI, Parent: g.Parent, Sick: h.sickness(g),
		})
		if g.Reset != "" {
			reset = append(reset, cmp.Or(g.Parent, g.UUID)+" ("+g.Reset+")")
		}
	}
	slices.SortFunc(out.GPUs, func(a, b fleet.GPU) int { return cmp.Compare(a.UUID, b.UUID) })
	slices.Sort(reset)
	out.Conditions = h.conditions(slices.Compact(reset))
	return out
}

func (h *Host) conditions(reset []string) []fleet.Condition {
	var out []fleet.Condition
	add := func(code, text string) { out = append(out, fleet.Condition{Code: code, Text: text}) }
	switch {
	case h.trouble != "" && len(h.gpus) == 0:
		add(ConditionNoDriver, "the host's GPUs cannot be used: "+h.trouble)
	case len(h.gpus) > 0 && h.unknown():
		add(ConditionHealthUnknown, "the health of the host's GPUs is not known: "+cmp.Or(h.trouble, "the GPU helper does not answer"))
	}
	if h.specBad != "" {
		add(ConditionNoDevices, "GPUs cannot be given to containers: "+h.specBad)
	}
	if len(reset) > 0 {
		add(ConditionReset, "a reset is wanted of "+strings.Join(reset, ", "))
	}
	return out
}

// sickness says why a GPU is out of service; "" when it is not. h.mu is held.
func (h *Host) sickness(g wire.GPU) string {
	if text := h.sick[cmp.Or(g.Parent, g.UUID)]; text != "" {
		return text
	}
	if g.Sick == "" && h.unknown() {
		return "health unknown: " + cmp.Or(h.trouble, "the GPU helper does not answer")
	}
	return g.Sick
}

// unknown reports whether nothing was heard of the GPUs for too long. h.mu is held.
func (h *Host) unknown() bool { return !h.heard.IsZero() && time.Since(h.heard) >= h.Unknown }

func (h *Host) known() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.gpus) > 0
}

// tell has Changed receive when Found is another than it was.
func (h *Host) tell() {
	now := h.Found()
	h.mu.Lock()
	same := reflect.DeepEqual(now, h.said)
	h.said = now
	h.mu.Unlock()
	if same {
		return
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// watch tells when the health of the GPUs becomes unknown: that happens by itself.
func (h *Host) watch(ctx context.Context) {
	tick := time.NewTicker(h.Unknown / 10)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.tell()
		case <-ctx.Done():
			return
		}
	}
}

// live keeps a helper running until ctx ends.
func (h *Host) live(ctx context.Context) {
	// See startHelper; the thread ends with the goroutine.
	runtime.LockOSThread()
	defer h.begun.Do(func() { close(h.first) })
	wait := process.Backoff{Least: h.Again, Most: againMost, Stood: steady}
	for ctx.Err() == nil {
		if !h.Wanted && !h.known() && !hasNVIDIA(h.Sys) {
			h.begun.Do(func() { close(h.first) })
			_ = sleep.For(ctx, lookAgain)
			continue
		}
		began := time.Now()
		err := h.converse(ctx)
		if ctx.Err() != nil {
			return
		}
		again := wait.Next(time.Since(began))
		h.Log.Warn("no GPU helper", "again_in", again, "err", err)
		h.mu.Lock()
		h.trouble = err.Error()
		h.mu.Unlock()
		h.tell()
		h.begun.Do(func() { close(h.first) })
		_ = sleep.For(ctx, again)
	}
}

// hasNVIDIA reports whether the machine has a GPU of NVIDIA's on its PCI bus.
func hasNVIDIA(sys string) bool {
	vendors, _ := filepath.Glob(filepath.Join(sys, "bus/pci/devices/*/vendor"))
	for _, path := range vendors {
		class := readWord(filepath.Join(filepath.Dir(path), "class"))
		if readWord(path) == "0x10de" && strings.HasPrefix(class, "0x03") {
			return true
		}
	}
	return false
}

func readWord(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
