package sidecar

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
	"gantry/internal/ipc/process"
)

const (
	// startWithin is how long a process that was started may take to answer. One that is killed for being slow is as slow the next
	// time: a machine that boots, and has its programs to read from its disk, is given its time.
	startWithin = time.Minute
	endWithin   = 2 * time.Second // of a process that is told to; then it is killed
	pollLeast   = 2 * time.Millisecond
	pollMost    = 50 * time.Millisecond
	maxBorn     = 9 // files of a process that is started
)

func (c Config) socket() string { return c.Name + ".sock" }

// errOther says that a process has not the program, or the sockets, that it should have.
var errOther = errors.New("it is another than it should be")

// obtain returns a connection to a process of the present program: the one that is there, or one that it starts.
func (c *Client) obtain(ctx context.Context) (*Conn, error) {
	build, err := buildOf(c.cfg.Program)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a process goes on without its program
		return nil, err
	}
	conn, err := c.cfg.dial()
	if err != nil && !absent(err) {
		return nil, err
	}
	if err == nil {
		err := c.greetSoon(ctx, conn, build)
		if err == nil {
			return conn, nil
		}
		conn.Close()
		if ctx.Err() != nil { // it is not the process that is late
			return nil, ctx.Err()
		}
		if err := c.cfg.end(ctx, errors.Is(err, errOther)); err != nil {
			return nil, err
		}
	}
	if c.cfg.Open != nil && !c.cfg.Right(c.sockets) {
		drop(c.sockets)
		if c.sockets, err = c.cfg.Open(ctx); err != nil {
			return nil, err
		}
	}
	return c.launch(ctx, build)
}

// launch starts a process and waits until it answers. One that does not is ended: nobody else would know of it.
func (c *Client) launch(ctx context.Context, build string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	p, err := c.cfg.start(build, c.sockets)
	if err != nil {
		return nil, err
	}
	c.gone(nil, errStarting)
	conn, err := c.cfg.await(ctx, p)
	if err == nil {
		if err = c.greet(ctx, conn, build); err == nil {
			return conn, nil
		}
		conn.Close()
	}
	p.Kill(endWithin)
	return nil, err
}

func (c *Client) greetSoon(ctx context.Context, conn *Conn, build string) error {
	ctx, cancel := context.WithTimeout(ctx, helloWithin)
	defer cancel()
	return c.greet(ctx, conn, build)
}

// greet makes sure that the process answers, and is the right one, and keeps its sockets.
func (c *Client) greet(ctx context.Context, conn *Conn, build string) error {
	var h hello
	files, err := conn.ask(ctx, verbHello, nil, &h, nil)
	defer ipc.CloseAll(files)
	if err != nil {
		return err
	}
	if len(files) > 0 {
		drop(c.sockets)
		if c.sockets, err = copies(numbers(files)); err != nil {
			return err
		}
	}
	if c.cfg.Open != nil && !c.cfg.Right(c.sockets) {
		drop(c.sockets)
		c.sockets = nil
		return errOther
	}
	if build != "" && h.Build != build {
		c.cfg.Log.Info("replacing a network process that runs another build", "process", c.cfg.Name, "pid", conn.pid)
		return errOther
	}
	return nil
}

// absent says that nobody listens.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// buildOf tells programs apart.
func buildOf(program string) (string, error) {
	f, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // read-only
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read %s: %w", program, err)
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// within calls f with a short path of the control socket, whatever the folder's length: the kernel takes 107 bytes.
func (c Config) within(f func(path string) error) error {
	dir, err := os.OpenFile(c.Dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // nothing was read
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), c.socket()))
}

// dial connects to the process that listens.
func (c Config) dial() (conn *Conn, err error) {
	err = c.within(func(path string) error {
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		pid, err := listener(u)
		if err != nil {
			return errors.Join(err, u.Close())
		}
		conn = &Conn{Conn: ipc.NewConn(u, maxMessage), pid: pid}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", filepath.Join(c.Dir, c.socket()), err)
	}
	return conn, nil
}

// listener returns who listens at the other end. It must be a process of whom this one is, as it was when it began to.
func listener(u *net.UnixConn) (pid int, err error) {
	who, err := ipc.Peer(u)
	if err != nil {
		return 0, err
	}
	if int(who.Uid) != os.Getuid() {
		return 0, fmt.Errorf("the control socket is another user's: %d", who.Uid)
	}
	return int(who.Pid), nil
}

// start starts a process.
func (c Config) start(build string, sockets []int) (*process.Process, error) {
	if len(sockets) > maxBorn {
		return nil, errors.New("too many files for a process")
	}
	control, err := c.bind()
	if err != nil {
		return nil, err
	}
	files := []*os.File{control}
	defer func() { ipc.CloseAll(files) }()
	born, err := copies(sockets)
	if err != nil {
		return nil, err
	}
	for _, fd := range born {
		files = append(files, os.NewFile(uintptr(fd), "socket"))
	}
	cmd := &exec.Cmd{
		Path: c.Program, Args: []string{"gantry-net", c.Name, build, strconv.Itoa(len(files) - 1), c.Dir}, Env: []string{}, Dir: "/",
		Stderr: os.Stderr, ExtraFiles: files,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS},
	}
	p, err := process.Start(cmd) // it may outlive the client
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	return p, nil
}

// bind makes the control socket, at which nobody listens yet.
func (c Config) bind() (*os.File, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Join(c.Dir, c.socket())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "control")
	err = unix.Fchmod(fd, 0o600) // which the socket's file gets
	if err == nil {
		err = c.within(func(path string) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: path}) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control socket: %w", err), f.Close())
	}
	return f, nil
}

// await connects to a process as soon as it listens.
func (c Config) await(ctx context.Context, p *process.Process) (*Conn, error) {
	for wait := pollLeast; ; wait = min(2*wait, pollMost) {
		conn, err := c.dial()
		if err == nil || !absent(err) {
			return conn, err
		}
		select {
		case <-p.Gone():
			return nil, errors.Join(errors.New("it ended before it listened"), p.Err())
		case <-ctx.Done():
			return nil, errors.Join(errors.New("it does not listen"), ctx.Err())
		case <-time.After(wait):
		}
	}
}

// end ends the process that listens, if there is one, and waits until it is gone. One that hangs is not asked.
func (c Config) end(ctx context.Context, ask bool) error {
	conn, err := c.dial()
	if err != nil {
		if absent(err) {
			return nil
		}
		return err
	}
	defer conn.Close()
	held, err := unix.PidfdOpen(conn.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end %s: %w", c.Name, os.NewSyscallError("pidfd_open", err))
	}
	defer func() { _ = unix.Close(held) }()
	// Who answers, or does not but has the connection still, is the process that is held.
	if ask && conn.quit(ctx) == nil && exited(ctx, held, endWithin) {
		return nil
	}
	if err := unix.PidfdSendSignal(held, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end %s: %w", c.Name, os.NewSyscallError("pidfd_send_signal", err))
	}
	if !exited(ctx, held, endWithin) {
		return fmt.Errorf("end %s: it does not go", c.Name)
	}
	return nil
}

// quit has the process end.
func (c *Conn) quit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	return c.Call(ctx, verbQuit, nil, nil)
}

// exited waits for the end of a process.
func exited(ctx context.Context, pidfd int, within time.Duration) bool {
	for end := time.Now().Add(within); time.Now().Before(end) && ctx.Err() == nil; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 20) //nolint:gosec // a descriptor
		if n > 0 && err == nil {
			return true
		}
	}
	return false
}
