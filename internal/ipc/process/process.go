// Package process starts helper processes, kills them, and says how long to wait before the next start.
package process

import (
	"net"
	"os/exec"
	"syscall"
	"time"

	"gantry/internal/ipc"
)

// Process is a program that was started and is waited for.
type Process struct {
	cmd  *exec.Cmd
	gone chan struct{}
	err  error // of the wait; set before gone is closed
}

// Start starts a program.
func Start(cmd *exec.Cmd) (*Process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, gone: make(chan struct{})}
	go func() { // until the process has ended, which may be never
		p.err = cmd.Wait()
		close(p.gone)
	}()
	return p, nil
}

// StartAsked starts a program whose standard input is the other end of a connection: it ends when that does, and so with the
// process that started it.
func StartAsked(cmd *exec.Cmd) (*Process, *net.UnixConn, error) {
	ours, theirs, err := ipc.Pair()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdin = theirs
	p, err := Start(cmd)
	_ = theirs.Close() // the process has it
	if err != nil {
		_ = ours.Close()
		return nil, nil, err
	}
	return p, ours, nil
}

// PID is the process's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Gone is closed when the process has ended.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Err is how the process ended, once Gone is closed.
func (p *Process) Err() error { return p.err }

// State is how the process ended, in words, once Gone is closed.
func (p *Process) State() string { return p.cmd.ProcessState.String() }

// Kill kills the process, with its group when it leads one, waits for its end as long as told, and reports whether it is gone. One
// that the kernel holds may not go.
func (p *Process) Kill(within time.Duration) bool {
	select {
	case <-p.gone:
		return true
	default:
	}
	if a := p.cmd.SysProcAttr; a != nil && a.Setpgid {
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	} else {
		_ = p.cmd.Process.Kill() // it may have ended
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.gone:
		return true
	case <-timer.C:
		return false
	}
}

// Backoff is the growing wait before a process is started again.
type Backoff struct {
	Least, Most time.Duration
	Stood       time.Duration // a process that stood for longer is replaced after the least wait

	wait time.Duration
}

// Next returns the next wait, after a process that stood so long.
func (b *Backoff) Next(stood time.Duration) time.Duration {
	if b.wait == 0 || stood > b.Stood {
		b.wait = b.Least
	}
	out := b.wait
	b.wait = min(2*b.wait, b.Most)
	return out
}
