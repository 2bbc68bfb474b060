package rest

import (
	"context"
	"sync"
	"time"

	"gantry/api/auth"
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

// again returns who the caller is now. It refuses when the key or the session ended, acts in another account, or lacks the scope.
func (a *API) again(ctx context.Context, c *call) (fleet.Principal, error) {
	who, err := auth.Principal(c.r.WithContext(ctx), part[KeyChecker](a), auth.Bearer, &c.scope)
	if err == nil && who.Account != c.who.Account {
		err = fleet.Forbidden("the session acts in another account now")
	}
	return who, err
}

var errClosing = fleet.Unavailable("this scheduler shuts down", nil)

// untilRefused waits until the caller may not go on, and returns why: what again refuses, errClosing, or that ctx has ended. While
// schedulers cannot tell, the caller goes on: a change of leader ends nothing.
func (a *API) untilRefused(ctx context.Context, c *call) error {
	tick := time.NewTicker(a.pace.again)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-a.closed:
			return errClosing
		case <-ctx.Done():
			return ctx.Err()
		}
		try, cancel := context.WithTimeout(ctx, a.callTimeout)
		_, err := a.again(try, c)
		cancel()
		if code := fleet.CodeOf(err); code == fleet.CodeUnauthorized || code == fleet.CodeForbidden {
			return err
		}
	}
}
