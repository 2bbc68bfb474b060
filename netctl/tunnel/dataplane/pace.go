package dataplane

import (
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// WireGuard keeps each packet that it was given in 64 KiB until it is sent, and those for a peer that does not answer for a minute and a
// half, without a bound on all. So the device gives it no more than it sends, and little for peers that do not answer.
const (
	mostInFlight = 2048
	roomWithin   = 5 * time.Millisecond

	coldEach = 16  // packets a second for a peer without a session
	coldAll  = 128 // and for all of them
	staleAt  = 180 * time.Second
)

// pace is how much WireGuard was given.
type pace struct {
	flying atomic.Int64
	room   chan struct{}
	cold   atomic.Pointer[cold]
}

// cold are the peers without a session, by their addresses in the tunnel, and how many packets they may have until the next second.
type cold struct {
	left  atomic.Int64
	peers map[addr]*coldPeer
}

type coldPeer struct {
	left  atomic.Int64
	heard atomic.Bool // it has one now
}

// counted is WireGuard's way to the wire.
type counted struct {
	conn.Bind
	pace *pace
}

// Send implements conn.Bind.
func (c counted) Send(bufs [][]byte, to conn.Endpoint) error {
	err := c.Bind.Send(bufs, to)
	n := int64(len(bufs))
	if left := c.pace.flying.Add(-n); left < mostInFlight && left+n >= mostInFlight {
		select {
		case c.pace.room <- struct{}{}:
		default: // nobody heard the last one
		}
	}
	return err
}

// wait waits until WireGuard has sent enough. What it drops is never sent, so there is an end to that.
func (p *pace) wait(closed <-chan struct{}) {
	if p.flying.Load() < mostInFlight {
		return
	}
	timer := time.NewTimer(roomWithin)
	defer timer.Stop()
	for p.flying.Load() >= mostInFlight {
		select {
		case <-p.room:
		case <-closed:
			return
		case <-timer.C:
			p.flying.Store(0)
		}
	}
}

// gave notes what WireGuard is given, which may have been sent by others' hands, such as those of handshakes.
func (p *pace) gave(n int) {
	if p.flying.Add(int64(n)) < 0 {
		p.flying.Store(0)
	}
}

// may says whether a peer may have one more packet.
func (p *pace) may(to addr) bool {
	c := p.cold.Load()
	if c == nil {
		return true
	}
	one := c.peers[to]
	return one == nil || one.heard.Load() || one.left.Add(-1) >= 0 && c.left.Add(-1) >= 0
}

// heard says that a peer has a session.
func (p *pace) heard(from addr) {
	if c := p.cold.Load(); c != nil {
		if one := c.peers[from]; one != nil {
			one.heard.Store(true)
		}
	}
}

// setCold says which peers have no session, for the next second.
func (p *pace) setCold(peers []addr) {
	c := &cold{peers: make(map[addr]*coldPeer, len(peers))}
	c.left.Store(coldAll)
	for _, a := range peers {
		one := &coldPeer{}
		one.left.Store(coldEach)
		c.peers[a] = one
	}
	p.cold.Store(c)
}
