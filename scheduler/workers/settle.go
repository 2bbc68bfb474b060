package workers

import (
	"context"
	"time"

	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/serverless/result"
)

const (
	settled     = 500              // jobs in one command
	lookForLost = 10 * time.Second // between two looks at holds whose jobs may never have been submitted
	// lostAfter is far beyond the time in which a job is submitted once credit is held for it.
	lostAfter = 5 * time.Minute
)

// settle ends the holds of credit for jobs of public models: it charges those that completed, and releases the others. A job stays until
// that is committed, and a hold is ended once, so a leader that begins anew charges nothing twice.
func (w *Workers) settle(ctx context.Context) {
	var looked time.Time
	for ctx.Err() == nil {
		n, err := w.settleEnded(ctx)
		if now := w.Now(); err == nil && now.Sub(looked).Abs() >= lookForLost {
			if err = w.releaseLost(ctx); err == nil {
				looked = now
			}
		}
		if err != nil && ctx.Err() == nil {
			w.Log.Warn("settle jobs of public models", "err", err)
			_ = sleep.For(ctx, again)
		}
		if n < settled {
			_ = sleep.For(ctx, again/4)
		}
	}
}

// settleEnded settles some jobs that have ended, and returns how many.
func (w *Workers) settleEnded(ctx context.Context) (int, error) {
	var holds []state.SettledHold
	var done []jobs.Command
	w.Jobs.Jobs.View(func(q *queue.Queue) {
		for _, id := range q.Unsettled(settled) {
			j := q.Get(id)
			hold := state.SettledHold{ID: j.Sale.Hold}
			if j.Status == queue.Completed {
				hold.Cost = j.Sale.Cost
			}
			holds = append(holds, hold)
			done = append(done, jobs.Settled{Settled: queue.Settled{Job: id, Hold: hold.ID}})
		}
	})
	if len(holds) == 0 {
		return 0, nil
	}
	if err := w.endHolds(ctx, holds); err != nil {
		return 0, err
	}
	_, err := w.propose(ctx, done...)
	return len(holds), err
}

// endHolds commits the end of holds.
func (w *Workers) endHolds(ctx context.Context, holds []state.SettledHold) error {
	ctx, cancel := context.WithTimeout(ctx, proposing)
	defer cancel()
	results, err := w.Node.Propose(ctx, state.SettleHolds{Holds: holds, At: w.Now()})
	if err == nil {
		err = results[0].Err
	}
	return err
}

// releaseLost releases holds whose jobs are not there: they were never submitted, were deleted before they ended, or have another hold.
func (w *Workers) releaseLost(ctx context.Context) error {
	var old []fleet.CreditHold
	if err := w.Store.View(func(v *state.View) error { old = v.Holds(w.Now(), lostAfter, 10*settled); return nil }); err != nil || len(old) == 0 {
		return err
	}
	if err := w.Jobs.Barrier(ctx); err != nil { // else a job that is not here yet would count as lost
		return err
	}
	var lost []state.SettledHold
	w.Jobs.Jobs.View(func(q *queue.Queue) {
		for i := range old {
			j := q.Get(old[i].Job)
			if (j == nil || j.Sale == nil || j.Sale.Hold != old[i].ID || j.Sale.Settled) && len(lost) < settled {
				lost = append(lost, state.SettledHold{ID: old[i].ID})
			}
		}
	})
	if len(lost) == 0 {
		return nil
	}
	return w.endHolds(ctx, lost)
}

// sold is what a job of a public model ends with whose worker answered with this output.
func (w *Workers) sold(ctx context.Context, job *jobs.Job, output []byte) (priced []byte, cost fleet.Money, err error) {
	if w.Result != nil {
		if output, err = w.Result(ctx, job.Sale, output); err != nil {
			return nil, 0, err
		}
	}
	return result.Priced(output, job.Sale.Price)
}
