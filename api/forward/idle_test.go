package forward_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"gantry/api/forward"
)

// TestManyRequestsAtOnceFindTheirConnectionsAgain: callers that wait for jobs are many, and a connection for each answer would be a handshake
// for each.
func TestManyRequestsAtOnceFindTheirConnectionsAgain(t *testing.T) {
	const callers = 200
	s := newSite(t)
	var came sync.WaitGroup
	leader := s.add("leader", func(http.ResponseWriter, *http.Request) {
		came.Done()
		came.Wait() // all are there at once
	})
	s.set(leader)
	var dials atomic.Int64
	follower := s.add("follower", echo, func(c *forward.Config) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, address)
		}
	})
	for range 3 {
		came.Add(callers)
		var all []<-chan answer
		for range callers {
			all = append(all, s.asking(follower, http.MethodGet, nil))
		}
		for _, one := range all {
			if got := <-one; got.status != http.StatusOK {
				t.Errorf("answered %+v", got)
			}
		}
	}
	if n := dials.Load(); n >= 2*callers { // some connections come back a moment after their answers
		t.Errorf("%d connections for %d requests at once, three times", n, callers)
	}
}
