package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/jobs"
	"gantry/serverless/queue"
)

// taskNote is what happened to a job outside of the schedulers.
type taskNote struct {
	holders map[*program]bool // that are at it
	taken   int               // how often a worker was given it
	again   int               // how often a user asked for a retry
	told    fleet.PodID       // the worker that was told that its success is kept; empty: none
}

// noteOf calls fn with a job's note.
func (w *world) noteOf(id string, fn func(n *taskNote)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.tasks[id]
	if n == nil {
		n = &taskNote{holders: map[*program]bool{}}
		w.tasks[id] = n
	}
	fn(n)
}

// took implements watcher: a job is with one worker at a time, as far as anybody can know.
func (w *world) took(p *program, text string) {
	w.log.Info("a worker has a job", "at", p.m.name, "pod", p.id, "job", text)
	id, _ := jobs.ParseID(text)
	job, known := w.jobsNow().jobs[id]
	var wrong string
	w.noteOf(text, func(n *taskNote) {
		for other := range n.holders {
			if known && other != p && other.gone.Err() == nil && n.again == 0 && job.Status == queue.InProgress && job.Worker() == p.id &&
				!slices.Contains(job.Run.Workers[:job.Attempt()-1], other.id) {
				wrong = fmt.Sprintf("is given to %s while %s is at it, and nobody counts with that", p.id, other.id)
			}
		}
		n.holders[p] = true
		if n.taken++; known && n.taken > (int(job.Policy.Retries)+1)*(n.again+1) {
			wrong = fmt.Sprintf("is given to a worker for the %d. time, with %d retries, and %d of a user", n.taken, job.Policy.Retries, n.again)
		}
	})
	if wrong != "" {
		w.broke("jobs: %s %s: %+v", text, wrong, job.Run)
	}
}

// answered implements watcher.
func (w *world) answered(p *program, text string, status int, success bool) {
	w.log.Info("a worker has an answer", "at", p.m.name, "pod", p.id, "job", text, "status", status, "success", success)
	w.noteOf(text, func(n *taskNote) {
		if status == http.StatusOK && success && n.holders[p] {
			n.told = p.id
		}
		if status < http.StatusInternalServerError {
			delete(n.holders, p)
		}
	})
}

// unanswered implements watcher.
func (w *world) unanswered(p *program, text string, after time.Duration, err error) {
	w.log.Info("a worker has no answer", "at", p.m.name, "pod", p.id, "job", text, "after", after, "err", err)
}

// dropped implements watcher.
func (w *world) dropped(p *program, text string) {
	w.noteOf(text, func(n *taskNote) { delete(n.holders, p) })
}

// froze implements watcher.
func (w *world) froze(id fleet.PodID, frozen bool) {
	w.log.Info("a worker is frozen, or thawed", "pod", id, "frozen", frozen)
	if frozen {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.frozen++
	}
}

// forgetJobs is what a restore does: all jobs are gone.
func (w *world) forgetJobs() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backlog, w.tasks = backlog{}, map[string]*taskNote{}
}

// workload is what a checker knows of jobs. The driver's tally guards it.
type workload struct {
	past         backlog                     // as it was seen last
	ackedJobs    map[string]fleet.EndpointID // that users were told of
	deleted      map[fleet.EndpointID]bool   // that somebody asked to delete
	ledger       map[fleet.EndpointID]*account
	compared     time.Time                 // when the schedulers were
	zero         map[fleet.EndpointID]bool // endpoints that had workers, and have none; false: they have some
	backFromZero int                       // how often one had workers again
}

func newWorkload() workload {
	return workload{
		ackedJobs: map[string]fleet.EndpointID{}, deleted: map[fleet.EndpointID]bool{}, zero: map[fleet.EndpointID]bool{},
		ledger: map[fleet.EndpointID]*account{},
	}
}

// passed reports whether a job may be gone: its time is over, or its endpoint's; the caller holds tally.
func (c *checker) passed(text string) bool {
	id, _ := jobs.ParseID(text)
	old, seen := c.past.jobs[id]
	return c.deleted[c.ackedJobs[text]] || seen && old.Expired(queue.At(time.Now().Add(time.Second)))
}

// worked checks the jobs: those that went in are there or ended, once each, and what a worker was told is so.
func (c *checker) worked() {
	if !c.w.serverless {
		return
	}
	jobsNow := c.w.jobsNow()
	for id, old := range c.past.jobs {
		c.job(old, jobsNow, id)
	}
	for text := range c.ackedJobs {
		id, _ := jobs.ParseID(text)
		if _, there := jobsNow.jobs[id]; there {
			continue
		}
		if !c.passed(text) {
			c.w.broke("jobs: %s was accepted and is not there", text)
		}
		delete(c.ackedJobs, text) // its time is over
	}
	c.counted(jobsNow)
	c.balanced(jobsNow)
	c.kepts(jobsNow)
	c.past = jobsNow
	c.sameJobs()
}

// job checks what became of one.
func (c *checker) job(old task, now backlog, id queue.ID) {
	text := jobs.IDText(id, old.Policy.Sync)
	again := 0
	c.w.noteOf(text, func(n *taskNote) { again = n.again })
	is, there := now.jobs[id]
	switch {
	case !there && !c.deleted[old.endpoint] && !old.Expired(queue.At(time.Now().Add(time.Second))):
		c.w.broke("jobs: %s of endpoint %s is gone before its time: %+v", text, old.endpoint, old.Job)
	case !there:
	case is.endpoint != old.endpoint || is.Seq != old.Seq:
		c.w.broke("jobs: %s is another one now: %+v", text, is.Job)
	case old.Status.Ended() && again == 0 && (is.Status != old.Status || is.Run.Ended != old.Run.Ended || is.Run.Output.Size != old.Run.Output.Size):
		c.w.broke("jobs: %s was %s and is %s: it ended twice", text, old.Status, is.Status)
	case is.Attempt() > int(is.Policy.Retries)+1:
		c.w.broke("jobs: %s was given out %d times, with %d retries", text, is.Attempt(), is.Policy.Retries)
	}
}

// counted checks that the numbers of an endpoint's jobs are those of its jobs.
func (c *checker) counted(now backlog) {
	is := map[fleet.EndpointID]queue.Counts{}
	for _, j := range now.jobs {
		n := is[j.endpoint]
		switch {
		case j.Status == queue.InProgress:
			n.InProgress++
		case j.Status == queue.InQueue && j.Policy.Low:
			n.WaitingLow++
		case j.Status == queue.InQueue:
			n.Waiting++
		}
		is[j.endpoint] = n
	}
	for id, said := range now.counts {
		if n := is[id]; n.Waiting != said.Waiting || n.WaitingLow != said.WaitingLow || n.InProgress != said.InProgress {
			c.w.broke("jobs: endpoint %s counts %+v, and has %+v", id, said, n)
		}
	}
}

// account is what was seen of the jobs of an endpoint.
type account struct {
	seen map[queue.ID]queue.Status // of all jobs that were ever there, as they were seen last
	last uint64                    // the highest number that one of them has
}

// balanced checks that as many jobs went in as ended, run or wait, and each of them once.
func (c *checker) balanced(now backlog) {
	for id, j := range now.jobs {
		a := c.ledger[j.endpoint]
		if a == nil {
			a = &account{seen: map[queue.ID]queue.Status{}}
			c.ledger[j.endpoint] = a
		}
		a.seen[id], a.last = j.Status, max(a.last, j.Seq)
	}
	for id, counts := range now.counts {
		a := c.ledger[id]
		if a == nil || c.deleted[id] {
			continue
		}
		completed := uint64(0)
		for _, status := range a.seen {
			if status == queue.Completed {
				completed++
			}
		}
		if a.last != uint64(len(a.seen)) || counts.Completed != completed {
			c.w.broke("jobs: endpoint %s was given %d jobs, of which %d were seen; it counts %d as completed, and %d were seen so",
				id, a.last, len(a.seen), counts.Completed, completed)
		}
	}
}

// breathes notes which endpoints went to no worker, and came back.
func (c *checker) breathes(now picture) {
	have := map[fleet.EndpointID]int{}
	for _, p := range now.pods {
		if p.Owner.Kind == fleet.OwnerEndpoint && p.Status == fleet.StatusRunning && !p.Ready.IsZero() && p.Frozen.IsZero() {
			have[fleet.EndpointID(p.Owner.ID)]++
		}
	}
	for _, e := range now.endpoints {
		empty, had := c.zero[e.ID]
		switch {
		case have[e.ID] > 0:
			if empty {
				c.backFromZero++
			}
			c.zero[e.ID] = false
		case had:
			c.zero[e.ID] = true
		}
	}
}

// kepts checks that no result is lost of which a worker was told that it is kept.
func (c *checker) kepts(now backlog) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	for text, n := range c.w.tasks {
		id, _ := jobs.ParseID(text)
		if j, there := now.jobs[id]; there && n.told != "" && n.again == 0 && !j.Status.Ended() {
			c.w.faults = append(c.w.faults, fmt.Sprintf("jobs: worker %s was told that the result of %s is kept; it is %s: %+v", n.told, text, j.Status, j.Run))
			n.told = ""
		}
	}
}

// sameJobs compares what schedulers have that are at one index: I7.
func (c *checker) sameJobs() {
	const every = 15 * time.Second
	if time.Since(c.compared) < every {
		return
	}
	c.compared = time.Now()
	texts := map[uint64]string{}
	for _, p := range c.w.living() {
		b := readJobs(p.jobs.Jobs)
		text := b.text()
		if other, known := texts[b.index]; known && other != text {
			c.w.broke("I7: %s has other jobs at index %d than others have:\n%s\n%s", p.name, b.index, text, other)
		}
		texts[b.index] = text
	}
}

// idle tells which jobs and endpoints are not as they should be in the end.
func (c *checker) idle(now picture) (wrong []string) {
	p := c.w.scheduler()
	if !c.w.serverless || p == nil {
		return nil
	}
	if jobsLead, ok := p.jobs.Leader(); !ok || jobsLead.ID != p.id {
		wrong = append(wrong, fmt.Sprintf("%s leads, and %s leads the jobs' group", p.name, jobsLead.ID))
	}
	backlog := c.w.jobsNow()
	for _, other := range c.w.living() {
		if at := other.jobs.Jobs.Index(); at != backlog.index {
			wrong = append(wrong, fmt.Sprintf("%s has the jobs up to %d of %d", other.name, at, backlog.index))
		}
	}
	for id, j := range backlog.jobs {
		waits := j.Status == queue.InQueue && (j.Policy.Low || roomless(p.workers.Why(j.endpoint, 0))) // nobody starts a worker for one of low priority
		if !j.Status.Ended() && !waits {
			wrong = append(wrong, fmt.Sprintf("job %s of endpoint %s is %s (%s): %+v",
				jobs.IDText(id, j.Policy.Sync), j.endpoint, j.Status, p.workers.Why(j.endpoint, 0), j.Run))
		}
	}
	version := map[fleet.EndpointID]uint64{}
	for _, e := range now.endpoints {
		version[e.ID] = e.Version()
	}
	all, fresh := map[fleet.EndpointID]int{}, map[fleet.EndpointID]int{}
	for _, pod := range now.pods {
		if pod.Owner.Kind != fleet.OwnerEndpoint || pod.Status != fleet.StatusRunning || pod.Goal != fleet.GoalRun || !pod.Frozen.IsZero() {
			continue
		}
		id := fleet.EndpointID(pod.Owner.ID)
		if all[id]++; pod.Release == version[id] {
			fresh[id]++
		}
	}
	for _, e := range now.endpoints { // the last of an earlier release stays while none of the newest has shown that it works
		why := p.workers.Why(e.ID, -1)
		if least := e.Spec.Workers.Min; (all[e.ID] < least || fresh[e.ID] > least) && !roomless(why) {
			wrong = append(wrong, fmt.Sprintf("endpoint %s has %d workers, %d of them of its newest release, and nothing to do: %d are wanted (%s)",
				e.ID, all[e.ID], fresh[e.ID], least, why))
		}
	}
	return wrong
}

// roomless reports whether a reason says that no worker can be had.
func roomless(why string) bool {
	return strings.HasPrefix(why, "no capacity") || strings.HasPrefix(why, "no worker could be started")
}
