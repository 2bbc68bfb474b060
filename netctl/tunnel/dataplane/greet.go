package dataplane

import (
	"encoding/hex"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"gantry/netctl/tunnel"
)

// Two hosts that begin a session at the same time, or one that calls another before that knows its key, have none: WireGuard tries again
// after five seconds. So a host that has just begun one looks soon whether it has it, and the host with the lower address sooner.
const (
	lookAfter = 50 * time.Millisecond
	lowAfter  = 400 * time.Millisecond // more than a round trip, or a session would never be
	highAfter = 650 * time.Millisecond
	greetings = 4 // in all, each after twice the time; the rest is WireGuard's
)

// greeting is a session that was begun.
type greeting struct {
	began, next time.Time
	wait        time.Duration
	left        int
}

// greet begins a session with a peer. One that has a session with this host's former process, or former key, would hold on to it
// for 15 seconds. The caller has the lock.
func (s *Server) greet(p tunnel.OrderPeer, own addr) {
	peer := s.wg.LookupPeer(device.NoisePublicKey(p.Key))
	if peer == nil || !p.Endpoint.IsValid() {
		return
	}
	now, wait := time.Now(), lowAfter
	if far := p.Addr.As4(); string(far[:]) < string(own[:]) {
		wait = highAfter
	}
	s.greets[hex.EncodeToString(p.Key)] = &greeting{began: now, next: now.Add(wait), wait: wait, left: greetings - 1}
	peer.SendKeepalive()
	select {
	case s.greeted <- struct{}{}:
	default: // it was not heard yet
	}
}

// greetAgain greets those that have not answered. It says whether there are more to look after. The caller has the lock.
func (s *Server) greetAgain() bool {
	if len(s.greets) == 0 {
		return false
	}
	have, err := s.read()
	if err != nil {
		return false // it is closed
	}
	now := time.Now()
	for key, g := range s.greets {
		p := have.peers[key]
		if p == nil || p.handshake.After(g.began) || g.left == 0 {
			delete(s.greets, key)
			continue
		}
		if now.Before(g.next) {
			continue
		}
		g.left--
		g.wait *= 2
		g.next = now.Add(g.wait)
		if peer := s.wg.LookupPeer(p.key); peer != nil {
			peer.ExpireCurrentKeypairs() // or it waits for what it began
			peer.SendKeepalive()
		}
	}
	return len(s.greets) > 0
}
