package workers

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/balance"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/serverless/scale"
)

// Statuses returns what each worker of an endpoint that is not on its way out does, and the numbers of all. On a member that does not
// lead, nothing is known of crashes and of lack of room.
func (w *Workers) Statuses(id fleet.EndpointID) (of map[fleet.PodID]fleet.WorkerStatus, counts fleet.WorkerCounts) {
	of = map[fleet.PodID]fleet.WorkerStatus{}
	_ = w.Store.View(func(v *state.View) error {
		for _, p := range v.WorkersOf(id) {
			lost, _ := v.Standing(p.Host)
			switch {
			case !p.Status.Active() || p.Goal != fleet.GoalRun:
			case lost:
				of[p.ID] = fleet.WorkerUnhealthy
			case !p.Ready.IsZero():
				of[p.ID] = fleet.WorkerIdle
			default:
				of[p.ID] = fleet.WorkerInitializing
			}
		}
		return nil
	})
	w.Jobs.Jobs.View(func(q *queue.Queue) {
		for pod := range of {
			if of[pod] != fleet.WorkerUnhealthy && len(q.Running(pod)) > 0 {
				of[pod] = fleet.WorkerRunning
			}
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	demand, _ := w.demandFor(id, w.Now())
	for pod := range of {
		h := balance.Health{}
		if w.Health != nil {
			h, _ = w.Health(id, pod)
		}
		switch {
		case of[pod] == fleet.WorkerUnhealthy:
		case demand.Serving[pod] > 0:
			of[pod] = fleet.WorkerRunning
		case of[pod] == fleet.WorkerIdle && unfit(h):
			of[pod] = fleet.WorkerUnhealthy
		}
	}
	for _, s := range of {
		counts.Add(s)
	}
	d := w.desks[id]
	if d == nil {
		return of, counts
	}
	if d.crashes > 0 && counts.Running+counts.Idle == 0 {
		for pod := range of {
			of[pod] = fleet.WorkerUnhealthy
		}
		counts = fleet.WorkerCounts{Unhealthy: max(1, len(of))}
	}
	if d.refused != "" || d.limit == scale.Account {
		counts.Throttled = 1
	}
	return of, counts
}

// Counts returns the numbers that Statuses does.
func (w *Workers) Counts(id fleet.EndpointID) fleet.WorkerCounts {
	_, counts := w.Statuses(id)
	return counts
}

// Why says why a job of an endpoint waits, with how many are before it; of the endpoint itself (before < 0) it says why its jobs wait,
// or what keeps its workers from working. Empty: nothing does, or this member does not lead.
func (w *Workers) Why(id fleet.EndpointID, before int) string {
	of, counts := w.Statuses(id)
	waiting := 0
	w.Jobs.Jobs.View(func(q *queue.Queue) { c := q.Counts(id); waiting = c.Waiting + c.WaitingLow })
	starting, thing, where := w.starting(of), "job", "in the queue"
	w.mu.Lock()
	defer w.mu.Unlock()
	if demand, _ := w.demandFor(id, w.Now()); demand.Waiting > 0 {
		waiting, thing, where = demand.Waiting, "request", "waiting"
	}
	d := w.desks[id]
	ready := counts.Running + counts.Idle
	switch {
	case d == nil:
		return ""
	case d.crashes > 0 && ready == 0:
		next := d.crashed.Add(scale.Pause(d.crashes)).Sub(w.Now())
		if next <= 0 && d.refused != "" {
			return fmt.Sprintf("%s; workers crash, %d in a row: %s", d.refused, d.crashes, d.crash)
		}
		return fmt.Sprintf("workers crash, %d in a row; the next one starts in %s: %s", d.crashes, max(0, next).Round(time.Second), d.crash)
	case starting != "" && ready == 0:
		return starting
	case d.refused != "":
		return d.refused
	case before < 0 && waiting == 0:
		return ""
	case before <= 0 && counts.Idle > 0:
		if thing == "job" && waiting > 0 && !d.asked() {
			return fmt.Sprintf("no worker asks for a job, though %d of %d have none", counts.Idle, ready)
		}
		return ""
	}
	line := number(before, "job") + " before this one"
	if before < 0 {
		line = number(waiting, thing) + " " + where
	}
	switch d.limit {
	case scale.AtMax:
		return "max workers reached, " + line
	case scale.Account:
		return "the account has as many workers as it may have, " + line
	}
	return line
}

// asked reports whether a worker of the endpoint asks for a job. The caller holds mu.
func (d *desk) asked() bool {
	for _, k := range d.workers {
		if k.slots > k.offered {
			return true
		}
	}
	return false
}

// starting says what the workers of an endpoint do that have not asked for a job yet; empty: there are none.
func (w *Workers) starting(of map[fleet.PodID]fleet.WorkerStatus) string {
	n, pull, trouble := 0, "", ""
	_ = w.Store.View(func(v *state.View) error {
		for id := range of {
			p, ok := v.Pod(id)
			if !ok || !p.Ready.IsZero() {
				continue
			}
			n++
			trouble = cmp.Or(trouble, w.trouble(&p))
			if w.Health != nil {
				if h, _ := w.Health(fleet.EndpointID(p.Owner.ID), id); unfit(h) {
					trouble = cmp.Or(trouble, "a worker does not serve: "+h.Text)
				}
			}
			if p.StartedAt.IsZero() {
				pull = max(pull, w.Live(p.Host, id).Pull())
			}
		}
		return nil
	})
	switch {
	case n == 0:
		return ""
	case trouble != "":
		return trouble
	case pull != "":
		return fmt.Sprintf("no worker yet: %d starting, %s", n, pull)
	}
	return fmt.Sprintf("no worker yet: %d starting", n)
}

// trouble says why a worker's host cannot get its image or a model; empty: it can, or has not failed to so far.
func (w *Workers) trouble(p *fleet.Pod) string {
	said := ""
	if live := w.Live(p.Host, p.ID); live != nil {
		said, _ = strings.CutSuffix(live.Activity, fleet.TryingAgain)
		if said == live.Activity && p.Waiting.IsZero() {
			return ""
		}
	}
	if said == "" && p.Waiting.IsZero() {
		return ""
	}
	return "no worker can start: " + cmp.Or(said, "its host does not say why")
}

// refusal says why no worker could be started, in words for its owner.
func refusal(err error) string {
	e := &fleet.Error{Code: fleet.CodeInternal, Msg: "a fault of the service"}
	_ = errors.As(err, &e)
	switch {
	case e.Code == fleet.CodeNoCapacity:
		var hosts []string
		for _, x := range e.Excluded {
			hosts = append(hosts, number(x.Hosts, "host")+": "+x.Reason)
		}
		return "no capacity: " + cmp.Or(strings.Join(hosts, "; "), "there are no hosts")
	case len(e.Details) > 0:
		return "no worker could be started: " + strings.Join(e.Details, "; ")
	}
	return "no worker could be started: " + e.Msg
}

func number(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
