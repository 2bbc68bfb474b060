package ctrd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"gantry/agent/containerfs"
	"gantry/fleet"
	"gantry/internal/sleep"
)

const (
	// execFolder holds a folder of pipes for each process. It is of the boot, as the processes are, and
	// outside of folders that a service manager may make private: the shim opens the pipes by name.
	execFolder = "/run/gantry-exec"

	fifoIn  = "stdin"
	fifoOut = "stdout"
	fifoErr = "stderr"

	execFolderTries = 10

	stdinWait = 5 * time.Second
	stdinPoll = time.Millisecond
	// After its end, what a process left in pipes is read, but not what others go on to write there.
	quietAfterEnd = time.Second
	mostAfterEnd  = 4 << 20 // bytes, more than all pipes on the way can hold
)

// execution is a process that runs, or ran, in a container.
type execution struct {
	r      *Runtime
	pod    fleet.PodID
	id     string
	folder string
	tty    bool

	started   bool
	stdin     *stdin
	stdout    *output
	stderr    *output // nil with a terminal
	stopWatch context.CancelFunc
	watched   sync.WaitGroup

	endOnce sync.Once
	done    chan struct{} // closed when the process has ended or is lost
	code    int           // after done
	lost    error         // after done: why the code is not known

	closeOnce sync.Once
	closeErr  error
}

var _ containerfs.Process = (*execution)(nil)

func (p *execution) path(name string) string { return filepath.Join(p.folder, name) }

// execRoot is the folder of this daemon's and namespace's processes.
func (r *Runtime) execRoot() string {
	name := sha256.Sum256([]byte(filepath.Clean(r.cfg.Socket) + "\x00" + r.cfg.Namespace))
	return filepath.Join(execFolder, hex.EncodeToString(name[:8]))
}

// makeFifos makes the pipes of a process. Their folder is there before the process is, and names it:
// by it a later agent finds what this one left.
func (r *Runtime) makeFifos(id fleet.PodID, exec string, s containerfs.ExecSpec) (string, error) {
	folder := filepath.Join(r.execRoot(), string(id)+"."+exec)
	r.execMu.Lock()
	defer r.execMu.Unlock()
	if err := r.makeExecFolder(folder); err != nil {
		return "", err
	}
	names := []string{fifoOut}
	if s.Stdin {
		names = append(names, fifoIn)
	}
	if !s.TTY {
		names = append(names, fifoErr)
	}
	for _, name := range names {
		if err := unix.Mkfifo(filepath.Join(folder, name), 0o600); err != nil {
			return "", errors.Join(fmt.Errorf("make a pipe: %w", err), os.RemoveAll(folder))
		}
	}
	if r.execs == nil {
		r.execs = map[string]bool{}
	}
	r.execs[folder] = true
	return folder, nil
}

// makeExecFolder makes a folder of pipes. An agent of another namespace may just find that the folder
// of them all is empty, and remove it.
func (r *Runtime) makeExecFolder(folder string) error {
	for try := 0; ; try++ {
		err := os.MkdirAll(r.execRoot(), 0o700)
		if err == nil {
			err = os.Mkdir(folder, 0o700)
		}
		if !errors.Is(err, fs.ErrNotExist) || try == execFolderTries {
			return err
		}
	}
}

// dropFifos removes the pipes of a process that is gone, and the folders above when they are empty.
func (r *Runtime) dropFifos(folder string) error {
	r.execMu.Lock()
	defer r.execMu.Unlock()
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("remove the pipes of a command: %w", err)
	}
	delete(r.execs, folder)
	if os.Remove(r.execRoot()) == nil {
		_ = os.Remove(execFolder)
	}
	return nil
}

// open opens the reading ends before the shim opens the writing ones, which waits for them.
func (p *execution) open() error {
	for name, to := range map[string]**output{fifoOut: &p.stdout, fifoErr: &p.stderr} {
		if name == fifoErr && p.tty {
			continue
		}
		f, err := os.OpenFile(p.path(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		*to = &output{file: f, done: p.done}
	}
	return nil
}

// openStdin opens the writing end once the shim has the reading one.
func (p *execution) openStdin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stdinWait)
	defer cancel()
	for {
		f, err := os.OpenFile(p.path(fifoIn), os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			p.stdin = &stdin{File: f, p: p}
			return nil
		}
		if !errors.Is(err, unix.ENXIO) {
			return err
		}
		if sleep.For(ctx, stdinPoll) != nil {
			return ctx.Err()
		}
	}
}

// Stdin is part of containerfs.Process.
func (p *execution) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

// Stdout is part of containerfs.Process.
func (p *execution) Stdout() io.Reader { return p.stdout }

// Stderr is part of containerfs.Process.
func (p *execution) Stderr() io.Reader {
	if p.stderr == nil {
		return nil
	}
	return p.stderr
}

// Resize is part of containerfs.Process.
func (p *execution) Resize(ctx context.Context, cols, rows int) error {
	if cols < 1 || rows < 1 || cols > maxSide || rows > maxSide {
		return errSize
	}
	_, err := p.r.client.TaskService().ResizePty(p.r.in(ctx), &tasks.ResizePtyRequest{
		ContainerID: string(p.pod), ExecID: p.id, Width: uint32(cols), Height: uint32(rows), //nolint:gosec // 16 bits
	})
	return fault("resize the terminal", native(err))
}

// Wait is part of containerfs.Process.
func (p *execution) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.code, p.lost
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// ended notes the end of the process and tells those who read from it and write to it.
func (p *execution) ended(code int, err error) {
	p.endOnce.Do(func() {
		if p.code = code; err != nil {
			p.lost = fault("tell how the command ended", err)
		}
		close(p.done)
		now := time.Now()
		for _, o := range []*output{p.stdout, p.stderr} {
			if o != nil {
				_ = o.file.SetReadDeadline(now.Add(quietAfterEnd))
			}
		}
		if p.stdin != nil {
			_ = p.stdin.SetWriteDeadline(now)
		}
	})
}

// Close is part of containerfs.Process. When the daemon is away, SweepExecs does later what is left.
func (p *execution) Close() error { return p.closeIn(p.r.in(context.Background())) }

// closeIn closes with a context that does not end.
func (p *execution) closeIn(ctx context.Context) error {
	p.closeOnce.Do(func() { p.closeErr = p.close(ctx) })
	return p.closeErr
}

func (p *execution) close(ctx context.Context) error {
	select {
	case <-p.done:
	default:
		p.hangUp(ctx)
	}
	// The shim waits until what the process wrote was read.
	var drains sync.WaitGroup
	for _, o := range []*output{p.stdout, p.stderr} {
		if o != nil {
			drains.Go(o.drain)
		}
	}
	if p.stdin != nil {
		_ = p.stdin.File.Close()
	}
	err := p.r.endExec(ctx, p.pod, p.id)
	if p.stopWatch != nil {
		if err == nil {
			p.watched.Wait()
		}
		p.stopWatch()
		p.watched.Wait()
	}
	for _, o := range []*output{p.stdout, p.stderr} {
		if o != nil {
			_ = o.file.Close()
		}
	}
	drains.Wait()
	if err != nil {
		p.r.abandon(p.folder)
		return err
	}
	return p.r.dropFifos(p.folder)
}

// hangUp tells a process with a terminal that the terminal is gone, and gives it a moment.
func (p *execution) hangUp(ctx context.Context) {
	if !p.tty || !p.started {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	if err := p.r.signalExec(ctx, p.pod, p.id, syscall.SIGHUP); err != nil {
		return
	}
	timer := time.NewTimer(hangUp)
	defer timer.Stop()
	// A process that is blocked in writing takes the signal all the same.
	select {
	case <-p.done:
	case <-timer.C:
	}
}

// output is the reading end of what a process writes.
type output struct {
	file  *os.File
	done  <-chan struct{}
	after int // bytes that were read after the end
}

// Read ends, after the end of the process, when nothing more comes: what it started may go on to
// hold the pipe.
func (o *output) Read(b []byte) (int, error) {
	over := false
	select {
	case <-o.done:
		over = true
		if o.after >= mostAfterEnd {
			return 0, io.EOF
		}
		_ = o.file.SetReadDeadline(time.Now().Add(quietAfterEnd))
	default:
	}
	n, err := o.file.Read(b)
	if over {
		o.after += n
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, fs.ErrClosed) {
		err = io.EOF
	}
	return n, err
}

// drain reads until the pipe has ended or is closed, and keeps nothing.
func (o *output) drain() {
	for {
		_ = o.file.SetReadDeadline(time.Time{})
		if _, err := io.Copy(io.Discard, o.file); !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// stdin is the writing end of what a process reads.
type stdin struct {
	*os.File
	p      *execution
	closed atomic.Bool
}

// Close tells the process that nothing more comes.
func (s *stdin) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	err := s.File.Close()
	ctx, cancel := context.WithTimeout(s.p.r.in(context.Background()), execTimeout)
	defer cancel()
	_, callErr := s.p.r.client.TaskService().CloseIO(ctx, &tasks.CloseIORequest{ContainerID: string(s.p.pod), ExecID: s.p.id, Stdin: true})
	if callErr = native(callErr); callErr != nil && !errdefs.IsNotFound(callErr) {
		return errors.Join(err, fault("close a command's input", callErr))
	}
	return err
}

// abandon leaves a process to SweepExecs.
func (r *Runtime) abandon(folder string) {
	r.execMu.Lock()
	defer r.execMu.Unlock()
	delete(r.execs, folder)
}

// SweepExecs ends the processes that an agent which died has left in containers, and those that could
// not be ended when they should have been. It may be called again and again.
func (r *Runtime) SweepExecs(ctx context.Context) error {
	ctx = r.in(ctx)
	var errs []error
	for _, folder := range r.leftExecs() {
		id, exec, ok := strings.Cut(filepath.Base(folder), ".")
		if ok && strings.HasPrefix(exec, execPrefix) {
			if err := r.sweepExec(ctx, folder, fleet.PodID(id), exec); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		errs = append(errs, r.dropFifos(folder))
	}
	return errors.Join(errs...)
}

// leftExecs lists the folders of pipes that no process of this Runtime has.
func (r *Runtime) leftExecs() []string {
	r.execMu.Lock()
	defer r.execMu.Unlock()
	entries, _ := os.ReadDir(r.execRoot())
	var out []string
	for _, e := range entries {
		if folder := filepath.Join(r.execRoot(), e.Name()); !r.execs[folder] {
			out = append(out, folder)
		}
	}
	return out
}

func (r *Runtime) sweepExec(ctx context.Context, folder string, id fleet.PodID, exec string) error {
	var open []*os.File
	var drains sync.WaitGroup
	for _, name := range []string{fifoOut, fifoErr} {
		f, err := os.OpenFile(filepath.Join(folder, name), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		open = append(open, f)
		drains.Go(func() { _, _ = io.Copy(io.Discard, f) }) // until it is closed below
	}
	err := r.endExec(ctx, id, exec)
	for _, f := range open {
		_ = f.Close()
	}
	drains.Wait()
	return err
}
