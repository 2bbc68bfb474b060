package rest

import (
	"sync"

	"gantry/fleet"
)

// counter counts what each account holds open. It is safe for concurrent use.
type counter struct {
	most int

	mu   sync.Mutex
	held map[fleet.AccountID]int
}

func newCounter(most int) *counter { return &counter{most: most, held: map[fleet.AccountID]int{}} }

func (c *counter) take(who fleet.AccountID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[who] >= c.most {
		return false
	}
	c.held[who]++
	return true
}

func (c *counter) give(who fleet.AccountID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[who]--; c.held[who] == 0 {
		delete(c.held, who)
	}
}
