package table

import (
	"context"
	"errors"
	"sort"
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

// at returns the index of the entry.
func (e Event) at() uint64 { return e.Index }

// ring keeps the latest items, which are in the order of their indexes.
type ring[T interface{ at() uint64 }] struct {
	items []T // of fixed length, filled from next round
	next  int
	n     int
	floor uint64 // items at or below this index may be missing
}

// newRing makes a ring that knows nothing of what happened up to index.
func newRing[T interface{ at() uint64 }](size int, index uint64) ring[T] {
	return ring[T]{items: make([]T, size), floor: index}
}

// add appends an item, over the oldest one when the ring is full.
func (r *ring[T]) add(e T) {
	if r.n == len(r.items) {
		r.floor = r.items[r.next].at()
	} else {
		r.n++
	}
	r.items[r.next] = e
	r.next = (r.next + 1) % len(r.items)
}

// above returns how many items are above index; false when some may be missing.
func (r *ring[T]) above(index uint64) (int, bool) {
	return sort.Search(r.n, func(i int) bool { return (*r.back(i)).at() <= index }), index >= r.floor
}

// after returns a copy of the items above index, oldest first; false when some may be missing.
func (r *ring[T]) after(index uint64) ([]T, bool) {
	n, ok := r.above(index)
	if !ok {
		return nil, false
	}
	out := make([]T, 0, n)
	for i := n - 1; i >= 0; i-- {
		out = append(out, *r.back(i))
	}
	return out, true
}

// back returns the item that was added i items before the latest.
func (r *ring[T]) back(i int) *T {
	return &r.items[(r.next-1-i+2*len(r.items))%len(r.items)]
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
