package dispatch

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/dataconn"
	"gantry/scheduler/inside"
)

const tunnelTimeout = 10 * time.Second

// tunnel is one that was asked for; arrived receives the host's stream.
type tunnel struct {
	host    fleet.HostID
	arrived chan *arrival
	lost    <-chan struct{} // closed with the session through which it was asked for
}

// arrival is the host's stream, or its refusal.
type arrival struct {
	*inside.Stream
	refused error
}

func (a *arrival) accepted() (*inside.Stream, error) {
	if a.refused != nil {
		_ = a.Close()
		return nil, a.refused
	}
	return a.Stream, nil
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
	c := &arrival{inside.NewStream(stream, nil), dataconn.HostError(first)}
	t.arrived <- c
	// A host that lost its power closes no connection: its tunnels end with its session.
	select {
	case <-c.Closed():
	case <-stream.Context().Done():
	case <-t.lost:
	}
	return nil
}

// open asks the host for a tunnel and waits for it.
func (s *Server) open(ctx context.Context, host fleet.HostID, ask *agentrpc.OpenTunnel) (*inside.Stream, error) {
	d, x := s.reach(ctx, host)
	switch {
	case d != nil:
		return inside.Over(ctx, d, ask)
	case x != nil:
		return s.openBySession(ctx, x, host, ask)
	}
	return nil, errUnreached
}

var errUnreached = fleet.Unavailable("the pod's host cannot be reached", nil)

// openBySession is open for a host that has no data connection.
func (s *Server) openBySession(ctx context.Context, x *session, host fleet.HostID, ask *agentrpc.OpenTunnel) (*inside.Stream, error) {
	ask.Id = fleet.NewID() + fleet.NewID()
	t := &tunnel{host: host, arrived: make(chan *arrival, 1), lost: x.done}
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

// Exec starts a process in a pod's container on the host; see inside.Opener.
func (s *Server) Exec(ctx context.Context, host fleet.HostID, pod fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error) {
	return inside.Opener(s.open).Exec(ctx, host, pod, req)
}

// ReadFiles reads a file or folder of a pod's container on the host; see inside.Opener.
func (s *Server) ReadFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string) (io.ReadCloser, error) {
	return inside.Opener(s.open).ReadFiles(ctx, host, pod, path)
}

// WriteFiles unpacks a tar stream in a pod's container on the host; see inside.Opener.
func (s *Server) WriteFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string, tar io.Reader) error {
	return inside.Opener(s.open).WriteFiles(ctx, host, pod, path, tar)
}

// Logs streams a pod's log from its host; see inside.Opener.
func (s *Server) Logs(ctx context.Context, host fleet.HostID, pod fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error {
	return inside.Opener(s.open).Logs(ctx, host, pod, q, sink)
}
