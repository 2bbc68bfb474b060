// Package webhooks calls the webhooks of accounts with their events, on the scheduler that leads. The events of an account go out in
// their order, some at a time, one call after the other; a call that is not taken is made twice more, 10 s apart, and then given up.
// How far the calls are is committed about once a second, so that a new leader goes on from there: what was sent since comes twice.
// Who is too slow, or was away for longer than events are known, gets a reset, as readers of the stream of events do.
package webhooks

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
	"gantry/serverless/webhook"
)

const (
	atOnce   = 64                    // events of one call
	lookMost = 4096                  // events that are looked at in one go
	calling  = 256                   // calls at a time, of all accounts
	pause    = 25 * time.Millisecond // between two looks
	every    = time.Second           // between two commits
	lag      = 4096                  // entries of the log after which the place is committed, though nothing was sent
	patience = 10 * time.Second      // of one commit
)

// Proposer commits commands.
type Proposer interface {
	Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error)
}

// Config is what a Caller is made from.
type Config struct {
	Store *state.Store
	Node  Proposer
	// Send makes one call; see webhook.Sender.
	Send func(ctx context.Context, to string, body []byte, secret fleet.Secret) error
	// Secret opens the secret of an account's webhook; empty: its calls are not signed.
	Secret func(fleet.AccountWebhook, fleet.AccountID) (fleet.Secret, error)
	// Body encodes events.
	Body func([]fleet.Event) ([]byte, error)
	Now  func() time.Time
	Log  *slog.Logger
}

// Caller calls webhooks. Make it with New.
type Caller struct {
	Config
	slots chan struct{} // one for each call under way

	mu    sync.Mutex // guards the fields below
	lanes map[fleet.AccountID]*lane
	notes map[fleet.AccountID]fleet.WebhookState // not committed yet
	at    time.Time                              // of the last commit
}

// lane is an account that has events to be sent.
type lane struct {
	place fleet.EventPlace // of the last that was sent, or given up
	more  bool             // there are events that it may not have seen
}

// New returns a Caller that calls nobody yet.
func New(cfg Config) *Caller { return &Caller{Config: cfg, slots: make(chan struct{}, calling)} }

// Run calls webhooks until ctx ends, which it does with leadership.
func (c *Caller) Run(ctx context.Context) error {
	c.lanes, c.notes = map[fleet.AccountID]*lane{}, map[fleet.AccountID]fleet.WebhookState{}
	var calls sync.WaitGroup
	defer calls.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := c.Store.EndOfChanges()
	places, done, noted, err := c.webhooks()
	if err != nil {
		return err
	}
	if noted {
		seen = done
	}
	for _, place := range places { // of webhooks that were set since
		if !noted && place.Before(seen) {
			seen = place
		}
	}
	for ctx.Err() == nil {
		before := seen
		var changed map[fleet.AccountID]bool
		var lost bool
		seen, changed, lost = c.look(seen)
		// Only now, so that a webhook is known before the events after it are looked at.
		places, done, noted, err := c.webhooks()
		if err != nil {
			return err
		}
		for id, place := range places {
			if (lost || changed[id]) && c.begin(id, later(place, before)) {
				calls.Go(func() { c.call(ctx, id) })
			}
		}
		if busy := c.note(ctx, seen, done, noted || len(places) == 0); busy {
			_ = sleep.For(ctx, every/4)
			continue
		}
		if c.Store.Wait(ctx, seen.Index) == nil {
			_ = sleep.For(ctx, pause)
		}
	}
	return nil
}

// later returns the later one of two places.
func later(a, b fleet.EventPlace) fleet.EventPlace {
	if a.Lineage == b.Lineage && a.Before(b) {
		return b
	}
	return a
}

func (c *Caller) webhooks() (places map[fleet.AccountID]fleet.EventPlace, done fleet.EventPlace, noted bool, err error) {
	err = c.Store.View(func(v *state.View) error { places, done, noted = v.Webhooks(); return nil })
	return places, done, noted, err
}

// look goes through the events after a place, to the end, and returns the accounts that they are of; lost: some are not known any more.
func (c *Caller) look(seen fleet.EventPlace) (upTo fleet.EventPlace, changed map[fleet.AccountID]bool, lost bool) {
	changed = map[fleet.AccountID]bool{}
	for end := c.Store.EndOfChanges(); !seen.Whole() || seen.Before(end); {
		var gone bool
		seen, gone = c.Store.Changes(seen, lookMost, func(_ fleet.EventPlace, e *fleet.Event) bool { changed[e.Account] = true; return true })
		lost = lost || gone
	}
	return seen, changed, lost
}

// begin reports whether the calls of an account have to be begun.
func (c *Caller) begin(id fleet.AccountID, place fleet.EventPlace) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lanes[id]; l != nil {
		l.more = true
		return false
	}
	c.lanes[id] = &lane{place: later(place, c.notes[id].Place)}
	return true
}

// call sends the events of an account until there are none.
func (c *Caller) call(ctx context.Context, id fleet.AccountID) {
	tries := webhook.Tries
	for ctx.Err() == nil {
		c.mu.Lock()
		l := c.lanes[id]
		l.more = false
		place := l.place
		c.mu.Unlock()
		events, next, hook := c.events(id, place)
		c.mu.Lock()
		l.place = next
		if len(events) == 0 {
			if !l.more {
				delete(c.lanes, id)
				c.mu.Unlock()
				return
			}
			c.mu.Unlock()
			continue
		}
		l.place = place // until it is sent
		c.mu.Unlock()
		err := c.try(ctx, id, hook, events, tries)
		if ctx.Err() != nil {
			return // the next leader sends it
		}
		result := fleet.WebhookState{Place: next, At: c.Now()}
		if tries = webhook.Tries; err != nil {
			tries = 1 // until one is taken: who does not answer costs little
			result.Error = err.Error()
			c.Log.Info("the webhook of an account did not take its events", "account", id, "events", len(events), "err", err)
		}
		c.mu.Lock()
		l.place, c.notes[id] = next, result
		c.mu.Unlock()
	}
}

// events returns the next events that an account's webhook is called with, and the place to go on from.
func (c *Caller) events(id fleet.AccountID, place fleet.EventPlace) (out []fleet.Event, next fleet.EventPlace, hook fleet.AccountWebhook) {
	_ = c.Store.View(func(v *state.View) error { // a closed store has none
		if a, ok := v.Account(id); ok && a.Webhook != nil {
			hook = *a.Webhook
		}
		return nil
	})
	q := fleet.EventQuery{Kinds: hook.Kinds}
	end := c.Store.EndOfChanges()
	for hook.URL != "" && len(out) == 0 && (!place.Whole() || place.Before(end)) {
		var lost bool
		place, lost = c.Store.Changes(place, lookMost, func(at fleet.EventPlace, e *fleet.Event) bool {
			if q.Wants(id, e) {
				one := *e
				one.Place = at
				out = append(out, one)
			}
			return len(out) < atOnce
		})
		if lost {
			return []fleet.Event{{Type: fleet.EventReset, Place: place}}, place, hook
		}
	}
	return out, place, hook
}

// try makes the calls for some events, this often at most. The error is why the last one was not taken.
func (c *Caller) try(ctx context.Context, id fleet.AccountID, hook fleet.AccountWebhook, events []fleet.Event, most int) error {
	body, err := c.Body(events)
	if err != nil {
		return err
	}
	secret, err := c.Secret(hook, id)
	if err != nil {
		return err
	}
	for calls := 1; ; calls++ {
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		err = c.Send(ctx, hook.URL, body, secret)
		<-c.slots
		now := c.Now()
		again, more := webhook.Next(calls, now)
		if err == nil || calls >= most || !more || sleep.For(ctx, again.Sub(now)) != nil {
			return err
		}
	}
}

// note commits how far all calls are, once a second at most, and reports whether something is left to do without further events.
func (c *Caller) note(ctx context.Context, seen, done fleet.EventPlace, noted bool) (busy bool) {
	c.mu.Lock()
	cmd := state.NoteWebhooks{Done: seen, Accounts: maps.Clone(c.notes)}
	for _, l := range c.lanes {
		if l.place.Before(cmd.Done) {
			cmd.Done = l.place
		}
	}
	due := len(cmd.Accounts) > 0 || !noted || cmd.Done.Lineage != done.Lineage || cmd.Done.Index > done.Index+lag
	busy = len(c.lanes) > 0 || due
	now := c.Now()
	if due = due && now.Sub(c.at) >= every; due {
		c.at = now
	}
	c.mu.Unlock()
	if !due {
		return busy
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := c.Node.Propose(ctx, cmd); err != nil {
		if ctx.Err() == nil {
			c.Log.Info("how far webhooks are could not be noted", "err", err)
		}
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, state := range cmd.Accounts {
		if c.notes[id] == state {
			delete(c.notes, id)
		}
	}
	return len(c.lanes) > 0 || len(c.notes) > 0
}
