package ctrd

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
)

const (
	pullPrefix = "gantry-pull-" // of leases
	blobPrefix = "gantry-"      // of half-read blobs
	// abandonedAfter is for how long nobody has gone on with a pull that is taken for given up.
	abandonedAfter = 10 * time.Minute
)

// pausedPulls knows when a pull was last heard of that does not run. Its zero value is ready.
type pausedPulls struct {
	mu       sync.Mutex
	since    map[string]time.Time     // by the pull's key
	dropping map[string]chan struct{} // closed when what is left of a pull was dropped
}

func (p *pausedPulls) note(key string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since == nil || len(p.since) >= maxProved {
		p.since = map[string]time.Time{}
	}
	p.since[key] = now
}

// begin reports whether what is left of a pull may be dropped, and then has wait wait. One that is not known, as after
// a start of the agent, is known from then on.
func (p *pausedPulls) begin(key string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since == nil {
		p.since = map[string]time.Time{}
	}
	since, known := p.since[key]
	if !known {
		p.since[key] = now
	}
	if !known || now.Sub(since) < abandonedAfter || p.dropping[key] != nil {
		return false
	}
	if p.dropping == nil {
		p.dropping = map[string]chan struct{}{}
	}
	p.dropping[key] = make(chan struct{})
	return true
}

func (p *pausedPulls) end(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.dropping[key])
	delete(p.dropping, key)
	delete(p.since, key)
}

// wait returns when nothing of the pull is being dropped.
func (p *pausedPulls) wait(ctx context.Context, key string) error {
	p.mu.Lock()
	busy := p.dropping[key]
	p.mu.Unlock()
	if busy == nil {
		return nil
	}
	select {
	case <-busy:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dropAbandoned removes the leases and half-read blobs of pulls with which nobody goes on.
func (r *Runtime) dropAbandoned(ctx context.Context) error {
	list, err := r.client.LeasesService().List(ctx)
	if err != nil {
		return err
	}
	for _, l := range list {
		if !strings.HasPrefix(l.ID, pullPrefix) || !r.abandoned(l.ID) {
			continue
		}
		err := r.client.LeasesService().Delete(ctx, leases.Lease{ID: l.ID})
		r.paused.end(l.ID)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	store := r.client.ContentStore()
	halves, err := store.ListStatuses(ctx)
	if err != nil {
		return err
	}
	reading := r.beingRead()
	for _, h := range halves {
		if !strings.HasPrefix(h.Ref, blobPrefix) || reading[h.Ref] || time.Since(h.UpdatedAt) < abandonedAfter {
			continue
		}
		if err := store.Abort(ctx, h.Ref); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// abandoned reports whether a pull may be dropped. The caller then calls paused.end.
func (r *Runtime) abandoned(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pulls[key] == nil && r.paused.begin(key, time.Now())
}

// beingRead returns the keys of what running pulls read.
func (r *Runtime) beingRead() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]bool{}
	for _, p := range r.pulls {
		p.mu.Lock()
		for _, it := range p.items {
			out[p.ingestKey(it.desc.Digest)] = true
		}
		p.mu.Unlock()
	}
	return out
}
