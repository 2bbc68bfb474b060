package dev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"gantry/client"
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
	cfg    Config
	folder *folder
	state  state
	keys   keys
	env    []string // of every child
	api    string   // address of the public API

	containerd, scheduler, agent *child // nil before they are started

	slot   net.Listener // holds the pods' ports against other devs; nil: none
	hostID string       // once the host is ready
	hosts  []client.Host
	began  time.Time

	wake     chan struct{} // capacity 1: the set of processes changed
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
		return err
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
	for _, role := range roles {
		for _, id := range d.folder.stale(role) {
			d.cfg.Log.Warn("stopping a child of a dev that was killed", "role", role, "pid", id.PID)
			if err := id.end(ctx, d.cfg.tune.grace); err != nil {
				return err
			}
		}
		if err := removeIfThere(d.folder.pidFile(role)); err != nil {
			return err
		}
	}
	if err := d.chooseAddresses(); err != nil {
		return err
	}
	s, err := d.folder.state()
	if err != nil {
		return err
	}
	switch want := d.cfg.DataCenter; {
	case s.DataCenter == "":
		s.DataCenter = want
		if want == "" {
			s.DataCenter = DefaultDataCenter
		}
	case want != "" && want != s.DataCenter:
		return bad("data folder %s is that of data center %s; name another folder with --data-dir for %s",
			d.folder.dir, s.DataCenter, want)
	}
	if s.LinkPort == 0 || portFree("127.0.0.1", s.LinkPort) != nil {
		if s.LinkPort, err = freePort("127.0.0.1"); err != nil {
			return fmt.Errorf("find a port for the link: %w", err)
		}
	}
	if s.PodPorts, d.slot = takePorts(s.PodPorts); d.slot == nil {
		d.cfg.Log.Warn("tcp ports of pods are not published: other instances have all the ports")
	}
	d.state = s
	return d.folder.setState(s)
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
		if port, err = freePort(host); err != nil {
			return fmt.Errorf("find a port on %s: %w", host, err)
		}
	}
	if err := portFree(host, port); err != nil {
		return fmt.Errorf("cannot listen on %s: %w; name another address with --listen",
			net.JoinHostPort(host, strconv.Itoa(port)), cause(err))
	}
	d.cfg.Listen = net.JoinHostPort(host, strconv.Itoa(port))
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	d.api = "http://" + net.JoinHostPort(host, strconv.Itoa(port))
	return nil
}

func portFree(host string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

func freePort(host string) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
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
	d.scheduler = d.child(roleScheduler, d.cfg.Binaries.Scheduler, "run", "--data-dir", d.folder.path("scheduler"),
		"--listen", d.cfg.Listen, "--link-listen", d.link(), "--proxy-domain", ProxyDomain,
		"--rate-minute", strconv.Itoa(ratePerMinute), "--rate-hour", strconv.Itoa(ratePerHour), "--rate-day", strconv.Itoa(ratePerDay))
	d.scheduler.start(ctx)
	if err := d.await(ctx, d.containerd, "containerd", d.containerdAnswers); err != nil {
		return err
	}
	user, err := client.New(d.api, "", "gantry-dev/"+d.cfg.Version)
	if err != nil {
		return err
	}
	defer user.Close()
	if err := d.await(ctx, d.scheduler, "the scheduler", user.Healthy); err != nil {
		return err
	}
	operator, err := client.New(d.api, d.keys.AdminKey, "gantry-dev/"+d.cfg.Version)
	if err != nil {
		return err
	}
	defer operator.Close()
	if err := d.join(ctx, operator); err != nil {
		return err
	}
	d.startAgent(ctx)
	ready := func(ctx context.Context) error { return d.hostReady(ctx, operator) }
	if err := d.await(ctx, d.agent, "the agent", ready); err != nil {
		return err
	}
	return d.publish(ctx)
}

func (d *dev) link() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(d.state.LinkPort)) }

// initialise makes the cluster, once. What an interrupted first start left was never used, and is wiped.
func (d *dev) initialise(ctx context.Context) (err error) {
	if d.state.Initialised {
		if d.keys, err = d.folder.keys(); err != nil {
			return fmt.Errorf("the keys of this folder: %w", err)
		}
		return nil
	}
	for _, name := range []string{"scheduler", "agent", "keys.json"} {
		if err := os.RemoveAll(d.folder.path(name)); err != nil {
			return err
		}
	}
	err = runOnce(ctx, d.cfg.tune.ready, d.env, d.folder.path("log", "scheduler.log"), d.cfg.Binaries.Scheduler, "init",
		"--data-dir", d.folder.path("scheduler"), "--data-center", d.state.DataCenter,
		"--keys-file", d.folder.path("keys.json"))
	if err != nil {
		return fmt.Errorf("make the cluster: %w", err)
	}
	if d.keys, err = d.folder.keys(); err != nil {
		return fmt.Errorf("the keys of the new cluster: %w", err)
	}
	d.state.Initialised, d.state.Joined = true, false
	return d.folder.setState(d.state)
}

// join gets the agent its certificate, once. The token goes through a file that nobody else can read.
func (d *dev) join(ctx context.Context, operator *client.Client) error {
	pki := d.folder.path("agent", "pki")
	if d.state.Joined {
		_, err := os.Stat(pki)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.RemoveAll(pki); err != nil {
		return err
	}
	token, err := operator.CreateJoinToken(ctx, client.CreateJoinToken{DataCenterID: d.state.DataCenter, TTLSeconds: 600})
	if err != nil {
		return fmt.Errorf("make a join token: %w", err)
	}
	file := d.folder.path("run", "join-token")
	if err := writeFile(file, []byte(token.Value.Token.Reveal()+"\n")); err != nil {
		return fmt.Errorf("write the join token: %w", err)
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "dev"
	}
	err = runOnce(ctx, d.cfg.tune.ready, d.env, d.folder.path("log", "agent.log"), d.cfg.Binaries.Agent, "join",
		"--data-dir", d.folder.path("agent"), "--scheduler", d.link(), "--token-file", file, "--name", name)
	if err := errors.Join(err, removeIfThere(file)); err != nil {
		return fmt.Errorf("join the host: %w", err)
	}
	d.state.Joined = true
	return d.folder.setState(d.state)
}

func (d *dev) startAgent(ctx context.Context) {
	args := []string{
		"run", "--data-dir", d.folder.path("agent"), "--scheduler", d.link(),
		"--containerd", d.containerdSocket(), "--logger", d.cfg.Binaries.Logger,
		"--port-range", portRange(d.state.PodPorts), "--loopback-registries",
	}
	if d.cfg.Overcommit > 0 {
		args = append(args, "--overcommit", strconv.Itoa(d.cfg.Overcommit))
	}
	for _, gpus := range d.cfg.SimulateGPUs {
		args = append(args, "--simulate-gpus", gpus)
	}
	for _, file := range d.cfg.ImageArchives {
		args = append(args, "--image-archive", file)
	}
	d.agent = d.child(roleAgent, d.cfg.Binaries.Agent, args...)
	d.agent.start(ctx)
}

func (d *dev) hostReady(ctx context.Context, operator *client.Client) error {
	hosts, err := operator.Hosts(ctx)
	if err != nil {
		return err
	}
	for _, h := range hosts.Value.Hosts {
		if h.State == "ready" {
			d.hostID, d.hosts = h.ID, hosts.Value.Hosts
			return nil
		}
	}
	return errors.New("the host is not connected yet")
}

// child makes a child of this run; it is not started.
func (d *dev) child(role, path string, args ...string) *child {
	return &child{
		role: role, path: path, args: args, env: d.env,
		logFile: d.folder.path("log", role+".log"), pidFile: d.folder.pidFile(role),
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
		err = fmt.Errorf("%s ends again and again", name)
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
