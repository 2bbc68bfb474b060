package workers

import (
	"context"
	"time"

	"gantry/internal/sleep"
	"gantry/scheduler/jobs"
	"gantry/serverless/queue"
	"gantry/serverless/webhook"
)

// calling is how many webhooks are called at a time.
const calling = 32

// call is what became of the calls of one job's webhook.
type call struct {
	calls int
	next  time.Time // when it is called again; zero: it is being called, or need not be
}

// tell calls the webhooks of jobs that have ended, each a few times. How often it was tried is forgotten with leadership: then it is
// tried as often again, as nobody knows what the last leader's calls did.
func (w *Workers) tell(ctx context.Context) {
	known, done := map[queue.ID]*call{}, make(chan queue.ID, calling)
	slots := make(chan struct{}, calling)
	for ctx.Err() == nil {
		var untold []queue.ID
		w.Jobs.Jobs.View(func(q *queue.Queue) { untold = q.Untold() })
		for _, id := range untold {
			c := known[id]
			if c == nil {
				c = &call{next: w.Now()}
				known[id] = c
			}
			if c.next.IsZero() || c.next.After(w.Now()) || len(slots) == calling {
				continue
			}
			slots <- struct{}{}
			c.calls++
			last := c.calls
			c.next = time.Time{}
			w.start(func(ctx context.Context) {
				defer func() { <-slots }()
				if err := w.Tell(ctx, id); err != nil && last < webhook.Tries {
					w.Log.Info("a webhook was not taken", "job", jobs.IDText(id, false), "calls", last, "err", err)
					select {
					case done <- id:
					case <-ctx.Done():
					}
					return
				}
				for ctx.Err() == nil {
					if _, err := w.propose(ctx, jobs.Told{Told: queue.Told{At: queue.At(w.Now()), Job: id}}); err == nil {
						return
					}
					_ = sleep.For(ctx, again)
				}
			})
		}
		if len(untold) == 0 {
			clear(known)
		}
		select {
		case id := <-done:
			if c := known[id]; c != nil {
				c.next, _ = webhook.Next(c.calls, w.Now())
			}
		default:
			_ = sleep.For(ctx, again/4)
		}
	}
}
