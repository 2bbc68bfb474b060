package rest

import (
	"sync"

	"gantry/fleet"
)

// counter counts what each account holds open. It is safe for concurrent use.
type counter struct {
	most int // of an account
	// all is how many all accounts may hold; 0: any number. The last reserve of them are for accounts that hold none.
	all, reserve int

	mu   sync.Mutex
	held map[fleet.AccountID]int
	sum  int
}

func newCounter(most int) *counter { return &counter{most: most, held: map[fleet.AccountID]int{}} }

func (c *counter) take(who fleet.AccountID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.all
	if c.held[who] > 0 {
		all -= c.reserve
	}
	if c.held[who] >= c.most || c.all > 0 && c.sum >= all {
		return false
	}
	c.held[who]++
	c.sum++
	return true
}

func (c *counter) give(who fleet.AccountID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum--
	if c.held[who]--; c.held[who] == 0 {
		delete(c.held, who)
	}
}
