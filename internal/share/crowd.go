package share

import (
	"sync"
	"sync/atomic"
)

// look bounds how many connections are compared to find one that gives way.
const look = 64

// Bounds of a Crowd; 0: any number.
type Bounds[K comparable] struct {
	All  int
	Each int
	// Exempt tells those whose own share has no bound; nil: none.
	Exempt func(K) bool
	// MayGo tells the connections that may be closed to make room for another client's; nil: none. It answers at once.
	MayGo func(*Conn) bool
}

// Crowd is a set of open connections, of which each client has a share. It is safe for concurrent use.
type Crowd[K comparable] struct {
	bounds Bounds[K]

	mu    sync.Mutex
	conns map[*Conn]K
	of    map[K]map[*Conn]struct{}
	left  chan struct{} // closed and made anew when one leaves while somebody waits for that

	refusedOwn, refusedAll, ended atomic.Uint64
}

// NewCrowd returns an empty crowd.
func NewCrowd[K comparable](b Bounds[K]) *Crowd[K] {
	return &Crowd[K]{bounds: b, conns: map[*Conn]K{}, of: map[K]map[*Conn]struct{}{}}
}

// Enter counts a connection of who until it is closed or leaves. Where no room is left, a connection that may go gives way: one of
// the same client when its share is used up, else one of a client that holds more than this one, the greediest of a sample first.
// Otherwise it says which bound was reached.
func (c *Crowd[K]) Enter(who K, conn *Conn) Why {
	why, victim := c.enter(who, conn)
	switch {
	case victim != nil:
		c.ended.Add(1)
		_ = victim.Close()
	case why == Own:
		c.refusedOwn.Add(1)
	case why == All:
		c.refusedAll.Add(1)
	}
	return why
}

func (c *Crowd[K]) enter(who K, conn *Conn) (why Why, victim *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	mine := c.of[who]
	exempt := c.bounds.Exempt != nil && c.bounds.Exempt(who)
	switch {
	case c.bounds.Each > 0 && len(mine) >= c.bounds.Each && !exempt:
		if victim = c.oldest(mine); victim == nil {
			return Own, nil
		}
	case c.bounds.All > 0 && len(c.conns) >= c.bounds.All:
		if victim = c.greediest(len(mine)); victim == nil {
			return All, nil
		}
	}
	if victim != nil {
		c.drop(victim)
		mine = c.of[who]
	}
	if mine == nil {
		mine = map[*Conn]struct{}{}
		c.of[who] = mine
	}
	mine[conn] = struct{}{}
	c.conns[conn] = who
	conn.in(c.leave)
	return Free, victim
}

// oldest finds the oldest of a few that may go, which map order picks.
func (c *Crowd[K]) oldest(of map[*Conn]struct{}) (found *Conn) {
	n := 0
	for conn := range of {
		if c.mayGo(conn) && (found == nil || conn.since.Before(found.since)) {
			found = conn
		}
		if n++; n == look {
			break
		}
	}
	return found
}

// greediest finds among a few that may go one of the client that holds most, and more than mine.
func (c *Crowd[K]) greediest(mine int) (found *Conn) {
	n := 0
	for conn, who := range c.conns {
		if holds := len(c.of[who]); holds > mine && c.mayGo(conn) {
			found, mine = conn, holds
		}
		if n++; n == 4*look {
			break
		}
	}
	return found
}

func (c *Crowd[K]) mayGo(conn *Conn) bool { return c.bounds.MayGo != nil && c.bounds.MayGo(conn) }

func (c *Crowd[K]) leave(conn *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(conn)
}

// drop forgets a connection; the crowd is locked.
func (c *Crowd[K]) drop(conn *Conn) {
	who, ok := c.conns[conn]
	if !ok {
		return
	}
	delete(c.conns, conn)
	if delete(c.of[who], conn); len(c.of[who]) == 0 {
		delete(c.of, who)
	}
	if c.left != nil {
		close(c.left)
		c.left = nil
	}
}

// Left returns a channel that is closed when a connection has left after the call.
func (c *Crowd[K]) Left() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == nil {
		c.left = make(chan struct{})
	}
	return c.left
}

// Counts are those of a crowd since it was made.
type Counts struct {
	Open       int    // now
	RefusedOwn uint64 // connections refused because their client had its share
	RefusedAll uint64 // connections refused because all were taken
	Ended      uint64 // connections that were closed to make room
}

// Counts returns what was counted.
func (c *Crowd[K]) Counts() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Counts{Open: len(c.conns), RefusedOwn: c.refusedOwn.Load(), RefusedAll: c.refusedAll.Load(), Ended: c.ended.Load()}
}

// Plus returns the sums of both.
func (c Counts) Plus(d Counts) Counts {
	return Counts{c.Open + d.Open, c.RefusedOwn + d.RefusedOwn, c.RefusedAll + d.RefusedAll, c.Ended + d.Ended}
}
