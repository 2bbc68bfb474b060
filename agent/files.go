package agent

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"

	"gantry/agent/inside"
	"gantry/fleet"
	"gantry/internal/link"
)

// transfer reads or writes files of a pod.
func (t *tunnels) transfer(ctx context.Context, stream link.Link_TunnelClient, ask *link.OpenTunnel) error {
	target := ask.GetFiles()
	id := fleet.PodID(target.GetPodId())
	incarnation, err := t.wanted(id)
	if err == nil {
		err = inside.CheckPath(target.GetPath())
	}
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	if !t.files.take(id) {
		return stream.Send(t.refusal(ask, fleet.NotAllowed("%d transfers of files run in the pod already", maxTransfers)))
	}
	defer t.files.leave(id)
	root, err := t.inside.Root(ctx, id, incarnation)
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	defer func() { _ = root.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
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
		return t.unpack(ctx, stream, ask, root)
	}
	return t.pack(ctx, cancel, stream, ask, root)
}

var errPodEnded = fleet.NotAllowed("the pod was stopped meanwhile")

// pack sends files as a tar stream.
func (t *tunnels) pack(
	ctx context.Context, cancel context.CancelCauseFunc, stream link.Link_TunnelClient, ask *link.OpenTunnel, root *inside.Root,
) error {
	found, err := root.Find(ask.GetFiles().GetPath())
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	defer func() { _ = found.Close() }()
	if err := stream.Send(&link.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	// The scheduler sends nothing: receiving ends when it lets go of the tunnel.
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, err := stream.Recv()
		cancel(errors.Join(errLetGo, err))
	}()
	out := &frameWriter{stream: stream}
	buffered := bufio.NewWriterSize(out, frameSize)
	err = found.Pack(ctx, buffered)
	if err == nil {
		err = buffered.Flush()
	}
	if out.err == nil && !errors.Is(context.Cause(ctx), errLetGo) {
		out.err = stream.Send(t.lastFrame(err))
	}
	_ = stream.CloseSend()
	<-gone
	return out.err
}

var errLetGo = errors.New("the scheduler let go of the tunnel")

// frameWriter sends what is written.
type frameWriter struct {
	stream link.Link_TunnelClient
	err    error
}

// Write implements io.Writer.
func (w *frameWriter) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		piece := p[done:min(done+frameSize, len(p))]
		if w.err = w.stream.Send(&link.Frame{Data: piece}); w.err != nil {
			return done, w.err
		}
		done += len(piece)
	}
	return len(p), nil
}

// unpack writes files from a tar stream. The answer comes when everything is there, or at the first
// fault; what the scheduler sends after that is dropped by serve.
func (t *tunnels) unpack(ctx context.Context, stream link.Link_TunnelClient, ask *link.OpenTunnel, root *inside.Root) error {
	into, err := root.Into(ask.GetFiles().GetPath())
	if err != nil {
		return stream.Send(t.refusal(ask, err))
	}
	defer func() { _ = into.Close() }()
	if err := stream.Send(&link.Frame{Id: ask.GetId()}); err != nil {
		return err
	}
	var once sync.Once
	var sendErr error
	answer := func(err error) { once.Do(func() { sendErr = stream.Send(t.lastFrame(err)) }) }
	// A stream that stands still must not hold the files of a pod that has ended.
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		answer(context.Cause(ctx))
	})
	in := &frameReader{stream: stream}
	err = into.Unpack(ctx, in)
	if !stop() {
		<-told
	}
	if in.err != nil {
		return in.err // nobody is there to be told
	}
	answer(err)
	return sendErr
}

// frameReader reads what is received, up to the frame that ends it.
type frameReader struct {
	stream link.Link_TunnelClient
	rest   []byte
	ended  bool
	err    error // the stream broke before its end
}

// Read implements io.Reader.
func (r *frameReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		if r.ended {
			return 0, io.EOF
		}
		f, err := r.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			r.err = err
			continue
		}
		r.rest, r.ended = f.GetData(), f.GetEnd()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
