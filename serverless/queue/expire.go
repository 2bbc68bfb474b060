package queue

import (
	"math"
	"slices"

	"gantry/fleet"
)

const (
	// toldWithin is how long an ended job is kept for its webhook (milliseconds), even if its time is over: the
	// calls are 10 s apart, and a change of leader may come between them.
	toldWithin = 5 * 60 * 1000
	// maxExpired is how many jobs a Take deletes on its way.
	maxExpired = 1000
	// maxListed is how many jobs List looks at.
	maxListed = 10_000
)

// end is when the job is deleted in any state.
func (j *Job) end() Millis { return j.Submitted + Millis(j.Policy.Life) }

// untold says that the webhook has to be called still.
func (j *Job) untold() bool { return j.Policy.Webhook && !j.Run.Told }

// unsettled says that what the job cost has to be charged still, or the hold for it released.
func (j *Job) unsettled() bool { return j.Sale != nil && !j.Sale.Settled }

// over is when an ended job is not shown any more.
func (j *Job) over() Millis { return min(j.end(), j.Run.Ended+Millis(j.Policy.Retention)) }

// kept is until when an ended job is here.
func (j *Job) kept() Millis {
	if j.unsettled() {
		return math.MaxInt64
	}
	if j.untold() {
		return max(j.over(), j.Run.Ended+toldWithin)
	}
	return j.over()
}

// Expired reports whether the job is over, so that nobody is to see it, though Expire may not have deleted it yet.
func (j *Job) Expired(at Millis) bool {
	if j.Status.Ended() {
		return at >= j.over()
	}
	return at >= j.end()
}

// Expire does what is due.
type Expire struct {
	At  Millis `cbor:"1,keyasint"`
	Max int    `cbor:"2,keyasint"` // jobs in one command
}

// Expire ends attempts that took too long, deletes jobs whose time is over, and returns how many it changed.
func (q *Queue) Expire(c Expire) int {
	for n := range c.Max {
		j := q.due.first()
		if j == nil || j.Due > c.At {
			return n
		}
		if j.Status == InProgress && !j.Expired(c.At) {
			q.touch(j)
			j.Run.Error = "executionTimeout exceeded"
			q.end(j, TimedOut, c.At)
		} else {
			q.delete(j)
		}
	}
	return c.Max
}

// NextDue returns when Expire has something to do; zero: never.
func (q *Queue) NextDue() Millis {
	if j := q.due.first(); j != nil {
		return j.Due
	}
	return 0
}

// Purge ends jobs that wait.
type Purge struct {
	At       Millis           `cbor:"1,keyasint"`
	Endpoint fleet.EndpointID `cbor:"2,keyasint"`
	Max      int              `cbor:"3,keyasint"` // jobs in one command
	// Failed is empty for a user's purge, which cancels the jobs. Otherwise they fail with this reason.
	Failed string `cbor:"4,keyasint,omitempty"`
	// Before, when set, spares the jobs that were submitted at it or later.
	Before Millis `cbor:"5,keyasint,omitempty"`
}

// Purge ends the first of the waiting jobs, and returns how many.
func (q *Queue) Purge(c Purge) int {
	e := q.endpoints[c.Endpoint]
	if e == nil {
		return 0
	}
	for n := range c.Max {
		j := e.waiting.first()
		if j == nil || c.Before != 0 && j.Submitted >= c.Before {
			return n
		}
		q.touch(j)
		if c.Failed == "" {
			j.run().Reason = "the queue was purged"
			q.end(j, Cancelled, c.At)
		} else {
			j.run().Error, j.Run.Reason = c.Failed, c.Failed
			q.end(j, Failed, c.At)
		}
	}
	return c.Max
}

// Forget deletes jobs of an endpoint that is no more.
type Forget struct {
	Endpoint fleet.EndpointID `cbor:"1,keyasint"`
	Max      int              `cbor:"2,keyasint"` // jobs in one command
}

// Forget deletes the oldest jobs, in any state but those that have to be settled, and reports whether no others are left.
func (q *Queue) Forget(c Forget) bool {
	e := q.endpoints[c.Endpoint]
	if e == nil {
		return true
	}
	var some []*Job
	for _, j := range e.jobs {
		if len(some) == c.Max {
			break
		}
		if _, waits := q.unsettled[j.ID]; q.jobs[j.ID] == j && !waits {
			some = append(some, j)
		}
	}
	for _, j := range some {
		q.delete(j)
	}
	if len(e.jobs) > e.deleted {
		return len(some) < c.Max
	}
	delete(q.endpoints, e.id)
	return true
}

// delete takes a job away in any state.
func (q *Queue) delete(j *Job) {
	e := j.endpoint
	q.leave(j)
	q.due.remove(j)
	delete(q.jobs, j.ID)
	q.note(j)
	if e.deleted++; e.deleted > len(e.jobs)/2 {
		e.jobs = slices.DeleteFunc(e.jobs, func(j *Job) bool { return q.jobs[j.ID] != j })
		e.deleted = 0
	}
	q.hold(e, -j.bytes())
	q.drop(j.Input)
	if j.Run != nil {
		q.drop(j.Run.Output)
		for _, b := range j.Run.Chunks {
			q.drop(b)
		}
	}
	q.changed(j)
}

// enter counts the job where it is now; leave is its opposite, and comes before a change of Status.
func (q *Queue) enter(j *Job) {
	q.note(j)
	e := j.endpoint
	switch j.Status {
	case InQueue:
		e.waiting.add(j)
		e.count(j, 1)
	case InProgress:
		q.running[j.Worker()] = append(q.running[j.Worker()], j)
		e.workers[j.Worker()]++
		e.counts.InProgress++
	}
}

func (q *Queue) leave(j *Job) {
	q.touch(j)
	e := j.endpoint
	switch j.Status {
	case InQueue:
		e.waiting.remove(j)
		e.count(j, -1)
	case InProgress:
		w := j.Worker()
		if q.running[w] = slices.DeleteFunc(q.running[w], func(r *Job) bool { return r == j }); len(q.running[w]) == 0 {
			delete(q.running, w)
		}
		if e.workers[w]--; e.workers[w] == 0 {
			delete(e.workers, w)
		}
		e.counts.InProgress--
	}
}

func (e *endpoint) count(j *Job, by int) {
	if j.Policy.Low {
		e.counts.WaitingLow += by
	} else {
		e.counts.Waiting += by
	}
}

// hold counts bytes of an endpoint's jobs.
func (q *Queue) hold(e *endpoint, bytes int64) {
	if q.bytes[e.account] += bytes; q.bytes[e.account] == 0 {
		delete(q.bytes, e.account)
	}
}

func (q *Queue) setDue(j *Job, due Millis) {
	j.Due = due
	q.due.fix(j)
}

func (j *Job) run() *Run {
	if j.Run == nil {
		j.Run = &Run{}
	}
	return j.Run
}
