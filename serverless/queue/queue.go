package queue

import (
	"fmt"
	"maps"
	"slices"
	"sort"

	"gantry/fleet"
)

// Queue has the jobs of many endpoints. Commands are its methods with a command as their argument; they and the
// readers must not run at the same time.
type Queue struct {
	// Drop, when set, is told of each body that no job refers to any more.
	Drop func(Body)
	// Changed, when set, is told of each job that was submitted, changed or deleted. Get tells which.
	Changed func(*Job)

	jobs      map[ID]*Job
	endpoints map[fleet.EndpointID]*endpoint
	running   map[fleet.PodID][]*Job // in the order in which they were taken
	bytes     map[fleet.AccountID]int64
	untold    map[ID]struct{}
	unsettled map[ID]struct{}
	due       heap
	captures  []*Capture
}

type endpoint struct {
	id      fleet.EndpointID
	account fleet.AccountID
	seq     uint64 // of the last job
	counts  Counts
	workers map[fleet.PodID]int // how many jobs each of them runs
	waiting heap                // by priority and Seq
	jobs    []*Job              // by Seq, some of them deleted
	deleted int                 // of jobs
}

// New returns a queue without jobs.
func New() *Queue {
	return &Queue{
		jobs:      map[ID]*Job{},
		endpoints: map[fleet.EndpointID]*endpoint{},
		running:   map[fleet.PodID][]*Job{},
		bytes:     map[fleet.AccountID]int64{},
		untold:    map[ID]struct{}{},
		unsettled: map[ID]struct{}{},
		due: heap{
			less: func(a, b *Job) bool {
				return a.Due < b.Due || a.Due == b.Due && string(a.ID[:]) < string(b.ID[:])
			},
			index: func(j *Job) *int32 { return &j.dueAt },
		},
	}
}

func (q *Queue) endpoint(id fleet.EndpointID, account fleet.AccountID) *endpoint {
	e := q.endpoints[id]
	if e == nil {
		e = &endpoint{id: id, account: account, workers: map[fleet.PodID]int{}, waiting: heap{
			less: func(a, b *Job) bool {
				if a.Policy.Low != b.Policy.Low {
					return b.Policy.Low
				}
				return a.Seq < b.Seq
			},
			index: func(j *Job) *int32 { return &j.waitAt },
		}}
		q.endpoints[id] = e
	}
	return e
}

// Submit adds a job that waits.
type Submit struct {
	At       Millis           `cbor:"1,keyasint"`
	ID       ID               `cbor:"2,keyasint"`
	Endpoint fleet.EndpointID `cbor:"3,keyasint"`
	Account  fleet.AccountID  `cbor:"4,keyasint"`
	Policy   Policy           `cbor:"5,keyasint"`
	Input    Body             `cbor:"6,keyasint"`
	// MaxWaiting is how many jobs may wait at the endpoint, and MaxBytes what all bodies of the account may have,
	// this job included.
	MaxWaiting int   `cbor:"7,keyasint"`
	MaxBytes   int64 `cbor:"8,keyasint"`
	Sale       *Sale `cbor:"9,keyasint,omitempty"` // see Job
}

// Submit returns the new job. Errors: exists (with the job that has this id), rate_limited. After an error the
// input is not referred to.
func (q *Queue) Submit(c Submit) (*Job, error) {
	if j := q.jobs[c.ID]; j != nil {
		return j, &fleet.Error{Code: fleet.CodeExists, Msg: "there is a job of this id"}
	}
	if e := q.endpoints[c.Endpoint]; e != nil && e.waiting.Len() >= c.MaxWaiting {
		return nil, limited("%d jobs wait at this endpoint, which is the most that may", e.waiting.Len())
	}
	if has := q.bytes[c.Account]; has+c.Input.Size > c.MaxBytes {
		return nil, limited("the jobs of this account hold %d bytes; with this one they would hold more than %d", has, c.MaxBytes)
	}
	e := q.endpoint(c.Endpoint, c.Account)
	e.seq++
	j := &Job{ID: c.ID, Policy: c.Policy, Seq: e.seq, Submitted: c.At, Input: c.Input, Sale: cloneSale(c.Sale), endpoint: e, waitAt: -1, dueAt: -1}
	q.jobs[j.ID] = j
	e.jobs = append(e.jobs, j)
	q.hold(e, c.Input.Size)
	j.Due = j.end()
	q.due.add(j)
	q.enter(j)
	q.changed(j)
	return j, nil
}

func limited(format string, args ...any) error {
	return &fleet.Error{Code: fleet.CodeLimited, Msg: fmt.Sprintf(format, args...), NothingDone: true}
}

// Take gives jobs to a worker.
type Take struct {
	At       Millis           `cbor:"1,keyasint"`
	Endpoint fleet.EndpointID `cbor:"2,keyasint"`
	Worker   fleet.PodID      `cbor:"3,keyasint"`
	Max      int              `cbor:"4,keyasint"`
}

// Take returns the jobs that the worker has now besides those that it had: the first of the endpoint, at most Max.
func (q *Queue) Take(c Take) []*Job {
	e := q.endpoints[c.Endpoint]
	if e == nil {
		return nil
	}
	var taken []*Job
	// Few of those that have expired at this moment are still here, but one command must not meet all of them.
	for expired := 0; len(taken) < c.Max && expired < maxExpired; {
		j := e.waiting.first()
		if j == nil {
			break
		}
		if j.Expired(c.At) {
			q.delete(j)
			expired++
			continue
		}
		q.leave(j)
		r := j.run()
		r.Workers, r.Started, j.Status = append(r.Workers, c.Worker), c.At, InProgress
		q.enter(j)
		q.setDue(j, min(j.end(), c.At+Millis(j.Policy.Execution)))
		q.changed(j)
		taken = append(taken, j)
	}
	return taken
}

// Get returns a job, or nil. A job that Expired stays until Expire has found it.
func (q *Queue) Get(id ID) *Job { return q.jobs[id] }

// Len returns how many jobs there are.
func (q *Queue) Len() int { return len(q.jobs) }

// Counts returns the numbers of an endpoint's jobs.
func (q *Queue) Counts(id fleet.EndpointID) Counts {
	if e := q.endpoints[id]; e != nil {
		return e.counts
	}
	return Counts{}
}

// Next returns the job that is taken next at an endpoint, or nil.
func (q *Queue) Next(id fleet.EndpointID) *Job {
	if e := q.endpoints[id]; e != nil {
		return e.waiting.first()
	}
	return nil
}

// Before returns how many jobs wait that are taken before a waiting one, at most: it does not know of those that left
// from their midst.
func (q *Queue) Before(j *Job) int {
	e := j.endpoint
	if j.Policy.Low {
		return e.waiting.Len() - 1
	}
	return min(e.counts.Waiting-1, int(j.Seq-e.waiting.first().Seq))
}

// Running returns the jobs that a worker has, in the order in which it took them.
func (q *Queue) Running(w fleet.PodID) []*Job { return slices.Clone(q.running[w]) }

// Untold returns the jobs that ended and whose webhook needs a call, in no order.
func (q *Queue) Untold() []ID { return slices.Collect(maps.Keys(q.untold)) }

// Unsettled returns up to limit jobs that ended and whose holds have to be ended, in no order.
func (q *Queue) Unsettled(limit int) (ids []ID) {
	for id := range q.unsettled {
		if len(ids) == limit {
			break
		}
		ids = append(ids, id)
	}
	return ids
}

// Workers returns who has jobs of an endpoint, in no order.
func (q *Queue) Workers(id fleet.EndpointID) []fleet.PodID {
	e := q.endpoints[id]
	if e == nil {
		return nil
	}
	return slices.Collect(maps.Keys(e.workers))
}

// Bytes returns what the bodies of an account's jobs hold.
func (q *Queue) Bytes(a fleet.AccountID) int64 { return q.bytes[a] }

// Endpoints returns the endpoints that have jobs or had some, by id.
func (q *Queue) Endpoints() []fleet.EndpointID { return slices.Sorted(maps.Keys(q.endpoints)) }

// List returns the jobs of an endpoint that keep accepts, the newest first, at most limit, with the Seq to go on
// before. before 0 begins; a next of 0 says that there are no more. It looks at maxListed jobs at most, so a page may be short.
func (q *Queue) List(id fleet.EndpointID, before uint64, limit int, keep func(*Job) bool) (page []*Job, next uint64) {
	e := q.endpoints[id]
	if e == nil {
		return nil, 0
	}
	i := len(e.jobs)
	if before > 0 {
		i = e.find(before)
	}
	for looked := 0; i > 0; looked++ {
		if len(page) == limit || looked == maxListed {
			return page, e.jobs[i].Seq
		}
		i--
		if j := e.jobs[i]; q.jobs[j.ID] == j && keep(j) {
			page = append(page, j)
		}
	}
	return page, 0
}

// find returns the index of the first of the endpoint's jobs with at least this Seq.
func (e *endpoint) find(seq uint64) int {
	return sort.Search(len(e.jobs), func(i int) bool { return e.jobs[i].Seq >= seq })
}
