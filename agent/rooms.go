package agent

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"gantry/agent/dataconn"
	"gantry/agent/inventory"
	"gantry/agent/ledger"
	"gantry/agent/machine"
	"gantry/agent/metrics"
	"gantry/agent/orders"
	"gantry/agent/pod"
	"gantry/agent/podlog"
	"gantry/agent/recovery"
	"gantry/agent/reports"
	"gantry/agent/s3"
	"gantry/agent/session"
	"gantry/agent/storage"
	"gantry/agent/sweep"
	"gantry/agent/tunnels"
	"gantry/agent/usage"
	"gantry/agent/volumes"
	"gantry/agent/workers"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/netctl"
	"gantry/storage/volume"
)

const slotsPerCore = 2

// agent is a host with the rooms that work on it.
type agent struct {
	*host
	run      string // names this run of the agent
	heard    *atomic.Bool
	logs     *podlog.Logs
	reports  *reports.Reports
	pods     *pod.Pods
	sampler  *usage.Sampler
	sweeper  *sweep.Sweeper
	volumes  *volumes.Keeper
	tunnels  *tunnels.Tunnels
	data     *dataconn.Conns
	storage  *storage.Role
	s3       *s3.Broker    // nil: nothing answers gantry-s3
	workers  *workers.Gate // nil: the host runs no workers of endpoints
	orders   *orders.Orders
	sessions *session.Sessions
}

// newAgent makes a host's rooms and registers them for what comes down the session.
func newAgent(ctx context.Context, c Config, j joined, book *ledger.Ledger) (*agent, error) {
	h, err := newHost(ctx, c, j, book)
	if err != nil {
		return nil, err
	}
	news, hurry := session.NewBell(), session.NewBell()
	a := &agent{host: h, run: fleet.NewID() + fleet.NewID(), heard: &atomic.Bool{}}
	a.logs = podlog.New(filepath.Join(c.Dir, "logs"), h.known, c.Log)
	a.reports = reports.New(news.Ring, h.metrics.Reported)
	if c.ListenIn != nil {
		a.workers = workers.New(ctx, workers.Config{Dir: filepath.Join(c.Dir, sweep.Results), Listen: a.listenFor, Log: c.Log})
	}
	a.pods = pod.NewPods(ctx, a.podDeps())
	a.sampler = usage.New(a.sampled(hurry.Ring))
	a.sweeper = sweep.New(sweep.Config{
		Dir: c.Dir, Ledger: book, Containers: c.Containers, RemovePod: c.Network.RemovePod, Disks: c.Disks, KeepLost: c.KeepLost,
		Heard: a.heard.Load, Log: c.Log,
	})
	a.storage = storage.New(ctx, storage.Config{Does: c.Provisioner, File: storage.File(c.Dir), Count: h.metrics.Worked, Wake: news.Ring, Log: c.Log})
	a.volumes = &volumes.Keeper{Mounts: c.Volumes, Known: h.known, Swept: a.sweeper.Swept, Changed: a.volumesChanged, Log: c.Log}
	a.tunnels = tunnels.New(tunnels.Config{
		Ledger: book, Logs: a.logs, Inside: c.Inside, Program: c.Files, Overlays: h.net.Overlays, Pinger: h.pinger, Log: c.Log,
		Public: h.public.addresses, Dead: func(id fleet.BackendID) bool { return volumes.Dead(c.Volumes, id) },
	})
	a.data = dataconn.New(dataconn.Config{
		Known: j.where.Known, Store: j.store, Dial: c.Dial, Needed: func() bool { return len(book.Records()) > 0 }, Serve: a.tunnels.Serve, Log: c.Log,
	})
	if opener, ok := c.Volumes.(volumeOpener); ok && c.S3Socket != "" {
		a.s3 = s3.New(opener.Open, c.Log)
	}
	subnet := book.Subnet()
	a.orders = orders.New(orders.Config{
		Ledger: book, Pods: a.pods, Heard: a.heard, Log: c.Log,
		Allocate: func(used map[netip.Addr]bool) (netip.Addr, error) { return netctl.NextAddr(subnet, used) },
		Followed: func(lineage uint64) error { return recovery.NoteLineage(c.Dir, lineage) },
	})
	a.sessions, err = session.New(session.Config{
		Where: j.where, Dial: c.Dial, Store: j.store, Hello: a.hello, Inventory: h.has.Encoded, Changed: h.changed,
		Heartbeat: a.sampler.Heartbeat, Hurry: hurry, News: news, Metrics: h.metrics, Log: c.Log,
		Rooms: a.rooms(), //nolint:contextcheck // what a room works on may outlive the session that brought it
	})
	if err != nil {
		return nil, err
	}
	h.metrics.Show(a.view())
	return a, nil
}

// rooms are what takes part in sessions, each with the messages that it takes.
func (a *agent) rooms() []session.Room {
	hear := func(m *agentrpc.Down) *agentrpc.Up { // after a gap the answer asks for all of it
		if a.net.Overlays.Hear(m) {
			return &agentrpc.Up{Kind: &agentrpc.Up_Resync{Resync: &agentrpc.Resync{}}}
		}
		return nil
	}
	out := []session.Room{
		{Welcome: a.orders.Follow, Handlers: []session.Handler{session.On(a.orders.TakeFull), session.On(a.orders.TakeDifference)}},
		{
			Begin:    func(*grpc.ClientConn) func() { a.reports.Begin(a.known); return func() {} },
			Handlers: []session.Handler{session.On(a.reports.TakeKept)}, Next: a.reports.Next,
		},
		{
			Begin: func(*grpc.ClientConn) func() { a.net.Overlays.NewSession(); return func() {} },
			Handlers: []session.Handler{
				session.On(func(_ context.Context, m *agentrpc.Down_Network) (*agentrpc.Up, error) {
					return hear(&agentrpc.Down{Kind: m}), nil
				}),
				session.On(func(_ context.Context, m *agentrpc.Down_Peers) (*agentrpc.Up, error) {
					return hear(&agentrpc.Down{Kind: m}), nil
				}),
				session.On(func(_ context.Context, m *agentrpc.Down_Overlay) (*agentrpc.Up, error) {
					return hear(&agentrpc.Down{Kind: m}), nil
				}),
			},
		},
		{
			Begin:    func(*grpc.ClientConn) func() { return a.storage.Begin() },
			Handlers: []session.Handler{session.On(a.storage.Take)}, Next: a.storage.Next,
		},
		{Welcome: a.data.Welcome, Begin: a.tunnels.Begin, Handlers: []session.Handler{session.On(a.tunnels.Take), session.On(a.data.TakeGateways)}},
		{Handlers: []session.Handler{session.On(a.prefetch)}},
	}
	if a.s3 != nil {
		out = append(out, session.Room{Begin: a.s3.During})
	}
	if a.workers != nil {
		out = append(out, session.Room{Begin: a.workers.Begin})
	}
	return out
}

// prefetch takes what a scheduler expects pods of.
func (a *agent) prefetch(ctx context.Context, m *agentrpc.Down_Prefetch) (*agentrpc.Up, error) {
	if a.models != nil && len(m.Prefetch.GetModels()) > 0 {
		if up, err := a.models.Take(ctx, m); err != nil {
			return up, err
		}
	}
	if m.Prefetch.GetImage() == "" {
		return nil, nil
	}
	return a.images.Take(ctx, m)
}

// podDeps is what the pods' machines work with.
func (a *agent) podDeps() pod.Deps {
	deps := pod.Deps{
		Runtime: a.Containers, Network: a.net, Ledger: a.book, Reports: a.reports, Logs: a.logs, Dir: podsDir(a.Dir), Data: sweep.DataDir(a.Dir),
		Disks: a.Disks.Persistent, PublicIP: a.public.ip, Resolv: a.net.Overlays.ResolvConf, Boot: a.boot,
		Slots: make(chan struct{}, slotsPerCore*runtime.NumCPU()), Heard: a.heard, Log: a.Log, GPUName: a.has.GPUName, IDBase: a.IDBase,
		Imported: a.images.Imported(), GPUs: inventory.Pretended{GPUs: a.has.Stock.GPUs},
	}
	if a.Accelerators != nil {
		deps.GPUs = a.Accelerators
	}
	if a.Fabric != nil {
		deps.Fabric = a.Fabric
	}
	if a.models != nil {
		deps.Models = a.models
	}
	if a.workers != nil {
		deps.Gate = a.workers
	}
	if a.Volumes != nil {
		deps.Volumes = volumes.Timed(a.Volumes, a.metrics.Attached)
	}
	return deps
}

// listenFor listens where a worker asks for jobs.
func (a *agent) listenFor(id fleet.PodID) (net.Listener, error) {
	return a.ListenIn(netctl.NamespaceName(a.Instance, string(id)), fleet.WorkerGate)
}

// sampled is what is read of pods and host. What only metrics tell is read only when they are asked for.
func (a *agent) sampled(hurry func()) usage.Config {
	c := usage.Config{Runtime: a.Containers, Meter: a.Meter, Ledger: a.book, Activities: a.reports.Activities, Hurry: hurry}
	if a.Metrics != "" {
		c.Link = func(id fleet.PodID) string { return netctl.LinkName(a.Instance, string(id)) }
		c.Space = func() (machine.Disk, error) { return machine.ReadDisk(a.Dir) }
		c.All = func() (out []string) {
			for _, g := range a.has.GPUs() {
				out = append(out, g.UUID)
			}
			return out
		}
	}
	return c
}

// view is what metrics show of the host.
func (a *agent) view() metrics.View {
	v := metrics.View{
		Records: a.book.Records, Generation: a.book.Generation, Inventory: a.has.Inventory, Tables: a.tables, Usage: a.sampler.Snapshot,
		Networks: a.net.Overlays.Stats, Heard: a.sessions.LastHeard,
		Expiry: func() time.Time {
			if leaf, err := a.store.Leaf(); err == nil {
				return leaf.NotAfter
			}
			return time.Time{}
		},
	}
	if a.Volumes != nil {
		v.Backends = a.Volumes.Health
	}
	return v
}

// hello says who the host is, what it has and what its ledger holds.
func (a *agent) hello() *agentrpc.Hello {
	a.runtime.Ask()
	out := &agentrpc.Hello{MachineId: a.machineID, BootId: a.boot, Hardware: a.hardware, Run: a.run, Inventory: a.has.Encoded()}
	a.orders.Hello(out)
	return out
}

// volumesChanged is called when a backend of network volumes may answer again, or does not any more.
func (a *agent) volumesChanged() {
	a.pods.Poke()
	a.storage.Again()
	a.changed.Ring()
}

// volumeOpener opens the folder of a network volume.
type volumeOpener interface {
	Open(ctx context.Context, v volume.Volume) (*os.File, error)
}
