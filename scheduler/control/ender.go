package control

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Returner starts interrupted pods again; see scheduler.Service.
type Returner interface {
	// ReturnPod starts a pod that is to return; it does nothing to any other. Errors: no_capacity, among others.
	ReturnPod(ctx context.Context, pod fleet.PodID) error
}

// Ender stops and terminates pods at the times that their owners set, and starts interrupted ones again that are to return: the highest bid
// first, then the one that waits for the longest.
type Ender struct {
	Store *state.Store
	Node  Proposer
	Pods  Returner
	Every time.Duration // between looks
	Log   *slog.Logger
	// Clock is the wall clock; nil: time.Now.
	Clock func() time.Time
	// Sure says whether it is certain what time it is: without, nothing ends. Nil: it always is.
	Sure func() bool

	failed map[fleet.PodID]time.Time // when a return failed last
}

const (
	endBatch    = 250             // pods of one command
	mostReturns = 16              // that are tried at one look
	returnAgain = 5 * time.Second // until one that found no room is tried again
)

// Run ends and returns pods until ctx, which ends with leadership, does.
func (e *Ender) Run(ctx context.Context) error {
	tick := time.NewTicker(e.Every)
	defer tick.Stop()
	e.failed = map[fleet.PodID]time.Time{}
	for {
		if err := e.look(ctx); err != nil && ctx.Err() == nil {
			e.Log.Warn("end pods at their times", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look does what is due.
func (e *Ender) look(ctx context.Context) error {
	now, sure := time.Now(), e.Sure == nil || e.Sure()
	if e.Clock != nil {
		now = e.Clock()
	}
	var ends []fleet.PodID
	var returns []*fleet.Pod
	err := e.Store.View(func(v *state.View) error {
		for id, p := range v.Ending() {
			if sure && state.Due(p, now) {
				ends = append(ends, id)
			}
		}
		returns = v.Returning()
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(ends)
	for batch := range slices.Chunk(ends, endBatch) {
		if err := e.end(ctx, state.EndPods{Pods: batch, At: now}); err != nil {
			return err
		}
	}
	return e.bringBack(ctx, returns)
}

func (e *Ender) end(ctx context.Context, cmd state.EndPods) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	results, err := e.Node.Propose(ctx, cmd)
	if err == nil && len(results) == 1 {
		if err = results[0].Err; err == nil {
			e.Log.Info("pods ended at their times", "pods", results[0].Value)
		}
	}
	return err
}

// bringBack tries to start pods again.
func (e *Ender) bringBack(ctx context.Context, pods []*fleet.Pod) error {
	now, waits := time.Now(), map[fleet.PodID]time.Time{}
	slices.SortFunc(pods, func(a, b *fleet.Pod) int {
		return cmp.Or(cmp.Compare(b.Spec.Spot.Bid, a.Spec.Spot.Bid), a.Interrupted.Compare(b.Interrupted), cmp.Compare(a.ID, b.ID))
	})
	pods = slices.DeleteFunc(pods, func(p *fleet.Pod) bool {
		last, failed := e.failed[p.ID]
		if failed = failed && now.Sub(last) < returnAgain; failed {
			waits[p.ID] = last
		}
		return failed
	})
	e.failed = waits
	for _, p := range pods[:min(len(pods), mostReturns)] {
		err := e.Pods.ReturnPod(ctx, p.ID)
		if err == nil {
			continue
		}
		e.failed[p.ID] = now
		switch code := fleet.CodeOf(err); {
		case fleet.RefusedForNow(err), code == fleet.CodeInvalid, code == fleet.CodeNotAllowed, code == fleet.CodeStale:
		default:
			return err
		}
	}
	return nil
}
