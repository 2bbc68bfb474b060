// Package events tells those who watch that something changed which may concern them. One goroutine reads the changes of the
// state for all of them, while there is one, and wakes those of the accounts that a change is of; each then reads what it
// wants by itself, from where it is. So a watcher costs nothing while nothing of its account changes, nothing is queued for
// it, and one that is slow misses changes that are no longer known instead of holding up others. It stores nothing.
package events

import (
	"context"
	"slices"
	"sync"

	"gantry/fleet"
)

const (
	atOnce  = 64   // events of one Next
	lookMax = 4096 // changes that are looked at in one go
)

// Store has the changes; see state.Store.
type Store interface {
	Wait(ctx context.Context, after uint64) error
	Changes(after fleet.EventPlace, most int, fn func(fleet.EventPlace, *fleet.Event) bool) (upTo fleet.EventPlace, lost bool)
	EndOfChanges() fleet.EventPlace
}

// Hub has the watchers of a store. It is safe for concurrent use.
type Hub struct {
	store Store

	mu       sync.Mutex // guards the fields below
	watchers map[*Watcher]struct{}
	stop     context.CancelFunc // ends the goroutine; nil: there is none
	ended    chan struct{}      // closed when it has ended
}

// New returns a Hub without watchers.
func New(store Store) *Hub { return &Hub{store: store, watchers: map[*Watcher]struct{}{}} }

// Watcher is a fleet.EventReader.
type Watcher struct {
	hub     *Hub
	account fleet.AccountID
	query   fleet.EventQuery
	place   fleet.EventPlace
	first   fleet.EventType // what is told before the first event; empty: it was
	wake    chan struct{}   // has room for one; filled when something may be there
}

// Watch begins to watch an account's events, or operators' where the query says so.
func (h *Hub) Watch(account fleet.AccountID, q fleet.EventQuery) *Watcher {
	w := &Watcher{hub: h, account: account, query: q, first: fleet.EventReady, wake: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers[w] = struct{}{}
	w.place = h.store.EndOfChanges()
	if q.After != nil {
		w.place = *q.After
	}
	if h.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		h.stop, h.ended = cancel, make(chan struct{})
		go h.follow(ctx, h.ended, h.store.EndOfChanges()) // ends with the last watcher, which waits for it
	}
	return w
}

// Close implements fleet.EventReader.
func (w *Watcher) Close() {
	h := w.hub
	h.mu.Lock()
	delete(h.watchers, w)
	var ended chan struct{}
	if len(h.watchers) == 0 && h.stop != nil {
		h.stop()
		ended, h.stop = h.ended, nil
	}
	h.mu.Unlock()
	if ended != nil {
		<-ended
	}
}

// Place implements fleet.EventReader.
func (w *Watcher) Place() fleet.EventPlace { return w.place }

// Next implements fleet.EventReader.
func (w *Watcher) Next(ctx context.Context) ([]fleet.Event, error) {
	for {
		select { // what is there by now is read below
		case <-w.wake:
		default:
		}
		from, end := w.place, w.hub.store.EndOfChanges()
		var out []fleet.Event
		upTo, lost := w.hub.store.Changes(w.place, lookMax, func(at fleet.EventPlace, e *fleet.Event) bool {
			if w.query.Wants(w.account, e) {
				one := *e
				one.Place = at
				out = append(out, one)
			}
			return len(out) < atOnce
		})
		w.place = upTo
		if first := w.first; lost || first != "" {
			w.first = ""
			if lost {
				return []fleet.Event{{Type: fleet.EventReset, Place: upTo}}, nil
			}
			out = slices.Insert(out, 0, fleet.Event{Type: first, Place: from})
		}
		if len(out) > 0 {
			return out, nil
		}
		if !upTo.Whole() || upTo.Index < end.Index {
			continue // there is more to look at
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// follow wakes watchers until ctx ends.
func (h *Hub) follow(ctx context.Context, ended chan struct{}, seen fleet.EventPlace) {
	defer close(ended)
	for h.store.Wait(ctx, seen.Index) == nil {
		changed, lost := map[fleet.AccountID]bool{}, false
		operators := false
		end := h.store.EndOfChanges()
		for !lost && (!seen.Whole() || seen.Index < end.Index) {
			seen, lost = h.store.Changes(seen, lookMax, func(_ fleet.EventPlace, e *fleet.Event) bool {
				changed[e.Account] = true
				operators = operators || slices.Contains(fleet.OperatorEventKinds(), e.Kind)
				return true
			})
		}
		h.wake(func(w *Watcher) bool {
			return lost || changed[w.account] && !w.query.Operator || operators && w.query.Operator
		})
	}
}

// wake wakes those watchers that a function chooses.
func (h *Hub) wake(whom func(*Watcher) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		if !whom(w) {
			continue
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}
