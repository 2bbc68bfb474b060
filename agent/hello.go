package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"gantry/agent/pod"
	"gantry/agent/volumes"
	"gantry/fleet"
	"gantry/internal/link"
)

const (
	runtimeTimeout = 5 * time.Second        // of the first look at the container runtime
	runtimeAgain   = 500 * time.Millisecond // of later ones: a lost session must not wait for it
)

// hello says who the host is, what it has and what its ledger holds.
func (d *daemon) hello() *link.Hello {
	d.askRuntime()
	out := &link.Hello{MachineId: d.MachineID, BootId: d.boot, Hardware: d.Hardware, Run: d.run, Inventory: encodeInventory(d.inventory())}
	d.orders.Hello(out)
	return out
}

// inventory is what the host has now.
func (d *daemon) inventory() fleet.Inventory {
	inv, public := d.stock, d.public.Load()
	if public.IP.IsValid() {
		inv.PublicIP, inv.PortFrom, inv.PortTo = public.IP.String(), public.From, public.To
	}
	if d.Accelerators != nil {
		found := d.Accelerators.Found()
		inv.GPUs, inv.CUDA, inv.Driver = slices.Concat(inv.GPUs, found.GPUs), found.CUDA, found.Driver
		inv.Notices = append(inv.Notices, found.Notices...)
	}
	if d.Volumes != nil {
		inv.Volumes = d.Volumes.Kinds()
		inv.Notices = append(inv.Notices, volumes.Notices(d.Volumes.Health())...)
	}
	inv.Tunnel = d.overlays.Announce()
	inv.Notices = append(inv.Notices, d.overlays.Notices()...)
	if d.keeper != nil {
		inv.Notices = append(inv.Notices, d.keeper.notices(time.Now())...)
	}
	inv.Notices = append(inv.Notices, d.tables.notices()...)
	if d.Notices != nil {
		inv.Notices = append(inv.Notices, d.Notices()...)
	}
	inv.RuntimeClass, inv.AgentVersion = d.RuntimeClass, d.Version
	if d.store != nil {
		inv.Certificate = link.OwnCertificate(d.store)
	}
	d.saidMu.Lock()
	defer d.saidMu.Unlock()
	inv.Runtime, inv.Images = d.runtime, d.images
	inv.Notices = append(inv.Notices, isolationNotices(d.proven, inv.RuntimeClass, d.IDBase != nil)...)
	if d.unfit != "" {
		inv.Notices = append(inv.Notices, fleet.Notice{Code: "runtime_unfit", Text: d.unfit, Severe: true})
	}
	slices.SortFunc(inv.Notices, func(a, b fleet.Notice) int { return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Text, b.Text)) })
	return inv
}

func encodeInventory(inv fleet.Inventory) *link.Inventory {
	out := &link.Inventory{
		Total: link.EncodeResources(inv.Total),
		Cuda:  inv.CUDA, Driver: inv.Driver, Kernel: inv.Kernel, Runtime: inv.Runtime, AgentVersion: inv.AgentVersion, Images: inv.Images,
		PublicIp: inv.PublicIP, PortFrom: int32(inv.PortFrom), PortTo: int32(inv.PortTo), //nolint:gosec // 16 bits
		RuntimeClass: inv.RuntimeClass, Tunnel: encodeTunnel(inv.Tunnel),
		Certificate: link.EncodeCertificate(inv.Certificate),
	}
	for _, kind := range inv.Volumes {
		out.Volumes = append(out.Volumes, string(kind))
	}
	for _, g := range inv.GPUs {
		out.Gpus = append(out.Gpus, &link.GPU{
			Uuid: g.UUID, Type: g.Type, MemoryMb: g.MemoryMB, Numa: int32(g.NUMA), Island: int32(g.Island), //nolint:gosec // small
			Simulated: g.Simulated, Sick: g.Sick, Pci: g.PCI, Parent: g.Parent,
		})
	}
	for _, n := range inv.Notices {
		out.Notices = append(out.Notices, &link.Notice{Code: n.Code, Text: n.Text, Severe: n.Severe})
	}
	return link.Seal(out)
}

// askRuntime asks the container runtime for what the hello tells of it. When it is slow, what it said before
// stands.
func (d *daemon) askRuntime() {
	limit := runtimeTimeout
	if d.asked {
		limit = runtimeAgain
	}
	d.asked = true
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	version, err := d.Containers.Version(ctx)
	d.metrics.answered(err)
	images, ierr := d.Containers.Images(ctx)
	d.saidMu.Lock()
	defer d.saidMu.Unlock()
	d.judge(version, err)
	switch {
	case err == nil:
		d.runtime = version
	case d.runtime == "" || !errors.Is(err, context.DeadlineExceeded):
		d.runtime = "not reachable"
	}
	if ierr != nil {
		d.Log.Debug("list images", "err", ierr)
		return
	}
	d.images = images
}

// judge keeps what isolation is judged by: the last version that the runtime told, also while it is away. The caller
// holds saidMu.
func (d *daemon) judge(version string, err error) {
	var e *pod.Error
	switch {
	case err == nil:
		d.proven, d.unfit = version, ""
	case errors.As(err, &e) && e.Class == pod.Fatal:
		d.unfit = e.Sentence
	}
}
