package tunnels

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"gantry/agent/containerfs"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// soleStream is a tunnel that breaks as soon as something is sent through it, and notices when it is used as gRPC forbids:
// by two senders at once, of which one may be who closes the sending side.
type soleStream struct {
	agentrpc.Link_TunnelClient
	broken chan struct{} // closed by the second frame
	frames int           // unguarded, so that the race detector speaks, too
	busy   atomic.Bool
	twice  atomic.Bool
}

func (s *soleStream) use() {
	if !s.busy.CompareAndSwap(false, true) {
		s.twice.Store(true)
	}
	for range 100 {
		runtime.Gosched()
	}
	if s.frames++; s.frames == 2 {
		close(s.broken)
	}
	s.busy.Store(false)
}

func (s *soleStream) Send(*agentrpc.Frame) error {
	s.use()
	return nil
}

func (s *soleStream) CloseSend() error {
	s.use()
	return nil
}

func (s *soleStream) Recv() (*agentrpc.Frame, error) {
	<-s.broken
	return nil, errors.New("the scheduler let go")
}

// zeros is a process that writes until it has ended, and of which some output is left then.
type zeros struct {
	containerfs.Process
	closed chan struct{}
	left   int
}

func (z *zeros) Stdin() io.WriteCloser { return nil }
func (z *zeros) Stdout() io.Reader     { return z }
func (z *zeros) Stderr() io.Reader     { return nil }

func (z *zeros) Read(buf []byte) (int, error) {
	select {
	case <-z.closed:
		if z.left--; z.left < 0 {
			return 0, io.EOF
		}
	default:
	}
	return len(buf), nil
}

func (z *zeros) Close() error {
	close(z.closed)
	return nil
}

// zerosHost starts such processes.
type zerosHost struct{ Inside }

func (zerosHost) Exec(context.Context, fleet.PodID, uint64, containerfs.ExecSpec) (containerfs.Process, error) {
	return &zeros{closed: make(chan struct{}), left: 50}, nil
}

// TestOneSenderAtATime breaks a tunnel while the process's output is being sent: what closes the sending side waits for it.
func TestOneSenderAtATime(t *testing.T) {
	d := newDesk(t)
	d.t.Inside = zerosHost{}
	for range 20 {
		stream := &soleStream{broken: make(chan struct{})}
		if err := d.t.exec(d.ctx, stream, execOf("zeros")); err == nil {
			t.Error("the tunnel broke, and no error says so")
		}
		if stream.twice.Load() {
			t.Fatal("two senders use one stream at once")
		}
	}
}
