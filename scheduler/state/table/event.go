package table

import (
	"context"
	"errors"
)

// Kind is what an event is about; the user of the tables has the kinds.
type Kind uint8

// Event says that a thing changed, was created or was deleted in the entry at Index. It does not say
// how: read the thing again.
type Event struct {
	Index uint64
	Kind  Kind
	ID    string
}

// ring keeps the latest events.
type ring struct {
	events []Event // of fixed length, filled from next round
	next   int
	n      int
	floor  uint64 // events at or below this index may be missing
}

// newRing makes a ring that knows nothing of what happened up to index.
func newRing(size int, index uint64) ring { return ring{events: make([]Event, size), floor: index} }

// add appends an event, over the oldest one when the ring is full.
func (r *ring) add(e Event) {
	if r.n == len(r.events) {
		r.floor = r.events[r.next].Index
	} else {
		r.n++
	}
	r.events[r.next] = e
	r.next = (r.next + 1) % len(r.events)
}

// after returns a copy of the events above index, oldest first; false when some may be missing.
func (r *ring) after(index uint64) ([]Event, bool) {
	if index < r.floor {
		return nil, false
	}
	var n int
	for n = 0; n < r.n && r.at(n).Index > index; n++ {
	}
	out := make([]Event, 0, n)
	for i := n - 1; i >= 0; i-- {
		out = append(out, r.at(i))
	}
	return out, true
}

// at returns the event that was added i events before the latest.
func (r *ring) at(i int) Event {
	return r.events[(r.next-1-i+2*len(r.events))%len(r.events)]
}

// Events returns what changed after an index, oldest first, and the index up to which that is all;
// ask from there next. ok is false when some of it is no longer known: take a new view at upTo and
// go on from there. It never waits.
func (s *Store[S]) Events(after uint64) (evs []Event, upTo uint64, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	evs, ok = s.ring.after(after)
	return evs, s.index, ok
}

// Wait returns nil when Index is above after, or the context's error, or an error when the store is
// closed.
func (s *Store[S]) Wait(ctx context.Context, after uint64) error {
	for {
		s.mu.RLock()
		index, changed, closed := s.index, s.changed, s.closed
		s.mu.RUnlock()
		if closed {
			return ErrClosed
		}
		if index > after {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// ErrClosed is the error of a store that was closed.
var ErrClosed = errors.New("state: store is closed")
