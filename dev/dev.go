package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"gantry/api/admin"
	"gantry/client"
	"gantry/netctl/kernel"
)

// ProxyDomain is the domain below which HTTP ports of pods are served.
const ProxyDomain = "proxy.localhost"

// How many API requests an account may make. Hour and day add nothing to the minute; they are there so that clients
// see all three windows.
const (
	ratePerMinute = 100_000
	ratePerHour   = 60 * ratePerMinute
	ratePerDay    = 24 * ratePerHour
)

// dev is one run on one folder.
type dev struct {
	cfg         Config
	folder      *folder
	state       state
	keys        keys
	env         []string // of every child
	api         string   // address of the public API of the first scheduler
	apis        []string // of each scheduler
	gatewayAPIs []string // of each gateway
	ports       []int    // that were given out to parts
	island      *kernel.Island

	containerd *child // nil before it is started, as the others
	s3         *child // nil also where nobody asked for it
	schedulers []*child
	gateways   []*child
	agents     []*child

	slot  net.Listener // holds the pods' ports against other devs; nil: none
	hosts []admin.Host
	began time.Time

	leader atomic.Int32 // number of the scheduler that leads; 0: none is known

	wake     chan struct{} // capacity 1: the set of processes, or the leader, changed
	writing  chan struct{} // closed when the writer of dev.json has ended; nil before it began
	stopFile context.CancelFunc
}

// Run starts everything, tells on cfg.Out how to go on, and stays until ctx ends; then it takes everything down, which
// no second cancellation cuts short. The error is nil when it was asked to stop and nothing was left behind.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.check(); err != nil {
		return err
	}
	f, err := openFolder(cfg.DataDir)
	if err != nil {
		return err
	}
	d := &dev{cfg: cfg, folder: f, env: childEnv(os.Environ()), began: time.Now(), wake: make(chan struct{}, 1)}
	err = d.run(ctx)
	if d.slot != nil {
		err = errors.Join(err, d.slot.Close())
	}
	return errors.Join(err, f.close())
}

func (d *dev) run(ctx context.Context) error {
	// Whoever is asked to stop now still has to take down what a killed dev left.
	if err := d.prepare(context.WithoutCancel(ctx)); err != nil {
		return errors.Join(err, d.leaveIsland(context.WithoutCancel(ctx)))
	}
	err := d.start(ctx)
	if err == nil {
		d.tell()
		<-ctx.Done()
	}
	if err == nil || ctx.Err() != nil {
		_, _ = fmt.Fprintln(d.cfg.Out, "\nStopping: pods, agent, containerd, scheduler …")
	}
	began := time.Now()
	stopped := d.stop(ctx)
	if stopped == nil && (err == nil || ctx.Err() != nil) {
		_, _ = fmt.Fprintf(d.cfg.Out, "Stopped, nothing left behind (%s).\n", seconds(time.Since(began)))
	}
	return errors.Join(asked(ctx, err), stopped)
}

// asked hides the error of a step that was cut short because dev was asked to stop.
func asked(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// prepare does what must be right before the first child starts.
func (d *dev) prepare(ctx context.Context) error {
	s, err := d.folder.state()
	if err != nil {
		return err
	}
	for _, p := range append([]part{{roleS3, 1}}, s.parts()...) {
		for _, id := range d.folder.stale(p) {
			d.cfg.Log.Warn("stopping a child process that a killed gantry dev left", "part", p.name(), "pid", id.PID)
			if err := id.end(ctx, d.cfg.tune.grace); err != nil {
				return err
			}
		}
		if err := removeIfThere(d.folder.pidFile(p)); err != nil {
			return err
		}
	}
	if err := s.fit(d.folder.dir, &d.cfg); err != nil {
		return err
	}
	d.state = s
	if err := d.chooseAddresses(); err != nil {
		return err
	}
	if err := d.chooseIsland(ctx); err != nil {
		return err
	}
	if err := d.chooseLinks(); err != nil {
		return err
	}
	if d.state.PodPorts, d.slot = takePorts(d.state.PodPorts); d.slot == nil {
		d.cfg.Log.Warn("tcp ports of pods are not published: other instances have all the ports")
	}
	return d.folder.setState(d.state)
}

// chooseAddresses checks that the API can listen where it should, and says how it is reached.
func (d *dev) chooseAddresses() error {
	host, text, err := net.SplitHostPort(d.cfg.Listen)
	if err != nil {
		return bad("listen address %q: must be HOST:PORT", d.cfg.Listen)
	}
	port, err := net.LookupPort("tcp", text)
	if err != nil {
		return bad("listen address %q: %v", d.cfg.Listen, err)
	}
	if port == 0 {
		if port, err = d.freePort(host); err != nil {
			return fmt.Errorf("find a port on %s: %w", host, err)
		}
	}
	if err := portFree(host, port); err != nil {
		return fmt.Errorf("cannot listen on %s: %w; name another address with --listen",
			net.JoinHostPort(host, strconv.Itoa(port)), cause(err))
	}
	d.ports = append(d.ports, port)
	d.cfg.Listen = net.JoinHostPort(host, strconv.Itoa(port))
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	d.api = "http://" + net.JoinHostPort(host, strconv.Itoa(port))
	d.apis = []string{d.api}
	for range d.state.Schedulers - 1 {
		if port, err = d.freePort(host); err != nil {
			return fmt.Errorf("find a port on %s: %w", host, err)
		}
		d.apis = append(d.apis, "http://"+net.JoinHostPort(host, strconv.Itoa(port)))
	}
	return nil
}

func portFree(host string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// freePort finds a port that is free now, and that no part of this dev was given before.
func (d *dev) freePort(host string) (int, error) {
	for {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return 0, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return 0, err
		}
		if !slices.Contains(d.state.Links, port) && !slices.Contains(d.state.GatewayLinks, port) && !slices.Contains(d.ports, port) {
			d.ports = append(d.ports, port)
			return port, nil
		}
	}
}

// cause returns the innermost error, whose text has no repeated address in it.
func cause(err error) error {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err
}

// start brings up everything, in order.
func (d *dev) start(ctx context.Context) error {
	if err := d.initialise(ctx); err != nil {
		return err
	}
	if d.cfg.Containerd == "" {
		if err := d.startContainerd(ctx); err != nil {
			return err
		}
	}
	d.startSchedulers(ctx)
	if err := d.await(ctx, d.containerd, "containerd", d.containerdAnswers); err != nil {
		return err
	}
	operator, err := client.New(d.api, d.keys.AdminKey, "gantry-dev/"+d.cfg.Version)
	if err != nil {
		return err
	}
	defer operator.Close()
	if err := d.awaitSchedulers(ctx, operator); err != nil {
		return err
	}
	if d.cfg.SampleWorker != "" {
		archive := d.folder.path("sample-worker.tar")
		if err := writeSample(archive, d.cfg.SampleWorker); err != nil {
			return err
		}
		d.cfg.ImageArchives = append(d.cfg.ImageArchives, archive)
	}
	if err := d.startGateways(ctx, operator); err != nil {
		return err
	}
	if err := d.startAgents(ctx, operator); err != nil {
		return err
	}
	d.provideVolumes(ctx, operator)
	d.joinNetworks(ctx, operator)
	if err := d.serveS3(ctx, operator); err != nil {
		return err
	}
	return d.publish(ctx)
}

// initialise makes the cluster, once. What an interrupted first start left was never used, and is wiped.
func (d *dev) initialise(ctx context.Context) (err error) {
	if d.state.Initialised {
		if d.keys, err = d.folder.keys(); err != nil {
			return fmt.Errorf("the keys of this folder: %w", err)
		}
		return nil
	}
	wipe := []string{"keys.json"}
	for _, p := range d.state.parts() {
		if p.role != roleContainerd {
			wipe = append(wipe, p.name())
		}
	}
	for _, name := range wipe {
		if err := os.RemoveAll(d.folder.path(name)); err != nil {
			return err
		}
	}
	first := part{roleScheduler, 1}
	err = d.oneShot(first).run(ctx, d.cfg.Binaries.Scheduler, "init",
		"--data-dir", d.folder.path(first.name()), "--data-center", d.state.DataCenter,
		"--keys-file", d.folder.path("keys.json"), "--address", d.link(1))
	if err != nil {
		return fmt.Errorf("make the cluster: %w", err)
	}
	if d.keys, err = d.folder.keys(); err != nil {
		return fmt.Errorf("the keys of the new cluster: %w", err)
	}
	d.state.Initialised, d.state.Joined = true, nil
	return d.folder.setState(d.state)
}

// oneShot is how a program is run for a part.
func (d *dev) oneShot(p part) oneShot {
	return oneShot{limit: d.cfg.tune.ready, env: d.env, logFile: d.folder.path("log", p.name()+".log"), inside: d.namespace(p)}
}

// child makes a child of this run; it is not started.
func (d *dev) child(p part, path string, args ...string) *child {
	return &child{
		part: p, path: path, args: args, env: d.env, inside: d.namespace(p),
		logFile: d.folder.path("log", p.name()+".log"), pidFile: d.folder.pidFile(p),
		tune: d.cfg.tune, log: d.cfg.Log, changed: d.processesChanged,
	}
}

// childEnv is the environment of a child: ours, without the settings of the command line and of a supervisor above us.
func childEnv(env []string) []string {
	var out []string
	path := ""
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case name == "PATH":
			path = value
		case strings.HasPrefix(name, "GANTRY_"), name == "NOTIFY_SOCKET", name == "LISTEN_FDS", name == "LISTEN_PID",
			name == "WATCHDOG_USEC", name == "WATCHDOG_PID":
		default:
			out = append(out, entry)
		}
	}
	return append(out, "PATH="+strings.TrimPrefix(path+":"+binaryPath, ":"))
}

// maxStarts is how often a child may be started before the part is given up that waits for it to come up.
const maxStarts = 5

// await waits until a part answers. The error says what its log said last.
func (d *dev) await(ctx context.Context, c *child, name string, answers func(context.Context) error) error {
	var last error
	crashed := false
	err := waitFor(ctx, d.cfg.tune.ready, func() bool {
		pid, starts := c.running()
		if crashed = starts > maxStarts; crashed {
			return true
		}
		if last = errors.New("it does not run at the moment"); c != nil && pid == 0 {
			return false
		}
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		last = answers(ask)
		return last == nil
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case crashed:
		err = fmt.Errorf("%s keeps exiting", name)
	case err != nil:
		err = fmt.Errorf("%s did not come up within %v: %w", name, d.cfg.tune.ready, last)
	default:
		return nil
	}
	if c == nil {
		return err
	}
	return withLines(err, logEnd(c.logFile))
}
