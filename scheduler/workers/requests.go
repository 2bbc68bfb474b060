package workers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/balance"
	"gantry/scheduler/state"
	"gantry/serverless/scale"
)

const (
	// heardWithin is for how long what a member said of requests counts.
	heardWithin = 5 * time.Second
	// unfitFor is how long a worker may be without an open port, or unhealthy, until it is ended.
	unfitFor = 8 * time.Minute
)

// report is what a member said last.
type report struct {
	balance.Report
	at time.Time
}

// Report takes what a member says of requests, this one included, and says which workers get no more.
func (w *Workers) Report(r balance.Report) balance.Word {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.run == nil {
		return balance.Word{}
	}
	old := w.reports[r.Member]
	w.reports[r.Member] = report{r, w.Now()}
	for from, old := range w.reports { // members and gateways come and go
		if old.at.Add(heardWithin).Before(w.Now()) {
			delete(w.reports, from)
		}
	}
	for id := range w.desks {
		a, had := old.Of[id]
		b, has := r.Of[id]
		if had || has || a.Waiting != b.Waiting || w.desks[id].closes() {
			w.kickLocked(id)
		}
	}
	for id := range r.Of {
		if w.desks[id] == nil {
			w.kickLocked(id)
		}
	}
	for id, n := range r.Ended {
		if d := w.desks[id]; d != nil {
			d.count(r.Member, source{n, r.Process, w.Now()})
		}
	}
	out := balance.Word{Version: w.version}
	for _, d := range w.desks {
		for id, k := range d.workers {
			if k.closing > 0 {
				out.Closing = append(out.Closing, id)
			}
		}
	}
	return out
}

// HealthChanged has an endpoint looked at.
func (w *Workers) HealthChanged(id fleet.EndpointID) { w.kick(id) }

// closes reports whether a worker of an endpoint gets no more requests.
func (d *desk) closes() bool {
	for _, k := range d.workers {
		if k.closing > 0 {
			return true
		}
	}
	return false
}

// demandFor adds up what members said of an endpoint, and until when that holds. The caller holds mu.
func (w *Workers) demandFor(id fleet.EndpointID, now time.Time) (out balance.Demand, until time.Time) {
	out.Serving = map[fleet.PodID]int{}
	for _, r := range w.reports {
		d, ok := r.Of[id]
		over := r.at.Add(heardWithin)
		if !ok || !over.After(now) {
			continue
		}
		until = earlier(until, over)
		out.Waiting += d.Waiting
		out.Wake = append(out.Wake, d.Wake...)
		for pod, n := range d.Serving {
			out.Serving[pod] += n
		}
	}
	return out, until
}

// inFlight is how many requests are under way.
func inFlight(d *balance.Demand) (n int) {
	for _, one := range d.Serving {
		n += one
	}
	return n
}

// Requests returns how many requests to an endpoint wait, are under way and have ended, as members said.
func (w *Workers) Requests(id fleet.EndpointID) fleet.JobCounts {
	w.mu.Lock()
	defer w.mu.Unlock()
	demand, _ := w.demandFor(id, w.Now())
	out := fleet.JobCounts{Waiting: demand.Waiting, Running: inFlight(&demand)}
	if d := w.desks[id]; d != nil {
		n := d.earlier
		for _, s := range d.sources {
			n = n.Plus(s.ended)
		}
		out.Completed, out.Failed = n.Completed, n.Failed
	}
	return out
}

// source is what a member said last of requests that ended.
type source struct {
	ended   balance.Ended
	process uint64
	at      time.Time
}

// maxSources are the members of which an endpoint's numbers are kept apart. Of more, the one that is silent for longest counts as ended.
const maxSources = 256

// count takes what a member says. The caller holds Workers.mu.
func (d *desk) count(from fleet.MemberID, now source) {
	old, known := d.sources[from]
	switch {
	case d.sources == nil:
		d.sources = map[fleet.MemberID]source{}
	case known && (old.process != now.process || now.ended.Completed < old.ended.Completed || now.ended.Failed < old.ended.Failed):
		d.earlier = d.earlier.Plus(old.ended)
	case !known && len(d.sources) >= maxSources:
		silent := slices.MinFunc(slices.Collect(maps.Keys(d.sources)), func(a, b fleet.MemberID) int {
			return cmp.Or(d.sources[a].at.Compare(d.sources[b].at), cmp.Compare(a, b))
		})
		d.earlier = d.earlier.Plus(d.sources[silent].ended)
		delete(d.sources, silent)
	}
	d.sources[from] = now
}

// seeRequests reads what there is to do, and how workers are.
func (w *Workers) seeRequests(d *desk, s *scene) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.demand, s.until = w.demandFor(d.id, s.now)
	s.counts.Waiting, s.counts.InProgress = s.demand.Waiting, inFlight(&s.demand)
	s.health = map[fleet.PodID]balance.Health{}
	if w.Health == nil {
		return
	}
	for _, p := range s.pods {
		if h, ok := w.Health(d.id, p.ID); ok {
			s.health[p.ID] = h
		}
	}
}

// unfit reports whether a worker gets no requests because of how it is.
func unfit(h balance.Health) bool { return h.State == balance.Unhealthy || h.State == balance.Silent }

// judge notes workers that became ready, which are charged from then on, and lets go of those that have been unfit for too long.
func (w *Workers) judge(ctx context.Context, d *desk, s *scene) error {
	var ready []fleet.PodID
	w.mu.Lock()
	for _, p := range s.pods {
		k, h := d.worker(p.ID, s.now), s.health[p.ID]
		k.note, k.cold = h.Text, h.Cold
		switch {
		case !p.Frozen.IsZero() || p.Goal != fleet.GoalRun:
		case h.State == balance.Ready:
			if k.done = true; p.Release == d.version {
				d.worked()
			}
			if p.Ready.IsZero() {
				ready = append(ready, p.ID)
			}
		case unfit(h) && !k.leave:
			since := h.Since
			if p.Ready.IsZero() && !p.StartedAt.IsZero() && h.State == balance.Silent {
				since = p.StartedAt
			}
			over := since.Add(unfitFor)
			if over.After(s.now) {
				s.until = earlier(s.until, over)
				continue
			}
			k.leave = true
			if d.version != s.version {
				d.version, d.crashes = s.version, 0
			}
			if p.Release == s.version && !k.done {
				if d.crashes++; d.crashes == 1 {
					d.first = s.now
				}
				d.crashed, d.crash = s.now, h.Text
			}
			w.Log.Warn("a worker is ended that does not serve", "endpoint", d.id, "pod", p.ID, "reason", h.Text)
		}
	}
	w.mu.Unlock()
	if len(ready) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, proposing)
	defer cancel()
	_, err := w.Node.Propose(ctx, state.ReadyWorkers{Pods: ready, At: w.Now()})
	return err
}

// balanced adds the workers of an endpoint that balances to what a decision depends on. As many as the requests need count as running,
// the oldest first, whichever serve them: the others have to become idle under a load that is low but steady. The caller holds mu.
func (w *Workers) balanced(d *desk, s *scene, in *scale.Input) {
	pods := slices.Clone(s.pods)
	stale := func(p *fleet.Pod) bool { return p.Release != s.version || s.drained[p.ID] }
	rank := func(p *fleet.Pod) int {
		switch {
		case stale(p):
			return 2
		case d.workers[p.ID].closing > 0:
			return 1
		}
		return 0
	}
	slices.SortFunc(pods, func(a, b *fleet.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	each := max(1, in.Policy.Requests)
	needed := max(in.Policy.Min, (in.Load.Waiting+in.Load.InProgress+each-1)/each)
	for _, p := range pods {
		k, h, busy := d.workers[p.ID], s.health[p.ID], s.demand.Serving[p.ID] > 0
		one := scale.Worker{ID: p.ID, Since: k.since, Created: p.CreatedAt, Stale: stale(p), Drained: s.drained[p.ID], State: scale.Initializing}
		switch {
		case s.lost[p.ID]:
			continue
		case p.Goal != fleet.GoalRun || k.leave:
			in.Ending++
			continue
		case !p.Frozen.IsZero():
			one.State, one.Since = scale.Frozen, p.Frozen
		case p.Ready.IsZero():
		case unfit(h): // another takes its place, within the endpoint's bounds
			in.Policy.Max = max(0, in.Policy.Max-1)
			in.Policy.Min = min(in.Policy.Min, in.Policy.Max)
			continue
		case one.Stale && busy: // it gets no more once one of the newest release is ready
			one.State, k.spare = scale.Running, time.Time{}
		case !one.Stale && (needed > 0 || slices.Contains(s.demand.Wake, p.ID)):
			needed--
			one.State, k.spare = scale.Running, time.Time{}
			if k.closing > 0 {
				k.closing = 0
				w.version++
			}
		default:
			if k.spare.IsZero() {
				k.spare = s.now
			}
			one.State, one.Since = scale.Idle, k.spare
		}
		in.Workers = append(in.Workers, one)
	}
}

// closed reports whether a worker has finished what it had and gets nothing more at any member that is heard of; it begins that. The
// caller holds mu.
func (w *Workers) closed(d *desk, s *scene, p *fleet.Pod) bool {
	k := d.workers[p.ID]
	if k.closing == 0 {
		w.version++
		k.closing = w.version
	}
	for _, r := range w.reports {
		if r.at.Add(heardWithin).After(s.now) && r.Heard < k.closing {
			return false
		}
	}
	return s.demand.Serving[p.ID] == 0
}

// reopen lets a worker get requests again that stands still: who asks for it has it woken.
func (w *Workers) reopen(d *desk, id fleet.PodID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := d.workers[id]; k != nil && k.closing > 0 {
		k.closing = 0
		w.version++
	}
}

// wanted reports whether a worker that stands still has something to do.
func (w *Workers) wanted(s *scene, id fleet.PodID) bool {
	return len(s.running[id]) > 0 || s.demand.Serving[id] > 0 || slices.Contains(s.demand.Wake, id)
}

// Notes returns what is known of the workers of an endpoint that balances.
func (w *Workers) Notes(id fleet.EndpointID) map[fleet.PodID]fleet.WorkerNote {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[fleet.PodID]fleet.WorkerNote{}
	if d := w.desks[id]; d != nil {
		for pod, k := range d.workers {
			out[pod] = fleet.WorkerNote{Reason: k.note, ColdStart: k.cold}
			if k.closing > 0 && k.note == "" {
				out[pod] = fleet.WorkerNote{Reason: "finishes what it has", ColdStart: k.cold}
			}
		}
	}
	return out
}
