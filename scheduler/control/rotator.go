package control

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// CAs says how far a change of the cluster's CA has come; see scheduler.Service.
type CAs interface {
	CAStatus(ctx context.Context) (fleet.CAView, error)
}

// Rotator takes a change of the cluster's CA from step to step, each when nobody has to follow any more: the next CA signs when every
// scheduler and host trusts it, and the old one is trusted no more when no valid certificate is of it.
type Rotator struct {
	Store *state.Store
	Node  Proposer
	CAs   CAs
	Every time.Duration // between looks
	Log   *slog.Logger
	// Sure says whether it is certain what time it is: without, nothing is done. Nil: it always is.
	Sure func() bool
}

const rotateTimeout = 10 * time.Second

// Run looks until ctx, which ends with leadership, does.
func (r *Rotator) Run(ctx context.Context) error {
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.Log.Warn("rotate the cluster's CA", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Rotator) look(ctx context.Context) error {
	under := false
	err := r.Store.View(func(v *state.View) error {
		c, _ := v.Cluster()
		under = c.Rotation != nil
		return nil
	})
	if err != nil || !under || r.Sure != nil && !r.Sure() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, rotateTimeout)
	defer cancel()
	view, err := r.CAs.CAStatus(ctx)
	if err != nil || view.Step == "" || view.Waiting > 0 {
		return err
	}
	results, err := r.Node.Propose(ctx, state.AdvanceRotation{From: view.Step, BegunAt: view.BegunAt, At: time.Now()})
	for _, res := range results {
		err = errors.Join(err, res.Err)
	}
	if err == nil {
		r.Log.Warn("CA rotation: step completed", "step", view.Step)
	}
	return err
}
