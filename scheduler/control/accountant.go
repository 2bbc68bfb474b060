package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Accountant is the leader's billing run. Soon after each full hour it settles all meters. It ends what a prepaid account has
// running when its credit is used up in two runs in a row, and once an hour it deletes old usage, old lines of the
// audit log and old idempotency keys. It skips a run when the wall clock has jumped ahead or the time is uncertain,
// because none of this can be undone.
type Accountant struct {
	Store *state.Store
	Node  Proposer
	Keep  time.Duration // how long hourly usage is kept
	Audit time.Duration // how long lines of the audit log are kept; 0: always
	Every time.Duration // between runs; used-up credit is found at most twice as long after its end
	Log   *slog.Logger
	// Clock is the wall clock; nil: time.Now.
	Clock func() time.Time
	// Sure says whether it is certain what time it is: without, nothing is done. Nil: it always is.
	Sure func() bool

	looked       atomic.Int64             // when the last whole run ended, as Unix nanoseconds
	wall, steady time.Time                // of the last run, by the wall clock and by the monotonic one
	dry          map[fleet.AccountID]bool // the accounts that had no credit in the last run
}

const (
	settleBatch  = 512
	exhaustBatch = 256
	noteBatch    = 1024
	usageBatch   = 4096
	onceBatch    = 4096
	// keepOnce is how long the key of a create stands for it; decisions.md: a day.
	keepOnce = 24 * time.Hour
	// maxJump is how much further than the monotonic clock the wall clock may move between two runs.
	maxJump = 3 * time.Second
)

// Run bills until ctx ends, which it does with leadership.
func (a *Accountant) Run(ctx context.Context) error {
	tick := time.NewTicker(a.Every)
	defer tick.Stop()
	var purged time.Time
	a.wall, a.steady, a.dry = time.Time{}, time.Time{}, nil
	for {
		if now, jump := a.now(); jump > maxJump {
			a.dry = nil
			a.Log.Warn("billing is paused: the clock jumped ahead", "by", jump)
		} else if a.Sure != nil && !a.Sure() { // the timekeeper says why
			a.dry = nil
		} else if err := a.look(ctx, now, &purged); err != nil && ctx.Err() == nil {
			a.Log.Warn("run billing", "err", err)
		} else if err == nil {
			a.looked.Store(now.UnixNano())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// LastRun returns when this member last finished a whole billing run; zero if it never did.
func (a *Accountant) LastRun() time.Time {
	at := a.looked.Load()
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// now returns the wall clock's time, and by how much more than the monotonic clock it has moved since the
// last look; 0 at the first.
func (a *Accountant) now() (now time.Time, jump time.Duration) {
	clock := a.Clock
	if clock == nil {
		clock = time.Now
	}
	now, steady := clock().Round(0), time.Now() // Round takes the monotonic clock's reading off
	if !a.wall.IsZero() {
		jump = now.Sub(a.wall) - steady.Sub(a.steady)
	}
	a.wall, a.steady = now, steady
	return now, jump
}

// look does what is due at a time; purged is the hour in which old things were last forgotten.
func (a *Accountant) look(ctx context.Context, now time.Time, purged *time.Time) error {
	err := errors.Join(a.settle(ctx, now), a.exhaust(ctx, now), a.note(ctx, now))
	hour := now.Truncate(time.Hour)
	if hour.Equal(*purged) {
		return err
	}
	// Tried again at the next look if it fails: both are worth nothing but room.
	if purge := a.purge(ctx, now); purge != nil {
		return errors.Join(err, purge)
	}
	*purged = hour
	return err
}

// settle moves what was run up to the last full hour into usage. The hour at hand is left to run, so
// that an hour is written once.
func (a *Accountant) settle(ctx context.Context, now time.Time) error {
	hour := now.Truncate(time.Hour)
	for {
		var due, left []state.MeterID
		look := func(into *[]state.MeterID) error {
			return a.Store.View(func(v *state.View) error { *into = v.OpenMeters(hour, settleBatch); return nil })
		}
		if err := look(&due); err != nil || len(due) == 0 {
			return err
		}
		if _, err := a.propose(ctx, state.SettleMeters{Meters: due, At: hour}); err != nil {
			return fmt.Errorf("settle meters: %w", err)
		}
		if err := look(&left); err != nil || len(due) < settleBatch || slices.Equal(left, due) {
			return err // the last, or what cannot be settled now
		}
	}
}

// exhaust ends what accounts have running that had no credit at the last look either; what is left is
// for the next look.
func (a *Accountant) exhaust(ctx context.Context, now time.Time) error {
	cmd := state.ExhaustAccounts{At: now}
	var dry []fleet.AccountID
	if err := a.Store.View(func(v *state.View) error { dry = v.Exhausted(now, exhaustBatch); return nil }); err != nil {
		return err
	}
	before := a.dry
	a.dry = make(map[fleet.AccountID]bool, len(dry))
	for _, id := range dry {
		a.dry[id] = true
		if before[id] {
			cmd.Accounts = append(cmd.Accounts, id)
		}
	}
	if len(cmd.Accounts) == 0 {
		return nil
	}
	ended, err := a.propose(ctx, cmd)
	if err != nil {
		return fmt.Errorf("end pods of accounts without credit: %w", err)
	}
	a.Log.Info("accounts have no credit left", "accounts", len(cmd.Accounts), "podsEnded", ended)
	return nil
}

// note tells owners of balances that became low, or no longer are; what is left is for the next look.
func (a *Accountant) note(ctx context.Context, now time.Time) error {
	cmd := state.NoteBalances{At: now}
	if err := a.Store.View(func(v *state.View) error { cmd.Accounts = v.Crossed(now, noteBatch); return nil }); err != nil || len(cmd.Accounts) == 0 {
		return err
	}
	if _, err := a.propose(ctx, cmd); err != nil {
		return fmt.Errorf("note low balances: %w", err)
	}
	return nil
}

// purge forgets what is too old.
func (a *Accountant) purge(ctx context.Context, now time.Time) error {
	for a.Audit > 0 {
		n, err := a.propose(ctx, state.PurgeAudit{Before: now.Add(-a.Audit), Limit: usageBatch, At: now})
		if err != nil {
			return fmt.Errorf("purge the audit log: %w", err)
		}
		if n, ok := n.(int); !ok || n < usageBatch {
			break
		}
	}
	for {
		n, err := a.propose(ctx, state.PurgeUsage{Before: now.Add(-a.Keep), Limit: usageBatch, At: now})
		if err != nil {
			return fmt.Errorf("purge usage: %w", err)
		}
		if n, ok := n.(int); !ok || n < usageBatch {
			break
		}
	}
	for {
		n, err := a.propose(ctx, state.PurgeOnce{Before: now.Add(-keepOnce), Limit: onceBatch, At: now})
		if err != nil {
			return fmt.Errorf("purge idempotency keys: %w", err)
		}
		if n, ok := n.(int); !ok || n < onceBatch {
			return nil
		}
	}
}

// propose commits one command and returns its value.
func (a *Accountant) propose(ctx context.Context, cmd state.Command) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	results, err := a.Node.Propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	if len(results) != 1 {
		return nil, fmt.Errorf("%d results of one command", len(results))
	}
	return results[0].Value, results[0].Err
}
