package helper

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

// process does one call. After done is closed, all of it but kill is the caller's.
type process struct {
	done chan struct{}

	mu     sync.Mutex
	child  *child // nil: none yet; guarded by mu
	killed bool   // guarded by mu

	spare  bool // it was started before the call
	answer bytes.Buffer
	said   head
	state  string
	file   *os.File
}

// child is a helper process that runs, and waits for its request until it has one.
type child struct {
	cmd            *exec.Cmd
	ours           []*os.File // all that was opened for it
	stdin          *os.File
	stdout, stderr *os.File
	socket         *os.File // where a descriptor arrives
}

// head keeps the beginning of what is written to it.
type head struct{ text []byte }

const mostSaid = 4 << 10

func (h *head) Write(text []byte) (int, error) {
	h.text = append(h.text, text[:min(len(text), mostSaid-len(h.text))]...)
	return len(text), nil
}

// launch starts a helper process.
func (c *Caller) launch() (*child, error) {
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...) //nolint:gosec // the program itself
	// Two processors are enough for one call; more would only cost time at the start.
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "GOMAXPROCS=2"}, c.Env...)
	cmd.Dir = "/"
	out := &child{cmd: cmd}
	theirs, err := out.open()
	if err == nil {
		err = cmd.Start()
	}
	closeAll(theirs)
	if err != nil {
		closeAll(out.ours)
		return nil, err
	}
	return out, nil
}

// open makes the pipes and the socket. It returns the process's ends.
func (h *child) open() (theirs []*os.File, err error) {
	for i, ours := range []**os.File{&h.stdin, &h.stdout, &h.stderr} {
		read, write, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		if i == 0 {
			read, write = write, read
		}
		*ours = read
		h.ours, theirs = append(h.ours, read), append(theirs, write)
	}
	h.cmd.Stdin, h.cmd.Stdout, h.cmd.Stderr = theirs[0], theirs[1], theirs[2]
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return theirs, os.NewSyscallError("socketpair", err)
	}
	h.socket = os.NewFile(uintptr(pair[0]), "socket of a helper")
	h.cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(pair[1]), "socket of a helper")}
	h.ours = append(h.ours, h.socket)
	return append(theirs, h.cmd.ExtraFiles[0]), nil
}

// end kills a process that has no request.
func (h *child) end() {
	_ = h.cmd.Process.Kill() // it may have ended
	_ = h.cmd.Wait()
	closeAll(h.ours)
}

// start takes the process that waits, or starts one. Where it fails, nothing is open.
func (p *process) start(c *Caller) error {
	h := c.takeSpare()
	if p.spare = h != nil; !p.spare {
		var err error
		if h, err = c.launch(); err != nil {
			return err
		}
	}
	return p.take(h)
}

// take makes a process that of the call, unless that was given up.
func (p *process) take(h *child) error {
	p.mu.Lock()
	killed := p.killed
	if !killed {
		p.child = h
	}
	p.mu.Unlock()
	if killed {
		h.end()
		return ErrClosed
	}
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
	if p.child != nil {
		_ = p.child.cmd.Process.Kill() // it may have ended
	}
}

// exchange gives the process its request and waits until it has ended.
func (p *process) exchange(c *Caller, line []byte) {
	h := p.child
	_, err := h.stdin.Write(line)
	if err != nil && p.spare { // it had ended before it was needed: whoever has not read the whole line does nothing
		h.end()
		if h, err = c.launch(); err == nil {
			err = p.take(h)
		}
		if err != nil {
			p.state = err.Error()
			return
		}
		_, _ = h.stdin.Write(line) // one that has died has no answer either
	}
	var said sync.WaitGroup
	said.Go(func() { _, _ = io.Copy(&p.said, h.stderr) })
	if n, err := io.Copy(&p.answer, io.LimitReader(h.stdout, maxAnswer)); err == nil && n == maxAnswer {
		p.kill()
	}
	said.Wait()
	_ = h.cmd.Wait() // said in state
	p.state = h.cmd.ProcessState.String()
	p.receive(h.socket)
	closeAll(h.ours)
}

// receive takes the descriptor that the process has sent before it ended.
func (p *process) receive(socket *os.File) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(socket.Fd()), make([]byte, 1), oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
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
