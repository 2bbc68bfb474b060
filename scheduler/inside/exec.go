package inside

import (
	"context"
	"encoding/json"
	"io"
	"math"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/dataconn"
)

// Exec starts a process in a pod's container on the host. The process is killed when the session is
// closed, ctx ends, or the host and this scheduler lose each other. A refusal of the host is a
// *fleet.Error: not_found, not_allowed or invalid, otherwise unavailable.
func (open Opener) Exec(ctx context.Context, host fleet.HostID, pod fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error) {
	if len(req.Command) == 0 {
		return nil, fleet.Invalid("command", "must have at least one word")
	}
	for path, side := range map[string]int{"cols": req.Cols, "rows": req.Rows} {
		if side < 0 || side > math.MaxUint16 {
			return nil, fleet.Invalid(path, "must be 0 to 65535")
		}
	}
	c, err := open(ctx, host, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Exec{Exec: &agentrpc.ExecTarget{
		PodId: string(pod), Command: req.Command, Tty: req.TTY, Stdin: req.Stdin,
		Cols: int32(req.Cols), Rows: int32(req.Rows), Term: req.Term, //nolint:gosec // 16 bits
	}}})
	if err != nil {
		return nil, err
	}
	x := &execSession{ctx: ctx, c: c}
	x.stop = context.AfterFunc(ctx, func() { _ = c.Close() })
	return x, nil
}

// execSession is an exec through a tunnel.
type execSession struct {
	ctx   context.Context //nolint:containedctx // of the session, which ends with it
	c     *Stream
	stop  func() bool
	ended error // of the receiving goroutine alone: what Receive returns from now on
}

// Send implements fleet.ExecSession. It waits while the process takes no input.
func (x *execSession) Send(f fleet.ExecFrame) error {
	switch f.Channel {
	case fleet.ExecStdin, fleet.ExecResize, fleet.ExecStdinEnd:
	default:
		return fleet.Invalid("channel", "must be one that goes to the process")
	}
	data := f.Data
	for {
		piece := data[:min(len(data), frameSize)]
		if err := x.c.Send(&agentrpc.Frame{Channel: uint32(f.Channel), Data: piece}); err != nil {
			return x.lost(err)
		}
		if data = data[len(piece):]; len(data) == 0 {
			return nil
		}
	}
}

// Receive implements fleet.ExecSession.
func (x *execSession) Receive() (fleet.ExecFrame, error) {
	for x.ended == nil {
		f, err := x.c.Recv()
		if err == nil {
			err = dataconn.HostError(f)
		} else {
			err = x.lost(err)
		}
		if err != nil {
			x.ended = err
			break
		}
		switch f.GetChannel() {
		case uint32(fleet.ExecStdout), uint32(fleet.ExecStderr):
			if len(f.GetData()) > 0 {
				return fleet.ExecFrame{Channel: fleet.ExecChannel(f.GetChannel()), Data: f.GetData()}, nil
			}
		case uint32(fleet.ExecExit):
			data, err := exitFrame(f.GetData())
			if err != nil {
				x.ended = fleet.Unavailable("the pod's host did not tell how the command ended", err)
				break
			}
			x.ended = io.EOF
			return fleet.ExecFrame{Channel: fleet.ExecExit, Data: data}, nil
		}
	}
	return fleet.ExecFrame{}, x.ended
}

// exitFrame returns what a host tells of the end of a command, without what is not a part of it.
func exitFrame(data []byte) ([]byte, error) {
	var result fleet.ExecResult
	if err := json.Unmarshal(data, &result); err != nil {
		return nil, err
	}
	result.Error = dataconn.HostText(result.Error)
	return json.Marshal(result)
}

func (x *execSession) lost(err error) error { return lostHost(x.ctx, err, "while the command ran") }

// lostHost words the end of a tunnel that nobody meant to end. A caller that has gone or has closed
// its end is told just that.
func lostHost(ctx context.Context, err error, when string) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == io.ErrClosedPipe: //nolint:errorlint // it is the conduit's own
		return err
	}
	return fleet.Unavailable("the pod's host was lost "+when, err)
}

// Close implements fleet.ExecSession.
func (x *execSession) Close() error {
	x.stop()
	return x.c.Close()
}
