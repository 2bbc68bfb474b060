package tunnels

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"gantry/agent/containerfs"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
)

const (
	execSweepEvery = 30 * time.Second
	execSweepRetry = time.Second
	// probeEvery is how often an empty frame is sent, so that a scheduler that let go of the tunnel is
	// noticed also while the process takes no input and writes nothing.
	probeEvery    = 2 * time.Second
	resizeTimeout = 5 * time.Second
)

// exec runs a command in a pod. It is over, and the process gone, when either side ends the tunnel.
func (t *Tunnels) exec(ctx context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel) error {
	target := ask.GetExec()
	id := fleet.PodID(target.GetPodId())
	incarnation, err := t.wanted(id)
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	if err := t.execs.take(id); err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	defer t.execs.leave(id)
	p, err := t.startExec(ctx, id, incarnation, target)
	var unable *containerfs.NotStartedError
	if errors.As(err, &unable) {
		t.Log.Debug("a command did not start", "pod", id, "err", unable.Err)
		return errors.Join(stream.Send(&agentrpc.Frame{Id: ask.GetId()}), sendResult(stream, fleet.ExecResult{Code: unable.Code, Error: unable.Sentence}))
	}
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	x := &execTunnel{stream: stream, process: p}
	err = stream.Send(&agentrpc.Frame{Id: ask.GetId()})
	if err == nil {
		err = x.carry(ctx)
	}
	if closeErr := p.Close(); closeErr != nil {
		t.Log.Warn("kill a command in a pod", "pod", id, "err", closeErr)
	}
	if err != nil { // where the tunnel stands still, the scheduler learns of it and lets go
		_ = x.Send(t.lastFrame(err))
		_ = x.CloseSend()
	}
	x.tasks.Wait()
	return err
}

// startExec starts a command while somebody waits for it.
func (t *Tunnels) startExec(ctx context.Context, id fleet.PodID, incarnation uint64, target *agentrpc.ExecTarget) (containerfs.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, t.startWithin)
	defer cancel()
	p, err := t.Inside.Exec(ctx, id, incarnation, containerfs.ExecSpec{
		Command: target.GetCommand(), TTY: target.GetTty(), Stdin: target.GetStdin(),
		Cols: int(target.GetCols()), Rows: int(target.GetRows()), Term: target.GetTerm(),
	})
	if ctx.Err() == nil {
		return p, err
	}
	if err == nil {
		err = p.Close()
	}
	t.Log.Warn("command in a pod did not start in time", "pod", id, "err", err)
	return nil, fleet.Unavailable("the command did not start in time", errors.Join(ctx.Err(), err))
}

// execTunnel carries a process's streams.
type execTunnel struct {
	stream  agentrpc.Frames
	process containerfs.Process
	tasks   sync.WaitGroup // end when the process is closed and the tunnel has ended

	sendMu sync.Mutex // one sender at a time, as gRPC demands; who closes the sending side is one
}

// Send sends a frame.
func (x *execTunnel) Send(f *agentrpc.Frame) error {
	x.sendMu.Lock()
	defer x.sendMu.Unlock()
	return x.stream.Send(f)
}

// CloseSend tells the scheduler that nothing more comes. An output of the process may still be sending.
func (x *execTunnel) CloseSend() error {
	x.sendMu.Lock()
	defer x.sendMu.Unlock()
	return x.stream.CloseSend()
}

// carry returns when the process has ended and everything was sent, or when the tunnel has broken.
func (x *execTunnel) carry(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.tasks.Go(func() { cancel(x.receive(ctx)) })
	x.tasks.Go(func() { x.probe(ctx, cancel) })
	outputs := make(chan error, 2)
	x.tasks.Go(func() { outputs <- x.copyOut(x.process.Stdout(), fleet.ExecStdout) })
	x.tasks.Go(func() { outputs <- x.copyOut(x.process.Stderr(), fleet.ExecStderr) })
	for range cap(outputs) {
		select {
		case err := <-outputs:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	code, err := x.process.Wait(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	result := fleet.ExecResult{Code: code}
	if err != nil {
		result = fleet.ExecResult{Code: lostExecCode, Error: "the command was lost"}
	}
	return sendResult(x, result)
}

// lostExecCode is what a process is said to have ended with of which nothing is known any more.
const lostExecCode = 255

// sendResult sends the last frame of an exec.
func sendResult(to interface{ Send(*agentrpc.Frame) error }, r fleet.ExecResult) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return to.Send(&agentrpc.Frame{Channel: uint32(fleet.ExecExit), Data: data, End: true})
}

// copyOut sends what the process writes. It reads no further than it can send.
func (x *execTunnel) copyOut(from io.Reader, channel fleet.ExecChannel) error {
	if from == nil {
		return nil
	}
	buf := make([]byte, frameSize)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if sendErr := x.Send(&agentrpc.Frame{Channel: uint32(channel), Data: buf[:n]}); sendErr != nil {
				return sendErr
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// probe notices that the scheduler let go of the tunnel.
func (x *execTunnel) probe(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := x.Send(&agentrpc.Frame{Channel: uint32(fleet.ExecStdout)}); err != nil {
			cancel(err)
			return
		}
	}
}

// receive hands on what comes from the scheduler, until that lets go of the tunnel.
func (x *execTunnel) receive(ctx context.Context) error {
	in := x.process.Stdin()
	for {
		f, err := x.stream.Recv()
		if err != nil {
			return err
		}
		switch fleet.ExecChannel(f.GetChannel()) { //nolint:gosec // an unknown one is none of those below
		case fleet.ExecStdin:
			if in != nil && len(f.GetData()) > 0 {
				_, _ = in.Write(f.GetData()) // a process that has closed its input wants no more
			}
		case fleet.ExecStdinEnd:
			if in != nil {
				_ = in.Close()
			}
		case fleet.ExecResize:
			x.resize(ctx, f.GetData())
		}
	}
}

// resize sets the terminal's size; what is not a size changes nothing.
func (x *execTunnel) resize(ctx context.Context, data []byte) {
	var size fleet.ExecSize
	if json.Unmarshal(data, &size) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resizeTimeout)
	defer cancel()
	_ = x.process.Resize(ctx, size.Cols, size.Rows)
}

// SweepExecs ends what an agent before this one has left running in containers, and what could not be
// ended when it should have been.
func SweepExecs(ctx context.Context, in Inside, logError func(error)) {
	if in == nil {
		return
	}
	for {
		wait := execSweepEvery
		if err := in.SweepExecs(ctx); err != nil && ctx.Err() == nil {
			logError(err)
			wait = execSweepRetry
		}
		if sleep.For(ctx, wait) != nil {
			return
		}
	}
}
