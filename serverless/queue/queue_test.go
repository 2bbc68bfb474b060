package queue

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gantry/fleet"
)

const (
	second = 1000
	minute = 60 * second
	hour   = 60 * minute
)

// world is a queue with a store of bodies: which are there.
type world struct {
	t      testing.TB
	q      *Queue
	at     Millis
	bodies map[uint64]int64
	last   uint64
	ids    byte
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, q: New(), at: 1000 * hour, bodies: map[uint64]int64{}}
	w.q.Drop = func(b Body) {
		if w.bodies[b.At] != b.Size {
			t.Errorf("body %v was dropped and is not there", b)
		}
		delete(w.bodies, b.At)
	}
	return w
}

func (w *world) body(size int64) Body {
	w.last++
	w.bodies[w.last] = size
	return Body{At: w.last, Size: size}
}

func policy() Policy {
	return Policy{Execution: 10 * minute, Life: 24 * hour, Retention: 30 * minute, Retries: 1}
}

func (w *world) submit(change func(*Policy)) *Job {
	w.t.Helper()
	p := policy()
	if change != nil {
		change(&p)
	}
	w.ids++
	j, err := w.q.Submit(Submit{At: w.at, ID: ID{w.ids}, Endpoint: "e", Account: "a", Policy: p, Input: w.body(100), MaxWaiting: 100, MaxBytes: 1e9})
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

func (w *world) take(worker fleet.PodID, n int) []*Job {
	return w.q.Take(Take{At: w.at, Endpoint: "e", Worker: worker, Max: n})
}

func (w *world) from(j *Job, worker fleet.PodID) From {
	return From{At: w.at, Job: j.ID, Worker: worker}
}

func (w *world) finish(j *Job, worker fleet.PodID, failed bool) bool {
	return w.q.Finish(Finish{From: w.from(j, worker), Output: w.body(10), Failed: failed})
}

func (w *world) expire() int { return w.q.Expire(Expire{At: w.at, Max: 1000}) }

func (w *world) status(j *Job, want Status) {
	w.t.Helper()
	if j.Status != want {
		w.t.Fatalf("job %d is %v, want %v", j.Seq, j.Status, want)
	}
}

// gone says that nothing is left of all that was there.
func (w *world) gone() {
	w.t.Helper()
	if len(w.bodies) > 0 || len(w.q.jobs) > 0 || len(w.q.bytes) > 0 || w.q.due.Len() > 0 || len(w.q.running) > 0 {
		w.t.Fatalf("left: bodies %v, %d jobs, %v bytes", w.bodies, len(w.q.jobs), w.q.bytes)
	}
}

func code(err error) fleet.Code {
	var e *fleet.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestAJobIsTakenOnceAndAnswered(t *testing.T) {
	w := newWorld(t)
	j := w.submit(nil)
	w.status(j, InQueue)
	w.at += 2 * second
	if got := w.take("w1", 5); len(got) != 1 || got[0] != j {
		t.Fatalf("took %v", got)
	}
	if got := w.take("w2", 5); len(got) != 0 {
		t.Fatalf("a second worker took %v", got)
	}
	w.status(j, InProgress)
	w.at += 3 * second
	if !w.finish(j, "w1", false) {
		t.Fatal("the result was not taken")
	}
	w.status(j, Completed)
	if j.Run.Started-j.Submitted != 2*second || j.Run.Ended-j.Run.Started != 3*second || j.Worker() != "w1" || j.Attempt() != 1 {
		t.Fatalf("%+v", *j.Run)
	}
	if w.finish(j, "w1", true) {
		t.Fatal("a second result was taken")
	}
	if want := (Counts{Completed: 1}); w.q.Counts("e") != want {
		t.Fatalf("%+v", w.q.Counts("e"))
	}
	w.at += 30*minute - 1
	if w.expire() != 0 || w.q.Get(j.ID) == nil || j.Expired(w.at) {
		t.Fatal("it was not kept for 30 minutes")
	}
	w.at++
	if !j.Expired(w.at) || w.expire() != 1 || w.q.Get(j.ID) != nil {
		t.Fatal("it was kept for longer")
	}
	w.gone()
}

func TestTheOrderIsThatOfSubmission(t *testing.T) {
	w := newWorld(t)
	low := w.submit(func(p *Policy) { p.Low = true })
	a, b, c := w.submit(nil), w.submit(nil), w.submit(nil)
	if w.q.Before(c) != 2 || w.q.Before(low) != 3 || w.q.Before(a) != 0 {
		t.Fatalf("before: %d, %d, %d", w.q.Before(a), w.q.Before(c), w.q.Before(low))
	}
	if got := w.take("w1", 1); got[0] != a {
		t.Fatal("the first was not taken first")
	}
	w.q.Lost(Lost{From: w.from(a, "w1"), Reason: "gone"})
	got := w.take("w2", 10)
	if len(got) != 4 || got[0] != a || got[1] != b || got[2] != c || got[3] != low {
		t.Fatalf("order: %v", got)
	}
}

func TestALostWorkersJobIsGivenOutAsOftenAsItsPolicyAllows(t *testing.T) {
	w := newWorld(t)
	j := w.submit(func(p *Policy) { p.Retries = 2 })
	for i := range 3 {
		w.status(j, InQueue)
		w.take("w", 1)
		if j.Attempt() != i+1 {
			t.Fatalf("attempt %d is number %d", i+1, j.Attempt())
		}
		w.q.LostWorker(LostWorker{At: w.at, Worker: "w", Reason: "host is lost"})
	}
	w.status(j, Failed)
	if j.Run.Error != "job timed out after 2 retries" || j.Run.Reason != "host is lost" {
		t.Fatalf("%q, %q", j.Run.Error, j.Run.Reason)
	}
	if want := (Counts{Failed: 1, Retried: 2}); w.q.Counts("e") != want {
		t.Fatalf("%+v", w.q.Counts("e"))
	}
}

func TestALostAttemptLeavesNothing(t *testing.T) {
	w := newWorld(t)
	j := w.submit(nil)
	w.take("w1", 1)
	w.q.Progress(Progress{From: w.from(j, "w1"), Output: w.body(5)})
	_ = w.q.Chunk(Chunk{From: w.from(j, "w1"), Number: 1, Body: w.body(MaxUnreadBytes)})
	_ = w.q.Chunk(Chunk{From: w.from(j, "w1"), Number: 2, Body: w.body(1)})
	w.q.Lost(Lost{From: w.from(j, "w1")})
	if j.Run.Output != (Body{}) || j.Run.Chunks != nil || j.Run.Cut || j.Run.Started != 0 || len(w.bodies) != 1 {
		t.Fatalf("%+v", *j.Run)
	}
	w.at += 11 * minute // longer than one attempt may take
	if w.expire() != 0 || len(w.take("w2", 1)) != 1 {
		t.Fatal("its time went on while it waited")
	}
	if err := w.q.Chunk(Chunk{From: w.from(j, "w2"), Number: 1, Body: w.body(1)}); err != nil || len(j.Run.Chunks) != 1 {
		t.Fatalf("the stream does not begin anew: %v", err)
	}
}

func TestCommandsForJobsThatAreNotThere(t *testing.T) {
	w := newWorld(t)
	none := &Job{ID: ID{77}}
	w.finish(none, "w", false)
	w.q.Progress(Progress{From: w.from(none, "w"), Output: w.body(1)})
	if err := w.q.Chunk(Chunk{From: w.from(none, "w"), Number: 1, Body: w.body(1)}); err != nil {
		t.Error(err)
	}
	w.q.Read(Read{Job: none.ID, N: 1})
	w.q.Lost(Lost{From: w.from(none, "w")})
	w.q.LostWorker(LostWorker{At: w.at, Worker: "w"})
	w.q.Told(Told{At: w.at, Job: none.ID})
	w.q.Retain(Retain{At: w.at, Job: none.ID})
	_, cancelled := w.q.Cancel(Cancel{At: w.at, Job: none.ID})
	_, retried := w.q.Retry(Retry{At: w.at, Job: none.ID})
	if code(cancelled) != fleet.CodeNotFound || code(retried) != fleet.CodeNotFound {
		t.Errorf("%v, %v", cancelled, retried)
	}
	if w.q.Purge(Purge{At: w.at, Endpoint: "none", Max: 1}) != 0 || !w.q.Forget(Forget{Endpoint: "none"}) ||
		w.take("w", 1) != nil || w.q.Next("none") != nil || w.q.Counts("none") != (Counts{}) {
		t.Error("an endpoint without jobs has some")
	}
	w.gone()
}

func TestNobodyNeedsToFollowTheChanges(t *testing.T) {
	w := newWorld(t)
	w.q.Drop = nil
	j := w.submit(nil)
	if w.q.Next("e") != j || w.take("w", 1)[0] != j || !w.finish(j, "w", false) {
		t.Fatal("the job did not end")
	}
}

func TestAJobThatItsWorkerNeverSawIsAsIfItHadNotBeenGivenOut(t *testing.T) {
	w := newWorld(t)
	j := w.submit(func(p *Policy) { p.Retries = 0 })
	for range 5 {
		w.take("w", 1)
		w.q.Lost(Lost{From: w.from(j, "w"), Untouched: true})
		w.status(j, InQueue)
	}
	if j.Attempt() != 0 || j.Worker() != "" || w.q.Counts("e").Retried != 0 {
		t.Fatalf("attempt %d, %+v", j.Attempt(), w.q.Counts("e"))
	}
}

func TestWhatComesLateOrFromAStrangerChangesNothing(t *testing.T) {
	w := newWorld(t)
	j := w.submit(nil)
	w.take("w1", 1)
	w.q.Lost(Lost{From: w.from(j, "w1")})
	w.take("w2", 1)
	say := func(worker fleet.PodID, attempt int) {
		f := From{At: w.at, Job: j.ID, Worker: worker, Attempt: attempt}
		w.q.Progress(Progress{From: f, Output: w.body(1)})
		_ = w.q.Chunk(Chunk{From: f, Number: 1, Body: w.body(1)})
		w.q.Lost(Lost{From: f, Reason: "late"})
		if w.q.Finish(Finish{From: f, Output: w.body(1), Failed: true}) {
			t.Errorf("a failure of %s, attempt %d, ended the job", worker, attempt)
		}
	}
	say("w1", 0)
	say("w1", 1)
	say("w2", 1)
	say("w2", 3)
	say("stranger", 0)
	if w.finish(j, "stranger", false) {
		t.Error("a stranger's result ended the job")
	}
	w.status(j, InProgress)
	if j.Run.Output != (Body{}) || j.Run.Chunk != 0 || len(w.bodies) != 1 {
		t.Errorf("%+v, bodies %v", *j.Run, w.bodies)
	}
}

func TestASuccessOfAnEarlierAttemptCounts(t *testing.T) {
	for _, again := range []bool{false, true} {
		w := newWorld(t)
		j := w.submit(nil)
		w.take("w1", 1)
		w.q.Lost(Lost{From: w.from(j, "w1")})
		if again {
			w.take("w2", 1)
		}
		if !w.finish(j, "w1", false) {
			t.Fatal("the result was thrown away")
		}
		w.status(j, Completed)
		if w.finish(j, "w2", false) || len(w.take("w3", 1)) != 0 || len(w.q.Running("w2")) != 0 {
			t.Fatal("the job went on")
		}
	}
}

func TestTheTimesOfAJob(t *testing.T) {
	t.Run("execution", func(t *testing.T) {
		w := newWorld(t)
		j := w.submit(nil)
		w.at += 5 * hour
		w.take("w", 1)
		w.at += 10*minute - 1
		if w.expire() != 0 {
			t.Fatal("ended early")
		}
		w.at++
		w.expire()
		w.status(j, TimedOut)
		if j.Run.Error != "executionTimeout exceeded" || w.q.Counts("e").Failed != 1 {
			t.Fatalf("%q", j.Run.Error)
		}
	})
	for name, prepare := range map[string]func(*world, *Job){
		"waits":    func(*world, *Job) {},
		"runs":     func(w *world, _ *Job) { w.at += 9 * minute; w.take("w", 1) },
		"has come": func(w *world, j *Job) { w.at += 9 * minute; w.take("w", 1); w.finish(j, "w", false) },
	} {
		t.Run("life, while it "+name, func(t *testing.T) {
			w := newWorld(t)
			j := w.submit(func(p *Policy) { p.Life = 10 * minute })
			began := w.at
			prepare(w, j)
			w.at = began + 10*minute
			if !j.Expired(w.at) || w.finish(j, "w", false) {
				t.Fatal("it is there still")
			}
			if _, err := w.q.Cancel(Cancel{At: w.at, Job: j.ID}); code(err) != fleet.CodeNotFound {
				t.Fatalf("cancel: %v", err)
			}
			if got := w.take("w2", 1); len(got) != 0 {
				t.Fatal("it was taken")
			}
			w.expire()
			w.gone()
		})
	}
	t.Run("retention", func(t *testing.T) {
		w := newWorld(t)
		j := w.submit(nil)
		w.take("w", 1)
		w.finish(j, "w", false)
		w.q.Retain(Retain{At: w.at, Job: j.ID, Retention: 10 * second})
		w.at += 10 * second
		w.expire()
		w.gone()
	})
}

func TestARetryKeepsIdAndInput(t *testing.T) {
	w := newWorld(t)
	j := w.submit(nil)
	if _, err := w.q.Retry(Retry{At: w.at, Job: j.ID}); code(err) != fleet.CodeNotAllowed || !strings.Contains(err.Error(), "IN_QUEUE") {
		t.Fatalf("a waiting job: %v", err)
	}
	w.take("w", 1)
	_ = w.q.Chunk(Chunk{From: w.from(j, "w"), Number: 1, Body: w.body(1)})
	w.finish(j, "w", true)
	again, err := w.q.Retry(Retry{At: w.at, Job: j.ID})
	if err != nil || again != j || j.Attempt() != 0 || len(w.bodies) != 1 {
		t.Fatalf("%v, %+v, %v", err, j, w.bodies)
	}
	w.status(j, InQueue)
	if w.q.Counts("e").Retried != 1 {
		t.Fatalf("%+v", w.q.Counts("e"))
	}
	w.at += 11 * minute
	w.expire()
	w.take("w", 1)
	w.finish(j, "w", false)
	if _, err := w.q.Retry(Retry{At: w.at, Job: j.ID}); code(err) != fleet.CodeNotAllowed {
		t.Fatalf("a completed job: %v", err)
	}
	slow := w.submit(nil)
	w.take("w", 1)
	w.at += 10 * minute
	w.expire()
	w.status(slow, TimedOut)
	if _, err := w.q.Retry(Retry{At: w.at, Job: slow.ID}); err != nil {
		t.Fatalf("a job that took too long: %v", err)
	}
	w.take("w", 1)
	w.finish(slow, "w", true)
	w.at += 30 * minute
	if _, err := w.q.Retry(Retry{At: w.at, Job: slow.ID}); code(err) != fleet.CodeNotFound {
		t.Fatalf("a job that is over: %v", err)
	}
}

func TestACancelEndsWhatHasNotEnded(t *testing.T) {
	w := newWorld(t)
	waits, runs, over := w.submit(nil), w.submit(nil), w.submit(nil)
	w.take("w", 3)
	w.q.Lost(Lost{From: w.from(waits, "w")})
	w.finish(over, "w", false)
	for _, j := range []*Job{waits, runs, over} {
		if _, err := w.q.Cancel(Cancel{At: w.at, Job: j.ID}); err != nil {
			t.Fatal(err)
		}
	}
	w.status(waits, Cancelled)
	w.status(runs, Cancelled)
	w.status(over, Completed)
	if len(w.q.Running("w")) != 0 || w.finish(runs, "w", false) {
		t.Fatal("the cancelled job runs")
	}
	if want := (Counts{Completed: 1, Retried: 1}); w.q.Counts("e") != want {
		t.Fatalf("%+v", w.q.Counts("e"))
	}
	if len(w.bodies) != 1 || w.q.Bytes("a") != 10 {
		t.Fatalf("inputs that nothing can ask for are kept: %v", w.bodies)
	}
}

func TestAStreamIsInOrderAndBounded(t *testing.T) {
	w := newWorld(t)
	j := w.submit(nil)
	w.take("w", 1)
	chunk := func(n uint32, size int64) error {
		return w.q.Chunk(Chunk{From: w.from(j, "w"), Number: n, Body: w.body(size)})
	}
	if err := chunk(1, 7); err != nil {
		t.Fatal(err)
	}
	if err := chunk(1, 7); err != nil || len(j.Run.Chunks) != 1 {
		t.Fatalf("the same once more: %v, %v", err, j.Run.Chunks)
	}
	if err := chunk(3, 7); code(err) != fleet.CodeStale {
		t.Fatalf("one is missing: %v", err)
	}
	if err := chunk(2, 7); err != nil || w.q.Bytes("a") != 114 {
		t.Fatalf("%v, %d bytes", err, w.q.Bytes("a"))
	}
	w.q.Read(Read{Job: j.ID, N: 1})
	if len(j.Run.Chunks) != 1 || w.q.Bytes("a") != 107 {
		t.Fatalf("after a read: %v, %d bytes", j.Run.Chunks, w.q.Bytes("a"))
	}
	w.q.Read(Read{Job: j.ID, N: 5})
	if err := chunk(3, MaxUnreadBytes); err != nil || j.Run.Cut {
		t.Fatalf("%v, cut: %v", err, j.Run.Cut)
	}
	if err := chunk(4, 1); err != nil || !j.Run.Cut || len(j.Run.Chunks) != 1 {
		t.Fatalf("%v, cut: %v", err, j.Run.Cut)
	}
	w.q.Read(Read{Job: j.ID, N: 1})
	if _ = chunk(5, 1); len(j.Run.Chunks) != 0 {
		t.Fatal("a stream with a hole goes on")
	}
	many := w.submit(nil)
	w.take("w", 1)
	for n := uint32(1); n <= MaxUnread+1; n++ {
		_ = w.q.Chunk(Chunk{From: w.from(many, "w"), Number: n, Body: w.body(1)})
	}
	if len(many.Run.Chunks) != MaxUnread || !many.Run.Cut {
		t.Fatalf("%d chunks", len(many.Run.Chunks))
	}
}

func TestTheBoundsOfAQueue(t *testing.T) {
	w := newWorld(t)
	submit := func(id byte, size int64) error {
		_, err := w.q.Submit(Submit{At: w.at, ID: ID{id}, Endpoint: "e", Account: "a", Policy: policy(), Input: Body{Size: size}, MaxWaiting: 2, MaxBytes: 100})
		return err
	}
	if err := submit(1, 101); code(err) != fleet.CodeLimited || !strings.Contains(err.Error(), "100") {
		t.Fatalf("too large: %v", err)
	}
	if err := errors.Join(submit(2, 50), submit(3, 50)); err != nil {
		t.Fatal(err)
	}
	if err := submit(4, 0); code(err) != fleet.CodeLimited || !strings.Contains(err.Error(), "2 jobs") {
		t.Fatalf("too many: %v", err)
	}
	w.take("w", 1)
	if err := submit(4, 1); code(err) != fleet.CodeLimited {
		t.Fatalf("too many bytes: %v", err)
	}
	if err := submit(4, 0); err != nil {
		t.Fatal(err)
	}
	j, err := w.q.Submit(Submit{At: w.at, ID: ID{2}, Endpoint: "other", Account: "b", MaxWaiting: 2})
	if code(err) != fleet.CodeExists || j.Seq != 1 {
		t.Fatalf("the same id: %v, %v", j, err)
	}
}

func TestAPurgeSparesWhatRuns(t *testing.T) {
	w := newWorld(t)
	runs := w.submit(nil)
	w.take("w", 1)
	for range 5 {
		w.submit(nil)
	}
	w.at += minute
	late := w.submit(nil)
	if n := w.q.Purge(Purge{At: w.at, Endpoint: "e", Max: 2}); n != 2 {
		t.Fatalf("%d purged", n)
	}
	if n := w.q.Purge(Purge{At: w.at, Endpoint: "e", Max: 100, Before: w.at, Failed: "image not found"}); n != 3 {
		t.Fatalf("%d failed", n)
	}
	w.status(late, InQueue)
	if n := w.q.Purge(Purge{At: w.at, Endpoint: "e", Max: 100}); n != 1 {
		t.Fatalf("%d purged", n)
	}
	w.status(runs, InProgress)
	if want := (Counts{InProgress: 1, Failed: 3}); w.q.Counts("e") != want {
		t.Fatalf("%+v", w.q.Counts("e"))
	}
	for n := 0; !w.q.Forget(Forget{Endpoint: "e", Max: 3}); n++ {
		if n > 3 {
			t.Fatal("never forgotten")
		}
	}
	if len(w.q.Endpoints()) != 0 {
		t.Fatal("the endpoint is there")
	}
	w.gone()
}

func TestAnUntoldJobIsKeptForItsWebhookAndNotShown(t *testing.T) {
	hook := func(p *Policy) { p.Webhook, p.Retention = true, 1*minute }
	w := newWorld(t)
	told, untold := w.submit(hook), w.submit(hook)
	w.take("w", 2)
	w.finish(told, "w", false)
	w.finish(untold, "w", false)
	if told.Input == (Body{}) {
		t.Fatal("the webhook has no input")
	}
	other := w.submit(nil)
	w.take("w", 1)
	w.q.Told(Told{At: w.at, Job: other.ID}) // it runs
	w.finish(other, "w", false)
	w.q.Told(Told{At: w.at, Job: other.ID}) // it has no webhook
	if other.Run.Told {
		t.Fatal("a job without a webhook was told")
	}
	w.q.Retain(Retain{At: w.at, Job: other.ID})
	w.expire()
	w.q.Told(Told{At: w.at, Job: told.ID})
	if told.Input != (Body{}) {
		t.Fatal("the input is kept for nothing")
	}
	w.at += minute
	w.expire()
	if w.q.Get(told.ID) != nil || w.q.Get(untold.ID) == nil || !untold.Expired(w.at) {
		t.Fatal("the told job is there, or the other is not, or it is shown")
	}
	w.at += toldWithin
	w.expire()
	w.gone()
}

func TestPagesOfJobs(t *testing.T) {
	w := newWorld(t)
	for range 10 {
		w.submit(nil)
	}
	w.take("w", 4)
	for _, j := range w.q.Running("w")[1:3] {
		w.finish(j, "w", false)
	}
	w.q.delete(w.q.Next("e"))
	if page, next := w.q.List("e", 0, 3, func(*Job) bool { return true }); len(page) != 3 || next != page[2].Seq {
		t.Fatalf("a page of %d, next %d", len(page), next)
	}
	var seqs []uint64
	var before uint64
	for range 5 {
		var page []*Job
		page, before = w.q.List("e", before, 3, func(j *Job) bool { return j.Status != Completed })
		for _, j := range page {
			seqs = append(seqs, j.Seq)
		}
		if before == 0 {
			break
		}
	}
	want := []uint64{10, 9, 8, 7, 6, 4, 1}
	if len(seqs) != len(want) {
		t.Fatalf("%v, want %v", seqs, want)
	}
	for i := range want {
		if seqs[i] != want[i] {
			t.Fatalf("%v, want %v", seqs, want)
		}
	}
	if page, next := w.q.List("none", 0, 3, nil); page != nil || next != 0 {
		t.Fatal("jobs of no endpoint")
	}
}

func TestBoundsOfOneCommand(t *testing.T) {
	w := newWorld(t)
	submit := func(n uint64, life uint32) {
		p := policy()
		p.Life = life
		if _, err := w.q.Submit(Submit{At: w.at, ID: ID{byte(n), byte(n >> 8)}, Endpoint: "e", Account: "a", Policy: p, MaxWaiting: 1e6}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range uint64(maxListed + 5) {
		submit(n, 1)
	}
	page, next := w.q.List("e", 0, 10, func(j *Job) bool { return j.Seq == 1 })
	if len(page) != 0 || next == 0 {
		t.Fatalf("List looked at more than %d jobs", maxListed)
	}
	if page, next = w.q.List("e", next, 10, func(j *Job) bool { return j.Seq == 1 }); len(page) != 1 || next != 0 {
		t.Fatalf("the second page has %d, next %d", len(page), next)
	}
	w.at++
	if got := w.take("w", 1); len(got) != 0 || len(w.q.jobs) != maxListed+5-maxExpired {
		t.Fatalf("%d jobs are left", len(w.q.jobs))
	}
	for w.expire() > 0 {
	}
	w.gone()
	if e := w.q.endpoints["e"]; len(e.jobs) > 1 {
		t.Fatalf("the list of the endpoint holds %d deleted jobs", len(e.jobs))
	}
}

func TestAnImageIsAllThereIs(t *testing.T) {
	w := newWorld(t)
	deleted := w.submit(nil)
	for i := range 20 {
		if i == 10 {
			w.q.delete(deleted)
		}
		j := w.submit(func(p *Policy) { p.Low, p.Webhook = i%3 == 0, i%4 == 0 })
		if i%2 == 0 {
			w.take("w", 1)
			_ = w.q.Chunk(Chunk{From: w.from(j, "w"), Number: 1, Body: w.body(3)})
		}
		if i%5 == 0 {
			w.finish(j, "w", i%10 == 0)
		}
		w.at += second
	}
	encode := func(q *Queue) []byte {
		b, err := json.Marshal(imageOf(q.Capture()))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	kept := w.q.Capture()
	first := encode(w.q)
	var image []ImageEndpoint
	if err := json.Unmarshal(first, &image); err != nil {
		t.Fatal(err)
	}
	restored := New()
	restored.Restore(image)
	if !bytes.Equal(first, encode(restored)) {
		t.Fatal("a restored queue is another one")
	}
	for _, q := range []*Queue{w.q, restored} {
		q.Drop = nil
		q.LostWorker(LostWorker{At: w.at, Worker: "w"})
		q.Take(Take{At: w.at, Endpoint: "e", Worker: "v", Max: 5})
		q.Expire(Expire{At: w.at + 20*minute, Max: 3})
	}
	if again, err := json.Marshal(imageOf(kept)); err != nil || !bytes.Equal(first, again) {
		t.Fatalf("an image changed with its queue: %v", err)
	}
	if !bytes.Equal(encode(w.q), encode(restored)) || w.q.Bytes("a") != restored.Bytes("a") {
		t.Fatal("a restored queue goes on in another way")
	}
}

func imageOf(c *Capture) (image []ImageEndpoint) {
	for i := range c.Len() {
		image = append(image, c.Piece(i))
	}
	c.Close()
	return image
}

func TestABodyIsMoved(t *testing.T) {
	w := newWorld(t)
	j, other := w.submit(nil), w.submit(nil)
	w.take("w", 1)
	w.q.Progress(Progress{From: w.from(j, "w"), Output: w.body(5)})
	_ = w.q.Chunk(Chunk{From: w.from(j, "w"), Number: 1, Body: w.body(6)})
	for i, from := range []Body{j.Input, j.Run.Output, j.Run.Chunks[0], other.Input} {
		to, id := Body{At: 100 + uint64(i), Size: from.Size}, j.ID
		if i == 3 {
			id = other.ID
		}
		if !w.q.Move(id, from, to) || w.q.Move(id, from, to) {
			t.Errorf("body %d was not moved, or twice", i)
		}
	}
	if j.Input.At != 100 || j.Run.Output.At != 101 || j.Run.Chunks[0].At != 102 || other.Input.At != 103 {
		t.Errorf("%+v, %+v", j, *j.Run)
	}
	if w.q.Move(ID{99}, Body{}, Body{At: 1}) {
		t.Error("a body of no job was moved")
	}
}
