// Package e2e drives the real binaries, as gantry dev starts them, with a real containerd, runc,
// network namespaces and nftables. It needs root.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gantry/client"
	"gantry/fleet"
)

const (
	image   = "docker.io/library/busybox:e2e"
	gpuType = "NVIDIA H100 80GB HBM3"

	upTimeout    = 60 * time.Second
	reachTimeout = 30 * time.Second
)

// suite is what all tests share: the binaries, an image archive and one gantry dev.
var suite struct {
	root    string // the repository
	dir     string
	archive string
	dev     *devProc
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	fail := func(err error) int { fmt.Fprintln(os.Stderr, "e2e:", err); return 1 }
	if os.Geteuid() != 0 {
		return fail(errors.New("needs root: it starts containers"))
	}
	wd, err := os.Getwd()
	if err != nil {
		return fail(err)
	}
	suite.root = filepath.Dir(filepath.Dir(wd))
	if suite.dir, err = os.MkdirTemp("", "gantry-e2e-"); err != nil {
		return fail(err)
	}
	defer func() {
		if err := os.RemoveAll(suite.dir); err != nil {
			code = fail(err)
		}
	}()
	suite.archive = filepath.Join(suite.dir, "busybox.tar")
	build := exec.Command("go", "run", "./test/busyboximage", "--ref", image, suite.archive)
	build.Dir = suite.root
	if out, err := build.CombinedOutput(); err != nil {
		return fail(fmt.Errorf("build the image: %w: %s", err, out))
	}
	before, err := census("")
	if err != nil {
		return fail(err)
	}
	if suite.dev, err = startDev(filepath.Join(suite.dir, "dev")); err != nil {
		return fail(err)
	}
	code = m.Run()
	if err := suite.dev.stop(); err != nil {
		code = fail(err)
	}
	after, err := census("")
	if err != nil {
		return fail(err)
	}
	for _, thing := range after {
		if !slices.Contains(before, thing) {
			code = fail(fmt.Errorf("left behind: %s", thing))
		}
	}
	if code != 0 {
		suite.dev.printLogs(os.Stderr)
	}
	return code
}

func binary(name string) string { return filepath.Join(suite.root, "bin", name) }

// devProc is a running gantry dev.
type devProc struct {
	dir string
	cmd *exec.Cmd
	out *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func startDev(dir string, extra ...string) (*devProc, error) {
	args := append([]string{
		"dev", "--data-dir", dir, "--listen", "127.0.0.1:0", "--simulate-gpus", gpuType + ":8", "--image-archive", suite.archive,
	}, extra...)
	d := &devProc{dir: dir, cmd: exec.Command(binary("gantry"), args...), out: &lockedBuffer{}}
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	d.cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+filepath.Join(suite.dir, "state"))
	if err := os.Remove(filepath.Join(dir, "dev.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	err := until(upTimeout, func() error {
		_, err := d.info()
		return err
	})
	if err != nil {
		_ = d.stop()
		return nil, fmt.Errorf("gantry dev did not come up: %w\n%s", err, d.out)
	}
	return d, nil
}

// stop ends gantry dev as Ctrl-C does.
func (d *devProc) stop() error {
	if err := d.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := d.cmd.Wait(); err != nil {
		return fmt.Errorf("gantry dev: %w\n%s", err, d.out)
	}
	return nil
}

func (d *devProc) printLogs(w io.Writer) {
	files, _ := filepath.Glob(filepath.Join(d.dir, "log", "*.log"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		lines := strings.Split(string(data), "\n")
		fmt.Fprintf(w, "--- %s\n%s\n", filepath.Base(f), strings.Join(lines[max(0, len(lines)-60):], "\n"))
	}
}

// devInfo is dev.json.
type devInfo struct {
	API, APIKey, AdminKey, DataCenterID, ProxyDomain string
	Processes                                        []struct {
		Role, ID string
		PID      int
		API      string
	}
}

func (d *devProc) info() (devInfo, error) {
	var info devInfo
	data, err := os.ReadFile(filepath.Join(d.dir, "dev.json"))
	if err != nil {
		return info, err
	}
	return info, json.Unmarshal(data, &info)
}

// pid returns the process id that dev.json names for a role.
func (d *devProc) pid(t *testing.T, role string) int {
	t.Helper()
	info, err := d.info()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range info.Processes {
		if p.Role == role {
			return p.PID
		}
	}
	t.Fatalf("dev.json names no %s", role)
	return 0
}

// kill9 kills a daemon and waits until gantry dev has another one in dev.json.
func (d *devProc) kill9(t *testing.T, role string) {
	t.Helper()
	old := d.pid(t, role)
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		info, err := d.info()
		if err != nil {
			return err
		}
		for _, p := range info.Processes {
			if p.Role == role && p.PID != old && syscall.Kill(p.PID, 0) == nil {
				return nil
			}
		}
		return fmt.Errorf("no new %s", role)
	})
}

func (d *devProc) client(t *testing.T) *client.Client {
	t.Helper()
	info, err := d.info()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(info.API, fleet.Secret(info.APIKey), "e2e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (d *devProc) admin(t *testing.T) *client.Client {
	t.Helper()
	info, err := d.info()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(info.API, fleet.Secret(info.AdminKey), "e2e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// cli runs the command line against this dev and returns what it printed and its exit code.
func (d *devProc) cli(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	info, err := d.info()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), upTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary("gantry"), args...)
	cmd.Env = append(os.Environ(), "GANTRY_API="+info.API, "GANTRY_API_KEY="+info.APIKey)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// until repeats a check until it passes.
func until(d time.Duration, check func() error) error {
	deadline := time.Now().Add(d)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func await(t *testing.T, check func() error) {
	t.Helper()
	if err := until(reachTimeout, check); err != nil {
		t.Fatalf("after %v: %v", reachTimeout, err)
	}
}

// sleeper is a shell line that does nothing until it is told to end.
const sleeper = `trap "exit 0" TERM; sleep 1000 & wait`

// cpuPod describes a CPU pod that runs a shell line.
func cpuPod(name, script string) client.CreatePod {
	return client.CreatePod{
		Name: name, Image: image, CPU: &client.CPU{ID: "cpu3c", VCPUCount: 2},
		Args: `{"entrypoint":["sh","-c"],"cmd":[` + strconv.Quote(script) + `]}`,
	}
}

// create makes a pod, which is deleted, with everything that it has, when the test ends.
func create(t *testing.T, d *devProc, body client.CreatePod) client.Pod {
	t.Helper()
	c := d.client(t)
	answer, err := c.CreatePod(t.Context(), body)
	if err != nil {
		t.Fatalf("create %s: %v", body.Name, err)
	}
	pod := answer.Value
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), reachTimeout)
		defer cancel()
		if err := c.DeletePod(ctx, pod.ID); err != nil && !strings.Contains(err.Error(), "TERMINATED") && !client.IsNotFound(err) {
			var p *client.Problem
			if !errors.As(err, &p) || p.Status != http.StatusConflict {
				t.Errorf("delete %s: %v", body.Name, err)
			}
		}
		if err := until(reachTimeout, func() error { return nothingLeft(pod.ID) }); err != nil {
			t.Error(err)
		}
	})
	return pod
}

// reach waits until a pod has a status.
func reach(t *testing.T, d *devProc, id string, want fleet.PodStatus) client.Pod {
	t.Helper()
	c := d.client(t)
	var pod client.Pod
	await(t, func() error {
		answer, err := c.Pod(t.Context(), id)
		if err != nil {
			return err
		}
		if pod = answer.Value; pod.Status != want {
			return fmt.Errorf("pod %s is %s (%s), want %s", id, pod.Status, pod.StatusReason, want)
		}
		return nil
	})
	return pod
}

func act(t *testing.T, d *devProc, id string, action fleet.Trigger) {
	t.Helper()
	if _, err := d.client(t).ActPod(t.Context(), id, action); err != nil {
		t.Fatalf("%s: %v", action, err)
	}
}

// census lists what Gantry may have left in the kernel, of one pod or of everything.
func census(pod string) ([]string, error) {
	var out []string
	add := func(kind, text string) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && strings.Contains(line, pod) {
				out = append(out, kind+" "+line)
			}
		}
	}
	names, err := filepath.Glob("/run/netns/gantry-*")
	if err != nil {
		return nil, err
	}
	add("namespace", strings.Join(names, "\n"))
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && (strings.Contains(f[4], "gantry") || strings.Contains(f[4], "/run/netns")) {
			add("mount", f[4])
		}
	}
	for _, path := range []string{"/sys/fs/cgroup/memory/gantry", "/sys/fs/cgroup/pids/gantry", "/sys/fs/cgroup/gantry"} {
		dirs, _ := filepath.Glob(path + "/*/*")
		for _, dir := range dirs {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				add("cgroup", dir)
			}
		}
	}
	if pod == "" {
		links, err := net.Interfaces()
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			if strings.HasPrefix(l.Name, "gn") {
				add("link", l.Name)
			}
		}
		tables, err := exec.Command("nft", "list", "tables").Output()
		if err != nil {
			return nil, err
		}
		add("rules", string(tables))
	}
	procs, err := processes(func(cmdline string) bool {
		ours := strings.Contains(cmdline, suite.dir) || strings.Contains(cmdline, "/run/gantry-") || strings.Contains(cmdline, binary("gantry"))
		return ours && strings.Contains(cmdline, pod)
	})
	if err != nil {
		return nil, err
	}
	for _, pid := range procs {
		add("process", strconv.Itoa(pid)+" "+pod+" "+cmdline(pid))
	}
	return out, nil
}

// nothingLeft fails while anything of a pod is in the kernel.
func nothingLeft(pod string) error {
	left, err := census(pod)
	if err != nil || len(left) == 0 {
		return err
	}
	return fmt.Errorf("left of pod %s: %s", pod, strings.Join(left, "; "))
}

func cmdline(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}

// processes returns the ids of the live processes whose command line matches.
func processes(match func(string) bool) ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if line := cmdline(pid); line != "" && match(line) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// processOf returns the one process on this machine whose command line ends in the marker.
func processOf(marker string) (int, error) {
	found, err := processes(func(line string) bool { return strings.HasSuffix(line, marker) })
	if err != nil {
		return 0, err
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d processes end in %q, want 1", len(found), marker)
	}
	return found[0], nil
}
