package jobs

import (
	"sync"
	"time"

	"gantry/fleet"
)

// operation is a kind of request that has limits of its own (interface.md, "Limits").
type operation string

// The operations.
const (
	opRun     operation = "run"
	opRunSync operation = "runsync"
	opStatus  operation = "status"
	opStream  operation = "stream"
	opCancel  operation = "cancel"
	opPurge   operation = "purge-queue"
	opOpenAI  operation = "openai"
	opList    operation = "requests"
)

const (
	rateWindow = 10 * time.Second
	// maxCounters is how many callers' counters are kept; beyond it those of windows that are over go.
	maxCounters = 100_000
)

// limit is how many requests of one account to one endpoint are taken in a window, and how many at a time; 0: any.
type limit struct{ rate, atOnce int }

var limits = map[operation]limit{
	opRunSync: {2000, 400}, opRun: {1000, 200}, opStatus: {2000, 400}, opStream: {2000, 400}, opCancel: {100, 20}, opPurge: {2, 0},
	opOpenAI: {2000, 400}, opList: {10, 2},
}

// who has a counter.
type counterKey struct {
	account  fleet.AccountID
	endpoint fleet.EndpointID
	op       operation
}

// counter counts the requests of a window, which begins with the first.
type counter struct {
	began time.Time
	n     int
	now   int // under way
}

// counters count requests.
type counters struct {
	perWorker int // requests that each running worker adds to the limits
	now       func() time.Time

	mu  sync.Mutex
	all map[counterKey]*counter
}

// enter counts a request, unless it is one too many: then it says when to try again. Otherwise leave is called at the request's end.
func (c *counters) enter(key counterKey, workers int) (leave func(), wait time.Duration) {
	now, most := c.now(), limits[key.op]
	dynamic := workers * c.perWorker
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.all[key]
	if one == nil {
		c.sweep(now)
		if len(c.all) >= maxCounters {
			return nil, time.Second
		}
		one = &counter{began: now}
		c.all[key] = one
	}
	if now.Sub(one.began) >= rateWindow || now.Before(one.began) {
		one.began, one.n = now, 0
	}
	switch {
	case one.n >= max(most.rate, dynamic):
		return nil, one.began.Add(rateWindow).Sub(now)
	case most.atOnce > 0 && one.now >= max(most.atOnce, dynamic):
		return nil, time.Second
	}
	one.n++
	one.now++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		one.now--
	}), 0
}

// sweep removes the counters that say nothing any more, once there are many. The caller holds mu.
func (c *counters) sweep(now time.Time) {
	if len(c.all) < maxCounters {
		return
	}
	for key, one := range c.all {
		if one.now == 0 && now.Sub(one.began) >= rateWindow {
			delete(c.all, key)
		}
	}
}

// Bounds of what request bodies may take of memory.
const (
	maxBodies        = 512 * fleet.MB
	maxAccountBodies = maxBodies / 4
)

// room is what bodies that are being read and submitted take.
type room struct {
	mu  sync.Mutex
	all int64
	of  map[fleet.AccountID]int64
}

// enter takes room for a body, unless there is none: then it returns nil. The caller calls leave when the body is let go.
func (r *room) enter(account fleet.AccountID, n int64) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all+n > maxBodies || r.of[account]+n > maxAccountBodies {
		return nil
	}
	r.all += n
	r.of[account] += n
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all -= n
		if r.of[account] -= n; r.of[account] == 0 {
			delete(r.of, account)
		}
	})
}
