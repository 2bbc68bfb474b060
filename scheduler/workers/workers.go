// Package workers brings jobs and workers of serverless endpoints together: it gives waiting jobs to the workers that ask for some,
// records what becomes of them, and starts and ends workers as serverless/scale decides. It works on the leader, on events: a change of
// jobs, of pods or of endpoints, or a moment that a decision named.
//
// What was committed is in the two states alone. What is remembered beside (who asks for a job, who crashed how often) is lost with
// leadership; hosts tell the next leader who asks.
package workers

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/scheduler/balance"
	"gantry/scheduler/entry"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/serverless/scale"
)

// Pods starts and ends workers; see scheduler.Service.
type Pods interface {
	StartWorker(ctx context.Context, id fleet.EndpointID) (fleet.Pod, error)
	FreezeWorker(ctx context.Context, pod *fleet.Pod) error
	ThawWorker(ctx context.Context, pod *fleet.Pod) error
	EndWorker(ctx context.Context, pod *fleet.Pod) error
	PrefetchWorkers(ctx context.Context, id fleet.EndpointID, hosts int) error
}

// Proposer commits commands of the control plane; see replica.Node.
type Proposer interface {
	Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error)
}

// Config is what Workers are made from.
type Config struct {
	Store *state.Store
	Node  Proposer
	Jobs  jobs.Group
	Pods  Pods
	// Live returns what a pod's host last said of it; nil: it is not heard.
	Live func(fleet.HostID, fleet.PodID) *fleet.Live
	// Health returns what this member knows of a worker of an endpoint that balances; nil: it asks none.
	Health func(fleet.EndpointID, fleet.PodID) (balance.Health, bool)
	// Result replaces what a worker answered to a job of a public model; nil: nothing does. Errors: invalid fails the job.
	Result func(ctx context.Context, sale *queue.Sale, output []byte) ([]byte, error)
	// Tell calls the webhook of a job that has ended.
	Tell func(ctx context.Context, id queue.ID) error
	Log  *slog.Logger
	Now  func() time.Time
}

const (
	again     = time.Second      // until what failed is tried once more
	proposing = 10 * time.Second // the most that a command takes
	atOnce    = 32               // endpoints that are looked at beside each other
)

// Workers are all workers of all endpoints. Its methods are safe for concurrent use.
type Workers struct {
	Config

	mu    sync.Mutex                           // guards the fields below
	run   func(task func(ctx context.Context)) // begins a task that ends with leadership; nil while this member does not lead
	over  chan struct{}                        // closed when leadership ends
	desks map[fleet.EndpointID]*desk
	lines map[fleet.HostID]*line
	slots chan struct{}

	tellings uint64 // how often hosts were told of a job, so that a look knows what is newer than itself

	reports map[fleet.MemberID]report // what members said of requests
	version uint64                    // of the workers that get no more requests; it begins with the time, above that of another leader
}

// New returns Workers that do nothing before Lead.
func New(c Config) *Workers {
	return &Workers{Config: c, desks: map[fleet.EndpointID]*desk{}, lines: map[fleet.HostID]*line{}, reports: map[fleet.MemberID]report{}, slots: make(chan struct{}, atOnce)}
}

// Lead works until ctx, which ends with leadership, does.
func (w *Workers) Lead(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	follower := w.Jobs.Jobs.Follow()
	var tasks sync.WaitGroup // grows under mu while run is set
	over := make(chan struct{})
	w.mu.Lock()
	w.version = max(w.version+1, uint64(max(0, w.Now().UnixNano()))) //nolint:gosec // not below 0
	w.run, w.over = func(task func(context.Context)) { tasks.Go(func() { task(ctx) }) }, over
	w.mu.Unlock()
	defer func() {
		cancel()
		follower.Close()
		w.mu.Lock()
		w.run = nil
		close(over)
		for _, d := range w.desks {
			d.timer.Stop()
		}
		clear(w.desks)
		clear(w.reports)
		w.mu.Unlock()
		tasks.Wait()
	}()
	w.start(w.followState)
	w.start(w.sweep)
	w.start(w.tell)
	w.start(w.settle)
	w.kickAll()
	for {
		select {
		case <-follower.Wake():
			ids, all := follower.Changed()
			if all {
				w.kickAll()
			}
			w.kick(ids...)
		case <-ctx.Done():
			return nil
		}
	}
}

// start runs a task that ends with leadership.
func (w *Workers) start(task func(ctx context.Context)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run != nil {
		w.run(task)
	}
}

// followState has endpoints looked at whose record or pods changed.
func (w *Workers) followState(ctx context.Context) {
	var seen uint64
	for w.Store.Wait(ctx, seen) == nil {
		events, upTo, all := w.Store.Events(seen)
		seen = upTo
		if !all {
			w.kickAll()
			continue
		}
		var ids []fleet.EndpointID
		known, room := w.known(), false
		_ = w.Store.View(func(v *state.View) error {
			for _, e := range events {
				switch e.Kind {
				case state.KindPod:
					p, there := v.Pod(fleet.PodID(e.ID))
					if there && p.Owner.Kind == fleet.OwnerEndpoint {
						ids = append(ids, fleet.EndpointID(p.Owner.ID))
					}
					room = room || !there || !p.Held
				case state.KindHost:
					room = true
					ids = append(ids, v.WorkedOn(fleet.HostID(e.ID))...)
				case state.KindAccount:
					for _, one := range state.List[fleet.Endpoint](v, fleet.AccountID(e.ID)) {
						ids = append(ids, one.ID)
					}
					for _, id := range known { // may be of the account, and deleted
						if _, there := state.Find[fleet.Endpoint](v, id); !there {
							ids = append(ids, id)
						}
					}
				}
			}
			return nil
		})
		if room {
			ids = append(ids, w.roomless()...)
		}
		w.kick(ids...)
	}
}

// known returns the endpoints that were looked at.
func (w *Workers) known() []fleet.EndpointID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.desks))
}

// roomless returns the endpoints that had no room for a worker, which try at once now.
func (w *Workers) roomless() (ids []fleet.EndpointID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, d := range w.desks {
		if !d.noRoom.IsZero() || d.limit == scale.Account {
			d.noRoom = time.Time{}
			ids = append(ids, id)
		}
	}
	return ids
}

// kickAll has all endpoints looked at that there are, or of which something is left.
func (w *Workers) kickAll() {
	var ids []fleet.EndpointID
	_ = w.Store.View(func(v *state.View) error {
		for _, a := range v.Accounts() {
			for _, e := range state.List[fleet.Endpoint](v, a.ID) {
				ids = append(ids, e.ID)
			}
		}
		ids = append(ids, v.Worked()...)
		return nil
	})
	w.Jobs.Jobs.View(func(q *queue.Queue) { ids = append(ids, q.Endpoints()...) })
	w.kick(ids...)
}

// kick has endpoints looked at soon, each by one goroutine at a time.
func (w *Workers) kick(ids ...fleet.EndpointID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kickLocked(ids...)
}

// kickLocked is kick for a caller that holds mu.
func (w *Workers) kickLocked(ids ...fleet.EndpointID) {
	if w.run == nil {
		return
	}
	for _, id := range ids {
		d := w.desk(id)
		d.dirty = true
		if !d.busy {
			d.busy = true
			w.run(func(ctx context.Context) { w.tend(ctx, d) })
		}
	}
}

// desk returns an endpoint's, new if there is none. The caller holds mu.
func (w *Workers) desk(id fleet.EndpointID) *desk {
	d := w.desks[id]
	if d == nil {
		d = &desk{id: id, workers: map[fleet.PodID]*worker{}}
		d.timer = time.AfterFunc(time.Hour, func() { w.kick(id) })
		d.timer.Stop()
		w.desks[id] = d
	}
	return d
}

// tend looks at an endpoint until nothing has changed since.
func (w *Workers) tend(ctx context.Context, d *desk) {
	for {
		w.mu.Lock()
		if !d.dirty || ctx.Err() != nil {
			d.busy = false
			w.mu.Unlock()
			return
		}
		d.dirty = false
		w.mu.Unlock()
		select {
		case w.slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		next, err := w.look(ctx, d)
		<-w.slots
		if err != nil && ctx.Err() == nil {
			w.Log.Debug("look after an endpoint", "endpoint", d.id, "err", err)
			next = w.Now().Add(again)
		}
		w.mu.Lock()
		if d.timer.Stop(); !next.IsZero() && ctx.Err() == nil {
			d.timer.Reset(max(next.Sub(w.Now()), time.Millisecond))
		}
		w.mu.Unlock()
	}
}

const (
	maxSwept  = 1000 // jobs in one command
	mostSleep = time.Minute
)

// sweep ends attempts that took too long, and deletes jobs whose time is over.
func (w *Workers) sweep(ctx context.Context) {
	for ctx.Err() == nil {
		var due queue.Millis
		w.Jobs.Jobs.View(func(q *queue.Queue) { due = q.NextDue() })
		now := w.Now()
		wait := mostSleep
		switch {
		case due != 0 && due <= queue.At(now):
			n, err := jobs.One[int](ctx, w.Jobs, jobs.Expire{Expire: queue.Expire{At: queue.At(now), Max: maxSwept}})
			if wait = 0; err != nil || n == 0 {
				wait = again
			}
		case due != 0:
			wait = min(due.Time().Sub(now), again) // one that is due earlier may come
		default:
			wait = again
		}
		_ = sleep.For(ctx, wait)
	}
}

// propose commits a command about jobs, in time.
func (w *Workers) propose(ctx context.Context, cmds ...jobs.Command) ([]entry.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, proposing)
	defer cancel()
	results, err := w.Jobs.Propose(ctx, cmds...)
	for _, r := range results {
		if err == nil {
			err = r.Err
		}
	}
	return results, err
}
