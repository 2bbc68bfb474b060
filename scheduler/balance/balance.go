// Package balance brings requests to the workers of endpoints that balance, at one scheduler, whether it leads or not, or at a gateway: it asks workers how
// they are, over the data connections of their hosts, gives each request the less busy of two that are healthy, and tells the leader how
// many requests there are, who starts and ends workers. What it carries is api/balance's. It stores nothing: another scheduler, or this
// one when it starts again, finds out anew.
package balance

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/share"
	"gantry/internal/sleep"
	"gantry/scheduler/routes"
	"gantry/scheduler/state"
)

// Demand is what requests to an endpoint ask for at one scheduler.
type Demand struct {
	Waiting int                 // for a worker
	Serving map[fleet.PodID]int // requests under way, WebSockets among them
	Wake    []fleet.PodID       // workers that stand still and are asked for by name
}

// Ended is how many requests to an endpoint have ended since the process that counts them began.
type Ended struct {
	Completed uint64 // a worker answered below 500, up to the answer's end
	Failed    uint64
}

// Plus returns the sum of both.
func (e Ended) Plus(o Ended) Ended {
	return Ended{Completed: e.Completed + o.Completed, Failed: e.Failed + o.Failed}
}

// Report is what a scheduler tells the leader.
type Report struct {
	Member  fleet.MemberID
	Heard   uint64 // the newest Word that the scheduler goes by
	Of      map[fleet.EndpointID]Demand
	Process uint64 // tells one run of the member from the next
	Ended   map[fleet.EndpointID]Ended
}

// Word is the leader's answer: Closing workers get no more requests.
type Word struct {
	Version uint64
	Closing []fleet.PodID
}

// Pace is how often things are done. The zero value of each means its default.
type Pace struct {
	Starting time.Duration // between questions to a worker that is not ready; 250 ms
	Ready    time.Duration // to one that is; 3 s
	Answer   time.Duration // that a worker may take; 5 s
	Report   time.Duration // between reports while the numbers change; 250 ms
	Quiet    time.Duration // between reports otherwise; 1 s
	Unused   time.Duration // until a scheduler that does not lead forgets an endpoint without requests; 1 min
	Strict   time.Duration // that a request waits for a worker of its choice; 5 min
}

// Config is what a Balancer is made from.
type Config struct {
	Store  routes.Store
	Member fleet.MemberID
	// Open connects to a port of a worker on its host; see dispatch.Server.
	Open  func(ctx context.Context, host fleet.HostID, pod fleet.PodID, port int) (fleet.Stream, error)
	Leads func() bool
	// Always has the leader told although there is no endpoint.
	Always bool
	// Tell reports to the leader.
	Tell func(ctx context.Context, r Report) (Word, error)
	// Changed is told of endpoints whose workers' health changed; nil: nobody is.
	Changed func(fleet.EndpointID)
	Pace    Pace
	Now     func() time.Time // of workers' health; nil: time.Now
	Log     *slog.Logger

	Waiting    int // requests that wait at a time; 8192
	PerAccount int // of one account; 1024
}

func (c *Config) defaults() {
	for _, d := range []struct {
		of *time.Duration
		to time.Duration
	}{
		{&c.Pace.Starting, 250 * time.Millisecond},
		{&c.Pace.Ready, 3 * time.Second},
		{&c.Pace.Answer, 5 * time.Second},
		{&c.Pace.Report, 250 * time.Millisecond},
		{&c.Pace.Quiet, time.Second},
		{&c.Pace.Unused, time.Minute},
		{&c.Pace.Strict, 5 * time.Minute},
	} {
		if *d.of == 0 {
			*d.of = d.to
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Waiting == 0 {
		c.Waiting = 8192
	}
	if c.PerAccount == 0 {
		c.PerAccount = 1024
	}
}

// Balancer is safe for concurrent use.
type Balancer struct {
	Config
	waiting *share.Held[fleet.AccountID]
	dirty   chan struct{} // the numbers changed; capacity 1
	look    chan struct{} // the state has to be looked at; capacity 1
	asking  chan struct{} // seats of questions to workers
	process uint64
	tasks   sync.WaitGroup

	mu      sync.Mutex      // guards the fields below
	life    context.Context //nolint:containedctx // of Run, which owns the questions; nil: it does not run
	pools   map[fleet.EndpointID]*pool
	closing map[fleet.PodID]bool
	heard   uint64
	ended   map[fleet.EndpointID]Ended
}

const (
	askedAtOnce = 256
	looksApart  = 10 * time.Millisecond // so that a busy state is not looked at for each of its changes
)

// New returns a Balancer that does nothing before Run.
func New(c Config) *Balancer {
	c.defaults()
	return &Balancer{
		Config: c, waiting: share.NewHeld[fleet.AccountID](c.Waiting, c.PerAccount, nil), dirty: make(chan struct{}, 1), look: make(chan struct{}, 1),
		asking: make(chan struct{}, askedAtOnce), pools: map[fleet.EndpointID]*pool{}, closing: map[fleet.PodID]bool{},
		ended: map[fleet.EndpointID]Ended{}, process: rand.Uint64(), //nolint:gosec // no secret
	}
}

// pool is an endpoint.
type pool struct {
	id      fleet.EndpointID
	release uint64 // the newest
	workers map[fleet.PodID]*worker
	wake    map[fleet.PodID]int // how many requests ask for a worker that stands still
	waiting int
	used    time.Time
	changed chan struct{} // closed when a worker may have become free to take
}

// worker is one that runs, or stands still.
type worker struct {
	id      fleet.PodID
	host    fleet.HostID
	release uint64
	run     uint64 // incarnation
	at      fleet.Serving
	frozen  bool
	flight  int
	health  Health
	misses  int // questions in a row that were not answered in time
	end     context.CancelFunc
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (b *Balancer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	b.mu.Lock()
	b.life = ctx
	b.mu.Unlock()
	defer func() {
		cancel()
		b.mu.Lock()
		b.life = nil
		for _, p := range b.pools {
			for _, w := range p.workers {
				w.end()
			}
		}
		clear(b.pools)
		b.mu.Unlock()
		b.tasks.Wait()
	}()
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { b.follow(ctx) })
	loops.Go(func() { b.report(ctx) })
	tick := time.NewTicker(b.Pace.Quiet)
	defer tick.Stop()
	for {
		b.refresh() //nolint:contextcheck // questions to workers end with Run
		_ = sleep.For(ctx, looksApart)
		select {
		case <-b.look:
		case <-tick.C: // leadership, and endpoints that nobody uses
		case <-ctx.Done():
			return nil
		}
	}
}

// follow has the state looked at when workers or endpoints have changed.
func (b *Balancer) follow(ctx context.Context) {
	var seen uint64
	for b.Store.Wait(ctx, seen) == nil {
		events, upTo, all := b.Store.Events(seen)
		seen = upTo
		touched := !all
		_ = b.Store.View(func(v routes.View) error {
			touched = touched || slices.ContainsFunc(events, func(e state.Event) bool {
				if e.Kind != state.KindPod {
					return e.Kind == state.KindAccount
				}
				p, ok := v.Pod(fleet.PodID(e.ID))
				return !ok || p.Owner.Kind == fleet.OwnerEndpoint
			})
			return nil
		})
		if touched {
			signal(b.look)
		}
	}
}

// refresh makes the pools what the state says: of all endpoints with workers where this scheduler leads, else of those that are used.
func (b *Balancer) refresh() {
	b.forget()
	all := map[fleet.EndpointID]bool{}
	if b.Leads() {
		_ = b.Store.View(func(v routes.View) error { // a closed store has none
			for _, id := range v.Worked() {
				if _, ok := routes.Balanced(v, id); ok {
					all[id] = true
				}
			}
			return nil
		})
	}
	b.mu.Lock()
	for id, p := range b.pools {
		switch {
		case all[id]:
		case p.waiting == 0 && p.busy() == 0 && time.Since(p.used) > b.Pace.Unused:
			b.drop(p)
		default:
			all[id] = true
		}
	}
	b.mu.Unlock()
	for id := range all {
		b.pool(id, false)
	}
}

// busy is how many requests are under way.
func (p *pool) busy() (n int) {
	for _, w := range p.workers {
		n += w.flight
	}
	return n
}

// drop forgets an endpoint. The caller holds mu.
func (b *Balancer) drop(p *pool) {
	for _, w := range p.workers {
		w.end()
	}
	close(p.changed)
	p.changed = make(chan struct{})
	if b.pools[p.id] == p {
		delete(b.pools, p.id)
	}
}

// Endpoint returns an endpoint that balances, as far as this scheduler knows.
func (b *Balancer) Endpoint(id fleet.EndpointID) (e fleet.Endpoint, ok bool) {
	_ = b.Store.View(func(v routes.View) error { // a closed store has none
		e, ok = routes.Balanced(v, id)
		return nil
	})
	return e, ok
}

// pool returns an endpoint with its workers as of now; nil: there is none that balances, or Run has ended.
func (b *Balancer) pool(id fleet.EndpointID, used bool) *pool {
	var e fleet.Endpoint
	var ok bool
	var pods []*fleet.Pod
	at := map[fleet.PodID]fleet.Serving{}
	_ = b.Store.View(func(v routes.View) error {
		if e, ok = routes.Balanced(v, id); ok {
			for _, p := range v.WorkersOf(id) {
				if p.Status == fleet.StatusRunning && p.Goal == fleet.GoalRun {
					pods = append(pods, p)
					at[p.ID], _ = fleet.ServingOf(p.Spec.Env) // one that was refused has no worker
				}
			}
		}
		return nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pools[id]
	if b.life == nil || !ok {
		if p != nil {
			b.drop(p)
		}
		return nil
	}
	if p == nil {
		p = &pool{id: id, workers: map[fleet.PodID]*worker{}, wake: map[fleet.PodID]int{}, changed: make(chan struct{})}
		b.pools[id] = p
	}
	if p.release = e.Version(); used || p.used.IsZero() {
		p.used = time.Now()
	}
	for _, pod := range pods {
		w := p.workers[pod.ID]
		if w != nil && (w.run != pod.Incarnation || w.frozen == pod.Frozen.IsZero() || w.host != pod.Host) {
			w.end()
			if w.run == pod.Incarnation { // what it has goes on
				w.frozen, w.host, w.health.State = !pod.Frozen.IsZero(), pod.Host, Unknown
				b.watch(p, w)
				continue
			}
			w = nil
		}
		if w == nil {
			w = &worker{id: pod.ID, host: pod.Host, release: pod.Release, run: pod.Incarnation, at: at[pod.ID], frozen: !pod.Frozen.IsZero()}
			p.workers[pod.ID] = w
			b.watch(p, w)
		}
	}
	for id, w := range p.workers {
		if !slices.ContainsFunc(pods, func(pod *fleet.Pod) bool { return pod.ID == id }) {
			w.end()
			delete(p.workers, id)
			b.notice(p)
		}
	}
	return p
}

// notice wakes the requests that wait. The caller holds mu.
func (b *Balancer) notice(p *pool) {
	close(p.changed)
	p.changed = make(chan struct{})
}

// DialPod implements fleet.Dialer for ports of workers, whether their endpoint exposes them or not.
func (b *Balancer) DialPod(ctx context.Context, id fleet.PodID, port int) (fleet.Stream, error) {
	var host fleet.HostID
	err := b.Store.View(func(v routes.View) error {
		p, ok := v.Pod(id)
		switch {
		case !ok || p.Owner.Kind != fleet.OwnerEndpoint:
			return fleet.NotFound("worker")
		case p.Status != fleet.StatusRunning:
			return fleet.NotAllowed("the worker does not run")
		}
		host = p.Host
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.Open(ctx, host, id, port)
}
