package helper

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"gantry/internal/ipc"
	"gantry/internal/ipc/process"
)

// call is one call, in a process of its own. After done is closed, all of it but kill is the caller's.
type call struct {
	done chan struct{}

	mu     sync.Mutex
	child  *child // nil: none yet; guarded by mu
	killed bool   // guarded by mu

	spare    bool // it was started before the call
	answer   ipc.Message
	answered error // why there is no answer
	said     string
	state    string
	file     *os.File
}

// child is a helper process that runs, and waits for its request until it has one.
type child struct {
	*process.Process
	conn *net.UnixConn
	said *head // on its standard error; to be read once it is gone
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
	out := &child{said: &head{}}
	cmd.Stderr = out.said
	var err error
	out.Process, out.conn, err = process.StartAsked(cmd)
	return out, err
}

// end kills a process that has no request.
func (h *child) end() {
	h.Kill(time.Minute) // nothing holds it
	_ = h.conn.Close()
}

// start takes the process that waits, or starts one. Where it fails, nothing is open.
func (p *call) start(c *Caller) error {
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
func (p *call) take(h *child) error {
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

// kill kills the process. It may be called at any time.
func (p *call) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
	if p.child != nil {
		p.child.Kill(0)
	}
}

// exchange gives the process its request and waits until it has ended.
func (p *call) exchange(c *Caller, m ipc.Message) {
	h := p.child
	err := ipc.Write(h.conn, m, maxRequest)
	if err != nil && p.spare { // it had ended before it was needed: whoever has not read the whole request does nothing
		h.end()
		if h, err = c.launch(); err == nil {
			err = p.take(h)
		}
		if err != nil {
			p.answered, p.state = err, err.Error()
			return
		}
		_ = ipc.Write(h.conn, m, maxRequest) // one that has died has no answer either
	}
	var files []*os.File
	if p.answer, files, p.answered = ipc.Read(h.conn, maxAnswer); p.answered != nil && !errors.Is(p.answered, io.EOF) {
		p.kill() // it does not end by itself
	}
	if len(files) > 0 {
		p.file = files[0]
		ipc.CloseAll(files[1:])
	}
	<-h.Gone()
	_ = h.conn.Close()
	p.state, p.said = h.State(), string(h.said.text)
}
