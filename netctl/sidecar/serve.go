package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/confine"
	"gantry/internal/ipc"
)

const (
	controlFD = 3 // bound, not yet listening
	firstFile = 4

	settledMark = "confined" // last argument of the process that is

	spared       = "-250" // the kernel rather ends others than what all pods of the host need
	answerWithin = 10 * time.Second
	memoryLimit  = 256 << 20 // bytes; the collector works harder from there on
)

// Handler does what the agent asks for.
type Handler interface {
	// Handle answers one question, which is JSON, with what JSON can encode. Files are the handler's to close. Questions come one at a time.
	Handle(ctx context.Context, verb string, ask []byte, files []*os.File) (answer any, err error)
	// Close ends the work and waits for that. No question comes after it.
	Close()
}

// Program is what a sidecar does.
type Program struct {
	Name string
	// User and group that it becomes. They own nothing, and are no other program's.
	User int
	// Refuse are calls of the kernel that it has no need for, beside those that none has.
	Refuse []uint32
	// Serve begins its work, with the sockets of Config.Open, which are its to close. Fail ends the process for a reason.
	Serve func(sockets []*os.File, fail func(error), log *slog.Logger) (Handler, error)
}

// Main is the process: it begins to listen, leaves the host behind, and then serves until it is told to end. It returns the exit
// status. Client starts it with three arguments: its build, how many files it has, and its folder, by which people find it.
func Main(p Program) int {
	if err := main(p, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "gantry-net", p.Name+":", err)
		return 1
	}
	return 0
}

func main(p Program, args []string) error {
	if len(args) < 5 || len(args[3]) != 1 || args[3][0] < '0' || args[3][0] > '9' {
		return errors.New("it is started by the agent alone")
	}
	count := uint(args[3][0] - '0')
	if len(args) == 5 {
		// Who connects sees this process as it is now: root's.
		if err := unix.Listen(controlFD, 8); err != nil {
			return fmt.Errorf("it is started by the agent alone: listen: %w", err)
		}
		// A container may have no right to that; the process is started again anyway when it was ended.
		_ = os.WriteFile("/proc/self/oom_score_adj", []byte(spared), 0)
		return confine.Become(confine.As{Args: append(args, settledMark), Files: firstFile + count, UID: p.User, GID: p.User, Calls: p.Refuse})
	}
	if err := confine.Settled(nil); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // the log's reader may end with the agent
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	debug.SetMemoryLimit(memoryLimit)
	file := os.NewFile(controlFD, "control")
	l, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("the control socket: %w", err)
	}
	_ = file.Close() // l is a copy
	var files []*os.File
	for i := range count {
		unix.CloseOnExec(firstFile + int(i))
		files = append(files, os.NewFile(uintptr(firstFile+i), "handed over"))
	}
	return Serve(ctx, l, args[2], p, files, slog.New(slog.NewJSONHandler(os.Stderr, nil)).With("process", p.Name))
}

// Serve is the process without its confinement. It closes the listener.
func Serve(ctx context.Context, l net.Listener, build string, p Program, files []*os.File, log *slog.Logger) error {
	ctx, quit := context.WithCancelCause(ctx)
	s := &server{build: build, quit: func() { quit(nil) }}
	var err error
	if s.sockets, err = copies(numbers(files)); err != nil {
		return errors.Join(err, l.Close())
	}
	defer drop(s.sockets)
	if s.handler, err = p.Serve(files, quit, log); err != nil {
		return errors.Join(err, l.Close())
	}
	defer s.handler.Close()
	defer s.wait.Wait()
	defer quit(nil)
	s.wait.Go(func() {
		<-ctx.Done()
		_ = l.Close()
	})
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			if err = context.Cause(ctx); errors.Is(err, context.Canceled) {
				err = nil
			}
			return err
		}
		if err != nil {
			return fmt.Errorf("the control socket: %w", err)
		}
		if u, ok := c.(*net.UnixConn); ok {
			s.wait.Go(func() { s.answer(ctx, u) })
		}
	}
}

type server struct {
	build   string
	sockets []int
	handler Handler
	quit    func()
	wait    sync.WaitGroup
	newest  atomic.Pointer[net.UnixConn] // that said hello
	mu      sync.Mutex                   // one question at a time
}

// answer answers one agent until it lets go. It has to be root, whatever the socket's mode.
func (s *server) answer(ctx context.Context, c *net.UnixConn) {
	if ipc.CheckPeer(c) != nil {
		_ = c.Close()
		return
	}
	one := ipc.Server{
		Sock: c, Question: maxMessage, Answer: maxMessage, Within: answerWithin,
		Handle: func(ctx context.Context, m ipc.Message, files []*os.File) (ipc.Reply, error) {
			return s.handle(ctx, c, m, files)
		},
	}
	_ = one.Serve(ctx) // the agent sees its end, and connects again
}

func (s *server) handle(ctx context.Context, c *net.UnixConn, ask ipc.Message, files []*os.File) (ipc.Reply, error) {
	switch ask.Verb {
	case verbHello:
		ipc.CloseAll(files)
		s.newest.Store(c)
		return ipc.Reply{Value: hello{Build: s.build}, FDs: s.sockets}, nil
	case verbQuit:
		ipc.CloseAll(files)
		return ipc.Reply{Sent: s.quit}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.newest.Load(); n != nil && n != c {
		ipc.CloseAll(files)
		return ipc.Reply{}, errors.New("another agent has taken over")
	}
	value, err := s.handler.Handle(ctx, ask.Verb, ask.Body, files)
	return ipc.Reply{Value: value}, err
}
