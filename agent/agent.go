package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"gantry/agent/containerfs"
	"gantry/agent/gpu"
	"gantry/agent/images"
	"gantry/agent/models"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/agent/recovery"
	"gantry/agent/session"
	"gantry/agent/storage"
	"gantry/agent/sweep"
	"gantry/agent/tunnels"
	"gantry/agent/volumes"
	"gantry/fleet"
	"gantry/internal/scrape"
	"gantry/netctl"
	"gantry/netctl/tunnel"
)

// Containers is the container runtime as the daemon needs it, beyond what the pods' machines do.
type Containers interface {
	pod.Runtime
	// Version tells daemon and runtime in words.
	Version(ctx context.Context) (string, error)
	// List returns the pods of which the runtime has anything.
	List(ctx context.Context) ([]fleet.PodID, error)
	// Images returns references that are on the host, at most 200.
	Images(ctx context.Context) ([]string, error)
	// Import loads an image archive.
	Import(ctx context.Context, archive io.Reader) ([]string, error)
	// Clean removes every container of this agent and what belongs to them, and with images also those.
	Clean(ctx context.Context, images bool) error
}

// Config is what an agent is made from.
type Config struct {
	Dir        string   // data folder, absolute
	Schedulers []string // host:port of their link ports; those that the agent learnt of are tried too
	Dial       session.Dialer
	Instance   string      // four hexadecimal digits that name the agent's kernel objects
	GPUs       []fleet.GPU // pretended ones
	Meter      gpu.Meter   // tells how busy the GPUs are; nil: nothing is told
	// Accelerators are the GPUs of the machine; nil: none are looked for.
	Accelerators Accelerators
	// Fabric are the RDMA devices of the machine, for members of clusters; nil: they get none.
	Fabric Fabric
	// Conditions tells what else an operator should know of the host; nil: nothing. It is asked often.
	Conditions   func() []fleet.Condition
	RuntimeClass string // see fleet.Inventory
	// IDBase is that of pod.Deps.
	IDBase  func(addr netip.Addr) uint32
	Disks   sweep.Disks    // of pods; zero: plain folders
	Volumes volumes.Mounts // nil: the host can mount none
	// Provisioner makes network volumes when the scheduler asks the host to; nil: it makes none.
	Provisioner storage.Provisioner
	S3Socket    string       // where gantry-s3 of this host asks, in a folder of its own; empty, or without Volumes: nowhere
	Images      images.Store // looks after images without a pod that asks; nil: nobody does
	ImageRoom   images.Marks // when images are removed that nobody needs
	// Metrics is where Prometheus may ask, host:port on loopback, or anywhere with MetricsTLS; empty: nowhere.
	Metrics string
	// Models says what models of hubs the host keeps; zero: none.
	Models models.Settings
	// MetricsTLS reads what shows who may ask there; nil: anybody, in the clear.
	MetricsTLS func() (scrape.Material, error)
	Publish    Publish
	// FindPublish is asked again and again while Publish has ports and no address, such as on a machine
	// whose network comes up late; nil: never. The answer may have no address either.
	FindPublish func() (Publish, error)
	// KeepLost is how long persistent data is kept of pods that no scheduler lists any more; zero: 7 days.
	KeepLost time.Duration
	// PodConnections is Flows of netctl.Config.
	PodConnections int
	Overcommit     int // 1 in production; see inventory
	// Offer is what pods may use of the host, BootID names the present run of its kernel, MachineID its
	// system, and Hardware its main board. They are read from the machine when they are zero, as in production.
	Offer      fleet.Resources
	BootID     string
	MachineID  string
	Hardware   string
	Archives   []string
	Version    string
	Containers Containers
	Inside     tunnels.Inside       // what commands and files in pods go through; nil: they are refused
	Files      *containerfs.Program // what reads and writes files in pods; nil: this process
	Network    netctl.Controller
	// ListenIn listens in a named network namespace, where a worker of a serverless endpoint asks for jobs (fleet.WorkerGate); nil: the
	// host runs no such workers.
	ListenIn   func(namespace, address string) (net.Listener, error)
	PickSubnet func(ctx context.Context) (netip.Prefix, error)
	Private    Private
	Ready      func() // called once, when the first session stands or the pods of before are looked after
	// Watch is called once, after Ready, with what tells whether the agent itself moves; that may block. What Watch returns ends
	// the asking. nil: nobody asks.
	Watch func(moves func() bool) (stop func())
	Log   *slog.Logger
}

// Accelerators are the GPUs of the machine, as the daemon needs them. Implementations are safe for concurrent use.
type Accelerators interface {
	pod.GPUs
	gpu.Meter
	// Found is what is known of them now.
	Found() gpu.Found
	// Changed receives when Found has become another.
	Changed() <-chan struct{}
}

// Fabric are the RDMA devices of the machine, as the daemon needs them. Implementations are safe for concurrent use.
type Fabric interface {
	pod.Fabric
	// Fabric is what members of clusters can have of them now.
	Fabric() fleet.Fabric
	// Conditions tells why they get none.
	Conditions() []fleet.Condition
	// Keep forgets what pods had that are not known any more.
	Keep(known func(fleet.PodID) bool) error
}

// Publish says where tcp ports of pods can be reached. The zero value publishes none.
type Publish struct {
	IP       netip.Addr   // what pods and their owners are told; zero: the host has no such address yet
	At       []netip.Addr // the host's own addresses that it leads to, sorted; IP among them unless it is translated on the way
	From, To int          // ports, both included
}

// Private says how a host takes part in private networks.
type Private struct {
	Tunnel tunnel.Tunnel // to other hosts; nil: there is none
	Port   uint16        // of WireGuard; 0: that of the operator's settings
	// NewNames begins to answer the names that pods ask the gateway for; nil: nobody does.
	NewNames func(gateway netip.Addr) (overlay.Names, error)
	// Find is that of overlay.Config.
	Find   func(ctx context.Context, port uint16) (endpoint netip.AddrPort, plain netip.Addr, err error)
	KeyAge time.Duration // after which the tunnel has another key; 0: never
	// Resolve finds the addresses of a scheduler that is known by its name; nil: the host's resolver does.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// MTU is that of overlay.Config.
	MTU func(addr netip.Addr) int
	// Within runs a function in a named network namespace; nil: pods are not asked to reach each other.
	Within func(namespace string, f func() error) error
}

const (
	tunnelsEnd  = 15 * time.Second
	repairEvery = 30 * time.Second
	lookEvery   = 10 * time.Second // the host looks whether it has become another: its images, its conditions
)

// Run is the agent's life. It returns when ctx ends, or with what makes going on impossible. Pods'
// containers live on.
func Run(ctx context.Context, c Config) error {
	store, err := session.OpenStore(c.Dir)
	if err != nil {
		return err
	}
	identity, err := store.Identity()
	if err != nil {
		return fmt.Errorf("this host has not joined a cluster: %w", err)
	}
	where, err := session.OpenDirectory(c.Dir, c.Schedulers)
	if err != nil {
		return err
	}
	book, err := recovery.Open(c.Dir, c.Log)
	if err != nil {
		return err
	}
	defer func() { _ = book.Close() }()
	c.Log = c.Log.With("host", identity.ID)
	a, err := newAgent(ctx, c, joined{fleet.HostID(identity.ID), store, where}, book)
	if err != nil && ctx.Err() != nil {
		return nil // it was told to end while it began
	}
	if err != nil {
		return err
	}
	defer a.close()
	c.Ready()
	if c.Watch != nil {
		defer c.Watch(a.moves)()
	}
	a.live(ctx)
	return nil
}

// live looks after the pods of before, then talks to schedulers until ctx ends.
func (a *agent) live(ctx context.Context) {
	var wg sync.WaitGroup
	a.lookAfter(ctx, &wg)
	a.sessions.Run(ctx)
	if !a.tunnels.Wait(tunnelsEnd) { // the next agent ends what they leave
		a.Log.Warn("tunnels into pods were not closed")
	}
	wg.Wait()
	a.storage.Wait()
	defer func() {
		if a.workers != nil {
			a.workers.Wait()
		}
		if a.models != nil {
			a.models.Wait()
		}
	}()
	a.pods.Wait()
}

// lookAfter begins to look after pods and host, until ctx ends.
func (a *agent) lookAfter(ctx context.Context, wg *sync.WaitGroup) {
	for _, rec := range a.book.Records() {
		a.pods.Set(rec.Assignment)
	}
	for _, run := range []func(context.Context){
		a.sampler.Run, a.sampler.HurryWhilePulling, a.sweeper.Run, a.storage.Restore, a.keepNetwork, a.net.Overlays.Run,
		a.watchHost, a.images.Run, a.data.Run,
	} {
		wg.Go(func() { run(ctx) })
	}
	wg.Go(func() {
		a.public.find(ctx, a.FindPublish, a.Network, a.Log, func() { a.changed.Ring(); a.pods.Poke() })
	})
	wg.Go(func() {
		tunnels.SweepExecs(ctx, a.Inside, func(err error) { a.Log.Warn("kill leftover commands in pods", "err", err) })
	})
	if a.Volumes != nil {
		wg.Go(func() { a.volumes.Run(ctx) })
	}
	if a.s3 != nil {
		wg.Go(func() { a.s3.Serve(ctx, a.S3Socket) })
	}
	if a.Metrics != "" {
		server := a.metrics.Server(a.Metrics, a.MetricsTLS, func() time.Time { return a.sampler.Snapshot().At }, a.Log)
		wg.Go(func() { server.Run(ctx) })
	}
}

// keepNetwork puts back what other programs take away of the host's network: a flushed ruleset would
// leave pods unconfined.
func (a *agent) keepNetwork(ctx context.Context) {
	tick := time.NewTicker(repairEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := a.Network.Repair(ctx); err != nil && ctx.Err() == nil {
			a.Log.Error("repair the host's network", "err", err)
		}
	}
}

// watchHost tells the scheduler of what changes of the host while a session stands.
func (a *agent) watchHost(ctx context.Context) {
	var gpus <-chan struct{}
	if a.Accelerators != nil {
		gpus = a.Accelerators.Changed()
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-gpus:
			a.pods.Poke() // a GPU may be free, or healthy, again
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		a.changed.Ring()
	}
}

// moves tells whether the agent itself gets on. It blocks while a write of the ledger hangs.
func (a *agent) moves() bool {
	a.book.Generation()
	return a.sessions.Moves()
}

func (a *agent) close() {
	if err := a.logs.Close(); err != nil {
		a.Log.Warn("close the pods' logs", "err", err)
	}
}
