package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const endTime = 30 * time.Second // for a killed program to be gone

// Proc is a program that runs in a place.
type Proc struct {
	Name string
	Log  string

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // of its end, once done
	fed  atomic.Int64  // when it last fed its watchdog, as UnixNano
}

// Start runs a program until it ends or is killed. What it prints is added to the log file.
func (p *Place) Start(name string, s Spec) (*Proc, error) {
	log, err := os.OpenFile(s.Log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the program has its own
	proc := &Proc{Name: name, Log: s.Log, cmd: s.command(context.Background()), done: make(chan struct{})}
	proc.cmd.Stdout, proc.cmd.Stderr = log, log
	var feed *net.UnixConn
	p.do(func() {
		if feed, err = proc.watch(s.Watchdog); err == nil {
			err = proc.cmd.Start()
		}
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), closeFeed(feed))
	}
	go func() {
		defer close(proc.done)
		proc.err = proc.cmd.Wait()
		_ = closeFeed(feed) // which ends its reader
	}()
	p.lab.mu.Lock()
	defer p.lab.mu.Unlock()
	p.lab.procs = append(p.lab.procs, proc)
	return proc, nil
}

// watch makes the socket where the program feeds its watchdog, sd_watchdog_enabled(3), and reads it until it is closed.
func (p *Proc) watch(limit time.Duration) (*net.UnixConn, error) {
	if limit == 0 {
		return nil, nil //nolint:nilnil // it has none
	}
	p.fed.Store(time.Now().UnixNano())
	addr := &net.UnixAddr{Net: "unixgram", Name: fmt.Sprintf("@gantry-lab-%d-%d", os.Getpid(), feeds.Add(1))}
	feed, err := net.ListenUnixgram("unixgram", addr)
	if err != nil {
		return nil, err
	}
	p.cmd.Env = append(p.cmd.Env, "NOTIFY_SOCKET="+addr.Name, fmt.Sprintf("WATCHDOG_USEC=%d", limit.Microseconds()))
	go func() {
		text := make([]byte, 4096)
		for {
			n, err := feed.Read(text)
			if err != nil {
				return
			}
			if strings.Contains(string(text[:n]), "WATCHDOG=1") {
				p.fed.Store(time.Now().UnixNano())
			}
		}
	}()
	return feed, nil
}

var feeds atomic.Int64

func closeFeed(feed *net.UnixConn) error {
	if feed == nil {
		return nil
	}
	return feed.Close()
}

// Unfed is for how long it has not fed its watchdog. Only programs that were started with one do.
func (p *Proc) Unfed() time.Duration { return time.Since(time.Unix(0, p.fed.Load())) }

// PID is the program's process id.
func (p *Proc) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the program has ended.
func (p *Proc) Ended() <-chan struct{} { return p.done }

// Alive reports whether it runs.
func (p *Proc) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Wait waits for the end and returns the exit code, -1 after a signal.
func (p *Proc) Wait(limit time.Duration) (code int, err error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(limit):
		return 0, fmt.Errorf("%s did not end in %v", p.Name, limit)
	}
}

// Kill ends it with SIGKILL, which it cannot notice, and waits.
func (p *Proc) Kill() error {
	_ = p.cmd.Process.Kill() // it may have ended
	_, err := p.Wait(endTime)
	return err
}

// Stop ends it as systemd would.
func (p *Proc) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	if code, err := p.Wait(endTime); err != nil || code != 0 {
		return errors.Join(fmt.Errorf("%s ended with code %d", p.Name, code), err, p.Kill())
	}
	return nil
}

// Pause stops its execution until Resume.
func (p *Proc) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (p *Proc) Resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) } // it may have ended

// Tail returns the end of what it printed.
func (p *Proc) Tail(bytes int64) string { return tail(p.Log, bytes) }

func tail(path string, bytes int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > bytes {
		_, _ = f.Seek(-bytes, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return string(text)
}

// Dial connects from the place. The address is IP:PORT.
func (p *Place) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	type answer struct {
		conn net.Conn
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		// A thread of its own, which is given up: a socket belongs to the namespace of the thread that made it.
		runtime.LockOSThread()
		if err := unix.Setns(p.ns, unix.CLONE_NEWNET); err != nil {
			answers <- answer{err: fmt.Errorf("enter %s: %w", p.Name, err)}
			return
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		answers <- answer{conn, err}
	}()
	a := <-answers
	return a.conn, a.err
}
