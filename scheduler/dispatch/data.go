package dispatch

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

const (
	// hostData bounds the data connections of one host: the one in use, and others that are not known to be over.
	hostData = 4
	// dataCatchUp is how long a follower may take to learn of the session that a host names.
	dataCatchUp = 3 * time.Second
	// dataAnswer is how long a host that counts as unreachable may take to show that its data connection is alive.
	dataAnswer = 2 * time.Second
)

var errManyData = fleet.Unavailable("this host has too many data connections already", nil)

// dataConns are the data connections of hosts that end at this scheduler, whether it leads or not.
type dataConns struct {
	mu    sync.Mutex
	hosts map[fleet.HostID][]*agentrpc.DataConn // oldest first; nil: one that is being greeted
}

// ServeData takes hosts' data connections until ctx ends, and ends them then.
func (s *Server) ServeData(ctx context.Context, ln net.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	conns.Go(func() { s.watchData(ctx) })
	for {
		conn, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			return err
		}
		conns.Go(func() { s.holdData(ctx, conn) })
	}
}

// holdData greets a host and keeps its data connection until that ends.
func (s *Server) holdData(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var host fleet.HostID
	d, err := agentrpc.AcceptData(conn, func(who pki.Identity, hello *agentrpc.DataHello) error {
		if !s.data.begin(fleet.HostID(who.ID)) {
			return errManyData
		}
		host = fleet.HostID(who.ID)
		return s.admitData(ctx, host, hello.GetEpoch())
	})
	if err != nil {
		s.data.drop(host, nil)
		s.Log.Debug("a data connection was refused", "host", host, "err", err)
		return
	}
	s.data.add(host, d)
	s.mu.Lock()
	s.announce()
	s.mu.Unlock()
	s.Log.Debug("data connection began", "host", host)
	<-d.Done()
	s.data.drop(host, d)
	s.Log.Debug("data connection ended", "host", host)
}

// admitData refuses a host unless the state has it, with the session that it names as its newest: an agent that no leader has admitted,
// such as that of a copied disk, knows none. This scheduler may have to learn of the session first.
func (s *Server) admitData(ctx context.Context, host fleet.HostID, epoch uint64) error {
	ctx, cancel := context.WithTimeout(ctx, dataCatchUp)
	defer cancel()
	for {
		var h fleet.Host
		var index uint64
		err := s.Store.View(func(v *state.View) error {
			h, _ = v.Host(host)
			index = v.Index()
			return nil
		})
		switch {
		case err != nil:
			return fleet.Unavailable("the state cannot be read", err)
		case h.State == fleet.HostGone || h.Epoch > epoch:
			return fleet.NotAllowed("the host is gone, or has another session")
		case h.ID == host && h.Epoch == epoch:
			return nil
		}
		if s.Store.Wait(ctx, index) != nil {
			return fleet.Unavailable("the session that the host names is not known here", nil)
		}
	}
}

// watchData ends the data connections of hosts that are gone, and of those that are lost and do not answer there either: what runs through
// them would wait for much longer.
func (s *Server) watchData(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	var after uint64
	for s.Store.Wait(ctx, after) == nil {
		events, upTo, whole := s.Store.Events(after)
		after = upTo
		if !whole { // it does not tell of all that has changed
			events = events[:0]
			for _, host := range s.data.all() {
				events = append(events, state.Event{Kind: state.KindHost, ID: string(host)})
			}
		}
		for _, e := range events {
			if e.Kind == state.KindHost {
				s.reviewData(fleet.HostID(e.ID), &probes)
			}
		}
	}
}

// reviewData ends the data connections of a host that may have none any more.
func (s *Server) reviewData(host fleet.HostID, probes *sync.WaitGroup) {
	conns := s.data.of(host)
	if len(conns) == 0 {
		return
	}
	var h fleet.Host
	_ = s.Store.View(func(v *state.View) error { h, _ = v.Host(host); return nil }) // a closed store has none
	for _, d := range conns {
		switch h.State {
		case fleet.HostUnreachable:
			probes.Go(func() {
				if !d.Answers(dataAnswer) {
					_ = d.Close()
				}
			})
		case "", fleet.HostFenced, fleet.HostGone:
			_ = d.Close()
		}
	}
}

// Connected reports whether a host has a data connection with this scheduler.
func (s *Server) Connected(host fleet.HostID) bool { return s.data.newest(host) != nil }

// DataConnections returns how many data connections end here.
func (s *Server) DataConnections() (n int) {
	for _, host := range s.data.all() {
		n += len(s.data.of(host))
	}
	return n
}

// begin makes room for one more connection of a host.
func (c *dataConns) begin(host fleet.HostID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.hosts[host]) >= hostData {
		return false
	}
	c.hosts[host] = append(c.hosts[host], nil)
	return true
}

// add puts a connection in the place of one that was begun, as the newest.
func (c *dataConns) add(host fleet.HostID, d *agentrpc.DataConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts[host] = append(without(c.hosts[host], nil), d)
}

// drop forgets a connection; nil: one that was begun.
func (c *dataConns) drop(host fleet.HostID, d *agentrpc.DataConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hosts[host] = without(c.hosts[host], d); len(c.hosts[host]) == 0 {
		delete(c.hosts, host)
	}
}

func without(list []*agentrpc.DataConn, d *agentrpc.DataConn) []*agentrpc.DataConn {
	if i := slices.Index(list, d); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// of returns the connections of a host.
func (c *dataConns) of(host fleet.HostID) (out []*agentrpc.DataConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.hosts[host] {
		if d != nil {
			out = append(out, d)
		}
	}
	return out
}

func (c *dataConns) newest(host fleet.HostID) *agentrpc.DataConn {
	if all := c.of(host); len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

func (c *dataConns) all() (out []fleet.HostID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for host := range c.hosts {
		out = append(out, host)
	}
	return out
}

// openData asks a host for a tunnel on its data connection. The stream's first frame is the host's consent.
func openData(ctx context.Context, d *agentrpc.DataConn, ask *agentrpc.OpenTunnel) (*agentrpc.DataStream, error) {
	ctx, cancel := context.WithTimeout(ctx, tunnelTimeout)
	defer cancel()
	stream, err := d.Open(ctx)
	if err != nil {
		return nil, fleet.Unavailable("the pod's host cannot be reached", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.Reset() })
	defer stop()
	var first *agentrpc.Frame
	if err = stream.SendAsk(ask); err == nil {
		first, err = stream.Recv()
	}
	if err != nil || !stop() {
		_ = stream.Reset()
		return nil, fleet.Unavailable("the pod's host did not answer in time", errors.Join(err, ctx.Err()))
	}
	if err = hostError(first); err != nil {
		_ = stream.Reset()
		return nil, err
	}
	return stream, nil
}

// portStream is a connection to a port of a pod on a data connection, as bytes.
type portStream struct{ *agentrpc.DataStream }

// Close ends both directions. What was written before still arrives.
func (p portStream) Close() error {
	_ = p.CloseWrite()
	return p.Reset()
}
