//go:build cgo

package nvml

import (
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gantry/agent/gpu/wire"
)

const lost = "the GPU has fallen off the bus"

// health says why a GPU is not to be used, or why it wants a reset while it may be. What a GPU does not count is
// taken for well.
func (l *Library) health(dev nvml.Device) (sick, reset string) {
	n, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	switch {
	case ret == nvml.ERROR_GPU_IS_LOST:
		return lost, ""
	case ret == nvml.SUCCESS && n > 0:
		return fmt.Sprintf("%d uncorrectable memory errors since the driver was loaded", n), ""
	}
	if l.lib.Extensions().LookupSymbol("nvmlDeviceGetRemappedRows") != nil {
		return "", ""
	}
	_, _, pending, failed, ret := dev.GetRemappedRows()
	switch {
	case ret == nvml.ERROR_GPU_IS_LOST:
		return lost, ""
	case ret != nvml.SUCCESS:
	case failed:
		return "a broken row of its memory could not be replaced", ""
	case pending:
		return "", "a broken row of its memory is replaced at the next reset"
	}
	return "", ""
}

const (
	waitFor   = 500 * time.Millisecond // at a time, for an event
	waitAgain = time.Second            // after an error
)

// watch waits for XID errors. Its methods are safe for concurrent use.
type watch struct {
	lib nvml.Interface

	mu    sync.Mutex // guards the fields below
	set   nvml.EventSet
	names map[nvml.Device]string // UUIDs of those registered: a GPU that is lost does not tell its own any more
}

func newWatch(lib nvml.Interface) *watch { return &watch{lib: lib, names: map[nvml.Device]string{}} }

// register makes sure that the errors of these GPUs are told.
func (w *watch) register(all []one) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.set == nil {
		set, ret := w.lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			return
		}
		w.set = set
	}
	for _, g := range all {
		if w.names[g.dev] == g.uuid {
			continue
		}
		types, ret := g.dev.GetSupportedEventTypes()
		if ret != nvml.SUCCESS || types&nvml.EventTypeXidCriticalError == 0 {
			continue
		}
		if g.dev.RegisterEvents(nvml.EventTypeXidCriticalError, w.set) == nvml.SUCCESS {
			w.names[g.dev] = g.uuid
		}
	}
}

// run tells events until end is closed.
func (w *watch) run(end <-chan struct{}, tell func(wire.Event)) {
	for {
		select {
		case <-end:
			return
		default:
		}
		w.mu.Lock()
		set := w.set
		w.mu.Unlock()
		if set == nil {
			if !pause(end) {
				return
			}
			continue
		}
		data, ret := set.Wait(uint32(waitFor / time.Millisecond))
		switch {
		case ret == nvml.ERROR_TIMEOUT:
		case ret != nvml.SUCCESS:
			if !pause(end) {
				return
			}
		case data.EventType == nvml.EventTypeXidCriticalError:
			tell(wire.Event{UUID: w.name(data.Device), XID: data.EventData})
		}
	}
}

// name returns the UUID of a GPU; "" when it was never known.
func (w *watch) name(dev nvml.Device) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if uuid := w.names[dev]; uuid != "" {
		return uuid
	}
	uuid, ret := dev.GetUUID()
	if ret != nvml.SUCCESS {
		return ""
	}
	return uuid
}

func pause(end <-chan struct{}) bool {
	timer := time.NewTimer(waitAgain)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-end:
		return false
	}
}
