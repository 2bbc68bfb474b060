package helper

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

// process is one helper process. After done is closed, all of it but kill is the caller's.
type process struct {
	done chan struct{}

	mu     sync.Mutex
	cmd    *exec.Cmd // nil: not started; guarded by mu
	killed bool      // guarded by mu

	ours, theirs   []*os.File // all that was opened for it
	stdin          *os.File
	stdout, stderr *os.File
	socket         *os.File // where the descriptor arrives; nil: none is wanted

	answer bytes.Buffer
	said   head
	state  string
	file   *os.File
}

// head keeps the beginning of what is written to it.
type head struct{ text []byte }

const mostSaid = 4 << 10

func (h *head) Write(text []byte) (int, error) {
	h.text = append(h.text, text[:min(len(text), mostSaid-len(h.text))]...)
	return len(text), nil
}

// start starts the process. Where it fails, nothing is open.
func (p *process) start(c *Caller, wantFile bool) (err error) {
	defer func() {
		closeAll(p.theirs)
		if err != nil {
			closeAll(p.ours)
		}
	}()
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...) //nolint:gosec // the program itself
	// Two processors are enough for one call; more would only cost time at the start.
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=2"}, c.Env...)
	cmd.Dir = "/"
	if err := p.open(cmd, wantFile); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed {
		return ErrClosed
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	return nil
}

// open makes the pipes and, for a file to come back, the socket.
func (p *process) open(cmd *exec.Cmd, wantFile bool) error {
	var theirs [3]*os.File
	for i, ours := range []**os.File{&p.stdin, &p.stdout, &p.stderr} {
		read, write, err := os.Pipe()
		if err != nil {
			return err
		}
		if *ours, theirs[i] = read, write; i == 0 {
			*ours, theirs[i] = write, read
		}
		p.ours, p.theirs = append(p.ours, *ours), append(p.theirs, theirs[i])
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	if !wantFile {
		return nil
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	p.socket = os.NewFile(uintptr(pair[0]), "socket of a helper")
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(pair[1]), "socket of a helper")}
	p.ours, p.theirs = append(p.ours, p.socket), append(p.theirs, cmd.ExtraFiles[0])
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // pipes: what was written is there
	}
}

// kill kills the process. It may be called at any time.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
	if p.cmd != nil {
		_ = p.cmd.Process.Kill() // it may have ended
	}
}

// exchange gives the process its request and waits until it has ended.
func (p *process) exchange(line []byte) {
	var said sync.WaitGroup
	said.Go(func() { _, _ = io.Copy(&p.said, p.stderr) })
	_, _ = p.stdin.Write(line) // one that has died has no answer either
	if n, err := io.Copy(&p.answer, io.LimitReader(p.stdout, maxAnswer)); err == nil && n == maxAnswer {
		p.kill()
	}
	said.Wait()
	_ = p.cmd.Wait() // said in state
	p.state = p.cmd.ProcessState.String()
	if p.socket != nil {
		p.receive()
	}
	closeAll(p.ours)
}

// receive takes the descriptor that the process has sent before it ended.
func (p *process) receive() {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(p.socket.Fd()), make([]byte, 1), oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			if err == nil && p.file == nil {
				p.file = os.NewFile(uintptr(fd), "file of a helper")
			} else {
				_ = unix.Close(fd)
			}
		}
	}
}
