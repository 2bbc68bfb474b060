// Package workers is the gate between the serverless workers of a host and the cluster: it listens in each worker's own network
// namespace, holds its polls, hands it jobs, and keeps what it answers until the control plane has committed it.
//
// A worker is known by the namespace that it asks from: what it calls itself in a path is not looked at. Nothing that a worker says
// concerns a job that it was not given.
//
// A chunk of a stream that a worker sends twice, because the answer to the first was lost after the commit, is there twice: workers do
// not number their chunks. One that was not answered within the time is sent again under the same number, and counts once.
package workers

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const (
	maxResult    = 20<<20 + 64<<10 // bytes of a result, with what is around it
	maxChunk     = 1<<20 + 4<<10   // of a chunk, or of progress
	workerBytes  = 64 << 20        // of bodies of one worker that are being worked on
	hostBytes    = 512 << 20
	maxConns     = 64 // of one worker
	maxHeader    = 64 << 10
	maxSlots     = 1000 // that a worker can ask for with one poll
	maxUnsure    = 256  // jobs that a worker speaks of before the cluster has said what it has
	maxLate      = 256  // jobs of a worker that were given up
	maxPingedIDs = 4096
	maxIDBytes   = 128
)

// times are how long things take. Tests have shorter ones.
type times struct {
	hold    time.Duration // a poll is held
	again   time.Duration // a worker that was answered asks again within this
	next    time.Duration // a job waits for the worker's next poll
	stop    time.Duration // a stop waits for the worker's next poll for stops
	pause   time.Duration // before an answer that would make the worker ask again at once
	body    time.Duration // to send or read a body
	keep    time.Duration // a worker waits for the commit of what it said
	backOff time.Duration // first wait after a stream broke
	most    time.Duration // longest such wait
	idle    time.Duration // a stream stands without a worker
}

var usual = times{
	hold: 45 * time.Second, again: 2 * time.Second, next: 5 * time.Second, stop: 10 * time.Second, pause: time.Second,
	body: time.Minute, keep: time.Minute, backOff: 100 * time.Millisecond, most: 5 * time.Second,
	idle: time.Minute,
}

// Config is what a Gate is made from.
type Config struct {
	Dir    string // of results that are not committed yet
	Listen func(id fleet.PodID) (net.Listener, error)
	Log    *slog.Logger

	times *times // nil: the usual ones
}

// Gate answers all workers of the host. It implements pod.Gate and is safe for concurrent use.
type Gate struct {
	Config

	ctx       context.Context
	wg        sync.WaitGroup
	bytes     *semaphore.Weighted
	spool     *spool
	streaming chan struct{} // held by the stream that is open

	mu      sync.Mutex // guards the fields below, and all of workers, jobs and reports that is not said to be otherwise
	workers map[fleet.PodID]*worker
	held    map[fleet.PodID][]*agentrpc.JobHeld // as the newest JobsHeld said; nil: none came in this life
	past    map[fleet.PodID]map[string]bool     // jobs that earlier incarnations of pods had
	link    link
}

// New makes a Gate that ends with ctx, with the results that an earlier agent kept.
func New(ctx context.Context, c Config) *Gate {
	if c.times == nil {
		c.times = &usual
	}
	g := &Gate{
		Config: c, ctx: ctx, bytes: semaphore.NewWeighted(hostBytes), streaming: make(chan struct{}, 1), workers: map[fleet.PodID]*worker{},
		past: map[fleet.PodID]map[string]bool{}, link: newLink(), spool: newSpool(c.Dir, c.Log),
	}
	for _, r := range g.spool.load() {
		g.link.add(r)
	}
	return g
}

// Wait returns when everything has ended, after ctx of New has.
func (g *Gate) Wait() { g.wg.Wait() }

// Open implements pod.Gate.
func (g *Gate) Open(id fleet.PodID, incarnation uint64, begins bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.workers[id]; w != nil && w.incarnation == incarnation {
		return nil
	}
	if g.ctx.Err() != nil {
		return g.ctx.Err()
	}
	told := 0
	if w := g.workers[id]; w != nil {
		told = w.told
	}
	g.close(id)
	l, err := g.Listen(id)
	if err != nil {
		return fmt.Errorf("listen for a worker: %w", err)
	}
	w := newWorker(g, id, incarnation)
	w.told, w.old = told, !begins
	if begins {
		w.learn()
	}
	g.workers[id] = w
	g.link.ring()
	for r := range g.link.pending {
		if r.Pod == id && r.ends() {
			w.jobs[r.Job] = &job{id: r.Job, attempt: r.Attempt, turn: make(chan struct{}, 1), final: r}
		}
	}
	switch {
	case g.held != nil && !begins:
		w.resolve(g.held[id], false)
	case begins:
		for _, h := range g.held[id] { // in a life of the host before this one
			if w.jobs[h.GetJobId()] == nil && g.past[id][h.GetJobId()] {
				w.missing(h)
			}
		}
	}
	g.wg.Go(func() { w.serve(l) })
	return nil
}

// Drain implements pod.Gate.
func (g *Gate) Drain(id fleet.PodID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.workers[id]; w != nil {
		w.drain()
	}
}

// Freeze implements pod.Gate.
func (g *Gate) Freeze(id fleet.PodID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.workers[id]; w != nil {
		w.freeze()
	}
}

// Thaw implements pod.Gate.
func (g *Gate) Thaw(id fleet.PodID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := g.workers[id]; w != nil {
		w.thaw()
	}
}

// Close implements pod.Gate.
func (g *Gate) Close(id fleet.PodID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.close(id)
}

// Forget implements pod.Gate.
func (g *Gate) Forget(id fleet.PodID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.close(id)
	delete(g.past, id)
	for r := range g.link.pending {
		if r.Pod == id {
			g.settle(r)
		}
	}
	g.spool.forget(id)
}

// close ends a worker.
func (g *Gate) close(id fleet.PodID) {
	if w := g.workers[id]; w != nil {
		w.drain()
		w.end()
		delete(g.workers, id)
		for _, j := range w.jobs {
			g.remember(id, j.id)
		}
	}
}

// remember notes that an earlier incarnation of a pod may have had a job.
func (g *Gate) remember(id fleet.PodID, job string) {
	if g.past[id] == nil {
		g.past[id] = map[string]bool{}
	}
	g.past[id][job] = true
}

// serve answers the worker until it is ended or the agent ends.
func (w *worker) serve(l net.Listener) {
	const endWithin = 2 * time.Second
	server := &http.Server{
		Handler: w, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return w.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // what a worker sends is its own matter
	}
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(&bounded{Listener: l}); w.ctx.Err() == nil {
			w.gate.Log.Error("a worker is not answered any more", "pod", w.id, "err", err)
		}
	})
	<-w.ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), endWithin)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil { // such as of a worker that does not read
		_ = server.Close()
	}
	served.Wait()
}
