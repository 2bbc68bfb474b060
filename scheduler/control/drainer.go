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

// Mover moves pods; see scheduler.Service.
type Mover interface {
	// MovePod reserves a place for a pod on another host and stops it where it is. Errors: no_capacity, among others.
	MovePod(ctx context.Context, pod fleet.PodID) error
	// StartMoved starts a pod that was moved from its host and has ended there; it does nothing to any other.
	StartMoved(ctx context.Context, pod fleet.PodID) error
}

// Drainer empties the hosts that are being drained: it moves pods whose owners allowed it, a few of each host at a time,
// starts what has ended at its destination, and stops what runs on after a drain's deadline. It wakes with each change of the state.
type Drainer struct {
	Store *state.Store
	Node  Proposer
	Pods  Mover
	Every time.Duration // until what failed is tried again; at least so often it looks
	Log   *slog.Logger
	// Sure says whether it is certain what time it is: without, no deadline has passed. Nil: it always is.
	Sure func() bool
	sure bool // at this look

	failed map[fleet.PodID]time.Time // when a move or a start failed last
}

// maxMoves is how many pods of one host are on the move at a time: images are pulled one beside the other.
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
	sure  bool          // it is certain what time it is
	start []fleet.PodID // that have ended on the host that they are moved from
	move  []move
	evict []state.Command // of what runs after the deadline and may not be moved
}

// move is a pod to be moved, and what is done when there is no room for it; nil: it runs on.
type move struct {
	pod       fleet.PodID
	otherwise state.Command
}

// look does what is to be done, and returns the index of the view that said so.
func (d *Drainer) look(ctx context.Context) (uint64, error) {
	var todo work
	d.sure = d.Sure == nil || d.Sure() // before the view, within which it must not take another
	if err := d.Store.View(func(v *state.View) error { todo = d.plan(v, time.Now()); return nil }); err != nil {
		return 0, err
	}
	var errs []error
	// try reports whether something was refused, which is told where the drain's progress is asked for.
	try := func(id fleet.PodID, do func(context.Context, fleet.PodID) error, what string) (refused bool) {
		err := do(ctx, id)
		if err == nil {
			return false
		}
		d.failed[id] = time.Now()
		if fleet.RefusedForNow(err) || fleet.CodeOf(err) == fleet.CodeNotAllowed {
			return true
		}
		errs = append(errs, fmt.Errorf("%s pod %s: %w", what, id, err))
		return false
	}
	for _, id := range todo.start {
		try(id, d.Pods.StartMoved, "start moved")
	}
	for _, m := range todo.move {
		if try(m.pod, d.Pods.MovePod, "move") && m.otherwise != nil {
			todo.evict = append(todo.evict, m.otherwise)
		}
	}
	for _, cmd := range todo.evict {
		errs = append(errs, d.evict(ctx, cmd))
	}
	return todo.index, errors.Join(errs...)
}

// plan works out what is to be done.
func (d *Drainer) plan(v *state.View, now time.Time) work {
	todo, waits := work{index: v.Index(), sure: d.sure}, map[fleet.PodID]time.Time{}
	due := func(id fleet.PodID) bool {
		last, failed := d.failed[id]
		if failed {
			waits[id] = last
		}
		return !failed || now.Sub(last) >= d.Every
	}
	for _, p := range v.Moving() {
		if !p.Status.Active() && due(p.ID) {
			todo.start = append(todo.start, p.ID)
		}
	}
	for _, id := range v.Draining() {
		host, ok := v.Host(id)
		if ok && host.Shown() == fleet.HostDraining && !host.Behind {
			todo.empty(&host, v.HeldPods(id), due, now)
		}
	}
	d.failed = waits
	return todo
}

// empty adds what is to be done with the pods of a host. After the deadline a pod that found no room is stopped.
func (w *work) empty(host *fleet.Host, pods []fleet.Pod, due func(fleet.PodID) bool, now time.Time) {
	room := maxMoves
	for i := range pods {
		if pods[i].Moving {
			room--
		}
	}
	over := host.Drain != nil && !host.Drain.Deadline.IsZero() && !now.Before(host.Drain.Deadline) &&
		(w.sure || host.Drain.Deadline.Equal(host.Drain.Since)) // at once, when it was forced
	for i := range pods {
		p := &pods[i]
		var otherwise state.Command
		if over {
			otherwise = state.EvictPod{Pod: p.ID, Rev: p.Rev, At: now}
		}
		switch {
		case p.MayMove() && !host.KeepRunning:
			if room > 0 && due(p.ID) {
				w.move = append(w.move, move{p.ID, otherwise})
				room--
			}
		case over && p.Status.Active() && !p.Stopping():
			w.evict = append(w.evict, otherwise)
		}
	}
}

// evict commits the end of a pod. One that changed since is looked at again.
func (d *Drainer) evict(ctx context.Context, cmd state.Command) error {
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
