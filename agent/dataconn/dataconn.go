// Package dataconn keeps a data connection to each scheduler and to each gateway that a scheduler names while the host has pods: users'
// traffic runs through them, wherever it arrives, and a change of leader or the death of another one breaks none. It decides nothing: what is asked for on a
// connection is served elsewhere. It stores nothing.
package dataconn

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
)

const (
	look        = time.Second // between looks at the schedulers that are known, and at whether there are pods
	connecting  = 5 * time.Second
	pauseLeast  = 250 * time.Millisecond
	pauseMost   = 15 * time.Second
	idleTooLong = time.Minute // for a host without pods
)

// Config is what Conns are made from.
type Config struct {
	Known func() []string // addresses of schedulers, of which several may lead to the same
	Store *pki.Store
	Dial  func(ctx context.Context, addr string) (net.Conn, error) // without TLS
	// Needed reports whether the host has pods that somebody may want to reach.
	Needed func() bool
	// Serve serves the streams of a connection until that ends; it returns then, or when ctx has ended.
	Serve func(ctx context.Context, conn *agentrpc.DataConn)
	Log   *slog.Logger
}

// Conns are a host's data connections.
type Conns struct {
	Config
	epoch atomic.Uint64 // of the host's newest session; 0: there was none

	mu       sync.Mutex
	gateways []agentrpc.DataPeer // as a scheduler told last
	keepers  []agentrpc.DataPeer // that are looked after
	taken    map[string]bool     // ids of those that are connected
}

// maxGateways is more than a cluster has.
const maxGateways = 256

// New makes Conns.
func New(c Config) *Conns { return &Conns{Config: c, taken: map[string]bool{}} }

// Welcome notes the session by which a scheduler recognizes the host, and the gateways.
func (c *Conns) Welcome(w *agentrpc.Welcome) error {
	c.epoch.Store(w.GetEpoch())
	c.learn(w.GetGateways())
	return nil
}

// TakeGateways notes the gateways when they have changed.
func (c *Conns) TakeGateways(_ context.Context, m *agentrpc.Down_Gateways) (*agentrpc.Up, error) {
	c.learn(m.Gateways)
	return nil, nil
}

func (c *Conns) learn(in *agentrpc.Gateways) {
	list := in.GetGateways()
	out := make([]agentrpc.DataPeer, 0, len(list))
	for _, g := range list[:min(len(list), maxGateways)] {
		if g.GetId() != "" { // an empty one would stand for any scheduler
			out = append(out, agentrpc.DataPeer{Addr: g.GetAddress(), Gateway: g.GetId()})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gateways = out
}

// peers are those with which there are to be connections.
func (c *Conns) peers() []agentrpc.DataPeer {
	c.mu.Lock()
	out := slices.Clone(c.gateways)
	c.mu.Unlock()
	for _, addr := range c.Known() {
		out = append(out, agentrpc.DataPeer{Addr: addr})
	}
	return out
}

// Run keeps the connections until ctx ends, and ends them then.
func (c *Conns) Run(ctx context.Context) {
	var keepers sync.WaitGroup
	defer keepers.Wait()
	for {
		if c.wanted() {
			for _, peer := range c.peers() {
				if c.begin(peer) {
					keepers.Go(func() { defer c.end(peer); c.keep(ctx, peer) })
				}
			}
		}
		if sleep.For(ctx, look) != nil {
			return
		}
	}
}

func (c *Conns) wanted() bool { return c.epoch.Load() > 0 && c.Needed() }

func (c *Conns) begin(peer agentrpc.DataPeer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.keepers, peer) {
		return false
	}
	c.keepers = append(c.keepers, peer)
	return true
}

func (c *Conns) end(peer agentrpc.DataPeer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepers = slices.DeleteFunc(c.keepers, func(p agentrpc.DataPeer) bool { return p == peer })
}

// keep connects to a peer again and again, while it is known and the host has pods.
func (c *Conns) keep(ctx context.Context, peer agentrpc.DataPeer) {
	var pause time.Duration
	for ctx.Err() == nil && c.wanted() && slices.Contains(c.peers(), peer) {
		began := time.Now()
		err := c.once(ctx, peer)
		if time.Since(began) > pauseMost {
			pause = 0
		}
		pause = min(max(2*pause, pauseLeast), pauseMost)
		c.Log.Debug("data connection ended", "addr", peer.Addr, "err", err, "again_in", pause)
		_ = sleep.For(ctx, pause/2+rand.N(pause/2))
	}
}

// once connects and serves until the connection ends.
func (c *Conns) once(ctx context.Context, peer agentrpc.DataPeer) error {
	dialling, cancel := context.WithTimeout(ctx, connecting)
	conn, err := agentrpc.DialData(dialling, c.Store, c.Dial, peer, &agentrpc.DataHello{Epoch: c.epoch.Load()})
	cancel()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if !c.take(conn.Peer().ID) { // it has another address, too
		return sleep.For(ctx, pauseMost)
	}
	defer c.give(conn.Peer().ID)
	ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { c.endUnneeded(ctx, conn) })
	if peer.Gateway != "" {
		tasks.Go(func() { c.endRemoved(ctx, peer, conn) })
	}
	c.Log.Info("data connection began", "addr", peer.Addr, "with", conn.Peer().String())
	c.Serve(ctx, conn)
	cancel()
	return nil
}

// endUnneeded closes a connection when ctx ends, or when the host has had no pods for a while.
func (c *Conns) endUnneeded(ctx context.Context, conn *agentrpc.DataConn) {
	defer func() { _ = conn.Close() }()
	for sleep.For(ctx, idleTooLong) == nil {
		if !c.Needed() && conn.Idle() {
			return
		}
	}
}

// endRemoved closes the connection with a gateway that the control plane names no more.
func (c *Conns) endRemoved(ctx context.Context, peer agentrpc.DataPeer, conn *agentrpc.DataConn) {
	for sleep.For(ctx, look) == nil {
		if !slices.Contains(c.peers(), peer) {
			_ = conn.Close()
			return
		}
	}
}

func (c *Conns) take(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken[id] {
		return false
	}
	c.taken[id] = true
	return true
}

func (c *Conns) give(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.taken, id)
}
