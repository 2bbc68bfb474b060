// Command gantry-agent is the daemon of one host. It joins a cluster, then runs the pods that the
// scheduler assigns to the host.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"gantry/agent"
	"gantry/agent/ctrd"
	"gantry/agent/gpu"
	"gantry/agent/session"
	"gantry/agent/sweep"
	"gantry/cmd/internal/cmdline"
	"gantry/cmd/internal/watchdog"
	"gantry/internal/pki"
	"gantry/netctl"
	"gantry/netctl/kernel"
)

var version = "dev" // set by the build

type cli struct {
	cmdline.Common

	Join        joinCmd        `cmd:"" help:"Join this host to a cluster with a one-use token (gantry host token)."`
	Run         runCmd         `cmd:"" help:"Run the agent in the foreground, as systemd does."`
	CheckConfig checkConfigCmd `cmd:"" help:"Check the configuration that run would use, report errors, and exit."`

	Clean cleanCmd `cmd:"" help:"Remove every container, namespace, link and rule of a stopped agent. Pods that ran are started again when it runs next."`
}

type common struct {
	DataDir    string `required:"" type:"path" help:"Folder of the agent's certificate, ledger and logs." placeholder:"DIR"`
	Containerd string `default:"/run/containerd/containerd.sock" type:"path" help:"Socket of containerd (1.6, 1.7 or 2.x)."`
	Logger     string `type:"path" help:"The gantry-logger program; default: beside this one."`
	Net        string `type:"path" help:"The gantry-net program, which answers pods' names and, where the kernel has no WireGuard, is the tunnel to other hosts; default: beside this one."`
}

type joinCmd struct {
	DataDir   string        `required:"" type:"path" help:"Folder of the agent's certificate, ledger and logs." placeholder:"DIR"`
	Scheduler []string      `required:"" help:"Link address of a scheduler; may be repeated. Any of them leads to the one that answers." placeholder:"HOST:PORT"`
	TokenFile string        `required:"" type:"existingfile" help:"File that holds the token, which only its owner can read (mode 0600); never an argument, which every user of the machine could read."`
	Name      string        `help:"Name of the host for people; default: its host name."`
	Timeout   time.Duration `default:"30s" help:"Give up after this time."`
}

type runCmd struct {
	common
	portFlags
	gpuFlags
	fabricFlags
	diskFlags
	isolationFlags
	imageFlags
	modelFlags
	metricsFlags
	privateFlags
	registryFlags
	Scheduler      []string      `help:"Link address of a scheduler; may be repeated. The agent also keeps those that schedulers tell it of; these are always tried too." placeholder:"HOST:PORT"`
	SimulateGpus   []string      `name:"simulate-gpus" sep:"none" help:"Pretend to have GPUs, for trying things out: TYPE:COUNT, such as \"NVIDIA H100 80GB HBM3:8\"." placeholder:"TYPE:COUNT"`
	ImageArchive   []string      `sep:"none" help:"Load images from an OCI or docker archive at start." placeholder:"FILE"`
	KeepLostData   time.Duration `default:"168h" help:"How long to keep persistent data of pods that the scheduler no longer lists and never ordered to delete; at least 1h."`
	PodConnections int           `default:"32768" help:"Connections that the host tracks for a pod: those that it opens and, separately, those that others open to it; 1 to 1000000."`
	Overcommit     int           `default:"1" help:"Overcommit processors, memory and disk by this factor, for development machines (1 to 1000)."`
}

type checkConfigCmd struct {
	Settings runCmd `embed:""`
}

// Run says that the flags could be read: kong has said what could not.
func (c *checkConfigCmd) Run() error {
	if err := c.Settings.validate(); err != nil {
		return err
	}
	fmt.Println("the configuration is fine")
	return nil
}

type cleanCmd struct {
	common
	LostData bool          `help:"Also remove persistent data that was set aside (persistent/.lost), but none of a pod that is listed again."`
	Timeout  time.Duration `default:"2m" help:"Give up after this time."`
}

func main() {
	if status, yes := helps(os.Args); yes {
		os.Exit(status)
	}
	os.Exit(cmdline.Main(&cli{}, "gantry-agent", version, "The daemon of one Gantry host. It runs as root, under systemd, beside containerd."))
}

// Run joins the host.
func (c *joinCmd) Run(ctx context.Context, log *slog.Logger) error {
	token, err := pki.ReadSecretFile(c.TokenFile)
	if err != nil {
		return fmt.Errorf("read the token: %w", err)
	}
	if c.Name == "" {
		if c.Name, err = os.Hostname(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	id, err := session.JoinCluster(ctx, session.JoinConfig{
		Dir: c.DataDir, Schedulers: c.Scheduler, Name: c.Name, Token: strings.TrimSpace(string(token)), Dial: session.DialTCP,
	})
	if err != nil {
		return err
	}
	log.Info("joined", "host", id)
	fmt.Println(id)
	return nil
}

// instance names the agent's kernel objects and its containerd namespace after its data folder.
func (c *common) instance() string {
	sum := sha256.Sum256([]byte(c.DataDir))
	return hex.EncodeToString(sum[:2])
}

// runtime connects to containerd, with what is not the same for every host.
func (c *common) runtime(conf ctrd.Config) (*ctrd.Runtime, error) {
	logger, err := beside(c.Logger, "gantry-logger")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(logger); err != nil {
		return nil, fmt.Errorf("the logger program: %w", err)
	}
	conf.Socket, conf.Namespace, conf.LoggerPath = c.Containerd, "gantry-"+c.instance(), logger
	conf.RootDir, conf.RunDir = filepath.Join(c.DataDir, "roots"), c.runDir()
	conf.Bridge = netctl.BridgeName(c.instance())
	return ctrd.New(conf)
}

// beside returns the path of a program, by default beside this one.
func beside(path, name string) (string, error) {
	if path != "" {
		return path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(self), name), nil
}

// validate reports every setting that is out of its range.
func (c *runCmd) validate() error {
	var faults []error
	if c.Overcommit < 1 || c.Overcommit > 1000 {
		faults = append(faults, errors.New("--overcommit must be 1 to 1000"))
	}
	if c.PodConnections < 1 || c.PodConnections > 1_000_000 {
		faults = append(faults, errors.New("--pod-connections must be 1 to 1000000"))
	}
	if c.KeepLostData < time.Hour {
		faults = append(faults, errors.New("--keep-lost-data must be at least 1h"))
	}
	if _, err := gpu.Simulate("", c.SimulateGpus); err != nil {
		faults = append(faults, err)
	}
	if _, err := c.modelCacheBytes(0); err != nil {
		faults = append(faults, err)
	}
	_, _, err := c.ranges()
	return errors.Join(append(faults, err, c.portFlags.validate(), c.gpuFlags.validate(), c.diskFlags.validate(), c.isolationFlags.validate(),
		c.imageFlags.validate(), c.metricsFlags.validate(), c.privateFlags.validate())...)
}

// Run is the daemon's life.
func (c *runCmd) Run(ctx context.Context, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("must run as root: it makes containers and network namespaces")
	}
	if err := c.validate(); err != nil {
		return err
	}
	gpus, err := gpu.Simulate(c.DataDir, c.SimulateGpus)
	if err != nil {
		return err
	}
	host, err := c.host(ctx, log)
	if err != nil {
		return err
	}
	defer host.close()
	settings, err := c.registries(ctrd.Config{
		Disks: host.containers, RuntimeClass: host.isolation.class, MaxImageBytes: c.maxBytes(), Log: log,
		DiskRate: c.PodDiskMBps * 1_000_000, DiskOps: c.PodDiskIOPS,
	})
	if err != nil {
		return err
	}
	rt, err := c.runtime(settings)
	if err != nil {
		return err
	}
	defer func() { _ = rt.Close() }()
	net, err := kernel.New(c.instance(), log)
	if err != nil {
		return err
	}
	defer net.Close()
	publish, err := c.publish(net)
	if err != nil {
		return err
	}
	private, err := c.private(ctx, net, log)
	if err != nil {
		return err
	}
	adapters, stop, err := c.fabricFlags.open(ctx, c.DataDir, c.instance(), net, log)
	if err != nil {
		return err
	}
	defer stop()
	cache, err := c.models()
	if err != nil {
		return err
	}
	conf := agent.Config{
		Models: cache, Dir: c.DataDir, Schedulers: c.Scheduler, Dial: session.DialTCP, Instance: c.instance(), GPUs: gpus, Overcommit: c.Overcommit,
		Meter: gpu.Idle{}, Images: rt, ImageRoom: c.room(), Metrics: c.Metrics, MetricsTLS: c.Scrape.Source(), KeepLost: c.KeepLostData, Publish: publish, PodConnections: c.PodConnections,
		FindPublish: func() (agent.Publish, error) { return c.publish(net) },
		Archives:    c.ImageArchive, Version: version, Containers: rt, Inside: rt, Files: filesProgram, Network: net,
		PickSubnet: func(context.Context) (netip.Prefix, error) { return net.FreeSubnet() },
		S3Socket:   c.s3Socket(),
		ListenIn:   kernel.ListenIn,
		Private:    private, Fabric: adapters,
		Ready: func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) },
		Watch: watchdog.Start,
		Log:   log,
	}
	host.configure(&conf)
	err = agent.Run(ctx, conf)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	return err
}

// Run cleans the host.
func (c *cleanCmd) Run(ctx context.Context, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("must run as root: it removes containers, mounts and network namespaces")
	}
	rt, err := c.runtime(ctrd.Config{Log: log})
	if err != nil {
		return err
	}
	defer func() { _ = rt.Close() }()
	net, err := kernel.New(c.instance(), log)
	if err != nil {
		return err
	}
	defer net.Close()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	volumes, err := c.networkVolumes(log)
	if err != nil {
		return err
	}
	defer volumes.close()
	if err := sweep.Clean(ctx, c.DataDir, rt, net, volumes.host); err != nil {
		return err // such as that an agent runs: its processes are not ours to end
	}
	err = c.cleanPrivate(ctx, log)
	if c.dropRunDir(); err != nil || !c.LostData {
		return err
	}
	return sweep.CleanLost(ctx, c.DataDir)
}
