package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"gantry/internal/ipc/process"
	"gantry/internal/sleep"
	"gantry/netctl/kernel"
)

const maxLog = 16 << 20 // bytes of a child's log from which on it is put aside at the child's next start

// child is a program that is kept running, as systemd would with Restart=always.
type child struct {
	part
	inside  string // network namespace; empty: dev's own
	path    string
	args    []string
	env     []string
	logFile string
	pidFile string
	tune    tuning
	log     *slog.Logger
	changed func() // called after the pid changed, from the child's goroutine; must not block

	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex // guards what follows
	pid    int        // 0 while it does not run
	starts int
}

// start begins to keep the child running until stop; ctx gives values alone, its end stops nothing.
func (c *child) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel, c.done = cancel, make(chan struct{})
	go func() {
		defer close(c.done)
		c.keep(ctx)
	}()
}

// stop ends the child (SIGTERM, then SIGKILL after the grace period) and waits for its end. A nil child, or one that
// was never started, is stopped already.
func (c *child) stop() {
	if c == nil || c.cancel == nil {
		return
	}
	c.cancel()
	<-c.done
}

// running returns the child's pid, 0 while it does not run, and how often it was started.
func (c *child) running() (pid, starts int) {
	if c == nil {
		return 0, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pid, c.starts
}

func (c *child) keep(ctx context.Context) {
	wait := process.Backoff{Least: c.tune.backoffMin, Most: c.tune.backoffMax, Stood: c.tune.backoffReset}
	for {
		began := time.Now()
		err := c.once(ctx)
		if ctx.Err() != nil {
			return
		}
		stood := time.Since(began)
		pause := wait.Next(stood)
		c.log.Warn("child process exited; restarting it", "part", c.name(), "after", stood.Round(time.Millisecond), "pause", pause, "err", err)
		if sleep.For(ctx, pause) != nil {
			return
		}
	}
}

// once runs the child to its end.
func (c *child) once(ctx context.Context) error {
	out, err := openLog(c.logFile)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.CommandContext(ctx, c.path, c.args...)
	cmd.Env = c.env
	// A file, not a pipe: a child must be able to outlive a dev that was killed.
	cmd.Stdout, cmd.Stderr = out, out
	// A group of its own: Ctrl-C on the terminal is for dev, which stops its children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = c.tune.grace
	if err := within(c.inside, cmd.Start); err != nil {
		return err
	}
	c.set(cmd.Process.Pid)
	id, err := identify(cmd.Process.Pid)
	if err == nil {
		err = writeJSON(c.pidFile, id)
	}
	if err != nil {
		c.log.Warn("write a child's pid file", "part", c.name(), "err", err)
	}
	err = cmd.Wait()
	c.set(0)
	return errors.Join(err, removeIfThere(c.pidFile))
}

func (c *child) set(pid int) {
	c.mu.Lock()
	c.pid = pid
	if pid != 0 {
		c.starts++
	}
	c.mu.Unlock()
	c.changed()
}

// within calls f in a network namespace; empty is dev's own.
func within(namespace string, f func() error) error {
	if namespace == "" {
		return f()
	}
	return kernel.Within(namespace, f)
}

func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// oneShot is how a program is run that does one thing and ends.
type oneShot struct {
	limit   time.Duration
	env     []string
	logFile string
	inside  string // network namespace; empty: dev's own
}

// run runs the program, with its output going to the log file. The error holds the last
// lines that it wrote.
func (o oneShot) run(ctx context.Context, path string, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("not done within %v", o.limit))
	defer cancel()
	log, err := openLog(o.logFile)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	tail := &tailWriter{limit: 2 << 10}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = o.env
	out := io.MultiWriter(log, tail)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err = within(o.inside, cmd.Start); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return withLines(fmt.Errorf("%s: %w", strings.Join(append([]string{path}, args[:min(1, len(args))]...), " "), err),
			tail.String())
	}
	return nil
}

// tailWriter keeps the end of what is written.
type tailWriter struct {
	limit int
	buf   []byte
}

// Write keeps the last bytes and never fails.
func (w *tailWriter) Write(p []byte) (int, error) {
	w.buf = append(w.buf, p...)
	if over := len(w.buf) - w.limit; over > 0 {
		w.buf = append(w.buf[:0], w.buf[over:]...)
	}
	return len(p), nil
}

// String returns what was kept.
func (w *tailWriter) String() string { return string(w.buf) }

// logEnd returns the end of a log file.
func logEnd(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > 2<<10 {
		_, _ = f.Seek(-2<<10, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(f, 2<<10))
	return string(text)
}

// withLines adds the last lines of a program's output to an error.
func withLines(err error, output string) error {
	lines := bytes.Split(bytes.TrimSpace([]byte(output)), []byte("\n"))
	lines = lines[max(0, len(lines)-5):]
	if len(lines) == 0 || len(lines[0]) == 0 {
		return err
	}
	return fmt.Errorf("%w; it said:\n  %s", err, bytes.Join(lines, []byte("\n  ")))
}
