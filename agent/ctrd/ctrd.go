// Package ctrd runs pods under containerd: it implements pod.Runtime for daemons 1.6, 1.7 and 2.x.
//
// One Runtime owns one containerd namespace and everything in it. A container's id is its pod's id.
// The OCI spec is built here alone: an image contributes entrypoint, command, environment, working
// directory and user, and nothing that it says can widen what the container may do. The package
// never decides what a pod should do next, never restarts anything, never stores anything of its own,
// and never reports an exit that containerd has not confirmed.
//
// A container's root is mounted here and not by the daemon: an overlay of the image's folders, which a
// view in the daemon keeps, below a disk of the container's own. So its ids can be those of the pod's
// user namespace with every daemon, and without a change to the image's files: each folder is mounted
// with other ids for the overlay (mount_setattr(2), kernel 5.19 and later), as are volumes.
//
// What is durable when: a container when Define returned, an image when Pull or Import returned; both
// are in containerd's own database. Mounts and disks last until Remove or a reboot. Running processes
// belong to containerd's shims, and outlive this process and the daemon.
package ctrd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"

	"gantry/agent/logs"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/outbound"
)

// Config says which daemon to use and how. Socket, Namespace and LoggerPath must be set.
type Config struct {
	Socket     string             // path of containerd's socket
	Namespace  string             // containerd namespace that is this agent's alone
	LoggerPath string             // absolute path of gantry-logger
	Logs       logs.WriterOptions // bounds of each container's log

	// RootDir holds the containers' roots: default is /var/lib/gantry/roots and below it the namespace.
	RootDir string
	// RunDir holds what is of the boot alone: user namespaces, and folders with other ids. Default is /run
	// and below it the namespace. It should be short.
	RunDir string
	Disks  Disks // for what containers change of their files; nil: folders below RootDir, without limit
	// RuntimeClass isolates every container of the host by other means than runc, "gvisor" or "kata":
	// containers have no user namespace then. Their programs are not part of this one's tests.
	RuntimeClass string

	// DiskRate and DiskOps are the bytes and the requests that a pod may read, and write, of each disk of the host in a second;
	// 0: no limit. A kernel that cannot limit them is warned of.
	DiskRate, DiskOps int64

	CgroupRoot    string        // name of the top control group, default "gantry"
	Snapshotter   string        // default "overlayfs"
	RuncBinary    string        // default "runc", found by the daemon's PATH
	RuncRoot      string        // folder of runc's state; empty for the daemon's default
	MaxImageBytes int64         // compressed size of an image at most, default 200 GB
	PullStall     time.Duration // a download without a byte for so long is given up, default 1 minute
	// PullPace is the time over which a download must have brought 10 kB a second on average, default 1
	// minute. Only time that was spent waiting for the registry counts.
	PullPace time.Duration
	// AllowLoopbackRegistries lets pods name registries on the host's loopback, which are asked over
	// plain HTTP. For development: every service that listens there can be asked.
	AllowLoopbackRegistries bool
	// RegistryAllow are the ranges of private addresses in which registries may be, all others are public; RegistryDeny
	// are ranges in which none is, whatever is allowed.
	RegistryAllow, RegistryDeny []netip.Prefix
	// Schedulers returns the control plane's machines as HOST:PORT: none of them is a registry, but on loopback. nil: none
	// is known. It may be called at any time.
	Schedulers func() []string
	// Bridge is the name of the pods' bridge: nothing in its subnets is a registry. Empty: there is none.
	Bridge string

	Log *slog.Logger
}

const (
	runtimeName      = "io.containerd.runc.v2"
	defaultRoots     = "/var/lib/gantry/roots"
	defaultRun       = "/run"
	defaultMaxImage  = 200_000_000_000
	defaultPullStall = time.Minute
	defaultPullPace  = time.Minute
	maxKnownImages   = 256
)

var (
	validNamespace  = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*$`)
	validCgroupRoot = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)
)

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.Socket) || !filepath.IsAbs(c.LoggerPath) {
		return c, errors.New("containerd socket and logger: must be absolute paths")
	}
	if len(c.Namespace) > 76 || !validNamespace.MatchString(c.Namespace) {
		return c, errors.New("containerd namespace: must be at most 76 letters and digits, separated by . _ -")
	}
	if err := c.Logs.Validate(); err != nil {
		return c, err
	}
	for p, v := range map[*string]string{&c.CgroupRoot: "gantry", &c.Snapshotter: "overlayfs", &c.RuncBinary: "runc"} {
		if *p == "" {
			*p = v
		}
	}
	if !validCgroupRoot.MatchString(c.CgroupRoot) {
		return c, errors.New("control group root: must be letters, digits, _ and -")
	}
	if c.runtime() == "" {
		return c, errors.New("runtime class: must be gvisor, kata or empty")
	}
	if c.RootDir == "" {
		c.RootDir = filepath.Join(defaultRoots, c.Namespace)
	}
	if c.RunDir == "" {
		c.RunDir = filepath.Join(defaultRun, c.Namespace)
	}
	if !filepath.IsAbs(c.RootDir) || !filepath.IsAbs(c.RunDir) {
		return c, errors.New("folders of containers: must be absolute paths")
	}
	if c.Disks == nil {
		c.Disks = plainDisks{dir: filepath.Join(c.RootDir, ".disks")}
	}
	if c.MaxImageBytes <= 0 {
		c.MaxImageBytes = defaultMaxImage
	}
	if c.PullStall <= 0 {
		c.PullStall = defaultPullStall
	}
	if c.PullPace <= 0 {
		c.PullPace = defaultPullPace
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// runtime returns containerd's name of what runs containers.
func (c Config) runtime() string {
	return map[string]string{"": runtimeName, "gvisor": "io.containerd.runsc.v1", "kata": "io.containerd.kata.v2"}[c.RuntimeClass]
}

// Runtime is a pod.Runtime on a containerd daemon. It is safe for concurrent use. The daemon may be
// away at any time: calls then fail with class Retry, and work again once it is back.
type Runtime struct {
	cfg       Config
	client    *client.Client
	platform  platforms.MatchComparer
	cgroups   cgroupFS
	said      *clientLog                 // what the client library logs
	quiet     *log.Entry                 // the library's way there
	boot      string                     // boot id of the host
	daemon    atomic.Pointer[hostLimits] // of the daemon that was dialed last
	bundles   atomic.Pointer[string]     // where the daemon keeps this namespace's bundles; nil until it was seen
	slots     chan struct{}              // one per running download of a layer
	oldKernel atomic.Bool                // overlays are mounted by the names of their folders
	secret    [32]byte                   // keys what is made of credentials; see keyed

	life context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // running pulls

	turns   turns                    // of pulls, between those that pods wait for and others
	paused  pausedPulls              // pulls that are not running, and may go on later
	touched touched                  // images whose use was written down a moment ago
	roots   atomic.Pointer[[]string] // folders of the daemon's images; nil until it was asked
	runc    runcSays
	guard   outbound.Guard

	mu       sync.Mutex // guards the maps below
	contents map[digest.Digest]*image
	ready    map[string]*prepared    // defined, without a task yet; by pod id
	pulls    map[string]*pull        // see pullName
	proved   map[proof]bool          // what was read with which credential
	reading  map[proof]chan struct{} // closed when it was
	early    map[fleet.PodID]bool    // pods that had a shim at the first Look; never changed, nil before

	execMu sync.Mutex      // guards execs, and the folders of pipes as such
	execs  map[string]bool // folders of pipes of processes that are looked after
}

var _ pod.Runtime = (*Runtime)(nil)

// New returns a Runtime. It takes over containerd's global logger in this process, drops temporary
// mounts that an earlier agent left, and does not wait for the daemon. The error tells a fault of the
// configuration, or of its folders.
func New(cfg Config) (*Runtime, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		cfg: cfg, platform: platforms.Default(), boot: bootID(),
		cgroups:  cgroupFS{root: cgroupMount, parent: filepath.Join(cfg.CgroupRoot, cfg.Namespace), pages: pagesFolder},
		slots:    make(chan struct{}, maxDownloads),
		contents: map[digest.Digest]*image{}, ready: map[string]*prepared{},
		pulls: map[string]*pull{}, proved: map[proof]bool{}, reading: map[proof]chan struct{}{},
	}
	_, _ = rand.Read(r.secret[:]) // never fails
	r.guard = outbound.Guard{Bridge: cfg.Bridge, Allow: cfg.RegistryAllow, Deny: cfg.RegistryDeny}
	if cfg.Schedulers != nil {
		r.guard.Never = outbound.Resolve(cfg.Schedulers)
	}
	if cfg.DiskRate+cfg.DiskOps > 0 && !r.cgroups.throttles() {
		cfg.Log.Warn("pods' disk bandwidth is unlimited: the kernel cannot limit it")
	}
	r.said, r.quiet = newClientLog(cfg.Log)
	if err := r.makeFolders(); err != nil {
		r.said.close()
		return nil, err
	}
	r.sweepFolders()
	r.sweepViews()
	r.life, r.stop = context.WithCancel(context.Background())
	r.client, err = client.New(cfg.Socket,
		client.WithDefaultRuntime(cfg.runtime()),
		client.WithDefaultPlatform(r.platform),
		client.WithExtraDialOpts(r.dialOptions()))
	if err != nil {
		return nil, fmt.Errorf("containerd client: %w", err)
	}
	return r, nil
}

// Close ends running pulls and the connection. Containers run on.
func (r *Runtime) Close() error {
	r.stop()
	r.work.Wait()
	defer r.said.close()
	return r.client.Close()
}

// in puts the call into the Runtime's containerd namespace, and keeps the client library from writing
// to standard error.
func (r *Runtime) in(ctx context.Context) context.Context {
	return namespaces.WithNamespace(log.WithLogger(ctx, r.quiet), r.cfg.Namespace)
}
