package models

import (
	"context"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const (
	maxAhead     = 64
	aheadTimeout = time.Hour // of one model
)

// ahead is a model that a scheduler expects workers with.
type ahead struct {
	hub string
	ref fleet.ModelRef
}

// Take asks for models before a pod does. Those that everybody may have come; nothing is promised.
func (c *Cache) Take(_ context.Context, m *agentrpc.Down_Prefetch) (*agentrpc.Up, error) {
	refs, _, err := fleet.ParseModelRefs(m.Prefetch.GetModels())
	if err != nil {
		c.Log.Warn("prefetch refused: invalid model reference", "err", err)
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ref := range refs {
		one := ahead{m.Prefetch.GetModelHub(), ref}
		if c.queued[one] {
			continue
		}
		select {
		case c.queue <- one:
			c.queued[one] = true
		default:
			c.Log.Warn("prefetch refused: too many models are queued", "model", ref.Repo, "waiting", maxAhead)
		}
	}
	return nil, nil
}

// begins notes that a pod waits for models, until the returned function is called.
func (c *Cache) begins() (over func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting++; c.waiting == 1 {
		c.idlePods = make(chan struct{})
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.waiting--; c.waiting == 0 {
			close(c.idlePods)
		}
	}
}

// calm returns when no pod waits for models, or the cache ends.
func (c *Cache) calm() {
	for {
		c.mu.Lock()
		waiting, idle := c.waiting, c.idlePods
		c.mu.Unlock()
		if waiting == 0 {
			return
		}
		select {
		case <-idle:
		case <-c.ctx.Done():
			return
		}
	}
}

// fetchAhead fetches what was asked for ahead, one model after the other, and begins none while a pod waits for one.
func (c *Cache) fetchAhead() {
	for {
		select {
		case <-c.ctx.Done():
			return
		case one := <-c.queue:
			c.calm()
			ctx, cancel := context.WithTimeout(c.ctx, aheadTimeout)
			if _, err := c.one(ctx, "", one.hub, one.ref, "", func(int64, int64) {}); err != nil {
				c.Log.Warn("model was not prefetched", "model", one.ref.Repo, "err", err)
			}
			cancel()
			c.mu.Lock()
			delete(c.queued, one)
			c.mu.Unlock()
		}
	}
}
