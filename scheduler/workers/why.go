package workers

import (
	"fmt"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/serverless/scale"
)

// Counts returns how many workers of an endpoint do what. On a member that does not lead, what only the leader knows is zero.
func (w *Workers) Counts(id fleet.EndpointID) (out fleet.WorkerCounts) {
	busy := map[fleet.PodID]bool{}
	w.Jobs.Jobs.View(func(q *queue.Queue) {
		for _, pod := range q.Workers() {
			busy[pod] = true
		}
	})
	_ = w.Store.View(func(v *state.View) error {
		for _, p := range v.WorkersOf(id) {
			switch {
			case !p.Status.Active() || p.Goal != fleet.GoalRun:
			case busy[p.ID]:
				out.Running++
			case !p.Ready.IsZero():
				out.Idle++
			default:
				out.Initializing++
			}
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := w.desks[id]; d != nil {
		if !d.noRoom.IsZero() && d.limit != scale.None {
			out.Throttled = 1
		}
		if d.crashes > 0 && out.Running+out.Idle == 0 {
			out.Unhealthy = 1
		}
	}
	return out
}

// Why says why a job of an endpoint waits, with how many are before it; empty: it need not.
func (w *Workers) Why(id fleet.EndpointID, before int) string {
	counts := w.Counts(id)
	if counts.Idle > 0 && before == 0 {
		return ""
	}
	pulling := 0
	_ = w.Store.View(func(v *state.View) error {
		for _, p := range v.WorkersOf(id) {
			if p.Ready.IsZero() && p.StartedAt.IsZero() && p.Status.Active() {
				pulling++
			}
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.desks[id]
	switch {
	case d == nil:
		return ""
	case d.crashes > 0 && counts.Running+counts.Idle == 0:
		next := max(0, d.crashed.Add(scale.Pause(d.crashes)).Sub(w.Now())).Round(time.Second)
		return fmt.Sprintf("workers crash, %d in a row; the next one starts in %s: %s", d.crashes, next, d.crash)
	case d.limit == scale.AtMax:
		return fmt.Sprintf("max workers reached, %d jobs before this one", before)
	case !d.noRoom.IsZero():
		return "no worker could be started: " + d.refused
	case counts.Initializing > 0 && pulling > 0:
		return fmt.Sprintf("no worker yet: %d starting, %d of them without its image yet", counts.Initializing, pulling)
	case counts.Initializing > 0:
		return fmt.Sprintf("no worker yet: %d starting", counts.Initializing)
	}
	return fmt.Sprintf("%d jobs before this one", before)
}
