package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"gantry/scheduler/state"
)

// Accountant keeps the books: it settles all meters soon after each full hour, ends what prepaid
// accounts have running when their credit is used up, and once an hour forgets old usage and old
// idempotency keys.
type Accountant struct {
	Store *state.Store
	Node  Proposer
	Keep  time.Duration // how long hourly usage is kept
	Every time.Duration // between looks; so much later than its end at most an account's credit is noticed
	Log   *slog.Logger
}

const (
	settleBatch  = 512
	exhaustBatch = 256
	usageBatch   = 4096
	// keepOnce is how long the key of a create stands for it; decisions.md: a day.
	keepOnce = 24 * time.Hour
)

// Run keeps the books until ctx, which ends with leadership, does.
func (a *Accountant) Run(ctx context.Context) error {
	tick := time.NewTicker(a.Every)
	defer tick.Stop()
	var purged time.Time
	for {
		now := time.Now()
		err := errors.Join(a.settle(ctx, now), a.exhaust(ctx, now))
		if hour := now.Truncate(time.Hour); !hour.Equal(purged) {
			// Tried again at the next look if it fails: both are worth nothing but room.
			if purge := a.purge(ctx, now); purge != nil {
				err = errors.Join(err, purge)
			} else {
				purged = hour
			}
		}
		if err != nil && ctx.Err() == nil {
			a.Log.Warn("keep the books", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// settle moves what was run up to the last full hour into usage. The hour at hand is left to run, so
// that an hour is written once.
func (a *Accountant) settle(ctx context.Context, now time.Time) error {
	hour := now.Truncate(time.Hour)
	var open []state.MeterID
	err := a.Store.View(func(v *state.View) error { open = v.OpenMeters(hour); return nil })
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(open, settleBatch) {
		if _, err := a.propose(ctx, state.SettleMeters{Meters: batch, At: hour}); err != nil {
			return fmt.Errorf("settle meters: %w", err)
		}
	}
	return nil
}

// exhaust ends what accounts without credit have running; what is left is for the next look.
func (a *Accountant) exhaust(ctx context.Context, now time.Time) error {
	cmd := state.ExhaustAccounts{At: now}
	err := a.Store.View(func(v *state.View) error { cmd.Accounts = v.Exhausted(now, exhaustBatch); return nil })
	if err != nil || len(cmd.Accounts) == 0 {
		return err
	}
	ended, err := a.propose(ctx, cmd)
	if err != nil {
		return fmt.Errorf("end pods of accounts without credit: %w", err)
	}
	a.Log.Info("accounts have no credit left", "accounts", len(cmd.Accounts), "podsEnded", ended)
	return nil
}

// purge forgets what is too old.
func (a *Accountant) purge(ctx context.Context, now time.Time) error {
	for {
		n, err := a.propose(ctx, state.PurgeUsage{Before: now.Add(-a.Keep), Limit: usageBatch})
		if err != nil {
			return fmt.Errorf("purge usage: %w", err)
		}
		if n, ok := n.(int); !ok || n < usageBatch {
			break
		}
	}
	if _, err := a.propose(ctx, state.PurgeOnce{Before: now.Add(-keepOnce)}); err != nil {
		return fmt.Errorf("purge idempotency keys: %w", err)
	}
	return nil
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
