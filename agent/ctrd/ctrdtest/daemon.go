// Package ctrdtest gives tests and benchmarks a private containerd and images that were built in
// memory. Every daemon has its own root, state and socket, so that runs never meet each other. The
// package is for tests only, needs root, and never skips: a missing program fails the test.
package ctrdtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// EnvDir names a folder whose containerd and shim are used instead of the installed ones.
const EnvDir = "GANTRY_TEST_CONTAINERD_DIR"

const daemonTimeout = 30 * time.Second

// Daemon is a private containerd. Its methods are for the test's goroutine.
type Daemon struct {
	Dir    string // everything of the daemon is below it
	Socket string

	tb  testing.TB
	cmd *exec.Cmd
}

// StartDaemon starts a containerd that is stopped, with everything it still ran, when the test ends.
// Leftovers at that time fail the test.
func StartDaemon(tb testing.TB) *Daemon {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("containerd needs root")
	}
	dir, err := os.MkdirTemp("", "gc") // short: socket paths have 107 bytes at most
	if err != nil {
		tb.Fatal(err)
	}
	// A container in a user namespace has to find its root below.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // nothing below can be listed
		tb.Fatal(err)
	}
	d := &Daemon{Dir: dir, Socket: filepath.Join(dir, "state", "c.sock"), tb: tb}
	tb.Cleanup(d.destroy)
	if err := os.WriteFile(d.path("config.toml"), []byte(d.config()), 0o600); err != nil {
		tb.Fatal(err)
	}
	d.Start()
	return d
}

// RuncRoot is a folder for runc's state that is removed with the daemon.
func (d *Daemon) RuncRoot() string { return d.path("runc") }

// PID returns the daemon's process id, 0 when it does not run.
func (d *Daemon) PID() int {
	if d.cmd == nil {
		return 0
	}
	return d.cmd.Process.Pid
}

// Start starts the daemon when it does not run and waits until it answers.
func (d *Daemon) Start() {
	d.tb.Helper()
	if d.cmd != nil {
		return
	}
	out, err := os.OpenFile(d.path("containerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.tb.Fatal(err)
	}
	defer out.Close()
	path := os.Getenv("PATH")
	if dir := os.Getenv(EnvDir); dir != "" {
		path = dir + ":" + path
	}
	program, err := lookIn(path, "containerd")
	if err != nil {
		d.tb.Fatal(err)
	}
	cmd := exec.Command(program, "--config", d.path("config.toml"))
	cmd.Env = append(os.Environ(), "PATH="+path)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		d.tb.Fatal(err)
	}
	d.cmd = cmd
	d.waitReady()
}

func lookIn(path, name string) (string, error) {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		if i, err := os.Stat(file); err == nil && i.Mode().IsRegular() && i.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s is not installed", name)
}

// waitReady waits until the socket takes connections; plugins are loaded before it does.
func (d *Daemon) waitReady() {
	d.tb.Helper()
	err := Eventually(daemonTimeout, func() error {
		c, err := net.Dial("unix", d.Socket)
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		d.tb.Fatalf("containerd did not start: %v\n%s", err, d.Log())
	}
}

// Kill ends the daemon with SIGKILL; containers run on.
func (d *Daemon) Kill() { d.end(syscall.SIGKILL) }

// Stop ends the daemon with SIGTERM; containers run on.
func (d *Daemon) Stop() { d.end(syscall.SIGTERM) }

// Restart kills the daemon and starts it again.
func (d *Daemon) Restart() {
	d.tb.Helper()
	d.Kill()
	d.Start()
}

func (d *Daemon) end(s syscall.Signal) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(s)
	timer := time.AfterFunc(daemonTimeout, func() { _ = d.cmd.Process.Kill() })
	defer timer.Stop()
	_ = d.cmd.Wait()
	d.cmd = nil
}

// Log returns the end of the daemon's log.
func (d *Daemon) Log() string {
	text, _ := os.ReadFile(d.path("containerd.log"))
	return string(text[max(0, len(text)-8000):])
}

func (d *Daemon) path(name string) string { return filepath.Join(d.Dir, name) }

// config turns off what would leave the folder (CRI, NRI, /opt/containerd) or cost time.
func (d *Daemon) config() string {
	off := []string{
		"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
		"io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.sandbox.controller.v1.podsandbox",
		"io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
		"io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.restart",
		"io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
		"io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile",
	}
	quoted := make([]string, len(off))
	for i, p := range off {
		quoted[i] = strconv.Quote(p)
	}
	return fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [%s]\n[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n",
		d.path("root"), d.path("state"), strings.Join(quoted, ", "), d.Socket, d.Socket+".ttrpc")
}

// Leftovers lists what still runs or is mounted of the daemon's containers: shims, loggers and other
// processes that name its folder, and mounts below it. Defunct processes do not count.
func (d *Daemon) Leftovers() []string {
	var out []string
	for _, pid := range d.processes() {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		out = append(out, fmt.Sprintf("process %d: %s", pid, strings.ReplaceAll(string(text), "\x00", " ")))
	}
	for _, m := range d.mounts() {
		out = append(out, "mount "+m)
	}
	return out
}

// processes are those whose command line names the daemon's folder, but for the daemon itself.
func (d *Daemon) processes() []int {
	entries, _ := os.ReadDir("/proc")
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == d.PID() || pid == os.Getpid() {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(text), d.Dir+"/") {
			out = append(out, pid)
		}
	}
	return out
}

func (d *Daemon) mounts() []string {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var out []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], d.Dir+"/") {
			out = append(out, f[4])
		}
	}
	slices.Reverse(out)
	return out
}

// destroy ends everything of the daemon by force.
func (d *Daemon) destroy() {
	left := d.Leftovers()
	if err := Eventually(5*time.Second, func() error {
		if left = d.Leftovers(); len(left) > 0 {
			return errors.New("left over")
		}
		return nil
	}); err != nil {
		d.tb.Errorf("left over when the test ended: %s", strings.Join(left, "; "))
	}
	if d.tb.Failed() {
		d.tb.Logf("containerd log:\n%s", d.Log())
	}
	d.Stop()
	for _, pid := range d.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	d.killContainers()
	for _, m := range d.mounts() {
		_ = syscall.Unmount(m, syscall.MNT_DETACH)
	}
	if err := os.RemoveAll(d.Dir); err != nil {
		d.tb.Errorf("remove the daemon's folder: %v", err)
	}
}

// killContainers ends processes whose root is below the daemon's folder.
func (d *Daemon) killContainers() {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if text, err := os.ReadFile("/proc/" + e.Name() + "/mountinfo"); err == nil && strings.Contains(firstLine(text), d.Dir+"/") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

// Eventually repeats check until it returns nil, and returns its last error after limit.
func Eventually(limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
