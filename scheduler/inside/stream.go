// Package inside reaches into the pods of hosts: it runs commands, reads and writes files and follows logs, over streams to their agents
// that whoever calls opens. What a host answers is cut to what it may be. It stores nothing.
package inside

import (
	"context"
	"errors"
	"io"
	"sync"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/dataconn"
)

const (
	frameSize  = 32 << 10 // bytes
	maxLogLine = 256 << 10
)

// Opener opens a stream to a host. Errors: those of the host, unavailable.
type Opener func(ctx context.Context, host fleet.HostID, ask *agentrpc.OpenTunnel) (*Stream, error)

// Over is an Opener over a data connection.
func Over(ctx context.Context, d *agentrpc.DataConn, ask *agentrpc.OpenTunnel) (*Stream, error) {
	s, err := dataconn.Open(ctx, d, ask)
	if err != nil {
		return nil, err
	}
	return NewStream(s, s.Reset), nil
}

type frames interface {
	Send(f *agentrpc.Frame) error
	Recv() (*agentrpc.Frame, error)
}

// Stream is the stream of frames of a tunnel, also as one of bytes. One goroutine may read while another writes.
type Stream struct {
	frames frames
	reset  func() error
	rest   []byte
	ended  error

	closeOnce sync.Once
	closed    chan struct{}

	sendMu sync.Mutex // one sender at a time, as gRPC demands
	sentTo bool       // the writing half is closed
}

// NewStream returns the Stream of a tunnel whose first frame was read. reset ends it; nil: who made it does, once Closed says so.
func NewStream(f frames, reset func() error) *Stream {
	return &Stream{frames: f, reset: reset, closed: make(chan struct{})}
}

// Closed is closed when the Stream is.
func (c *Stream) Closed() <-chan struct{} { return c.closed }

// Recv returns the next frame. What the host closes without a last frame, and what is lost, is
// io.EOF or io.ErrUnexpectedEOF; what was closed here is io.ErrClosedPipe.
func (c *Stream) Recv() (*agentrpc.Frame, error) {
	f, err := c.frames.Recv()
	if err == nil {
		return f, nil
	}
	select {
	case <-c.closed:
		return nil, io.ErrClosedPipe
	default:
	}
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	return nil, io.ErrUnexpectedEOF
}

// Send sends a frame; one goroutine at a time gets through.
func (c *Stream) Send(f *agentrpc.Frame) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	return c.frames.Send(f)
}

// Read implements io.Reader.
func (c *Stream) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.ended != nil {
			return 0, c.ended
		}
		select {
		case <-c.closed:
			return 0, io.ErrClosedPipe
		default:
		}
		f, err := c.frames.Recv()
		switch {
		case err != nil:
			c.ended = io.ErrUnexpectedEOF
			if errors.Is(err, io.EOF) {
				c.ended = io.EOF
			}
		case f.GetError() != "":
			c.ended = errors.New(dataconn.HostText(f.GetError()))
		case f.GetEnd():
			c.ended = io.EOF
		}
		c.rest = f.GetData()
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Write implements io.Writer.
func (c *Stream) Write(p []byte) (int, error) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.sentTo {
		return 0, io.ErrClosedPipe
	}
	for done := 0; done < len(p); {
		piece := p[done:min(done+frameSize, len(p))]
		if err := c.frames.Send(&agentrpc.Frame{Data: piece}); err != nil {
			return done, err
		}
		done += len(piece)
	}
	return len(p), nil
}

// CloseWrite tells the other side that nothing more comes.
func (c *Stream) CloseWrite() error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.sentTo {
		return nil
	}
	c.sentTo = true
	return c.frames.Send(&agentrpc.Frame{End: true})
}

// Close ends the tunnel in both directions. A Read in progress ends, too.
func (c *Stream) Close() error {
	c.closeOnce.Do(func() {
		close(c.closed)
		if c.reset != nil {
			_ = c.reset()
		}
	})
	return nil
}
