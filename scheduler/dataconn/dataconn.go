// Package dataconn has the data connections of hosts at their other end, a scheduler or a gateway: it admits hosts, ends the connections of
// those that are gone or lost, and opens streams on them. Which hosts there are it knows from a routes.Store. It stores nothing.
package dataconn

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/routes"
	"gantry/scheduler/state"
)

const (
	// hostData bounds the data connections of one host: the one in use, and others that are not known to be over.
	hostData = 4
	// dataCatchUp is how long a follower may take to learn of the session that a host names.
	dataCatchUp = 3 * time.Second
	// dataAnswer is how long a host that counts as unreachable may take to show that its data connection is alive.
	dataAnswer = 2 * time.Second
	opening    = 10 * time.Second // of a stream
	restarting = 1600 * time.Millisecond
	// MaxHostText bounds a text of a host that others see.
	MaxHostText = 4 << 10
)

var errManyData = fleet.Unavailable("this host has too many data connections already", nil)

// Conns are the data connections of hosts that end here. It is safe for concurrent use.
type Conns struct {
	store   routes.Store
	arrived func() // is told of each connection that began; nil: nobody is
	log     *slog.Logger
	windows *windows

	mu    sync.Mutex
	hosts map[fleet.HostID][]*agentrpc.DataConn // oldest first; nil: one that is being greeted
	began chan struct{}                         // closed and made anew when a connection began
}

// New returns Conns.
func New(store routes.Store, arrived func(), log *slog.Logger) *Conns {
	return &Conns{store: store, arrived: arrived, log: log, windows: newWindows(windowsMost), hosts: map[fleet.HostID][]*agentrpc.DataConn{}, began: make(chan struct{})}
}

// Serve takes hosts' data connections until ctx ends, and ends them then.
func (c *Conns) Serve(ctx context.Context, ln net.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	conns.Go(func() { c.watch(ctx) })
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
		conns.Go(func() { c.hold(ctx, conn) })
	}
}

// hold greets a host and keeps its data connection until that ends.
func (c *Conns) hold(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var host fleet.HostID
	window := func() (agentrpc.Window, error) { return &span{windows: c.windows, host: host}, nil }
	d, err := agentrpc.AcceptData(conn, window, func(who pki.Identity, hello *agentrpc.DataHello) error {
		if !c.begin(fleet.HostID(who.ID)) {
			return errManyData
		}
		host = fleet.HostID(who.ID)
		return c.admit(ctx, host, hello.GetEpoch())
	})
	if err != nil {
		c.drop(host, nil)
		c.log.Debug("a data connection was refused", "host", host, "err", err)
		return
	}
	c.add(host, d)
	if c.arrived != nil {
		c.arrived()
	}
	c.log.Debug("data connection began", "host", host)
	<-d.Done()
	c.drop(host, d)
	c.log.Debug("data connection ended", "host", host)
}

// admit refuses a host unless it is known, with the session that it names as its newest: an agent that no leader has admitted, such as
// that of a copied disk, knows none. This end may have to learn of the session first. A host that was fenced begins a new session first.
func (c *Conns) admit(ctx context.Context, host fleet.HostID, epoch uint64) error {
	ctx, cancel := context.WithTimeout(ctx, dataCatchUp)
	defer cancel()
	for {
		var h fleet.Host
		var index uint64
		err := c.store.View(func(v routes.View) error {
			h, _ = v.Host(host)
			index = v.Index()
			return nil
		})
		switch {
		case err != nil:
			return fleet.Unavailable("the state cannot be read", err)
		case h.State == fleet.HostGone || h.Epoch > epoch || h.State == fleet.HostFenced && h.Epoch == epoch:
			return fleet.NotAllowed("the host is gone or fenced, or has another session")
		case h.ID == host && h.Epoch == epoch:
			return nil
		}
		if c.store.Wait(ctx, index) != nil {
			return fleet.Unavailable("the session that the host names is not known here", nil)
		}
	}
}

// watch ends the data connections of hosts that are gone, and of those that are lost and do not answer there either: what runs through
// them would wait for much longer.
func (c *Conns) watch(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	var after uint64
	for c.store.Wait(ctx, after) == nil {
		events, upTo, whole := c.store.Events(after)
		after = upTo
		if !whole { // it does not tell of all that has changed
			events = events[:0]
			for _, host := range c.all() {
				events = append(events, state.Event{Kind: state.KindHost, ID: string(host)})
			}
		}
		for _, e := range events {
			if e.Kind == state.KindHost {
				c.review(fleet.HostID(e.ID), &probes)
			}
		}
	}
}

// review ends the data connections of a host that may have none any more.
func (c *Conns) review(host fleet.HostID, probes *sync.WaitGroup) {
	conns := c.of(host)
	if len(conns) == 0 {
		return
	}
	var h fleet.Host
	_ = c.store.View(func(v routes.View) error { h, _ = v.Host(host); return nil }) // a closed store has none
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

// Connected reports whether a host has a data connection.
func (c *Conns) Connected(host fleet.HostID) bool { return c.Newest(host) != nil }

// Count returns how many data connections end here.
func (c *Conns) Count() (n int) {
	for _, host := range c.all() {
		n += len(c.of(host))
	}
	return n
}

// begin makes room for one more connection of a host.
func (c *Conns) begin(host fleet.HostID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.hosts[host]) >= hostData {
		return false
	}
	c.hosts[host] = append(c.hosts[host], nil)
	return true
}

// add puts a connection in the place of one that was begun, as the newest.
func (c *Conns) add(host fleet.HostID, d *agentrpc.DataConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts[host] = append(without(c.hosts[host], nil), d)
	close(c.began)
	c.began = make(chan struct{})
}

// OpenPort connects to a port of a pod on a host, for whose data connection it waits a moment: its agent may restart.
func (c *Conns) OpenPort(ctx context.Context, host fleet.HostID, pod fleet.PodID, port int) (fleet.Stream, error) {
	limit := time.NewTimer(restarting)
	defer limit.Stop()
	for {
		c.mu.Lock()
		began := c.began
		c.mu.Unlock()
		if d := c.Newest(host); d != nil {
			return OpenPort(ctx, d, pod, port)
		}
		select {
		case <-began:
		case <-limit.C:
			return nil, fleet.Unavailable("the pod's host cannot be reached", nil)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// drop forgets a connection; nil: one that was begun.
func (c *Conns) drop(host fleet.HostID, d *agentrpc.DataConn) {
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
func (c *Conns) of(host fleet.HostID) (out []*agentrpc.DataConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.hosts[host] {
		if d != nil {
			out = append(out, d)
		}
	}
	return out
}

// Newest returns the newest data connection of a host; nil: it has none.
func (c *Conns) Newest(host fleet.HostID) *agentrpc.DataConn {
	if all := c.of(host); len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

func (c *Conns) all() (out []fleet.HostID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for host := range c.hosts {
		out = append(out, host)
	}
	return out
}

// Open asks a host for a tunnel on a data connection. The stream's first frame is the host's consent.
func Open(ctx context.Context, d *agentrpc.DataConn, ask *agentrpc.OpenTunnel) (*agentrpc.DataStream, error) {
	ctx, cancel := context.WithTimeout(ctx, opening)
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
	if err = HostError(first); err != nil {
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

// OpenPort connects to a port of a pod on a host's data connection.
func OpenPort(ctx context.Context, d *agentrpc.DataConn, pod fleet.PodID, port int) (fleet.Stream, error) {
	stream, err := Open(ctx, d, AskPort(pod, port))
	if err != nil {
		return nil, err
	}
	return portStream{stream}, nil
}

// AskPort is what a host is asked for a port of a pod.
func AskPort(pod fleet.PodID, port int) *agentrpc.OpenTunnel {
	return &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Port{Port: &agentrpc.PortTarget{PodId: string(pod), Port: int32(port)}}} //nolint:gosec // 16 bits
}

// HostError is the error that a host's frame carries, nil when it carries none. A host names only
// codes that can come from the pod.
func HostError(f *agentrpc.Frame) error {
	if f.GetError() == "" {
		return nil
	}
	switch code := fleet.Code(f.GetCode()); code {
	case fleet.CodeInvalid, fleet.CodeConflictRule, fleet.CodeNotFound, fleet.CodeNotAllowed, fleet.CodeTooLarge:
		return &fleet.Error{Code: code, Msg: HostText(f.GetError())}
	}
	return fleet.Unavailable(HostText(f.GetError()), nil)
}

// HostText is a text of a host as others may see it: of at most 4 KiB, in UTF-8.
func HostText(s string) string {
	return agentrpc.Shortened(s, MaxHostText)
}
