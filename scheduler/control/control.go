// Package control holds the loops that run on the leader: each wakes, takes a view, decides and
// proposes, and is started anew with each leadership. What they did is in the state machine; they
// keep nothing.
package control

import (
	"context"
	"log/slog"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Proposer commits commands; see replica.Node.
type Proposer interface {
	Propose(ctx context.Context, cmds ...state.Command) ([]state.Result, error)
}

// Purger removes the records of terminated pods after a time, and those of hosts that are gone.
type Purger struct {
	Store *state.Store
	Node  Proposer
	Keep  time.Duration // how long a terminated pod stays readable; decisions.md: 10 minutes
	Every time.Duration // between looks
	Log   *slog.Logger
}

const (
	purgeBatch     = 256
	proposeTimeout = 10 * time.Second
	// keepHosts is how long a host that is gone stays readable.
	keepHosts = 8 * 24 * time.Hour
)

// Run purges until ctx, which ends with leadership, does.
func (p *Purger) Run(ctx context.Context) error {
	tick := time.NewTicker(p.Every)
	defer tick.Stop()
	for {
		if err := p.once(ctx); err != nil && ctx.Err() == nil {
			p.Log.Warn("purge terminated pods", "err", err)
		}
		if err := p.hosts(ctx); err != nil && ctx.Err() == nil {
			p.Log.Warn("purge hosts that are gone", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *Purger) once(ctx context.Context) error {
	before := time.Now().Add(-p.Keep)
	for {
		var old []fleet.PodID
		err := p.Store.View(func(v *state.View) error { old = v.Terminated(before, purgeBatch); return nil })
		if err != nil || len(old) == 0 {
			return err
		}
		deadline, cancel := context.WithTimeout(ctx, proposeTimeout)
		_, err = p.Node.Propose(deadline, state.PurgePods{Pods: old, Before: before})
		cancel()
		if err != nil || len(old) < purgeBatch {
			return err
		}
	}
}

// hosts forgets hosts that are gone long enough.
func (p *Purger) hosts(ctx context.Context) error {
	before, old := time.Now().Add(-keepHosts), 0
	err := p.Store.View(func(v *state.View) error { old = v.Forgettable(before); return nil })
	if err != nil || old == 0 {
		return err
	}
	deadline, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	_, err = p.Node.Propose(deadline, state.PurgeHosts{Before: before})
	return err
}
