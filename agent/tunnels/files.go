package tunnels

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"gantry/agent/containerfs"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// inbox has the receiving half of a tunnel through which files go. A goroutine of its own receives, so
// that it is noticed at once when the scheduler lets go.
type inbox struct {
	frames chan *agentrpc.Frame
	drop   chan struct{} // closed when nobody takes frames any more
	gone   chan struct{} // closed when the tunnel has ended
}

// inboxFrames is how many frames are received before they are read.
const inboxFrames = 4

var errLetGo = errors.New("the scheduler let go of the tunnel")

// receive receives until the tunnel ends, and then cancels with errLetGo. It must be ended with leave.
func receive(stream agentrpc.Frames, cancel context.CancelCauseFunc) *inbox {
	in := &inbox{frames: make(chan *agentrpc.Frame, inboxFrames), drop: make(chan struct{}), gone: make(chan struct{})}
	go func() {
		defer close(in.gone)
		for {
			f, err := stream.Recv()
			if err != nil {
				cancel(fmt.Errorf("%w: %v", errLetGo, err)) //nolint:errorlint // the end of the tunnel is not that of what it carries
				return
			}
			select {
			case in.frames <- f:
			case <-in.drop:
			}
		}
	}()
	return in
}

// leave drops what still comes, until the scheduler has closed its side.
func (in *inbox) leave(stream agentrpc.Frames) {
	_ = stream.CloseSend()
	close(in.drop)
	<-in.gone
}

// transfer reads or writes files of a pod.
func (t *Tunnels) transfer(ctx context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := receive(stream, cancel)
	defer in.leave(stream) // last, with nothing of the pod held
	target := ask.GetFiles()
	id := fleet.PodID(target.GetPodId())
	incarnation, err := t.wanted(id)
	if err == nil {
		err = containerfs.CheckPath(target.GetPath())
	}
	if err == nil {
		err = t.reachable(id)
	}
	if err == nil {
		err = t.files.take(id)
	}
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	s := &seat{leave: func() { t.files.leave(id) }}
	defer s.end()
	root, err := t.Inside.Root(ctx, id, incarnation)
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	defer func() { _ = root.Close() }()
	done := make(chan struct{})
	defer func() { <-done }()
	finished, finish := context.WithCancel(ctx)
	defer finish()
	go func() {
		defer close(done)
		select {
		case <-root.Ended():
			cancel(errPodEnded)
		case <-finished.Done():
		}
	}()
	if target.GetWrite() {
		return t.unpack(ctx, stream, in, ask, root, s)
	}
	return t.pack(ctx, stream, ask, root, s)
}

// seat is one of seats. A process that it was lent to keeps it for as long as it lives: some cannot be ended.
type seat struct {
	leave func()
	lent  bool
}

func (s *seat) lend() (leave func()) {
	s.lent = true
	return s.leave
}

func (s *seat) end() {
	if !s.lent {
		s.leave()
	}
}

// packer is a file or folder of a pod that was found.
type packer interface {
	Pack(ctx context.Context, w io.Writer) error
	Close() error
}

func (t *Tunnels) find(ctx context.Context, root *containerfs.Root, path string, s *seat) (packer, error) {
	if t.Program == nil {
		return root.Find(path)
	}
	return t.Program.Find(ctx, root, path, s.lend())
}

// unpacker is a folder of a pod that was found.
type unpacker interface {
	Unpack(ctx context.Context, r io.Reader) error
	Close() error
}

func (t *Tunnels) into(ctx context.Context, root *containerfs.Root, path string, s *seat) (unpacker, error) {
	if t.Program == nil {
		return root.Into(path)
	}
	return t.Program.Into(ctx, root, path, s.lend())
}

var errPodEnded = fleet.NotAllowed("the pod was stopped meanwhile")

// nobody returns why nobody is there any more to be told how a transfer has ended; nil when somebody is.
func nobody(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, errPodEnded) {
		return err
	}
	return nil
}

// pack sends files as a tar stream.
func (t *Tunnels) pack(ctx context.Context, stream agentrpc.Frames, ask *agentrpc.OpenTunnel, root *containerfs.Root, s *seat) error {
	found, err := t.find(ctx, root, ask.GetFiles().GetPath(), s)
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	defer func() { _ = found.Close() }()
	if err := stream.Send(&agentrpc.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	out := &frameWriter{stream: stream}
	buffered := bufio.NewWriterSize(out, frameSize)
	err = found.Pack(ctx, buffered)
	if err == nil {
		err = buffered.Flush()
	}
	if gone := errors.Join(out.err, nobody(ctx)); gone != nil {
		return gone
	}
	return stream.Send(t.lastFrame(err))
}

// frameWriter sends what is written.
type frameWriter struct {
	stream agentrpc.Frames
	err    error
}

// Write implements io.Writer.
func (w *frameWriter) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		piece := p[done:min(done+frameSize, len(p))]
		if w.err = w.stream.Send(&agentrpc.Frame{Data: piece}); w.err != nil {
			return done, w.err
		}
		done += len(piece)
	}
	return len(p), nil
}

// unpack writes files from a tar stream. The answer comes when everything is there, or at the first
// fault; what the scheduler sends after that is dropped.
func (t *Tunnels) unpack(ctx context.Context, stream agentrpc.Frames, in *inbox, ask *agentrpc.OpenTunnel, root *containerfs.Root, s *seat) error {
	into, err := t.into(ctx, root, ask.GetFiles().GetPath(), s)
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	defer func() { _ = into.Close() }()
	if err := stream.Send(&agentrpc.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	err = into.Unpack(ctx, &frameReader{ctx: ctx, frames: in.frames})
	if gone := nobody(ctx); gone != nil {
		return gone
	}
	return stream.Send(t.lastFrame(err))
}

// frameReader reads what is received, up to the frame that ends it or to the end of ctx.
type frameReader struct {
	ctx    context.Context //nolint:containedctx // of the transfer, which ends with it
	frames <-chan *agentrpc.Frame
	rest   []byte
	ended  bool
}

// Read implements io.Reader.
func (r *frameReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if err := context.Cause(r.ctx); err != nil {
			return 0, err
		}
		if r.ended {
			return 0, io.EOF
		}
		select {
		case f := <-r.frames:
			r.rest, r.ended = f.GetData(), f.GetEnd()
		case <-r.ctx.Done():
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
