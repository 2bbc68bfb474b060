package dispatch

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/dataconn"
)

const (
	tunnelTimeout = 10 * time.Second
	frameSize     = 32 << 10 // bytes
	maxLogLine    = 256 << 10
)

// tunnel is one that was asked for; arrived receives the host's stream.
type tunnel struct {
	host    fleet.HostID
	arrived chan *conduit
	lost    <-chan struct{} // closed with the session through which it was asked for
}

// Tunnel implements agentrpc.LinkServer: it hands the stream to who asked for it and holds it until that
// one lets go.
func (s *Server) Tunnel(stream agentrpc.Link_TunnelServer) error {
	who, err := hostOf(stream.Context())
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	s.mu.Lock()
	t := s.waiting[first.GetId()]
	if t != nil && t.host == fleet.HostID(who.ID) {
		delete(s.waiting, first.GetId())
	} else {
		t = nil
	}
	s.mu.Unlock()
	if t == nil {
		return status.Error(codes.NotFound, "nobody asked for this tunnel")
	}
	s.callers.ask(t.host, -1)
	claimed(stream.Context())
	c := &conduit{stream: stream, refused: dataconn.HostError(first), closed: make(chan struct{})}
	t.arrived <- c
	// A host that lost its power closes no connection: its tunnels end with its session.
	select {
	case <-c.closed:
	case <-stream.Context().Done():
	case <-t.lost:
	}
	return nil
}

// open asks the host for a tunnel and waits for it.
func (s *Server) open(ctx context.Context, host fleet.HostID, ask *agentrpc.OpenTunnel) (*conduit, error) {
	d, x := s.reach(ctx, host)
	switch {
	case d != nil:
		stream, err := dataconn.Open(ctx, d, ask)
		if err != nil {
			return nil, err
		}
		return &conduit{stream: stream, reset: stream.Reset, closed: make(chan struct{})}, nil
	case x != nil:
		return s.openBySession(ctx, x, host, ask)
	}
	return nil, errUnreached
}

var errUnreached = fleet.Unavailable("the pod's host cannot be reached", nil)

// openBySession is open for a host that has no data connection.
func (s *Server) openBySession(ctx context.Context, x *session, host fleet.HostID, ask *agentrpc.OpenTunnel) (*conduit, error) {
	ask.Id = fleet.NewID() + fleet.NewID()
	t := &tunnel{host: host, arrived: make(chan *conduit, 1), lost: x.done}
	s.mu.Lock()
	s.waiting[ask.Id] = t
	s.mu.Unlock()
	s.callers.ask(host, 1)
	ctx, cancel := context.WithTimeout(ctx, tunnelTimeout)
	defer cancel()
	err := x.enqueue(ctx, &agentrpc.Down{Kind: &agentrpc.Down_OpenTunnel{OpenTunnel: ask}})
	if err == nil {
		select {
		case c := <-t.arrived:
			return c.accepted()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	s.mu.Lock()
	_, still := s.waiting[ask.Id]
	delete(s.waiting, ask.Id)
	s.mu.Unlock()
	if still {
		s.callers.ask(host, -1)
	} else { // it arrived just now
		_ = (<-t.arrived).Close()
	}
	return nil, fleet.Unavailable("the pod's host did not answer in time", err)
}

// reach returns the host's data connection, or else its session, waiting a moment for an agent that restarts.
func (s *Server) reach(ctx context.Context, host fleet.HostID) (*agentrpc.DataConn, *session) {
	ctx, cancel := context.WithTimeout(ctx, s.HostTimeout)
	defer cancel()
	for {
		s.mu.Lock()
		x, arrived := s.sessions[host], s.arrived
		s.mu.Unlock()
		if d := s.data.Newest(host); d != nil {
			return d, nil
		}
		if x != nil && x.welcomed.Load() {
			return nil, x
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// OpenPort connects to a port of a pod on the host.
func (s *Server) OpenPort(ctx context.Context, host fleet.HostID, pod fleet.PodID, port int) (fleet.Stream, error) {
	d, x := s.reach(ctx, host)
	switch {
	case d != nil:
		return dataconn.OpenPort(ctx, d, pod, port)
	case x == nil:
		return nil, errUnreached
	}
	c, err := s.openBySession(ctx, x, host, dataconn.AskPort(pod, port))
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Logs streams a pod's log from its host to sink until it ends or ctx does.
func (s *Server) Logs(ctx context.Context, host fleet.HostID, pod fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error {
	target := &agentrpc.LogTarget{
		PodId: string(pod), Source: q.Source, Tail: int32(q.Tail), After: q.After, Follow: q.Follow, Previous: q.Previous, //nolint:gosec // bounded
	}
	if !q.Since.IsZero() {
		target.SinceNs = q.Since.UnixNano()
	}
	c, err := s.open(ctx, host, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Logs{Logs: target}})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	lines := bufio.NewScanner(c)
	lines.Buffer(make([]byte, 0, frameSize), maxLogLine)
	for lines.Scan() {
		var line fleet.LogLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return cmp.Or(logEnd(ctx, lines), err) // half a line is what is left when the tunnel breaks
		}
		if err := sink(line); err != nil {
			return err
		}
	}
	return logEnd(ctx, lines)
}

// logEnd tells why a log has ended; nil when it was complete.
func logEnd(ctx context.Context, lines *bufio.Scanner) error {
	err := lines.Err()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fleet.Unavailable("the pod's host was lost while its log was read", err)
	}
	return err
}

// conduit is a tunnel's stream as a byte stream. One goroutine may read while another writes.
type conduit struct {
	stream interface {
		Send(f *agentrpc.Frame) error
		Recv() (*agentrpc.Frame, error)
	}
	reset   func() error // of a data connection's stream; nil: closed ends the call
	refused error
	rest    []byte
	ended   error

	closeOnce sync.Once
	closed    chan struct{}

	sendMu sync.Mutex // one sender at a time, as gRPC demands
	sentTo bool       // the writing half is closed
}

// accepted turns a refusal of the host into an error.
func (c *conduit) accepted() (*conduit, error) {
	if c.refused != nil {
		_ = c.Close()
		return nil, c.refused
	}
	return c, nil
}

// recv returns the next frame. What the host closes without a last frame, and what is lost, is
// io.EOF or io.ErrUnexpectedEOF; what was closed here is io.ErrClosedPipe.
func (c *conduit) recv() (*agentrpc.Frame, error) {
	f, err := c.stream.Recv()
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

// send sends a frame; one goroutine at a time gets through.
func (c *conduit) send(f *agentrpc.Frame) error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	return c.stream.Send(f)
}

// Read implements io.Reader.
func (c *conduit) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.ended != nil {
			return 0, c.ended
		}
		select {
		case <-c.closed:
			return 0, io.ErrClosedPipe
		default:
		}
		f, err := c.stream.Recv()
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
func (c *conduit) Write(p []byte) (int, error) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.sentTo {
		return 0, io.ErrClosedPipe
	}
	for done := 0; done < len(p); {
		piece := p[done:min(done+frameSize, len(p))]
		if err := c.stream.Send(&agentrpc.Frame{Data: piece}); err != nil {
			return done, err
		}
		done += len(piece)
	}
	return len(p), nil
}

// CloseWrite tells the other side that nothing more comes.
func (c *conduit) CloseWrite() error {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.sentTo {
		return nil
	}
	c.sentTo = true
	return c.stream.Send(&agentrpc.Frame{End: true})
}

// Close ends the tunnel in both directions. A Read in progress ends, too.
func (c *conduit) Close() error {
	c.closeOnce.Do(func() {
		close(c.closed)
		if c.reset != nil {
			_ = c.reset()
		}
	})
	return nil
}
