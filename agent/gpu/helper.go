package gpu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"gantry/agent/gpu/wire"
	"gantry/internal/ipc/process"
)

const (
	eventRoom  = 256 // events that wait to be looked at
	endTimeout = 5 * time.Second
	stderrLine = 2000
)

// errHelperGone says that the helper process has ended.
var errHelperGone = errors.New("the GPU helper has ended")

// helper is a running gantry-gpu. ask is safe for concurrent use.
type helper struct {
	*process.Process
	in     *os.File
	log    *slog.Logger
	events chan wire.Event
	done   chan struct{} // closed when it says nothing any more; err says why

	mu      sync.Mutex // guards the fields below
	next    uint64
	waiting map[uint64]chan wire.Reply
	err     error
}

// startHelper starts the program. The calling goroutine must be locked to its thread until the helper has ended: the
// kernel kills the helper when the thread that made it ends.
func startHelper(log *slog.Logger, env []string, program string, args ...string) (*helper, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		_, _ = inR.Close(), inW.Close()
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	h := &helper{in: inW, log: log, events: make(chan wire.Event, eventRoom), done: make(chan struct{}), waiting: map[uint64]chan wire.Reply{}}
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, &logLines{log: log}
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	h.Process, err = process.Start(cmd)
	_, _ = inR.Close(), outW.Close()
	if err != nil {
		_, _ = inW.Close(), outR.Close()
		return nil, fmt.Errorf("start the GPU helper: %w", err)
	}
	go h.read(outR)
	return h, nil
}

// read hands out what the helper says, until it says no more.
func (h *helper) read(out *os.File) {
	defer func() { _ = out.Close() }()
	in := bufio.NewScanner(out)
	in.Buffer(make([]byte, 0, 64<<10), wire.MaxReply)
	err := errHelperGone
	for in.Scan() {
		var reply wire.Reply
		if e := json.Unmarshal(in.Bytes(), &reply); e != nil {
			err = fmt.Errorf("the GPU helper speaks wrongly: %w", e)
			break
		}
		if reply.ID == 0 && reply.Event == nil {
			err = errors.New(reply.Error)
			break
		}
		h.deliver(reply)
	}
	if e := in.Err(); e != nil {
		err = fmt.Errorf("hear the GPU helper: %w", e)
	}
	h.fail(err)
}

func (h *helper) deliver(reply wire.Reply) {
	if reply.Event != nil {
		if len(h.events) >= eventRoom/2 && verdict(reply.Event.XID) == "" {
			return // the room that is left is for errors that matter
		}
		select {
		case h.events <- *reply.Event:
		default:
			h.log.Error("an error of a GPU is lost: too many at a time", "gpu", reply.Event.UUID, "xid", reply.Event.XID)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if to := h.waiting[reply.ID]; to != nil {
		delete(h.waiting, reply.ID)
		to <- reply // has room for it
	}
}

// fail ends the conversation; the first reason counts.
func (h *helper) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = err
		close(h.done)
	}
}

func (h *helper) failure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// ask waits for an answer. A helper that gives none in time is not asked again: the conversation ends.
func (h *helper) ask(ctx context.Context, limit time.Duration, req wire.Request) (wire.Reply, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	answer := make(chan wire.Reply, 1)
	if err := h.send(req, limit, answer); err != nil {
		select { // a helper that has ended has said why
		case <-h.done:
		case <-timer.C:
			h.fail(err)
		}
		return wire.Reply{}, h.failure()
	}
	select {
	case reply := <-answer:
		if reply.Error != "" {
			return reply, errors.New(reply.Error)
		}
		return reply, nil
	case <-h.done:
		return wire.Reply{}, h.failure()
	case <-ctx.Done():
		return wire.Reply{}, ctx.Err()
	case <-timer.C:
		err := fmt.Errorf("the GPU helper did not answer within %v", limit)
		h.fail(err)
		return wire.Reply{}, err
	}
}

func (h *helper) send(req wire.Request, limit time.Duration, answer chan wire.Reply) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	h.next++
	req.ID = h.next
	b, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if len(b) >= wire.MaxRequest {
		return errors.New("the question to the GPU helper is too long")
	}
	if err := h.in.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("ask the GPU helper: %w", err)
	}
	if _, err := h.in.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("ask the GPU helper: %w", err)
	}
	h.waiting[req.ID] = answer
	return nil
}

// end kills the helper, and reports whether it is gone. One that hangs in the driver may not go.
func (h *helper) end() bool {
	h.fail(errHelperGone)
	_ = h.in.Close()
	return h.Kill(endTimeout) // with all that it has started
}

// logLines logs what a process writes, line by line, each cut at stderrLine bytes.
type logLines struct {
	log  *slog.Logger
	rest []byte
}

func (l *logLines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, after, whole := bytes.Cut(p, []byte("\n"))
		l.rest = append(l.rest, line[:min(len(line), max(stderrLine-len(l.rest), 0))]...)
		if p = after; whole {
			l.log.Warn("the GPU helper says", "text", string(l.rest))
			l.rest = l.rest[:0]
		}
	}
	return n, nil
}
