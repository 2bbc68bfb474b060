package balance

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/share"
	"gantry/internal/sleep"
)

// What a request is told that gets no worker; these texts are the contract's.
const (
	textNone   = "no workers available"
	textLate   = "timed out waiting for worker"
	textGone   = "affinity_worker_gone"
	textStrict = "worker_timeout"
)

// Take waits for a worker of an endpoint. Those in without are not taken: they refused the request's connection. Errors: not_found (the
// endpoint, or the worker of a strict wish, is gone), not_allowed (there is none in time), rate_limited (too many wait), unavailable (Run
// has not begun, or has ended).
func (b *Balancer) Take(ctx context.Context, e *fleet.Endpoint, wish fleet.WorkerWish, without []fleet.PodID) (fleet.WorkerSeat, error) {
	p := b.pool(e.ID, true) //nolint:contextcheck // questions to workers end with Run
	if p == nil {
		return fleet.WorkerSeat{}, b.noPool()
	}
	if seat, ok, err := b.try(p, wish, without); ok || err != nil {
		return seat, err
	}
	if e.Spec.Workers.Max == 0 {
		return fleet.WorkerSeat{}, fleet.NotAllowed(textNone)
	}
	if b.waiting.Take(e.Account) != share.Free {
		return fleet.WorkerSeat{}, &fleet.Error{Code: fleet.CodeLimited, Msg: "too many requests wait for workers", NothingDone: true}
	}
	defer b.waiting.Give(e.Account)
	b.wait(p, wish, 1)
	defer b.wait(p, wish, -1)
	limit, late := time.Duration(e.Spec.WaitSeconds)*time.Second, textLate
	if wish.Strict {
		limit, late = b.Pace.Strict, textStrict
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		b.mu.Lock()
		changed, known := p.changed, b.pools[p.id] == p
		b.mu.Unlock()
		if !known {
			return fleet.WorkerSeat{}, b.noPool()
		}
		if seat, ok, err := b.try(p, wish, without); ok || err != nil {
			return seat, err
		}
		select {
		case <-changed:
			without = nil // they may take connections by now
		case <-timer.C:
			return fleet.WorkerSeat{}, fleet.NotAllowed("%s", late)
		case <-ctx.Done():
			return fleet.WorkerSeat{}, ctx.Err()
		}
	}
}

// noPool says why there is no pool for an endpoint: it is gone, or Run has not begun, or has ended.
func (b *Balancer) noPool() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.life == nil {
		return fleet.Unavailable("This server starts or stops.", nil)
	}
	return fleet.NotFound("endpoint")
}

// wait counts a request that waits.
func (b *Balancer) wait(p *pool, wish fleet.WorkerWish, n int) {
	b.mu.Lock()
	p.waiting += n
	if wish.Wake {
		if p.wake[wish.Worker] += n; p.wake[wish.Worker] == 0 {
			delete(p.wake, wish.Worker)
		}
	}
	b.mu.Unlock()
	signal(b.dirty)
}

// try takes a worker if one is free to take. Errors: not_found (that of a strict wish is gone).
func (b *Balancer) try(p *pool, wish fleet.WorkerWish, without []fleet.PodID) (fleet.WorkerSeat, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wish.Worker != "" {
		w := p.workers[wish.Worker]
		switch {
		case w != nil && b.takes(w) && !slices.Contains(without, w.id):
			return b.seat(p, w), true, nil
		case wish.Strict && (w == nil || b.closing[w.id] && !wish.Wake):
			return fleet.WorkerSeat{}, false, &fleet.Error{Code: fleet.CodeNotFound, Msg: textGone}
		case wish.Strict:
			return fleet.WorkerSeat{}, false, nil
		}
	}
	var free []*worker
	newest := false
	for _, w := range p.workers {
		if b.takes(w) && !slices.Contains(without, w.id) {
			free = append(free, w)
			newest = newest || w.release == p.release
		}
	}
	if newest { // those of earlier releases finish what they have
		free = slices.DeleteFunc(free, func(w *worker) bool { return w.release != p.release })
	}
	if len(free) == 0 {
		return fleet.WorkerSeat{}, false, nil
	}
	i := rand.IntN(len(free)) //nolint:gosec // no secret
	best := free[i]
	if len(free) > 1 {
		if other := free[(i+1+rand.IntN(len(free)-1))%len(free)]; other.flight < best.flight { //nolint:gosec // no secret
			best = other
		}
	}
	return b.seat(p, best), true, nil
}

// takes reports whether a worker takes requests. The caller holds mu.
func (b *Balancer) takes(w *worker) bool {
	return w.health.State == Ready && !w.frozen && !b.closing[w.id]
}

// seat counts a request. The caller holds mu.
func (b *Balancer) seat(p *pool, w *worker) fleet.WorkerSeat {
	w.flight++
	p.used = time.Now()
	signal(b.dirty)
	left := false
	return fleet.WorkerSeat{Worker: w.id, Port: w.at.Port, Leave: func() {
		b.mu.Lock()
		if !left {
			left = true
			w.flight--
			p.used = time.Now()
		}
		b.mu.Unlock()
		signal(b.dirty)
	}}
}

// Refused notes that a worker's port took no connection.
func (b *Balancer) Refused(endpoint fleet.EndpointID, id fleet.PodID) {
	b.mu.Lock()
	p := b.pools[endpoint]
	var w *worker
	if p != nil {
		w = p.workers[id]
	}
	b.mu.Unlock()
	if w != nil {
		b.note(p, w, Silent, "nothing listens on its port ("+fleet.EnvPort+")", false)
	}
}

// report tells the leader of the numbers: at once when they change after a while, and then each Pace.Report while they change.
func (b *Balancer) report(ctx context.Context) {
	said := false // the last report had numbers
	for ctx.Err() == nil {
		_, _ = sleep.Or(ctx, b.Pace.Quiet, b.dirty)
		r, some := b.numbers()
		if !some && !said && !b.Always {
			continue
		}
		word, err := b.Tell(ctx, r)
		if err != nil {
			if ctx.Err() == nil {
				b.Log.Debug("tell the leader of requests", "err", err)
			}
			_ = sleep.For(ctx, b.Pace.Quiet)
			signal(b.dirty)
			continue
		}
		said = some
		if b.hear(word) {
			signal(b.dirty) // the leader has to know
		}
		_ = sleep.For(ctx, b.Pace.Report)
	}
}

// numbers returns what there is to tell, and whether there is any endpoint.
func (b *Balancer) numbers() (r Report, some bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r = Report{Member: b.Member, Heard: b.heard, Of: map[fleet.EndpointID]Demand{}, Process: b.process, Ended: maps.Clone(b.ended)}
	for id, p := range b.pools {
		d := Demand{Waiting: p.waiting, Serving: map[fleet.PodID]int{}}
		for _, w := range p.workers {
			if w.flight > 0 {
				d.Serving[w.id] = w.flight
			}
		}
		for pod := range p.wake {
			d.Wake = append(d.Wake, pod)
		}
		if d.Waiting > 0 || len(d.Serving) > 0 {
			r.Of[id] = d
		}
	}
	return r, len(b.pools)+len(b.ended) > 0
}

// Count counts a request to an endpoint that has ended.
func (b *Balancer) Count(id fleet.EndpointID, completed bool) {
	b.mu.Lock()
	n := b.ended[id]
	if completed {
		n.Completed++
	} else {
		n.Failed++
	}
	b.ended[id] = n
	b.mu.Unlock()
	signal(b.dirty)
}

// forget drops the numbers of endpoints that are gone.
func (b *Balancer) forget() {
	b.mu.Lock()
	ids := slices.Collect(maps.Keys(b.ended))
	b.mu.Unlock()
	for _, id := range ids {
		if _, ok := b.Endpoint(id); !ok {
			b.mu.Lock()
			delete(b.ended, id)
			b.mu.Unlock()
		}
	}
}

// hear goes by what the leader says, and reports whether it is news.
func (b *Balancer) hear(word Word) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if word.Version == b.heard && len(word.Closing) == len(b.closing) {
		return false
	}
	b.heard = word.Version
	clear(b.closing)
	for _, id := range word.Closing {
		b.closing[id] = true
	}
	for _, p := range b.pools {
		b.notice(p)
	}
	return true
}
