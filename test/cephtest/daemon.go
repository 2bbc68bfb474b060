package cephtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
)

const (
	monName = "a"
	mgrName = "x"
	mdsName = "m"
	endTime = 10 * time.Second // of a killed daemon
)

// errPortTaken says that something else listens on the monitor's port.
var errPortTaken = errors.New("the monitor's port is taken")

// daemon is one running daemon.
type daemon struct {
	args []string
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended
}

// thread starts programs from one thread of the system, which lives as long as it: the kernel kills a program
// whose parent is gone with the end of the thread that started it.
type thread struct {
	work chan func()
	gone chan struct{}
}

func newThread() *thread {
	t := &thread{make(chan func()), make(chan struct{})}
	go func() {
		defer close(t.gone)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for f := range t.work {
			f()
		}
	}()
	return t
}

func (t *thread) do(f func() error) error {
	done := make(chan error, 1)
	t.work <- func() { done <- f() }
	return <-done
}

// end is called once.
func (t *thread) end() {
	close(t.work)
	<-t.gone
}

// daemon starts a daemon, which writes to <kind>.log in the cluster's folder.
func (c *Cluster) daemon(kind, id string) error {
	return c.launch(kind, "ceph-"+kind, "--conf", c.path("ceph.conf"), "-f", "-i", id)
}

// launch starts a program that goes with the cluster and writes to <kind>.out in its folder.
func (c *Cluster) launch(kind string, args ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errors.New("the cluster is closed")
	}
	if d := c.daemons[kind]; d != nil && d.running() {
		return nil
	}
	out, err := os.OpenFile(c.path(kind+".out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	d := &daemon{args: args, gone: make(chan struct{})}
	d.cmd = exec.Command(args[0], args[1:]...) //nolint:noctx // it lives as long as the cluster
	d.cmd.Dir, d.cmd.Stdout, d.cmd.Stderr = "/", out, out
	d.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if err := c.threads.do(d.cmd.Start); err != nil {
		return err
	}
	go func() {
		defer close(d.gone)
		_ = d.cmd.Wait() // its output says why
	}()
	c.daemons[kind] = d
	return nil
}

func (d *daemon) running() bool {
	select {
	case <-d.gone:
		return false
	default:
		return true
	}
}

// kill ends a daemon, also a frozen one, and waits for it.
func (d *daemon) kill() error {
	if d.running() {
		_ = d.cmd.Process.Kill() // it may have ended
	}
	timer := time.NewTimer(endTime)
	defer timer.Stop()
	select {
	case <-d.gone:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s does not end", d.args[0])
	}
}

// left waits until a program has ended by itself, and forgets it.
func (c *Cluster) left(kind string) error {
	c.mu.Lock()
	d := c.daemons[kind]
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	select {
	case <-d.gone:
	case <-ctx.Done():
		return fmt.Errorf("%s does not end", d.args[0]) // Close kills it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.daemons, kind)
	return nil
}

// ended says which of some programs ended by itself.
func (c *Cluster) ended(kinds ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range kinds {
		if d := c.daemons[kind]; d != nil && !d.running() {
			return fmt.Errorf("%s ended: %s", d.args[0], d.cmd.ProcessState)
		}
	}
	return nil
}

// stop kills a daemon; start starts it again.
func (c *Cluster) stop(kind string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.daemons[kind]
	if d == nil {
		return fmt.Errorf("there is no daemon %q", kind)
	}
	return d.kill()
}

func (c *Cluster) start(kind string) error {
	c.mu.Lock()
	d := c.daemons[kind]
	c.mu.Unlock()
	if d == nil {
		return fmt.Errorf("there is no daemon %q", kind)
	}
	return c.launch(kind, d.args...)
}

// StopMDS kills the metadata server. Whoever has the file system mounted waits.
func (c *Cluster) StopMDS() error { return c.stop(MDS) }

// StartMDS starts the metadata server again and waits until it serves.
func (c *Cluster) StartMDS(ctx context.Context) error {
	if err := c.start(MDS); err != nil {
		return err
	}
	return c.active(ctx)
}

// StopMon kills the monitor. Nothing new can be mounted then.
func (c *Cluster) StopMon() error { return c.stop(Mon) }

// StartMon starts the monitor again and waits until it answers.
func (c *Cluster) StartMon(ctx context.Context) error {
	if err := c.start(Mon); err != nil {
		return err
	}
	_, err := c.Ceph(ctx, "mon", "stat")
	return err
}

// Freeze stops a daemon where it is, as a machine that hangs does: its connections stay and nothing answers. It returns when
// the daemon does nothing any more.
func (c *Cluster) Freeze(kind string) error {
	if err := c.signal(kind, unix.SIGSTOP); err != nil {
		return err
	}
	c.mu.Lock()
	pid := c.daemons[kind].cmd.Process.Pid
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	for !stopped(pid) {
		if err := sleep.For(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("%s does not stop: %w", kind, err)
		}
	}
	return nil
}

// stopped reports whether no thread of a process runs.
func stopped(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		// The state follows the name, which is in parentheses.
		if _, rest, _ := strings.Cut(string(b), ") "); err == nil && !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return len(tasks) > 0
}

// Thaw lets a frozen daemon go on.
func (c *Cluster) Thaw(kind string) error { return c.signal(kind, unix.SIGCONT) }

func (c *Cluster) signal(kind string, s unix.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.daemons[kind]
	if d == nil || !d.running() {
		return fmt.Errorf("there is no daemon %q", kind)
	}
	return d.cmd.Process.Signal(s)
}

// explained adds the end of what the daemons said to the error of a failed start.
func (c *Cluster) explained(err error) error {
	const most = 2000 // bytes of each
	names, _ := filepath.Glob(c.path("*.log"))
	outs, _ := filepath.Glob(c.path("*.out"))
	var said strings.Builder
	for _, path := range slices.Concat(outs, names) {
		b, readErr := os.ReadFile(path)
		if readErr != nil || len(b) == 0 {
			continue
		}
		if strings.Contains(string(b), "unable to bind") && filepath.Base(path) == "mon.log" {
			err = errors.Join(errPortTaken, err)
		}
		fmt.Fprintf(&said, "\n--- %s\n%s", filepath.Base(path), b[max(0, len(b)-most):])
	}
	return fmt.Errorf("%w%s", err, said.String())
}
