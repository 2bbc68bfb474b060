// Package control holds the loops that run on the leader: each wakes, takes a view, decides and
// proposes, and is started anew with each leadership. What they did is in the state machine; they
// keep nothing.
package control

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// Proposer commits commands; see replica.Node.
type Proposer interface {
	Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error)
}

// Purger removes the records of terminated pods after a time, and those of hosts that are gone. A clock that
// jumps, or was wrong under the leader before, makes no pod go early: the time that this leader itself has
// seen it terminated counts as well.
type Purger struct {
	Store *state.Store
	Node  Proposer
	Keep  time.Duration // how long a terminated pod stays readable; decisions.md: 10 minutes
	Every time.Duration // between looks
	Log   *slog.Logger
	// Clock is the wall clock; nil: time.Now.
	Clock func() time.Time
	// Sure says whether it is certain what time it is: without, nothing is done. Nil: it always is.
	Sure func() bool

	seen map[fleet.PodID]time.Time // when a terminated pod was first seen, by the monotonic clock
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
	p.seen = nil
	for {
		if p.Sure == nil || p.Sure() {
			p.look(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look does what is due.
func (p *Purger) look(ctx context.Context) {
	now := time.Now()
	if p.Clock != nil {
		now = p.Clock()
	}
	if err := p.once(ctx, now); err != nil && ctx.Err() == nil {
		p.Log.Warn("purge terminated pods", "err", err)
	}
	if err := p.hosts(ctx, now); err != nil && ctx.Err() == nil {
		p.Log.Warn("purge removed hosts", "err", err)
	}
}

// once forgets pods that are terminated long enough by a wall clock.
func (p *Purger) once(ctx context.Context, now time.Time) error {
	before := now.Add(-p.Keep)
	old, err := p.due(time.Now(), before)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(old, purgeBatch) {
		deadline, cancel := context.WithTimeout(ctx, proposeTimeout)
		_, err = p.Node.Propose(deadline, state.PurgePods{Pods: batch, Before: before, At: now})
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// due returns the pods that were terminated before a time and that this leader has seen so for long enough.
func (p *Purger) due(now, before time.Time) (old []fleet.PodID, err error) {
	var all []*fleet.Pod
	if err := p.Store.View(func(v *state.View) error { all = v.TerminatedRows(); return nil }); err != nil {
		return nil, err
	}
	seen := make(map[fleet.PodID]time.Time, len(all))
	for _, pod := range all {
		at, known := p.seen[pod.ID]
		if !known {
			at = now
		}
		seen[pod.ID] = at
		if state.Purgeable(pod, before) && now.Sub(at) >= p.Keep-p.Every {
			old = append(old, pod.ID)
		}
	}
	p.seen = seen
	slices.Sort(old)
	return old, nil
}

// hosts forgets hosts that are gone long enough.
func (p *Purger) hosts(ctx context.Context, now time.Time) error {
	before, old := now.Add(-keepHosts), 0
	err := p.Store.View(func(v *state.View) error { old = v.Forgettable(before); return nil })
	if err != nil || old == 0 {
		return err
	}
	deadline, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	_, err = p.Node.Propose(deadline, state.PurgeHosts{Before: before, At: now})
	return err
}
