// Command gantry-logger writes what one container prints to the log of its
// pod. The container runtime's shim starts it, through the logging URI that
// logs.LoggerURI makes, and talks to it as the shim's protocol for logging
// programs says: file 3 is the container's stdout, 4 its stderr, and closing
// 5 says that the container may start.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"gantry/agent/logs"
	"gantry/internal/sleep"
)

const usage = `gantry-logger writes the log of one pod's container.

It is started by the container runtime's shim, once per container, and not by
people: it expects the container's output on the open files 3 and 4 and tells
on file 5 that it is ready. Its arguments are keys and values in turn:

  dir PATH         folder of the pod's log (must exist)
  max-bytes N      size of one log file          (default 10485760)
  keep N           files to keep, 2 to 100       (default 3)
  rate N           bytes per second on average   (default 10485760)
  burst N          bytes above the rate at once  (default 2 x rate)
  owner N          id that the pipes are given to (default: as they are)

It ends when the container has closed its output. To read a pod's log use
"gantry pod logs".
`

const (
	lockWait = 2 * time.Second
	// drainFor is how long after SIGTERM the output is still read. The shim
	// kills a logger 12 s after SIGTERM.
	drainFor = 8 * time.Second
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gantry-logger:", err)
		if errors.Is(err, errUsage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

var errUsage = errors.New("see gantry-logger --help")

func run(args []string) error {
	if len(args) == 1 && (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
		fmt.Print(usage)
		return nil
	}
	dir, opt, err := logs.ParseArgs(args)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	stdout, err := pipe(3, "stdout")
	if err != nil {
		return err
	}
	stderr, err := pipe(4, "stderr")
	if err != nil {
		return err
	}
	ready, err := pipe(5, "ready")
	if err != nil {
		return err
	}
	if err := give(opt.Owner, stdout, stderr); err != nil {
		return err
	}
	// The shim ends its loggers with SIGTERM after it has closed the pipes; a
	// signal that comes earlier is no reason to leave the container without
	// a reader.
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	debug.SetMemoryLimit(16 << 20)
	_ = os.Chdir("/")

	w, err := logs.NewWriter(dir, logs.ContainerSeries, opt)
	if err != nil {
		return err
	}
	open, cancel := context.WithTimeout(context.Background(), lockWait)
	openErr := w.Open(open)
	cancel()
	// From here on the container runs, whatever happens to its log: lines that
	// cannot be written are counted and the writer tries again.
	_, _ = ready.Write([]byte{0})
	ready.Close()
	err = collect(term, w, stdout, stderr)
	return errors.Join(openErr, err, w.Close())
}

// give makes the pipes those of the container's root, so that it may open them by name (/dev/stdout):
// in a user namespace nobody else's are open to it. Both ends of a pipe have one owner.
func give(owner uint32, pipes ...*os.File) error {
	if owner == 0 {
		return nil
	}
	for _, p := range pipes {
		if err := p.Chown(int(owner), int(owner)); err != nil {
			return fmt.Errorf("give the output to the container: %w", err)
		}
	}
	return nil
}

// collect reads until both pipes end, but no longer than drainFor after the
// first signal.
func collect(term <-chan os.Signal, w *logs.Writer, stdout, stderr *os.File) error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-ctx.Done():
			return
		case <-term:
		}
		if sleep.For(ctx, drainFor) == nil {
			cancel()
		}
	}()
	err := logs.Collect(ctx, w, stdout, stderr)
	cancel()
	<-done
	return err
}

// pipe takes over an open file that the shim passed.
func pipe(fd int, name string) (*os.File, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("file %d (%s) is not a pipe; this program is started by the container runtime's shim: %w", fd, name, errUsage)
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("file %d (%s): %w", fd, name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if f == nil {
		return nil, fmt.Errorf("file %d (%s): unusable: %w", fd, name, errUsage)
	}
	return f, nil
}
