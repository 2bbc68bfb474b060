package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"gantry/agent/images"
	"gantry/agent/inventory"
	"gantry/agent/ledger"
	"gantry/agent/machine"
	"gantry/agent/metrics"
	"gantry/agent/models"
	"gantry/agent/overlay"
	"gantry/agent/podnet"
	"gantry/agent/recovery"
	"gantry/agent/session"
	"gantry/agent/sweep"
	"gantry/agent/volumes"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/netctl"
)

const (
	podMTU    = 1500
	hostsConf = "/etc/resolv.conf"
)

// joined is what an agent is that has joined a cluster.
type joined struct {
	id    fleet.HostID
	store *pki.Store
	where *session.Directory
}

// host is the machine as all rooms see it: its identity, its ledger, its network and what it has.
type host struct {
	Config
	joined
	book      *ledger.Ledger
	boot      string // the present run of the kernel since the host was cleaned
	machineID string
	hardware  string
	changed   session.Bell // what the scheduler is told of the host may be another
	metrics   *metrics.Metrics
	public    *published
	net       podnet.Network
	runtime   *inventory.Runtime
	images    *images.Keeper
	models    *models.Cache // nil: the host keeps none
	tables    *inventory.Tables
	has       *inventory.Host
}

// newHost finds out what the machine is and has, adopts what runs into a new ledger, and brings the host's network to what the ledger says,
// before any pod is looked at.
func newHost(ctx context.Context, c Config, j joined, book *ledger.Ledger) (*host, error) {
	h := &host{
		Config: c, joined: j, book: book, changed: session.NewBell(), metrics: metrics.New(), public: newPublished(c.Publish),
		tables: &inventory.Tables{},
	}
	book.WhenWritten(h.metrics.Written)
	if err := h.identify(); err != nil {
		return nil, err
	}
	if err := recovery.Adopt(ctx, book, c.Containers, h.boot, c.Log); err != nil {
		return nil, err
	}
	if c.Fabric != nil {
		if err := c.Fabric.Keep(h.known); err != nil {
			return nil, err
		}
	}
	var err error
	if h.models, err = openModels(ctx, h); err != nil {
		return nil, err
	}
	stock, err := readStock(c, book, h.models)
	if err != nil {
		return nil, err
	}
	if h.net, err = newNetwork(ctx, c, j, book, h.changed.Ring); err != nil {
		return nil, err
	}
	h.runtime = inventory.NewRuntime(c.Containers, h.metrics.Answered, c.Log)
	h.images = images.New(images.Config{
		Store: c.Images, Marks: c.ImageRoom, Records: book.Records, Archives: c.Archives, Import: c.Containers.Import, Metrics: h.metrics, Log: c.Log,
		Look: func(ctx context.Context) {
			if h.runtime.Look(ctx) {
				h.changed.Ring()
			}
		},
	})
	h.has = inventory.New(h.inventory(stock))
	return h, nil
}

// identify finds out what tells the machine, and the present run of its kernel, from others.
func (h *host) identify() (err error) {
	if h.machineID = h.MachineID; h.machineID == "" {
		if h.machineID, err = machine.ID(h.Dir); err != nil {
			return err
		}
	}
	boot := h.BootID
	if boot == "" {
		if boot, err = machine.BootID(); err != nil {
			return err
		}
	}
	if h.hardware = h.Hardware; h.hardware == "" {
		h.hardware = machine.Hardware()
	}
	// A host that was cleaned on purpose is, for its pods, a host that was rebooted.
	cleaned, err := recovery.Cleaned(h.Dir)
	h.boot = boot + "/" + cleaned
	return err
}

// openModels opens the host's cache of models. One that cannot be opened is an error.
func openModels(ctx context.Context, h *host) (*models.Cache, error) {
	if h.Models.Size == 0 {
		return nil, nil
	}
	return models.New(ctx, models.Config{
		Settings: h.Models, Dir: filepath.Join(h.Dir, "models"), Metrics: h.metrics, Changed: h.changed.Ring, Log: h.Log,
		InUse: func(id fleet.PodID) bool {
			rec, known := h.book.Record(id)
			return known && !rec.HasEnded()
		},
	})
}

// readStock reads what the host offers to pods.
func readStock(c Config, book *ledger.Ledger, cache *models.Cache) (fleet.Inventory, error) {
	data, err := sweep.HasData(c.Dir)
	if err != nil {
		return fleet.Inventory{}, err
	}
	var other machine.Disk
	if cache != nil {
		other = machine.Disk{Used: cache.Used(), Size: cache.Size}
	}
	stock, err := inventory.Read(c.Dir, c.Overcommit, c.GPUs, book, data, other)
	if c.Offer != (fleet.Resources{}) {
		stock.Total = c.Offer
	}
	return stock, err
}

// inventory is what the host's inventory is made from.
func (h *host) inventory(stock fleet.Inventory) inventory.Config {
	c := inventory.Config{
		Stock: stock, RuntimeClass: h.RuntimeClass, Version: h.Version, UserNS: h.IDBase != nil, Runtime: h.runtime,
		Published:   h.public.ports,
		Tunnel:      h.net.Overlays.Announce,
		Certificate: func() fleet.NodeCertificate { return agentrpc.OwnCertificate(h.store) },
		Conditions: []func() []fleet.Condition{
			h.net.Overlays.Conditions, func() []fleet.Condition { return h.images.Conditions(time.Now()) }, h.tables.Conditions,
		},
	}
	if h.models != nil {
		c.Models = h.models.Names
	}
	if h.Accelerators != nil {
		c.Found = h.Accelerators.Found
	}
	if h.Fabric != nil {
		c.Fabric = h.Fabric.Fabric
		c.Conditions = append(c.Conditions, h.Fabric.Conditions)
	}
	if h.Volumes != nil {
		c.Volumes = h.Volumes.Kinds
		c.Conditions = append(c.Conditions, func() []fleet.Condition { return volumes.Conditions(h.Volumes.Health()) })
	}
	if h.Conditions != nil {
		c.Conditions = append(c.Conditions, h.Conditions)
	}
	return c
}

// known reports whether the ledger knows a pod.
func (h *host) known(id fleet.PodID) bool {
	_, known := h.book.Record(id)
	return known
}

// newNetwork brings the host's network to what the ledger says.
func newNetwork(ctx context.Context, c Config, j joined, book *ledger.Ledger, changed func()) (podnet.Network, error) {
	subnet := book.Subnet()
	if !subnet.IsValid() {
		var err error
		if subnet, err = c.PickSubnet(ctx); err != nil {
			return podnet.Network{}, fmt.Errorf("choose a subnet: %w", err)
		}
		if err := book.SetSubnet(subnet); err != nil {
			return podnet.Network{}, err
		}
	}
	want := netctl.Config{Instance: c.Instance, Subnet: subnet, MTU: podMTU, Flows: c.PodConnections}
	p := c.Private
	overlays := overlay.New(overlay.Config{
		Host: j.id, Control: c.Network, Tunnel: p.Tunnel, Port: p.Port, NewNames: p.NewNames, Resolv: hostsConf, Find: p.Find, MTU: p.MTU,
		// What it was told of private networks, and the tunnel's private key.
		File: filepath.Join(c.Dir, "networks.bin"), KeyFile: filepath.Join(c.Dir, "wireguard.key"), KeyAge: p.KeyAge,
		Barred: j.where.Addresses(p.Resolve).All, Changed: changed, Sample: c.Metrics != "", Log: c.Log,
		Resolved: func(text string) { podnet.Resolve(podsDir(c.Dir), book.Records(), text, c.Log) },
	}, want)
	net := podnet.Network{Instance: c.Instance, Control: c.Network, Overlays: overlays}
	want.Public = c.Publish.At
	for _, a := range podnet.Attached(book.Records(), c.IDBase) {
		want = want.With(net.Pod(a.Pod, a.Link))
	}
	overlays.Begin(ctx)
	want = overlays.Complete(want)
	if err := c.Network.Set(ctx, want); err != nil {
		return podnet.Network{}, fmt.Errorf("set the host's network: %w", err)
	}
	overlays.Made(want)
	return net, nil
}

// podsDir is where the files of pods are that are mounted in their containers.
func podsDir(dir string) string { return filepath.Join(dir, "pods") }

// pinger opens what sends echoes from a pod's network.
func (h *host) pinger(id fleet.PodID) (p *overlay.Pinger, err error) {
	if h.Private.Within == nil {
		return nil, fleet.Unavailable("this host sends no echoes from pods", nil)
	}
	err = h.Private.Within(netctl.NamespaceName(h.Instance, string(id)), func() error {
		p, err = overlay.OpenPinger()
		return err
	})
	return p, err
}
