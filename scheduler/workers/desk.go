package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/balance"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/serverless/scale"
)

// desk is an endpoint, as the leader knows it. One goroutine looks at it at a time; Workers.mu guards the fields.
type desk struct {
	id      fleet.EndpointID
	dirty   bool // something changed since the last look began
	busy    bool // a goroutine tends it
	timer   *time.Timer
	workers map[fleet.PodID]*worker

	crashes int       // of workers of the newest release in a row
	version uint64    // the release that crashes are counted of
	first   time.Time // of these crashes
	crashed time.Time // the last of them
	crash   string    // what it said
	noRoom  time.Time // when the last worker was refused
	refused string    // why
	limit   scale.Limit

	sources map[fleet.MemberID]source // who counts requests that ended; of those that balance
	earlier balance.Ended             // of processes that have ended

	fetched   uint64 // the release whose image hosts were asked to get
	fetchedAt time.Time
}

// worker is what is remembered of a worker beside its record.
type worker struct {
	line  *line // nil: its host is not connected
	slots int   // jobs that it wants
	since time.Time
	busy  bool
	given map[queue.ID]telling // jobs that its host was told of
	told  uint64               // the last telling
	done  bool                 // it has finished a job
	leave bool                 // it asked to be replaced, or found itself unfit

	offered int  // slots for which jobs are being taken
	unsure  bool // nobody knows whether an offer was filled; it gets no other until all have ended
	ending  bool // it is being ended or frozen

	// Of an endpoint that balances.
	spare   time.Time // since when it is not needed; zero: it is
	closing uint64    // version of the word that it gets no more requests; 0: it gets some
	cold    time.Duration
	note    string // what is wrong with it
}

// worker returns what is remembered of a worker. The caller holds Workers.mu.
func (d *desk) worker(id fleet.PodID, now time.Time) *worker {
	k := d.workers[id]
	if k == nil {
		k = &worker{since: now, given: map[queue.ID]telling{}}
		d.workers[id] = k
	}
	return k
}

// scene is what one look at an endpoint begins with.
type scene struct {
	now     time.Time
	told    uint64             // tellings that the rest is newer than
	gone    bool               // there is no such endpoint any more
	spec    fleet.EndpointSpec // shares what it refers to with the state
	version uint64
	room    int // how many more workers the account may have
	pods    []*fleet.Pod
	counts  queue.Counts
	oldest  time.Time
	running map[fleet.PodID][]queue.ID
	others  []fleet.PodID        // that have jobs and are no workers any more
	lost    map[fleet.PodID]bool // workers whose hosts count as lost: they have no jobs, until the host comes back
	tries   map[queue.ID]int     // attempts of the jobs that those have
	drained map[fleet.PodID]bool // workers that are to leave their hosts

	balances bool // requests reach its workers directly: there are no jobs
	demand   balance.Demand
	health   map[fleet.PodID]balance.Health
	until    time.Time // when demand or health are to be looked at again
}

// see reads what there is.
func (w *Workers) see(d *desk) (s scene, err error) {
	s = scene{now: w.Now(), running: map[fleet.PodID][]queue.ID{}, lost: map[fleet.PodID]bool{}, tries: map[queue.ID]int{}, drained: map[fleet.PodID]bool{}}
	w.mu.Lock()
	s.told = w.tellings
	w.mu.Unlock()
	err = w.Store.View(func(v *state.View) error {
		e := v.Endpoint(d.id)
		if s.gone = e == nil; !s.gone {
			s.spec, s.version, s.room, s.balances = e.Spec, e.Version(), v.WorkerRoom(e.Account), e.Spec.Type == fleet.EndpointBalanced
		}
		s.pods = v.WorkersOf(d.id)
		for _, p := range s.pods {
			s.lost[p.ID], s.drained[p.ID] = v.Standing(p.Host)
		}
		return nil
	})
	w.Jobs.Jobs.View(func(q *queue.Queue) {
		s.counts = q.Counts(d.id)
		if j := q.Next(d.id); j != nil {
			s.oldest = j.Submitted.Time()
		}
		for _, id := range q.Workers(d.id) {
			var has []queue.ID
			for _, j := range q.Running(id) {
				if of, _ := j.Endpoint(); of == d.id {
					has = append(has, j.ID)
					if s.lost[id] {
						s.tries[j.ID] = j.Attempt()
					}
				}
			}
			if len(has) > 0 {
				s.running[id] = has
			}
		}
	})
	if s.balances {
		w.seeRequests(d, &s)
	}
	for id := range s.running {
		if !slices.ContainsFunc(s.pods, func(p *fleet.Pod) bool { return p.ID == id }) {
			s.others = append(s.others, id)
		}
	}
	return s, err
}

// look does what is to be done for an endpoint now, and returns when to look again; zero: when something changes.
func (w *Workers) look(ctx context.Context, d *desk) (next time.Time, err error) {
	s, err := w.see(d)
	if err != nil {
		return next, err
	}
	if s.gone {
		return next, w.close(ctx, d, &s)
	}
	w.renew(d, s.version)
	if s.balances {
		err = errors.Join(w.bury(ctx, d, &s), w.judge(ctx, d, &s))
	} else {
		err = errors.Join(w.bury(ctx, d, &s), w.stopJobs(d, &s), w.give(ctx, d, &s))
	}
	next, scaled := w.scale(ctx, d, &s)
	next = earlier(next, s.until)
	return next, errors.Join(err, scaled, w.prefetch(ctx, d, &s))
}

// fetchedIn is after what time hosts that have an image beforehand are asked again: they keep it for an hour.
const fetchedIn = 30 * time.Minute

// prefetch has hosts that come next get the image of an endpoint, once a worker has shown that it works.
func (w *Workers) prefetch(ctx context.Context, d *desk, s *scene) error {
	works := slices.ContainsFunc(s.pods, func(p *fleet.Pod) bool { return p.Release == s.version && !p.Ready.IsZero() && p.Frozen.IsZero() })
	more := s.spec.Workers.Max - len(s.pods)
	if !works || more <= 0 || d.fetched == s.version && s.now.Before(d.fetchedAt.Add(fetchedIn)) {
		return nil
	}
	d.fetched, d.fetchedAt = s.version, s.now // read and written by who looks alone
	err := w.Pods.PrefetchWorkers(ctx, d.id, min(more, fleet.StandbyWorkers))
	if fleet.RefusedForNow(err) || fleet.CodeOf(err) == fleet.CodeNotFound { // then none comes next
		return nil
	}
	return err
}

// close ends what an endpoint that was deleted has left.
func (w *Workers) close(ctx context.Context, d *desk, s *scene) error {
	var errs []error
	for _, p := range s.pods {
		errs = append(errs, w.Pods.EndWorker(ctx, p))
	}
	for whole := false; !whole && ctx.Err() == nil; {
		var err error
		if whole, err = jobs.One[bool](ctx, w.Jobs, jobs.Forget{Forget: queue.Forget{Endpoint: d.id, Max: maxSwept}}); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(d.workers)
	return errors.Join(errs...)
}

// bury gives the jobs of workers out again that are no more, or out of reach, and terminates those whose process ended by itself.
func (w *Workers) bury(ctx context.Context, d *desk, s *scene) error {
	var errs []error
	lost := func(id fleet.PodID, why string) {
		for some := range slices.Chunk(s.running[id], maxSwept) {
			var cmds []jobs.Command
			for _, job := range some { // and no others: a host that is back meanwhile may have been given some
				from := queue.From{At: queue.At(s.now), Job: job, Worker: id, Attempt: s.tries[job]}
				cmds = append(cmds, jobs.Lost{Lost: queue.Lost{From: from, Reason: why}})
			}
			_, err := w.propose(ctx, cmds...)
			errs = append(errs, err)
		}
		delete(s.running, id)
	}
	for _, id := range s.others {
		lost(id, "the worker was ended")
	}
	for _, p := range s.pods {
		if s.lost[p.ID] {
			lost(p.ID, "the worker's host cannot be reached")
		}
		if p.Status.Active() {
			continue
		}
		lost(p.ID, "the worker ended: "+endOf(p))
		w.countCrash(d, s, p)
		errs = append(errs, w.Pods.EndWorker(ctx, p))
	}
	s.pods = slices.DeleteFunc(s.pods, func(p *fleet.Pod) bool { return !p.Status.Active() })
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range d.workers {
		if !slices.ContainsFunc(s.pods, func(p *fleet.Pod) bool { return p.ID == id }) {
			delete(d.workers, id)
		}
	}
	return errors.Join(errs...)
}

// endOf says how a worker ended, in a few words and its last lines.
func endOf(p *fleet.Pod) string {
	text := p.Reason
	if p.ExitCode != nil {
		text = strings.TrimPrefix(text+fmt.Sprintf("; exit code %d", *p.ExitCode), "; ")
	}
	if lines := strings.Split(strings.TrimSpace(p.LogTail), "\n"); lines[0] != "" {
		const most = 5
		text += ": " + strings.Join(lines[max(0, len(lines)-most):], " | ")
	}
	return cmp.Or(text, "its process exited")
}

// countCrash counts a worker of the newest release that ended before it finished a job.
func (w *Workers) countCrash(d *desk, s *scene, p *fleet.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k := d.workers[p.ID]; p.Release != s.version || k != nil && k.done {
		return
	}
	at := cmp.Or(p.EndedAt, s.now)
	if d.crashes++; d.crashes == 1 {
		d.first = at
	}
	d.crashed, d.crash = at, endOf(p)
	w.Log.Warn("a worker crashed", "endpoint", d.id, "pod", p.ID, "in_a_row", d.crashes, "reason", p.Reason)
}

// worked ends the count of crashes.
func (d *desk) worked() { d.crashes, d.first, d.crash = 0, time.Time{}, "" }

// renew begins the count of crashes anew for another release.
func (w *Workers) renew(d *desk, version uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.version != version {
		d.version = version
		d.worked()
	}
}

// stopJobs tells hosts of the jobs whose results nobody wants any more.
func (w *Workers) stopJobs(d *desk, s *scene) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range s.pods {
		k := d.worker(p.ID, s.now)
		k.ending = k.ending && (p.Goal != fleet.GoalRun || !p.Frozen.IsZero()) // else it was not ended
		for id, of := range k.given {
			if of.at > s.told || slices.Contains(s.running[p.ID], id) {
				continue
			}
			delete(k.given, id)
			if !of.back && k.line != nil {
				k.line.queue(message{pod: p.ID, job: id, stop: true})
			}
		}
		if has := len(s.running[p.ID]) > 0; has != k.busy && !k.ahead(s) {
			k.busy, k.since = has, s.now
		}
	}
	return nil
}

// give gives waiting jobs to workers that want some: to those of the newest release first, the longest idle first, one to each in turn.
func (w *Workers) give(ctx context.Context, d *desk, s *scene) error {
	w.mu.Lock()
	var free []*fleet.Pod
	slots := map[fleet.PodID]int{}
	for _, p := range s.pods {
		k := d.workers[p.ID]
		w.retell(k, p.ID, s.running[p.ID])
		if k.asks(p, s.lost[p.ID]) {
			free, slots[p.ID] = append(free, p), k.slots-k.offered
		}
	}
	slices.SortFunc(free, d.before)
	take := map[fleet.PodID]int{}
	for left := s.counts.Waiting + s.counts.WaitingLow; left > 0; {
		before := left
		for _, p := range free {
			if left > 0 && take[p.ID] < slots[p.ID] {
				take[p.ID]++
				left--
			}
		}
		if left == before {
			break
		}
	}
	var cmds []jobs.Command
	var offers []*offer
	for _, p := range free {
		if n := take[p.ID]; n > 0 {
			o := d.workers[p.ID].offer(p.ID, n)
			cmds, offers = append(cmds, o.take(queue.At(s.now), d.id)), append(offers, o)
		}
	}
	w.mu.Unlock()
	if len(cmds) == 0 {
		return nil
	}
	results, err := w.propose(ctx, cmds...)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, o := range offers {
		var taken []jobs.Job
		if len(results) > 0 {
			taken, _ = results[i].Value.([]jobs.Job)
		}
		w.accept(d, o, taken, err == nil || fleet.NothingDone(err))
		for _, j := range taken {
			s.running[o.pod] = append(s.running[o.pod], j.ID)
		}
		s.counts.InProgress += len(taken)
		s.counts.Waiting = max(0, s.counts.Waiting-len(taken))
	}
	return err
}

// frozenFor is how long a worker that idled out stays frozen, unless another pod needs its place.
var frozenFor = map[fleet.FlashBoot]time.Duration{fleet.FlashBootOn: time.Hour, fleet.FlashBootPriority: 6 * time.Hour}

// input is what a decision about the number of workers depends on.
func (w *Workers) input(d *desk, s *scene) scale.Input {
	spec := &s.spec
	in := scale.Input{
		Now: s.now, Room: s.room,
		Policy: scale.Policy{
			Min: spec.Workers.Min, Max: spec.Workers.Max, Idle: time.Duration(spec.Workers.Idle) * time.Second, Freeze: frozenFor[spec.FlashBoot],
		},
		Load:    scale.Load{Waiting: s.counts.Waiting, InProgress: s.counts.InProgress, Oldest: s.oldest},
		Crashes: d.crashes, Crashed: d.crashed, NoRoom: d.noRoom,
	}
	if spec.Scaler.Type == fleet.ScaleByRequests {
		in.Policy.Requests = int(spec.Scaler.Value)
	} else {
		in.Policy.Delay = time.Duration(spec.Scaler.Value * float64(time.Second))
	}
	if s.balances {
		w.balanced(d, s, &in)
		return in
	}
	for _, p := range s.pods {
		k := d.workers[p.ID]
		one := scale.Worker{
			ID: p.ID, Since: k.since, Created: p.CreatedAt, Stale: p.Release != s.version || s.drained[p.ID], Drained: s.drained[p.ID], State: scale.Initializing,
		}
		switch {
		case s.lost[p.ID]: // others take its place; it counts again when its host is back
			continue
		case p.Goal != fleet.GoalRun || d.leaves(p, s):
			in.Ending++
			continue
		case len(s.running[p.ID]) > 0 || k.ahead(s): // one that is frozen nevertheless is thawed
			one.State = scale.Running
		case !p.Frozen.IsZero():
			one.State, one.Since = scale.Frozen, p.Frozen
		case !p.Ready.IsZero():
			one.State = scale.Idle
		}
		in.Workers = append(in.Workers, one)
	}
	return in
}

// leaves reports whether a worker that asked to be replaced has no job any more.
func (d *desk) leaves(p *fleet.Pod, s *scene) bool {
	k := d.workers[p.ID]
	return k.leave && len(s.running[p.ID]) == 0 && !k.ahead(s)
}

// scale starts and ends workers.
func (w *Workers) scale(ctx context.Context, d *desk, s *scene) (next time.Time, err error) {
	w.mu.Lock()
	plan := scale.Decide(w.input(d, s))
	d.limit = plan.Limit
	if plan.Start == 0 && len(plan.Thaw) == 0 && plan.Limit != scale.NoCapacity {
		d.refused = "" // nobody wants more
	}
	var end, freeze, thaw []*fleet.Pod
	for _, p := range s.pods {
		switch {
		case p.Goal != fleet.GoalRun:
		case slices.Contains(plan.Thaw, p.ID) || !p.Frozen.IsZero() && w.wanted(s, p.ID):
			thaw = append(thaw, p)
		case s.balances && (slices.Contains(plan.Freeze, p.ID) || slices.Contains(plan.End, p.ID)) && !w.closed(d, s, p):
			s.until = earlier(s.until, s.now.Add(again)) // it finishes what it has
			continue
		case slices.Contains(plan.Freeze, p.ID):
			freeze = append(freeze, p)
		}
		if p.Goal == fleet.GoalRun && (d.leaves(p, s) || slices.Contains(plan.End, p.ID)) {
			end = append(end, p)
		}
	}
	for _, p := range slices.Concat(end, freeze) {
		d.workers[p.ID].ending = true // so that nobody gives it a job meanwhile
	}
	w.mu.Unlock()
	var errs []error
	for _, p := range end {
		errs = append(errs, w.Pods.EndWorker(ctx, p))
	}
	for _, p := range freeze {
		err := w.Pods.FreezeWorker(ctx, p)
		if errs = append(errs, err); err == nil && s.balances {
			w.reopen(d, p.ID)
		}
	}
	for _, p := range thaw {
		err := w.Pods.ThawWorker(ctx, p)
		if err == nil {
			w.mu.Lock()
			k := d.worker(p.ID, s.now)
			k.since, k.spare, k.closing = w.Now(), w.Now(), 0
			w.mu.Unlock()
			continue
		}
		if !w.refused(d, &plan, err) {
			errs = append(errs, err)
		}
	}
	for range plan.Start {
		_, err := w.Pods.StartWorker(ctx, d.id)
		if err == nil {
			w.mu.Lock()
			d.refused = ""
			w.mu.Unlock()
			continue
		}
		if !w.refused(d, &plan, err) {
			errs = append(errs, err)
		}
		break
	}
	hopeless, err := w.giveUp(ctx, d, s)
	return earlier(plan.Again, hopeless), errors.Join(append(errs, err)...)
}

// refused notes that no worker can be had now, and reports whether that is for a reason that its owner or time may change.
func (w *Workers) refused(d *desk, plan *scale.Plan, err error) bool {
	w.mu.Lock()
	d.noRoom, d.refused = w.Now(), refusal(err)
	w.mu.Unlock()
	if !fleet.RefusedForNow(err) {
		return false
	}
	plan.Again = earlier(plan.Again, w.Now().Add(scale.RoomPause))
	return true
}

// giveUp fails the jobs that wait when no worker has worked for as long as the endpoint's owner said; it returns when that will be.
func (w *Workers) giveUp(ctx context.Context, d *desk, s *scene) (when time.Time, err error) {
	w.mu.Lock()
	since, why := d.first, "workers crash: "+d.crash
	if d.crashes == 0 {
		since = time.Time{}
	}
	for _, p := range s.pods {
		if since.IsZero() && !p.Waiting.IsZero() {
			since, why = p.Waiting, w.trouble(p)
		}
		if !p.Ready.IsZero() && p.Release == s.version {
			since = time.Time{}
			break
		}
	}
	w.mu.Unlock()
	if since.IsZero() || s.spec.FailAfter == 0 || s.counts.Waiting+s.counts.WaitingLow == 0 {
		return when, nil
	}
	if when = since.Add(time.Duration(s.spec.FailAfter) * time.Second); when.After(s.now) {
		return when, nil
	}
	for {
		n, err := jobs.One[int](ctx, w.Jobs, jobs.Purge{Purge: queue.Purge{At: queue.At(s.now), Endpoint: d.id, Max: maxSwept, Failed: why}})
		if err != nil || n < maxSwept {
			return time.Time{}, err
		}
	}
}

// earlier returns the earlier of two moments; zero: never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
