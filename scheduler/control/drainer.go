package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Starter starts pods elsewhere; see scheduler.Service.
type Starter interface {
	// StartMoved starts a pod that was moved from its host and has ended there; it does nothing to any other.
	StartMoved(ctx context.Context, pod fleet.PodID) error
}

// Drainer empties the hosts that are being drained: it begins moves, a few of each host at a time, and starts
// what has ended elsewhere. It wakes with each change of the state.
type Drainer struct {
	Store *state.Store
	Node  Proposer
	Pods  Starter
	Every time.Duration // until a start that failed is tried again; at least so often it looks
	Log   *slog.Logger

	failed map[fleet.PodID]time.Time // when a start failed last
}

// maxMoves is how many pods of one host are on the move at a time: no more are without a place when there is
// no room for them elsewhere.
const maxMoves = 4

// Run drains until ctx, which ends with leadership, does.
func (d *Drainer) Run(ctx context.Context) error {
	d.failed = map[fleet.PodID]time.Time{}
	for {
		seen, err := d.look(ctx)
		if err != nil && ctx.Err() == nil {
			d.Log.Warn("drain hosts", "err", err)
		}
		wait, cancel := context.WithTimeout(ctx, d.Every)
		err = d.Store.Wait(wait, seen)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("wait for changes: %w", err)
		}
	}
}

// work is what a view has to do.
type work struct {
	index uint64
	begin []state.Command // moves
	start []fleet.PodID
}

// look does what is to be done, and returns the index of the view that said so.
func (d *Drainer) look(ctx context.Context) (uint64, error) {
	var todo work
	if err := d.Store.View(func(v *state.View) error { todo = d.plan(v, time.Now()); return nil }); err != nil {
		return 0, err
	}
	var errs []error
	for _, cmd := range todo.begin {
		errs = append(errs, d.begin(ctx, cmd))
	}
	for _, id := range todo.start {
		if err := d.Pods.StartMoved(ctx, id); err != nil {
			d.failed[id] = time.Now()
			errs = append(errs, fmt.Errorf("start pod %s elsewhere: %w", id, err))
		}
	}
	return todo.index, errors.Join(errs...)
}

// plan works out what is to be done.
func (d *Drainer) plan(v *state.View, now time.Time) work {
	todo := work{index: v.Index()}
	moving := v.Moving()
	waits := make(map[fleet.PodID]time.Time, len(moving))
	for _, p := range moving {
		if p.Status.Active() {
			continue
		}
		last, failed := d.failed[p.ID]
		if failed {
			waits[p.ID] = last
		}
		if !failed || now.Sub(last) >= d.Every {
			todo.start = append(todo.start, p.ID)
		}
	}
	d.failed = waits
	for _, id := range v.Draining() {
		host, ok := v.Host(id)
		if ok && host.Shown() == fleet.HostDraining && !host.KeepRunning && !host.Behind {
			todo.begin = append(todo.begin, moves(v.HeldPods(id), now)...)
		}
	}
	return todo
}

// moves returns the moves that can begin on a host with these pods.
func moves(pods []fleet.Pod, now time.Time) (out []state.Command) {
	room := maxMoves
	for i := range pods {
		if pods[i].Moving {
			room--
		}
	}
	for i := range pods {
		if p := &pods[i]; room > 0 && p.Movable() {
			out = append(out, state.MovePod{Pod: p.ID, Rev: p.Rev, At: now})
			room--
		}
	}
	return out
}

// begin commits the beginning of a move. A pod that changed since is looked at again.
func (d *Drainer) begin(ctx context.Context, cmd state.Command) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := d.Node.Propose(ctx, cmd)
	if err != nil {
		return err
	}
	if err := res[0].Err; err != nil && fleet.CodeOf(err) != fleet.CodeStale && fleet.CodeOf(err) != fleet.CodeNotFound {
		return err
	}
	return nil
}
