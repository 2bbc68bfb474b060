package survive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/netctl"
	"gantry/test/devtest"
)

// process is a program that dies with this one, also in a panic or a test's timeout.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// begin starts a program whose output is added to a file. The kernel ties its end to the starting thread, which is
// kept for it.
func begin(log string, env []string, path string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = out, out, slices.Concat(os.Environ(), []string{"XDG_STATE_HOME=" + filepath.Join(suite.dir, "state"), "XDG_CONFIG_HOME=" + filepath.Join(suite.dir, "config")}, env) // not this user's own
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		defer func() { _ = out.Close() }()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in cmd.ProcessState
		}
	}()
	return p, <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// end sends a signal and waits for the end.
func (p *process) end(s syscall.Signal) error {
	_ = p.cmd.Process.Signal(s) // it may have ended
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end with signal %v", filepath.Base(p.cmd.Path), s)
	}
}

// world is a scheduler, a containerd, and hosts that share it.
type world struct {
	testing.TB
	dir         string
	containerd  *ctrdtest.Daemon
	scheduler   *process
	schedule    func() error // starts the scheduler
	link        string       // the scheduler's address for agents
	user, admin *client.Client
	unusual     []string // further arguments of agents
	env         []string // and of their environment
	marks       []string // what the names of the world's things on the machine hold
}

// newWorld starts a world that ends with the test.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, dir: must[string](t)(os.MkdirTemp(suite.dir, "w")), unusual: []string{"--metrics", ""}}
	w.marks = []string{w.dir + "/"}
	t.Cleanup(w.census)
	w.containerd = ctrdtest.StartDaemon(t)
	w.marks = append(w.marks, w.containerd.Dir)
	data, keysFile := filepath.Join(w.dir, "scheduler"), filepath.Join(w.dir, "keys.json")
	api := freePort(t)
	w.link = freePort(t)
	w.once("scheduler", program("points", "gantry-scheduler"), "init", "--data-dir", data, "--keys-file", keysFile, "--address", w.link)
	var keys struct{ AdminKey, APIKey fleet.Secret }
	if err := json.Unmarshal(must[[]byte](t)(os.ReadFile(keysFile)), &keys); err != nil {
		t.Fatal(err)
	}
	w.schedule = func() (err error) {
		w.scheduler, err = begin(w.log("scheduler"), nil, program("points", "gantry-scheduler"), "run",
			"--data-dir", data, "--listen", api, "--link-listen", w.link, "--address", w.link,
			"--rate-minute", "0", "--rate-hour", "0", "--rate-day", "0", "--stop-grace", "5s")
		return err
	}
	if err := w.schedule(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			w.printLog("scheduler")
		}
		if err := w.scheduler.end(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	})
	w.user = must[*client.Client](t)(client.New("http://"+api, keys.APIKey, "survive"))
	w.admin = must[*client.Client](t)(client.New("http://"+api, keys.AdminKey, "survive"))
	t.Cleanup(w.user.Close)
	t.Cleanup(w.admin.Close)
	await(t, "the scheduler answers", func() error { return w.admin.Healthy(t.Context()) })
	return w
}

// census fails the test while anything of the world is on the machine. The containerd and all agents have ended.
func (w *world) census() {
	if err := devtest.Until(time.Minute, func() error {
		left, err := devtest.CensusOf(w.marks...)
		if err == nil && len(left) > 0 {
			err = errors.New("left behind: " + strings.Join(left, "; "))
		}
		return err
	}); err != nil {
		w.Error(err)
	}
}

func freePort(t testing.TB) string {
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func (w *world) log(name string) string { return filepath.Join(w.dir, name+".log") }

// once runs a program to its end, which must be a good one.
func (w *world) once(name, path string, args ...string) {
	w.Helper()
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		w.Fatalf("%s %s: %v\n%s", name, args[0], err, out)
	}
}

// printLog shows the end of a program's log.
func (w *world) printLog(name string) {
	const most = 12 << 10
	text, err := os.ReadFile(w.log(name))
	w.Logf("--- %s (%v)\n%s", name, err, text[max(0, len(text)-most):])
}

// host is one agent's data folder, in a data center of its own; the agent may run or not.
type host struct {
	*world
	name, dir string
	id        string
	instance  string // in the names of what its agent makes
	arm, list string // files of the fault points
	agent     *process
	kind      string // of program
}

// newHost joins a host and starts its agent, which imports the image.
func (w *world) newHost(name, kind string) *host {
	w.Helper()
	h := &host{
		world: w, name: name, kind: kind, dir: filepath.Join(w.dir, name), arm: filepath.Join(w.dir, name+".arm"), list: filepath.Join(w.dir, name+".list"),
	}
	sum := sha256.Sum256([]byte(h.dir))
	h.instance = hex.EncodeToString(sum[:2])
	w.marks = append(w.marks, netctl.NamespacePrefix(h.instance), netctl.BridgeName(h.instance), netctl.TableName(h.instance), "gantry-"+h.instance, netctl.TunnelLink(h.instance))
	for _, kind := range []string{"gb", "gi", "gv", "go"} {
		w.marks = append(w.marks, kind+h.instance) // links of private networks
	}
	must[client.Answer[admin.DataCenterEntry]](w)(w.admin.PutCenter(w.Context(), name, admin.PutDataCenterRequest{Name: name, Region: "EUROPE", Country: "RO"}))
	token := must[client.Answer[admin.JoinToken]](w)(w.admin.CreateJoinToken(w.Context(), admin.CreateTokenRequest{DataCenterID: name, TTLSeconds: 600}))
	file := filepath.Join(w.dir, name+".token")
	if err := os.WriteFile(file, []byte(token.Value.Token.Reveal()), 0o600); err != nil {
		w.Fatal(err)
	}
	out := must[[]byte](w)(exec.Command(program(kind, "gantry-agent"), "join", "--data-dir", h.dir, "--scheduler", w.link, "--name", name, "--token-file", file).Output())
	h.id = strings.TrimSpace(string(out))
	w.Cleanup(h.close)
	if err := h.start("--image-archive", suite.archive); err != nil {
		w.Fatal(err)
	}
	h.ready()
	await(h, name+" has the image", func() error {
		a, err := h.admin.Images(h.Context(), "", h.id)
		if err == nil && (len(a.Value.Hosts) != 1 || !slices.ContainsFunc(a.Value.Hosts[0].Images, func(has string) bool { return strings.HasSuffix(has, image) })) {
			err = fmt.Errorf("it has %v", a.Value.Hosts)
		}
		return err
	})
	return h
}

// start starts the agent.
func (h *host) start(extra ...string) (err error) {
	args := append([]string{
		"run", "--data-dir", h.dir, "--scheduler", h.link, "--containerd", h.containerd.Socket,
		"--logger", program("points", "gantry-logger"), "--net", program("points", "gantry-net"), "--port-range", "0", "--overcommit", "1000",
	}, h.unusual...)
	if !slices.Contains(args, "--metrics") {
		args = append(args, "--metrics", "") // several agents run at once
	}
	args = append(args, extra...)
	env := append([]string{"GANTRY_FAULTPOINT_FILE=" + h.arm, "GANTRY_FAULTPOINT_LIST=" + h.list}, h.env...)
	h.agent, err = begin(h.log(h.name), env, program(h.kind, "gantry-agent"), args...)
	return err
}

// ready waits until the host has a session.
func (h *host) ready() {
	h.Helper()
	await(h, h.name+" is ready", func() error {
		a, err := h.admin.Host(h.Context(), h.id)
		if err == nil && a.Value.State != fleet.HostReady {
			err = fmt.Errorf("it is %s", a.Value.State)
		}
		return err
	})
}

// close ends the agent and takes away what it has on the machine.
func (h *host) close() {
	if h.Failed() {
		h.printLog(h.name)
	}
	if h.agent != nil {
		if err := h.agent.end(syscall.SIGTERM); err != nil {
			h.Error(err)
		}
	}
	h.containerd.Start()
	out, err := exec.Command(program("points", "gantry-agent"), "clean", "--data-dir", h.dir, "--containerd", h.containerd.Socket,
		"--logger", program("points", "gantry-logger"), "--net", program("points", "gantry-net")).CombinedOutput()
	if err != nil {
		h.Errorf("clean %s: %v\n%s", h.name, err, out)
	}
	if left, err := devtest.RuntimeCensus(context.Background(), h.containerd.Socket, "gantry-"+h.instance); err != nil || len(left) > 0 {
		h.Errorf("left in containerd by %s: %v, %v", h.name, left, err)
	}
}

// body describes a pod of this host that runs a shell line.
func (h *host) body(name, script string) v2.CreatePodRequest {
	body := devtest.CPUPod(name, script)
	body.Image, body.DataCenterIDs = new(image), []string{h.name}
	return body
}

// pod reads a pod.
func (w *world) pod(id string) (v2.Pod, error) {
	a, err := w.user.Pod(w.Context(), id)
	return a.Value, err
}

// is says what keeps a pod from a status in an incarnation.
func (w *world) is(id string, status fleet.PodStatus, incarnation uint64) error {
	p, err := w.pod(id)
	if err == nil && (p.Status != status || p.Incarnation != incarnation) {
		err = fmt.Errorf("pod %s is %s (%s) in incarnation %d, want %s in %d", id, p.Status, p.StatusReason, p.Incarnation, status, incarnation)
	}
	return err
}

// lines are what the pod's containers wrote, of every incarnation.
func (h *host) lines(id string) ([]string, error) {
	var out []string
	q := client.LogQuery{Source: "container", Tail: 5000}
	err := h.user.PodLogs(h.Context(), id, q, client.LogEvents{Line: func(l client.LogLine) error {
		out = append(out, l.Line)
		return nil
	}})
	return out, err
}
