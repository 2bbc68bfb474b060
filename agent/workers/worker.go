package workers

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// worker is what one incarnation of a pod has said and was told. Its gate's mutex guards it.
type worker struct {
	gate        *Gate
	id          fleet.PodID
	incarnation uint64
	bytes       *semaphore.Weighted
	ctx         context.Context
	end         context.CancelFunc
	draining    chan struct{} // closed: all polls are answered at once

	known   bool          // all of its jobs are in jobs; not so after a restart of the agent, until a JobsHeld
	sure    chan struct{} // closed when known
	polls   []*poll       // open, newest last
	leases  []*lease
	waiting []*job // given, for the next poll
	jobs    map[string]*job
	late    []late // jobs that it had and the cluster counts with no more, the oldest first
	strange int    // jobs that a worker that began before the agent spoke of, and nobody knew
	told    int    // slots, that the scheduler counts with
	ready   bool   // it asked for a job, and the scheduler of this stream was told

	pings  []ping // the last two
	stops  []*stop
	asks   []chan []string // open polls for stops
	stoppy bool            // it has asked what to stop
	old    bool            // it began before the agent
	frozen bool
}

// poll is an open poll for jobs.
type poll struct {
	slots int
	got   chan []*job // has room for what it is answered with; nil: to ask again
}

// lease keeps the slots of a poll that was answered until the worker has had the time to ask again.
type lease struct{ slots int }

// job is one that a worker has, or is about to have.
type job struct {
	id      string
	attempt uint32 // 0: not known yet
	chunks  uint32 // of the attempt, that were kept
	body    []byte // until the worker has it
	taken   time.Time
	giveUp  *time.Timer   // while it waits for a poll
	turn    chan struct{} // held by the one report that is under way
	busy    int           // requests about it that are being read or answered
	final   *report       // ends it
	late    bool          // only a success counts still
}

// late is an attempt that was given up while the worker may be at it. The queue takes its success if the job has not ended.
type late struct {
	id      string
	attempt uint32 // 0: not known
	ended   bool   // its end was kept
}

// giveUp forgets a job, but for its success if it has not ended.
func (w *worker) giveUp(j *job) {
	if w.jobs[j.id] == j {
		delete(w.jobs, j.id)
	}
	if w.late = append(w.late, late{j.id, j.attempt, j.final != nil && j.final.kind != agentrpc.JobReport_LOST}); len(w.late) > maxLate {
		w.late = w.late[1:]
	}
}

// recall returns a job that was given up, nil if there was none. A worker that began before the agent may have had some that
// this agent was never told of: whoever keeps the jobs knows.
func (w *worker) recall(id string) *job {
	at := slices.IndexFunc(w.late, func(l late) bool { return l.id == id })
	attempt := uint32(0)
	switch {
	case at >= 0 && w.late[at].ended:
		return nil
	case at >= 0:
		attempt = w.late[at].attempt
		w.late = slices.Delete(w.late, at, at+1)
	case !w.old || w.strange == maxUnsure || id == "" || len(id) > maxIDBytes:
		return nil
	default:
		w.strange++
	}
	j := &job{id: id, attempt: attempt, late: true, turn: make(chan struct{}, 1)}
	w.jobs[id] = j
	return j
}

func newWorker(g *Gate, id fleet.PodID, incarnation uint64) *worker {
	w := &worker{
		gate: g, id: id, incarnation: incarnation, bytes: semaphore.NewWeighted(workerBytes), draining: make(chan struct{}),
		sure: make(chan struct{}), jobs: map[string]*job{},
	}
	w.ctx, w.end = context.WithCancel(g.ctx)
	return w
}

// drained reports whether the worker is to end.
func (w *worker) drained() bool {
	select {
	case <-w.draining:
		return true
	default:
		return false
	}
}

// drain has all polls answered at once. What waits for one never reaches the worker.
func (w *worker) drain() {
	if w.drained() {
		return
	}
	close(w.draining)
	w.turnAway()
}

// turnAway gives back what waits for a poll: it never reaches the worker.
func (w *worker) turnAway() {
	for _, j := range w.waiting {
		j.giveUp.Stop()
		w.refuse(j)
	}
	w.waiting, w.leases = nil, nil
	w.tell()
}

// freeze gives the worker nothing more.
func (w *worker) freeze() {
	w.frozen = true
	w.turnAway()
}

// thaw has the worker ask anew: nobody knows whether it reads the answers to what it asked before it was frozen.
func (w *worker) thaw() {
	if !w.frozen {
		return
	}
	w.frozen = false
	for _, p := range w.polls {
		p.got <- nil
	}
	w.polls, w.leases = nil, nil
	w.tell()
}

// slots is how many jobs the worker would take now.
func (w *worker) slots() int {
	if w.drained() || w.frozen {
		return 0
	}
	n := -len(w.waiting)
	for _, p := range w.polls {
		n += p.slots
	}
	for _, l := range w.leases {
		n += l.slots
	}
	return max(n, 0)
}

// tell has the scheduler told how many jobs the worker would take, if it does not know.
func (w *worker) tell() {
	if n := w.slots(); n != w.told || !w.ready && n > 0 {
		w.gate.link.wants[w.id] = w
		w.gate.link.ring()
	}
}

// open begins a poll. nil: the worker is to end.
func (w *worker) open(slots int) *poll {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	if w.drained() {
		return nil
	}
	p := &poll{slots: slots, got: make(chan []*job, 1)}
	if len(w.leases) > 0 {
		w.leases = w.leases[1:]
	}
	w.polls = append(w.polls, p)
	w.feed()
	w.tell()
	return p
}

// leave ends a poll that was not answered, or returns what it was answered with meanwhile. again says that the worker will ask again.
func (w *worker) leave(p *poll, again bool) []*job {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	at := slices.Index(w.polls, p)
	if at < 0 {
		return <-p.got
	}
	w.polls = slices.Delete(w.polls, at, at+1)
	if again {
		w.lease(p.slots)
	}
	w.tell()
	return nil
}

// lease keeps slots for a moment.
func (w *worker) lease(slots int) {
	if slots <= 0 || w.drained() {
		return
	}
	l := &lease{slots}
	w.leases = append(w.leases, l)
	time.AfterFunc(w.gate.times.again, func() {
		w.gate.mu.Lock()
		defer w.gate.mu.Unlock()
		if at := slices.Index(w.leases, l); at >= 0 {
			w.leases = slices.Delete(w.leases, at, at+1)
			w.tell()
		}
	})
}

// feed answers open polls with the jobs that wait, the newest first: older ones may be of a process that is gone.
func (w *worker) feed() {
	for len(w.waiting) > 0 && len(w.polls) > 0 && !w.frozen {
		p := w.polls[len(w.polls)-1]
		w.polls = w.polls[:len(w.polls)-1]
		n := min(p.slots, len(w.waiting))
		jobs := slices.Clone(w.waiting[:n])
		w.waiting = slices.Delete(w.waiting, 0, n)
		for _, j := range jobs {
			j.giveUp.Stop()
			j.taken = time.Now()
		}
		p.got <- jobs
		w.lease(p.slots - n)
	}
}

// give takes a job for the worker.
func (w *worker) give(m *agentrpc.JobGiven, body []byte) {
	w.told--
	if old := w.jobs[m.GetJobId()]; old != nil {
		w.unwait(old)
		if old.final != nil && old.final.kind == agentrpc.JobReport_REFUSED {
			w.gate.settle(old.final) // the cluster took note, or it would not give the job again; said once more, it would take this one away
		}
		if !old.taken.IsZero() {
			w.giveUp(old) // the worker may be at it, and a success counts
		}
	}
	j := &job{id: m.GetJobId(), attempt: m.GetAttempt(), body: body, turn: make(chan struct{}, 1)}
	w.jobs[j.id] = j
	if w.drained() || w.frozen {
		w.refuse(j)
		return
	}
	j.giveUp = time.AfterFunc(w.gate.times.next, func() {
		w.gate.mu.Lock()
		defer w.gate.mu.Unlock()
		if w.unwait(j) {
			w.refuse(j)
			w.tell()
		}
	})
	w.waiting = append(w.waiting, j)
	w.feed()
	w.tell()
}

// unwait takes a job from those that wait for a poll.
func (w *worker) unwait(j *job) bool {
	at := slices.Index(w.waiting, j)
	if at < 0 {
		return false
	}
	j.giveUp.Stop()
	w.waiting = slices.Delete(w.waiting, at, at+1)
	return true
}

// refuse says that the worker never saw a job.
func (w *worker) refuse(j *job) { w.finish(j, agentrpc.JobReport_REFUSED, "") }

// finish ends a job with a report of the host's own.
func (w *worker) finish(j *job, kind agentrpc.JobReport_Kind, reason string) {
	if j.final != nil {
		return
	}
	j.final = newReport(w.id, j, kind)
	j.final.Reason = reason
	w.gate.link.add(j.final)
}

// resolve compares the worker's jobs with those that the cluster believes it has. first says that this agent heard nothing of jobs before:
// what was given to an earlier incarnation is not known.
func (w *worker) resolve(list []*agentrpc.JobHeld, first bool) {
	seen := map[string]bool{}
	for _, h := range list {
		seen[h.GetJobId()] = true
		j := w.jobs[h.GetJobId()]
		switch {
		case j == nil:
			if first && w.known {
				w.gate.remember(w.id, h.GetJobId())
			}
			w.missing(h)
		case j.attempt == 0:
			j.attempt, j.chunks, j.taken = h.GetAttempt(), h.GetChunks(), time.Now()
			if j.final != nil {
				j.final.Attempt = j.attempt
			}
		case j.attempt < h.GetAttempt():
			w.refuse(&job{id: j.id, attempt: h.GetAttempt()})
		case j.attempt == h.GetAttempt():
			j.chunks = max(j.chunks, h.GetChunks())
		}
	}
	for r := range w.gate.link.pending {
		if j := w.jobs[r.Job]; r.Pod == w.id && !r.ends() && (!seen[r.Job] || j != nil && r.kind == agentrpc.JobReport_CHUNK && r.chunk <= j.chunks) {
			w.gate.settle(r)
		}
	}
	for id, j := range w.jobs {
		if seen[id] {
			continue
		}
		w.unwait(j)
		switch {
		case j.final == nil && j.busy > 0: // the worker speaks of it right now
			j.late = true
		case j.final == nil && j.taken.IsZero() && j.attempt != 0: // the worker never saw it
			delete(w.jobs, id)
		case j.final == nil:
			w.giveUp(j)
		case j.attempt == 0 && j.final.kind != agentrpc.JobReport_DONE:
			w.gate.settle(j.final)
		}
	}
	w.learn()
}

// missing takes a job in that the cluster believes the worker to have.
func (w *worker) missing(h *agentrpc.JobHeld) {
	j := &job{id: h.GetJobId(), attempt: h.GetAttempt(), chunks: h.GetChunks(), taken: time.Now(), turn: make(chan struct{}, 1)}
	w.jobs[j.id] = j
	switch {
	case w.known && w.gate.past[w.id][j.id]:
		w.finish(j, agentrpc.JobReport_LOST, "the worker that had the job ended")
	case w.known: // it was given in a stream that broke
		w.refuse(j)
	}
}

// learn notes that all jobs of the worker are known.
func (w *worker) learn() {
	if !w.known {
		w.known = true
		close(w.sure)
	}
}
