package queue

import (
	"fmt"

	"gantry/fleet"
)

// Bounds of one job's stream (wire-facts.md, §1.5): what comes while so much is unread is left out.
const (
	MaxUnread      = 10_000           // chunks
	MaxUnreadBytes = 20 * 1000 * 1000 // bytes
)

// From says who speaks of which attempt of a job.
type From struct {
	At     Millis      `cbor:"1,keyasint"`
	Job    ID          `cbor:"2,keyasint"`
	Worker fleet.PodID `cbor:"3,keyasint"`
	// Attempt is the number of the attempt; 0: the one that runs, if this worker has it.
	Attempt int `cbor:"4,keyasint,omitempty"`
}

// runs returns the job if the attempt is the one that runs.
func (q *Queue) runs(f From) *Job {
	j := q.jobs[f.Job]
	if j == nil || j.Status != InProgress || j.Worker() != f.Worker || f.Attempt != 0 && f.Attempt != j.Attempt() {
		return nil
	}
	return j
}

// Finish is a worker's result.
type Finish struct {
	From
	Output Body `cbor:"5,keyasint"`
	Failed bool `cbor:"6,keyasint,omitempty"`
	// Error and Reason are set where the result was not taken from the worker: it is too large, for one.
	Error  string `cbor:"7,keyasint,omitempty"`
	Reason string `cbor:"8,keyasint,omitempty"`
	// Cost is what a success of a job of a public model costs.
	Cost fleet.Money `cbor:"9,keyasint,omitempty"`
}

// Finish ends the job, and reports whether it did. A success counts from whoever was given the job before it ended;
// a failure only from the attempt that runs. Any other output is dropped.
func (q *Queue) Finish(c Finish) bool {
	j := q.runs(c.From)
	if late := q.jobs[c.Job]; j == nil && !c.Failed && late != nil && !late.Status.Ended() && late.given(c.Worker) {
		j = late
	}
	if j == nil || j.Expired(c.At) {
		q.drop(c.Output)
		return false
	}
	status := Completed
	if c.Failed {
		status = Failed
	}
	q.setOutput(j, c.Output)
	j.Run.Error, j.Run.Reason = c.Error, c.Reason
	if j.Sale != nil && status == Completed {
		j.Sale.Cost = c.Cost
	}
	q.end(j, status, c.At)
	return true
}

// Progress is what a worker says before the end of a job.
type Progress struct {
	From
	Output Body `cbor:"5,keyasint"`
}

// Progress keeps the output of the attempt that runs; any other is dropped.
func (q *Queue) Progress(c Progress) {
	j := q.runs(c.From)
	if j == nil {
		q.drop(c.Output)
		return
	}
	q.setOutput(j, c.Output)
	q.changed(j)
}

// Chunk is a part of a job's stream.
type Chunk struct {
	From
	// Number is 1 for the first of an attempt.
	Number uint32 `cbor:"5,keyasint"`
	Body   Body   `cbor:"6,keyasint"`
}

// Chunk adds it to the stream of the attempt that runs. One that came before is dropped. Errors: stale, when one is
// missing between the last and this.
func (q *Queue) Chunk(c Chunk) error {
	j := q.runs(c.From)
	if j == nil || c.Number <= j.Run.Chunk {
		q.drop(c.Body)
		return nil
	}
	if c.Number != j.Run.Chunk+1 {
		q.drop(c.Body)
		return &fleet.Error{Code: fleet.CodeStale, Msg: fmt.Sprintf("chunk %d comes after chunk %d", c.Number, j.Run.Chunk)}
	}
	q.touch(j)
	j.Run.Chunk = c.Number
	unread := c.Body.Size
	for _, b := range j.Run.Chunks {
		unread += b.Size
	}
	if j.Run.Cut = j.Run.Cut || len(j.Run.Chunks) == MaxUnread || unread > MaxUnreadBytes; j.Run.Cut {
		q.drop(c.Body)
	} else {
		j.Run.Chunks = append(j.Run.Chunks, c.Body)
		q.hold(j.endpoint, c.Body.Size)
	}
	q.changed(j)
	return nil
}

// Read says that the first chunks of a job's stream were read.
type Read struct {
	Job ID     `cbor:"1,keyasint"`
	N   int    `cbor:"2,keyasint"`
	At  Millis `cbor:"3,keyasint"`
}

// Read drops the chunks.
func (q *Queue) Read(c Read) {
	if j := q.jobs[c.Job]; j != nil && j.Run != nil {
		q.dropChunks(j, min(c.N, len(j.Run.Chunks)))
	}
}

// Lost says that a worker does not have an attempt any more and will not finish it.
type Lost struct {
	From
	Reason string `cbor:"5,keyasint"`
	// Untouched says that the worker never saw the job: then it is given out as if this attempt had not been.
	Untouched bool `cbor:"6,keyasint,omitempty"`
}

// Lost gives the job out again, or ends it when that was done as often as it may be.
func (q *Queue) Lost(c Lost) {
	if j := q.runs(c.From); j != nil {
		q.lose(j, c)
	}
}

// LostWorker says that a worker is no more.
type LostWorker struct {
	At     Millis      `cbor:"1,keyasint"`
	Worker fleet.PodID `cbor:"2,keyasint"`
	Reason string      `cbor:"3,keyasint"`
}

// LostWorker is Lost for each job that the worker has.
func (q *Queue) LostWorker(c LostWorker) {
	for _, j := range q.Running(c.Worker) {
		q.lose(j, Lost{From: From{At: c.At}, Reason: c.Reason})
	}
}

func (q *Queue) lose(j *Job, c Lost) {
	q.touch(j)
	if !c.Untouched && j.Attempt() > int(j.Policy.Retries) {
		// Clients look for these words (wire-facts.md, §2.4).
		j.Run.Error, j.Run.Reason = fmt.Sprintf("job timed out after %d retries", j.Policy.Retries), c.Reason
		q.end(j, Failed, c.At)
		return
	}
	q.leave(j)
	if c.Untouched {
		j.Run.Workers = j.Run.Workers[:len(j.Run.Workers)-1]
	} else {
		j.endpoint.counts.Retried++
	}
	q.setOutput(j, Body{})
	q.dropChunks(j, len(j.Run.Chunks))
	j.Run.Chunk, j.Run.Cut, j.Run.Started, j.Status = 0, false, 0, InQueue
	q.enter(j)
	q.setDue(j, j.end())
	q.changed(j)
}

// Cancel ends a job that has not ended.
type Cancel struct {
	At  Millis `cbor:"1,keyasint"`
	Job ID     `cbor:"2,keyasint"`
}

// Cancel returns the job as it is then. Errors: not_found.
func (q *Queue) Cancel(c Cancel) (*Job, error) {
	j := q.jobs[c.Job]
	if j == nil || j.Expired(c.At) {
		return nil, fleet.NotFound("job")
	}
	if !j.Status.Ended() {
		q.end(j, Cancelled, c.At)
	}
	return j, nil
}

// Retry lets a job that failed or took too long wait again, with its id and input, and without its output.
type Retry struct {
	At  Millis `cbor:"1,keyasint"`
	Job ID     `cbor:"2,keyasint"`
	// Sale replaces that of a job of a public model, whose credit is held anew.
	Sale *Sale `cbor:"3,keyasint,omitempty"`
}

// Retry returns the job as it is then. Errors: not_found, not_allowed.
func (q *Queue) Retry(c Retry) (*Job, error) {
	j := q.jobs[c.Job]
	if j == nil || j.Expired(c.At) {
		return nil, fleet.NotFound("job")
	}
	if (j.Sale == nil) != (c.Sale == nil) {
		return nil, &fleet.Error{Code: fleet.CodeNotAllowed, Msg: "this is a job of a public model, or is none"}
	}
	if j.Status != Failed && j.Status != TimedOut {
		return nil, &fleet.Error{Code: fleet.CodeNotAllowed, Msg: "only a job that is FAILED or TIMED_OUT can be retried; this one is " + j.Status.String()}
	}
	q.setOutput(j, Body{})
	q.dropChunks(j, len(j.Run.Chunks))
	j.Run, j.Status, j.Sale = nil, InQueue, cloneSale(c.Sale)
	j.endpoint.counts.Retried++
	q.enter(j)
	q.setDue(j, j.end())
	q.changed(j)
	return j, nil
}

// Told says that the webhook of an ended job needs no further call.
type Told struct {
	At  Millis `cbor:"1,keyasint"`
	Job ID     `cbor:"2,keyasint"`
}

// Told lets the job go when its time has come.
func (q *Queue) Told(c Told) {
	j := q.jobs[c.Job]
	if j == nil || !j.Status.Ended() || !j.Policy.Webhook {
		return
	}
	q.touch(j)
	j.Run.Told = true
	q.note(j)
	q.release(j)
	q.setDue(j, j.kept())
}

// Settled says that the hold for an ended job was ended.
type Settled struct {
	Job  ID     `cbor:"1,keyasint"`
	Hold string `cbor:"2,keyasint"`
}

// Settled lets the job go when its time has come, unless another hold is for it by now.
func (q *Queue) Settled(c Settled) {
	j := q.jobs[c.Job]
	if j == nil || !j.Status.Ended() || j.Sale == nil || j.Sale.Hold != c.Hold {
		return
	}
	q.touch(j)
	j.Sale.Settled = true
	q.note(j)
	q.setDue(j, j.kept())
}

// Retain sets for how long an ended job is kept.
type Retain struct {
	At        Millis `cbor:"1,keyasint"`
	Job       ID     `cbor:"2,keyasint"`
	Retention uint32 `cbor:"3,keyasint"` // milliseconds from its end
}

// Retain changes when the job is deleted.
func (q *Queue) Retain(c Retain) {
	j := q.jobs[c.Job]
	if j == nil {
		return
	}
	q.touch(j)
	j.Policy.Retention = c.Retention
	if j.Status.Ended() {
		q.setDue(j, j.kept())
	}
}

// Move has a job refer to a body at another place, and reports whether it referred to the old one. It is no command: where
// bodies are is a matter of each member.
func (q *Queue) Move(id ID, from, to Body) bool {
	j := q.jobs[id]
	if j == nil {
		return false
	}
	q.touch(j)
	all := []*Body{&j.Input}
	if j.Run != nil {
		all = append(all, &j.Run.Output)
		for i := range j.Run.Chunks {
			all = append(all, &j.Run.Chunks[i])
		}
	}
	for _, b := range all {
		if *b == from {
			*b = to
			return true
		}
	}
	return false
}

// end is the one way in which jobs end.
func (q *Queue) end(j *Job, to Status, at Millis) {
	q.leave(j)
	j.run().Ended, j.Status = at, to
	switch to {
	case Completed:
		j.endpoint.counts.Completed++
	case Failed, TimedOut:
		j.endpoint.counts.Failed++
	}
	q.note(j)
	q.release(j)
	q.setDue(j, j.kept())
	q.changed(j)
}

// note keeps the sets of jobs that have ended and for which something has to be done still.
func (q *Queue) note(j *Job) {
	ended := q.jobs[j.ID] == j && j.Status.Ended()
	if delete(q.untold, j.ID); ended && j.untold() {
		q.untold[j.ID] = struct{}{}
	}
	if delete(q.unsettled, j.ID); ended && j.unsettled() {
		q.unsettled[j.ID] = struct{}{}
	}
}

func cloneSale(s *Sale) *Sale {
	if s == nil {
		return nil
	}
	out := *s
	return &out
}

// release drops the input once nothing can ask for it.
func (q *Queue) release(j *Job) {
	if (j.Status == Completed || j.Status == Cancelled) && !j.untold() {
		q.hold(j.endpoint, -j.Input.Size)
		q.drop(j.Input)
		j.Input = Body{}
	}
}

func (q *Queue) setOutput(j *Job, output Body) {
	q.touch(j)
	r := j.run()
	q.hold(j.endpoint, output.Size-r.Output.Size)
	q.drop(r.Output)
	r.Output = output
}

func (q *Queue) dropChunks(j *Job, n int) {
	q.touch(j)
	for _, b := range j.Run.Chunks[:n] {
		q.hold(j.endpoint, -b.Size)
		q.drop(b)
	}
	if j.Run.Chunks = j.Run.Chunks[n:]; len(j.Run.Chunks) == 0 {
		j.Run.Chunks = nil
	}
}

func (q *Queue) drop(b Body) {
	if b != (Body{}) && q.Drop != nil {
		q.Drop(b)
	}
}

func (q *Queue) changed(j *Job) {
	if q.Changed != nil {
		q.Changed(j)
	}
}
