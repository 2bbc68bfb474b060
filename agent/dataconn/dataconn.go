// Package dataconn keeps a data connection to each scheduler while the host has pods: users' traffic runs through them, at whichever
// scheduler it arrives, and a change of leader or the death of another scheduler breaks none. It decides nothing: what is asked for on a
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

	mu      sync.Mutex
	keepers []string        // addresses that are looked after
	taken   map[string]bool // ids of the schedulers that are connected
}

// New makes Conns.
func New(c Config) *Conns { return &Conns{Config: c, taken: map[string]bool{}} }

// Welcome notes the session by which a scheduler recognizes the host.
func (c *Conns) Welcome(w *agentrpc.Welcome) error {
	c.epoch.Store(w.GetEpoch())
	return nil
}

// Run keeps the connections until ctx ends, and ends them then.
func (c *Conns) Run(ctx context.Context) {
	var keepers sync.WaitGroup
	defer keepers.Wait()
	for {
		if c.wanted() {
			for _, addr := range c.Known() {
				if c.begin(addr) {
					keepers.Go(func() { defer c.end(addr); c.keep(ctx, addr) })
				}
			}
		}
		if sleep.For(ctx, look) != nil {
			return
		}
	}
}

func (c *Conns) wanted() bool { return c.epoch.Load() > 0 && c.Needed() }

func (c *Conns) begin(addr string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.keepers, addr) {
		return false
	}
	c.keepers = append(c.keepers, addr)
	return true
}

func (c *Conns) end(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepers = slices.DeleteFunc(c.keepers, func(a string) bool { return a == addr })
}

// keep connects to a scheduler again and again, while it is known and the host has pods.
func (c *Conns) keep(ctx context.Context, addr string) {
	var pause time.Duration
	for ctx.Err() == nil && c.wanted() && slices.Contains(c.Known(), addr) {
		began := time.Now()
		err := c.once(ctx, addr)
		if time.Since(began) > pauseMost {
			pause = 0
		}
		pause = min(max(2*pause, pauseLeast), pauseMost)
		c.Log.Debug("data connection ended", "addr", addr, "err", err, "again_in", pause)
		_ = sleep.For(ctx, pause/2+rand.N(pause/2))
	}
}

// once connects and serves until the connection ends.
func (c *Conns) once(ctx context.Context, addr string) error {
	dialling, cancel := context.WithTimeout(ctx, connecting)
	conn, err := agentrpc.DialData(dialling, c.Store, c.Dial, addr, &agentrpc.DataHello{Epoch: c.epoch.Load()})
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
	c.Log.Info("data connection with a scheduler", "addr", addr, "scheduler", conn.Peer().ID)
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
