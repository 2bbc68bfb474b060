package overlay

import (
	"context"
	"errors"
	"time"

	"gantry/internal/sleep"
	"gantry/netctl"
	"gantry/netctl/dns"
)

// Stats are what a scrape tells of private networks. They are some seconds old.
type Stats struct {
	Overlays, Members, Peers int
	Received, Sent           int64         // bytes through the tunnel, of all peers that there are now
	Oldest                   time.Duration // since the last handshake with the peer with which it is longest ago, of those with any
	Silent                   int           // peers to which something is sent and that do not answer
	Drops                    []netctl.Drop
	Names                    dns.Stats
	Answers                  bool // pods' names are answered
}

// Stats returns the newest.
func (k *Reconciler) Stats() Stats {
	if k == nil {
		return Stats{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sampled
}

// sample reads them until ctx ends: a scrape waits for nothing.
func (k *Reconciler) sample(ctx context.Context) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, lookEvery)
		s, err := k.readStats(limited, time.Now())
		cancel()
		if err != nil && ctx.Err() == nil {
			k.Log.Debug("read what private networks did", "err", err)
		}
		k.mu.Lock()
		k.sampled = s
		k.mu.Unlock()
		_ = sleep.For(ctx, sampleEvery)
	}
}

func (k *Reconciler) readStats(ctx context.Context, now time.Time) (s Stats, err error) {
	var errs [3]error
	s.Drops, errs[0] = k.drops(ctx)
	states, err := k.peers(ctx)
	errs[1] = err
	for _, p := range states {
		s.Received, s.Sent = s.Received+p.Received, s.Sent+p.Sent
		if !p.Handshake.IsZero() {
			s.Oldest = max(s.Oldest, now.Sub(p.Handshake))
		}
	}
	silent := len(k.silent(states, now))
	if k.names != nil {
		s.Names, errs[2] = k.names.Stats(ctx)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s.Peers, s.Silent, s.Answers = len(states), silent, k.stands
	for _, vni := range k.inUse() {
		s.Overlays++
		if n := k.desired.byVNI(vni); n != nil {
			s.Members += len(n.members)
		}
	}
	return s, errors.Join(errs[:]...)
}
