package gpu

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"gantry/agent/gpu/wire"
	"gantry/fleet"
)

const disappeared = "the GPU has disappeared from its driver"

// converse runs one helper until it fails or ctx ends.
func (h *Host) converse(ctx context.Context) error {
	p, err := startHelper(h.Log, h.Env, h.Helper, "--nvml", h.Library, "--driver-root", h.DriverRoot, "--dev-root", h.DevRoot)
	if err != nil {
		return err
	}
	defer func() {
		h.mu.Lock()
		h.helper = nil
		h.mu.Unlock()
		if !p.end() {
			h.Log.Error("the GPU helper cannot be ended: it hangs in the driver", "pid", p.PID())
			select { // a second one would hang beside it
			case <-p.Gone():
			case <-ctx.Done():
			}
		}
	}()
	if err := h.scan(ctx, p); err != nil {
		return err
	}
	h.mu.Lock()
	h.helper = p
	h.mu.Unlock()
	h.begun.Do(func() { close(h.first) })
	rescan, use := time.NewTicker(h.Rescan), time.NewTicker(h.UseTick)
	defer rescan.Stop()
	defer use.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-p.done:
			return p.failure()
		case e := <-p.events:
			if h.note(e) {
				err = h.scan(ctx, p)
			}
		case <-rescan.C:
			err = h.scan(ctx, p)
		case <-use.C:
			err = h.readUse(ctx, p)
		}
		if err != nil {
			return err
		}
	}
}

// scan looks at all GPUs.
func (h *Host) scan(ctx context.Context, p *helper) error {
	reply, err := p.ask(ctx, h.Answer, wire.Request{Ask: wire.AskInventory})
	if err != nil {
		return err
	}
	if reply.Inventory == nil {
		return fmt.Errorf("the GPU helper answered another question")
	}
	h.take(*reply.Inventory)
	if err := h.describe(ctx, p); err != nil {
		return err
	}
	h.tell()
	if err := h.save(); err != nil {
		h.Log.Error("save the GPUs' state", "err", err)
	}
	return nil
}

// take makes an inventory what is known. A GPU that was there and is not any more stays, out of service; a MIG
// instance that was removed from a GPU that is there does not.
func (h *Host) take(inv wire.Inventory) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := make(map[string]wire.GPU, len(inv.GPUs))
	for _, g := range inv.GPUs {
		now[g.UUID] = g
		if _, ok := h.numa[g.UUID]; !ok {
			h.numa[g.UUID] = h.node(g.PCI)
		}
	}
	for uuid, g := range h.gpus {
		here := func(uuid string) bool {
			return slices.ContainsFunc(inv.GPUs, func(o wire.GPU) bool { return o.UUID == uuid })
		}
		if here(uuid) || g.Parent != "" && here(g.Parent) {
			continue
		}
		if g.Sick != disappeared {
			h.Log.Error("a GPU has disappeared", "gpu", uuid, "pci", g.PCI)
		}
		g.Sick, g.Reset = disappeared, ""
		now[uuid] = g
	}
	maps.DeleteFunc(h.numa, func(uuid string, _ int) bool { _, there := now[uuid]; return !there })
	h.gpus, h.driver, h.cuda = now, inv.Driver, inv.CUDA
	h.heard, h.trouble = time.Now(), ""
}

// node returns the NUMA node of a PCI device; -1 when it has none.
func (h *Host) node(pci string) int {
	n, err := strconv.Atoi(readWord(filepath.Join(h.Sys, "bus/pci/devices", pci, "numa_node")))
	if err != nil {
		return -1
	}
	return n
}

// note takes a GPU out of service for an XID error that says so, until the machine is booted again, and reports whether
// it did. Errors that say nothing against a GPU come as often as a pod's program makes them: one a minute is logged.
func (h *Host) note(e wire.Event) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	why := verdict(e.XID)
	if why == "" && time.Since(h.logged[e.UUID]) < logAgain {
		return false
	}
	h.Log.Warn("the driver reported a GPU error", "gpu", e.UUID, "xid", e.XID, "out_of_service", why != "")
	if why == "" {
		h.logged[e.UUID] = time.Now()
		return false
	}
	if e.UUID == "" && len(h.gpus) > 0 {
		h.Log.Error("the driver does not say of which GPU", "xid", e.XID)
		return true
	}
	if h.sick[e.UUID] == "" {
		h.sick[e.UUID] = why
	}
	return true
}

// readUse reads how busy the GPUs are while somebody wants to know.
func (h *Host) readUse(ctx context.Context, p *helper) error {
	h.mu.Lock()
	wanted := time.Since(h.useAsked) < useStale
	h.mu.Unlock()
	if !wanted {
		return nil
	}
	reply, err := p.ask(ctx, h.Answer, wire.Request{Ask: wire.AskUse})
	if err != nil {
		return err
	}
	use := make(map[string]fleet.GPUUse, len(reply.Use))
	for _, u := range reply.Use {
		use[u.UUID] = fleet.GPUUse{Util: u.Util, MemoryUtil: u.Memory}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.use, h.useAt, h.heard = use, time.Now(), time.Now()
	return nil
}

// Use returns the newest readings. It asks nobody: they are taken every two seconds while they are wanted.
func (h *Host) Use(_ context.Context, uuids []string) []fleet.GPUUse {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.useAsked = time.Now()
	out := make([]fleet.GPUUse, 0, len(uuids))
	for _, uuid := range uuids {
		u, ok := h.use[uuid]
		if !simulated(uuid) && (!ok || time.Since(h.useAt) >= useStale) {
			return nil
		}
		out = append(out, u)
	}
	return out
}

// offered returns the UUIDs that containers may be given, sorted.
func (h *Host) offered() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, g := range h.gpus {
		if !g.MIG && g.Sick != disappeared {
			out = append(out, g.UUID)
		}
	}
	slices.Sort(out)
	return out
}
