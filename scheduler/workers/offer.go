package workers

import (
	"cmp"
	"context"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
)

// offer is some of a worker's slots, kept while a command that fills them is committed. Workers.mu guards what it refers to.
type offer struct {
	pod  fleet.PodID
	of   *worker
	line *line // of the worker when it was made
	n    int
}

// offer keeps n of a worker's slots. The caller holds Workers.mu and calls accept in the end.
func (k *worker) offer(pod fleet.PodID, n int) *offer {
	k.offered += n
	return &offer{pod, k, k.line, n}
}

// take returns the command that fills an offer.
func (o *offer) take(at queue.Millis, id fleet.EndpointID) jobs.Command {
	return jobs.Take{Take: queue.Take{At: at, Endpoint: id, Worker: o.pod, Max: o.n}}
}

// accept ends an offer, and tells the worker's host of the jobs that were taken. sure says that there are no others. The caller holds mu.
func (w *Workers) accept(d *desk, o *offer, taken []jobs.Job, sure bool) {
	k := o.of
	k.offered -= o.n
	k.unsure = k.unsure || !sure
	if d.workers[o.pod] != k || k.line != o.line {
		return // it is buried with the next look, and its jobs with it; or its host's next stream began with them, or the next look tells of them
	}
	for _, j := range taken {
		if !k.busy {
			k.busy, k.since = true, w.Now()
		}
		delete(k.given, j.ID) // it may have given the job back since it was offered a place, and is given it anew
		w.handOver(k, o.pod, j.ID)
	}
}

// asks reports whether a worker may be given a job now. The caller holds mu.
func (k *worker) asks(p *fleet.Pod, lost bool) bool {
	return k != nil && k.slots > k.offered && k.line != nil && k.line.stands() && !k.leave && !k.ending && !k.unsure && p.Goal == fleet.GoalRun && !lost && p.Frozen.IsZero()
}

// before orders those that ask by who gets the next job: the newest release, the least that is on its way to them, the longest idle.
func (d *desk) before(a, b *fleet.Pod) int {
	x, y := d.workers[a.ID], d.workers[b.ID]
	return cmp.Or(cmp.Compare(b.Release, a.Release), cmp.Compare(x.offered, y.offered), x.since.Compare(y.since), cmp.Compare(a.ID, b.ID))
}

// next offers the next job of an endpoint to one of its workers; nil: none asks for it, or this member does not lead.
func (w *Workers) next(id fleet.EndpointID) (d *desk, o *offer) {
	if !w.asked(id) {
		return nil, nil
	}
	var pods []*fleet.Pod
	lost := map[fleet.PodID]bool{}
	_ = w.Store.View(func(v *state.View) error { // its error is that the state is closed
		pods = v.WorkersOf(id)
		for _, p := range pods {
			lost[p.ID], _ = v.Standing(p.Host)
		}
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if d = w.desks[id]; d == nil || w.run == nil {
		return nil, nil
	}
	pods = slices.DeleteFunc(pods, func(p *fleet.Pod) bool { return !d.workers[p.ID].asks(p, lost[p.ID]) })
	if len(pods) == 0 {
		return nil, nil
	}
	best := slices.MinFunc(pods, d.before)
	return d, d.workers[best.ID].offer(best.ID, 1)
}

// asked reports whether a worker of an endpoint may ask for a job.
func (w *Workers) asked(id fleet.EndpointID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.desks[id]
	return d != nil && w.run != nil && d.asked()
}

// Submit commits a job. If a worker of its endpoint asks for one, it is given the first that waits in the same entry, so that a job that
// need not wait costs one commit until its worker has it. Errors: those of the command.
func (w *Workers) Submit(ctx context.Context, cmd jobs.Submit) (jobs.Job, error) {
	d, o := w.next(cmd.Endpoint)
	if o == nil {
		return jobs.One[jobs.Job](ctx, w.Jobs, cmd)
	}
	results, err := w.Jobs.Propose(ctx, cmd, o.take(cmd.At, cmd.Endpoint))
	var taken []jobs.Job
	if err == nil {
		taken, _ = results[1].Value.([]jobs.Job)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.accept(d, o, taken, err == nil || fleet.NothingDone(err))
	w.kickLocked(d.id)
	if err != nil {
		return jobs.Job{}, err
	}
	job, _ := results[0].Value.(jobs.Job)
	return job, results[0].Err
}

// telling is what a worker's host was told of a job.
type telling struct {
	at   uint64 // of Workers.tellings
	back bool   // it says that it has the job no more
}

// handOver tells a worker's host of a job, once. The caller holds mu.
func (w *Workers) handOver(k *worker, pod fleet.PodID, id queue.ID) {
	if _, told := k.given[id]; told || k.line == nil {
		return
	}
	w.note(k, id)
	k.slots--
	k.line.queue(message{pod: pod, job: id})
}

// note remembers that a worker's host is told of a job. The caller holds mu.
func (w *Workers) note(k *worker, id queue.ID) {
	w.tellings++
	k.given[id], k.told = telling{at: w.tellings}, w.tellings
}

// retell hands over the jobs of a worker that were committed while nobody knew whether they would be. The caller holds mu.
func (w *Workers) retell(k *worker, pod fleet.PodID, running []queue.ID) {
	if k.offered > 0 { // who accepts the offer tells of its jobs, and has this looked at again
		return
	}
	k.unsure = false
	for _, id := range running {
		w.handOver(k, pod, id)
	}
}

// ahead reports whether a worker may have a job that a look does not know of. The caller holds mu.
func (k *worker) ahead(s *scene) bool { return k.offered > 0 || k.told > s.told }
