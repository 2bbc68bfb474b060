package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"gantry/agent/gpu"
	"gantry/agent/inside"
	"gantry/agent/ledger"
	"gantry/agent/machine"
	"gantry/agent/orders"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/agent/podlog"
	"gantry/agent/reports"
	"gantry/agent/s3"
	"gantry/agent/session"
	"gantry/agent/storage"
	"gantry/agent/tunnels"
	"gantry/agent/volumes"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
	"gantry/internal/scrape"
	"gantry/netctl"
	"gantry/storage/volume"
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
	// Notices tells what else an operator should know of the host; nil: nothing. It is asked often.
	Notices      func() []fleet.Notice
	RuntimeClass string // see fleet.Inventory
	// IDBase is that of pod.Deps.
	IDBase  func(addr netip.Addr) uint32
	Disks   Disks          // of pods; zero: plain folders
	Volumes volumes.Mounts // nil: the host can mount none
	// Provisioner makes network volumes when the scheduler asks the host to; nil: it makes none.
	Provisioner storage.Provisioner
	S3Socket    string    // where gantry-s3 of this host asks, in a folder of its own; empty, or without Volumes: nowhere
	Images      Images    // looks after images without a pod that asks; nil: nobody does
	ImageRoom   ImageRoom // when images are removed that nobody needs
	// Metrics is where Prometheus may ask, host:port on loopback, or anywhere with MetricsTLS; empty: nowhere.
	Metrics string
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
	Inside     tunnels.Inside  // what commands and files in pods go through; nil: they are refused
	Files      *inside.Program // what reads and writes files in pods; nil: this process
	Network    netctl.Controller
	PickSubnet func(ctx context.Context) (netip.Prefix, error)
	Private    Private
	Ready      func() // called once, when the first session stands or the pods of before are looked after
	// Watch is called once, after Ready, with what tells whether the agent itself moves; that may block. What Watch returns ends
	// the asking. nil: nobody asks.
	Watch func(moves func() bool) (stop func())
	Log   *slog.Logger

	host  fleet.HostID
	where *session.Directory
	store *pki.Store
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

// Publish says where tcp ports of pods can be reached. The zero value publishes none.
type Publish struct {
	IP       netip.Addr   // what pods and their owners are told; zero: the host has no such address yet
	At       []netip.Addr // the host's own addresses that it leads to, sorted; IP among them unless it is translated on the way
	From, To int          // ports, both included
}

const (
	podMTU        = 1500
	importTimeout = 10 * time.Minute
	tunnelsEnd    = 15 * time.Second
	slotsPerCore  = 2
	repairEvery   = 30 * time.Second
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
	book, err := openLedger(c.Dir, c.Log)
	if err != nil {
		return err
	}
	defer func() { _ = book.Close() }()
	c.Log = c.Log.With("host", identity.ID)
	c.host, c.where, c.store = fleet.HostID(identity.ID), where, store
	d, err := newDaemon(ctx, c, book)
	if err != nil && ctx.Err() != nil {
		return nil // it was told to end while it began
	}
	if err != nil {
		return err
	}
	defer d.close()
	c.Ready()
	if c.Watch != nil {
		defer c.Watch(d.moves)()
	}
	d.live(ctx)
	return nil
}

// daemon is a running agent's parts.
type daemon struct {
	Config
	book     *ledger.Ledger
	boot     string
	run      string // names this run of the agent
	heard    atomic.Bool
	logs     *podlog.Logs
	pods     *pod.Pods
	sessions *session.Sessions
	orders   *orders.Orders
	reports  *reports.Reports
	sampler  *sampler
	tunnels  *tunnels.Tunnels
	storage  *storage.Role
	s3       *s3.Broker // nil: nothing answers gantry-s3
	stock    fleet.Inventory
	public   atomic.Pointer[Publish] // in force; its address is zero while there is none
	lines    *lines
	metrics  *metrics
	keeper   *imageKeeper
	imported chan struct{} // closed when the archives are loaded; nil: there are none
	overlays *overlay.Keeper
	changed  session.Bell // what the scheduler is told of the host may be another
	tables   tableWatch

	sweptOnce atomic.Bool // containers that the ledger does not know are gone

	asked bool // of the sessions' goroutine alone

	saidMu  sync.Mutex // guards what the container runtime said last
	runtime string     // its version
	proven  string     // the last version that it told
	unfit   string     // why no pod should run with it; empty: nothing is known
	images  []string
}

func newDaemon(ctx context.Context, c Config, book *ledger.Ledger) (*daemon, error) {
	d := &daemon{Config: c, book: book, lines: newLines(c.Dial), run: fleet.NewID() + fleet.NewID(), changed: session.NewBell()}
	d.logs = podlog.New(filepath.Join(c.Dir, "logs"), d.known, c.Log)
	if len(c.Archives) > 0 {
		d.imported = make(chan struct{})
	}
	d.public.Store(&c.Publish)
	var err error
	if d.MachineID == "" {
		if d.MachineID, err = machine.ID(c.Dir); err != nil {
			return nil, err
		}
	}
	boot := c.BootID
	if boot == "" {
		if boot, err = machine.BootID(); err != nil {
			return nil, err
		}
	}
	if d.Hardware == "" {
		d.Hardware = machine.Hardware()
	}
	// A host that was cleaned on purpose is, for its pods, a host that was rebooted.
	cleaned, err := readCleaned(c.Dir)
	if err != nil {
		return nil, err
	}
	d.boot = boot + "/" + cleaned
	if err := d.adopt(ctx); err != nil {
		return nil, err
	}
	if d.stock, err = inventory(c.Dir, c.Overcommit, c.GPUs, book); err != nil {
		return nil, err
	}
	if c.Offer != (fleet.Resources{}) {
		d.stock.Total = c.Offer
	}
	if err := d.network(ctx); err != nil {
		return nil, err
	}
	d.keeper = newImageKeeper(&d.Config, book.Records)
	d.metrics = newMetrics()
	news := session.NewBell()
	d.reports = reports.New(news.Ring, d.metrics.reported)
	d.keeper.metrics = d.metrics
	d.pods = pod.NewPods(ctx, pod.Deps{
		Runtime: c.Containers, Network: podNetwork{c.Instance, c.Network, d.overlays}, Ledger: book, Reports: d.reports, Logs: d.logs,
		Dir: filepath.Join(c.Dir, "pods"), Data: dataDir(c.Dir), Disks: c.Disks.Persistent, PublicIP: d.publicIP, Resolv: d.overlays.ResolvConf, Boot: d.boot,
		Slots: make(chan struct{}, slotsPerCore*runtime.NumCPU()), Heard: &d.heard, Log: c.Log,
		GPUName: func(uuid string) string { return d.gpuName(uuid) }, GPUs: d.podGPUs(), IDBase: c.IDBase, Volumes: d.podVolumes(), Imported: d.imported,
	})
	d.sampler = newSampler(c.Containers, c.Meter, book, d.reports)
	d.tunnels = tunnels.New(tunnels.Config{
		Ledger: book, Logs: d.logs, Inside: c.Inside, Program: c.Files, Overlays: d.overlays, Pinger: d.pinger, Log: c.Log,
		Public: func() []netip.Addr { return d.public.Load().At },
		Dead:   func(id fleet.BackendID) bool { return volumes.Dead(c.Volumes, id) },
	})
	d.storage = storage.New(ctx, storage.Config{Does: c.Provisioner, File: storage.File(c.Dir), Count: d.metrics.worked, Wake: news.Ring, Log: c.Log})
	if opener, ok := c.Volumes.(volumeOpener); ok && c.S3Socket != "" {
		d.s3 = s3.New(opener.Open, c.Log)
	}
	subnet := book.Subnet()
	d.orders = orders.New(orders.Config{
		Ledger: book, Pods: d.pods, Heard: &d.heard, Log: c.Log,
		Allocate: func(used map[netip.Addr]bool) (netip.Addr, error) { return netctl.NextAddr(subnet, used) },
		Followed: func(lineage uint64) error { return noteLineage(c.Dir, lineage) },
	})
	d.sessions, err = session.New(session.Config{
		Where: c.where, Dial: d.lines.dial, Store: c.store, Hello: d.hello, Changed: d.changed, Heartbeat: d.sampler.heartbeat, Hurry: d.sampler.hurry,
		Inventory: func() *link.Inventory { return encodeInventory(d.inventory()) },
		News:      news, Metrics: d.metrics, Log: c.Log,
		Rooms: d.rooms(), //nolint:contextcheck // what a room works on may outlive the session that brought it
	})
	d.measure()
	return d, err
}

// rooms are what takes part in sessions, each with the messages that it takes.
func (d *daemon) rooms() []session.Room {
	out := []session.Room{
		{Welcome: d.orders.Follow, Handlers: []session.Handler{session.On(d.orders.TakeFull), session.On(d.orders.TakeDifference)}},
		{
			Begin:    func(*grpc.ClientConn) func() { d.reports.Begin(d.known); return func() {} },
			Handlers: []session.Handler{session.On(d.reports.TakeKept)}, Next: d.reports.Next,
		},
		{
			Begin: func(*grpc.ClientConn) func() { d.overlays.NewSession(); return func() {} },
			Handlers: []session.Handler{
				session.On(func(_ context.Context, m *link.Down_Network) (*link.Up, error) { return d.hear(&link.Down{Kind: m}) }),
				session.On(func(_ context.Context, m *link.Down_Peers) (*link.Up, error) { return d.hear(&link.Down{Kind: m}) }),
				session.On(func(_ context.Context, m *link.Down_Overlay) (*link.Up, error) { return d.hear(&link.Down{Kind: m}) }),
			},
		},
		{
			Begin:    func(*grpc.ClientConn) func() { return d.storage.Begin() },
			Handlers: []session.Handler{session.On(d.storage.Take)}, Next: d.storage.Next,
		},
		{Begin: d.tunnels.Begin, Handlers: []session.Handler{session.On(d.tunnels.Take)}},
		{Handlers: []session.Handler{session.On(d.keeper.takePrefetch)}},
	}
	if d.s3 != nil {
		out = append(out, session.Room{Begin: d.s3.During})
	}
	return out
}

// hear hands what a scheduler says of private networks on. After a gap the answer asks for all of it.
func (d *daemon) hear(m *link.Down) (*link.Up, error) {
	if d.overlays.Hear(m) {
		return &link.Up{Kind: &link.Up_Resync{Resync: &link.Resync{}}}, nil
	}
	return nil, nil
}

// network brings the host's network to what the ledger says, before any pod is looked at.
func (d *daemon) network(ctx context.Context) error {
	subnet := d.book.Subnet()
	if !subnet.IsValid() {
		var err error
		if subnet, err = d.PickSubnet(ctx); err != nil {
			return fmt.Errorf("choose a subnet: %w", err)
		}
		if err := d.book.SetSubnet(subnet); err != nil {
			return err
		}
	}
	want := netctl.Config{Instance: d.Instance, Subnet: subnet, MTU: podMTU, Flows: d.PodConnections}
	d.overlays = d.newOverlays(want)
	pods := podNetwork{d.Instance, d.Network, d.overlays}
	want.Public = d.Publish.At
	for _, a := range d.attached() {
		want = want.With(pods.pod(a.pod, a.link))
	}
	d.overlays.Begin(ctx)
	want = d.overlays.Complete(want)
	if err := d.Network.Set(ctx, want); err != nil {
		return fmt.Errorf("set the host's network: %w", err)
	}
	d.overlays.Made(want)
	return nil
}

// attachment is how a pod of the ledger is connected.
type attachment struct {
	pod  fleet.PodID
	link pod.Link
	runs bool
}

// attached are the pods of the ledger that have a network: what may run keeps its own, also while it is being stopped. Of two
// pods with one public port, the later order has it.
func (d *daemon) attached() (out []attachment) {
	records := d.book.Records()
	slices.SortFunc(records, func(a, b pod.Record) int { return cmp.Compare(a.Assignment.Generation, b.Assignment.Generation) })
	for _, rec := range records {
		a := rec.Assignment
		ended := rec.Ended != nil && rec.Ended.Incarnation >= a.Incarnation
		if rec.Addr.IsValid() && !ended && (a.Goal == fleet.GoalRun || rec.Begun == a.Incarnation) {
			link := a.LinkAt(rec.Addr, d.IDBase)
			held, runs := rec.Holds()
			if runs {
				link.Overlays = held.Overlays
			}
			if runs && a.Goal != fleet.GoalRun {
				link.Ports = held.Mappings // an order to stop names none
			}
			out = append(out, attachment{a.Pod, link, runs})
		}
	}
	sharePlaces(out)
	return out
}

// live looks after the pods of before, then talks to schedulers until ctx ends.
func (d *daemon) live(ctx context.Context) {
	var wg sync.WaitGroup
	d.lookAfter(ctx, &wg)
	d.sessions.Run(ctx)
	if !d.tunnels.Wait(tunnelsEnd) { // the next agent ends what they leave
		d.Log.Warn("tunnels into pods were not closed")
	}
	wg.Wait()
	d.storage.Wait()
	d.pods.Wait()
}

// lookAfter begins to look after pods and host, until ctx ends.
func (d *daemon) lookAfter(ctx context.Context, wg *sync.WaitGroup) {
	for _, rec := range d.book.Records() {
		d.pods.Set(rec.Assignment)
	}
	wg.Go(func() { d.sampler.run(ctx) })
	wg.Go(func() { d.sampler.hurryWhilePulling(ctx) })
	wg.Go(func() { d.sweep(ctx) })
	wg.Go(func() { d.keepVolumes(ctx) })
	if broker := d.s3; broker != nil {
		wg.Go(func() { broker.Serve(ctx, d.S3Socket) })
	}
	wg.Go(func() { d.storage.Restore(ctx) })
	wg.Go(func() { d.keepNetwork(ctx) })
	wg.Go(func() { d.overlays.Run(ctx) })
	wg.Go(func() { d.findPublic(ctx) })
	wg.Go(func() { d.watchHost(ctx) })
	wg.Go(func() { d.serveMetrics(ctx) })
	wg.Go(func() { d.watchImages(ctx) })
	wg.Go(func() {
		tunnels.SweepExecs(ctx, d.Inside, func(err error) { d.Log.Warn("kill leftover commands in pods", "err", err) })
	})
}

// keepNetwork puts back what other programs take away of the host's network: a flushed ruleset would
// leave pods unconfined.
func (d *daemon) keepNetwork(ctx context.Context) {
	tick := time.NewTicker(repairEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := d.Network.Repair(ctx); err != nil && ctx.Err() == nil {
			d.Log.Error("repair the host's network", "err", err)
		}
	}
}

// known reports whether the ledger knows a pod.
func (d *daemon) known(id fleet.PodID) bool {
	_, known := d.book.Record(id)
	return known
}

// volumeOpener opens the folder of a network volume.
type volumeOpener interface {
	Open(ctx context.Context, v volume.Volume) (*os.File, error)
}

// podVolumes is what the pods' machines are given.
func (d *daemon) podVolumes() pod.Volumes {
	if d.Volumes == nil {
		return nil
	}
	return volumes.Timed(d.Volumes, func(took time.Duration) { d.metrics.attachments.Observe(took.Seconds()) })
}

// keepVolumes looks after what is mounted until ctx ends.
func (d *daemon) keepVolumes(ctx context.Context) {
	if d.Volumes == nil {
		return
	}
	(&volumes.Keeper{
		Mounts: d.Volumes, Known: d.known, Swept: d.sweptOnce.Load, Log: d.Log,
		Changed: func() { // a backend may answer again
			d.pods.Poke()
			d.storage.Again()
			d.stir()
		},
	}).Run(ctx)
}

// stir has the session look whether the host has become another.
func (d *daemon) stir() {
	d.changed.Ring()
}

func (d *daemon) close() {
	if err := d.logs.Close(); err != nil {
		d.Log.Warn("close the pods' logs", "err", err)
	}
}

// importArchives loads the image archives that the operator named, while pods are looked after. One that cannot be
// loaded is named in the log; the agent goes on.
func (d *daemon) importArchives(ctx context.Context) {
	if d.imported == nil {
		return
	}
	defer close(d.imported)
	for _, path := range d.Archives {
		names, err := importArchive(ctx, d.Containers, path)
		if err != nil {
			d.Log.Error("image archive was not loaded", "file", path, "err", err)
			continue
		}
		d.Log.Info("image archive loaded", "file", path, "images", names)
	}
}

func importArchive(ctx context.Context, rt Containers, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	return rt.Import(ctx, f)
}
