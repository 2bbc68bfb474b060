package backup

import (
	"context"
	"errors"
	"io"
	"time"
)

// errStalled ends a stream that is not taken.
var errStalled = errors.New("the reader of the snapshot takes nothing")

// Stream runs produce on a writer whose bytes go to w. When ctx ends, or when w has taken nothing for a while,
// produce's writes fail at once, also while w hangs: what it reads from is free then. Stream itself returns when
// w and produce have.
func Stream(ctx context.Context, w io.Writer, stall time.Duration, produce func(io.Writer) error) error {
	out, in := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = out.CloseWithError(context.Cause(ctx)) })
	defer stop()
	idle := time.AfterFunc(stall, func() { _ = out.CloseWithError(errStalled) })
	defer idle.Stop()
	done := make(chan error, 1)
	go func() {
		err := produce(in)
		_ = in.CloseWithError(err)
		done <- err
	}()
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, &watched{out, idle, stall}, make([]byte, 64<<10))
	_ = out.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	made := <-done
	if err == nil || errors.Is(err, io.ErrClosedPipe) {
		return made // which knows why the pipe was closed
	}
	return err
}

// watched reads, and starts the time of a stall anew with each read.
type watched struct {
	r     io.Reader
	idle  *time.Timer
	stall time.Duration
}

func (r *watched) Read(p []byte) (int, error) {
	r.idle.Reset(r.stall)
	return r.r.Read(p)
}
