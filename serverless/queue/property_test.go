package queue

import (
	"fmt"
	"maps"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"gantry/fleet"
)

// TestAnyHistory draws commands and checks after each what must always hold: jobs in are jobs waiting, running, ended
// or deleted; no job is with two workers; nothing that ended begins again but by a retry; each body is referred to once.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(t)
		workers := []fleet.PodID{"w1", "w2", "w3"}
		ended := map[ID]Status{}
		told := map[ID]string{} // what those who follow the changes know
		var (
			pieces *Capture
			read   int             // of the pieces
			image  []ImageEndpoint // these
			at     string          // what pieces has to say
		)
		w.q.Changed = func(j *Job) {
			if told[j.ID] = look(j); w.q.Get(j.ID) != j {
				delete(told, j.ID)
			}
			if was, ok := ended[j.ID]; ok && w.q.Get(j.ID) == j && j.Status != was {
				t.Errorf("a job that was %v is %v", was, j.Status)
			}
			if w.q.Get(j.ID) == j && j.Status.Ended() {
				ended[j.ID] = j.Status
			}
		}
		anyJob := func() *Job {
			var all []*Job
			for _, e := range w.q.Endpoints() {
				page, _ := w.q.List(e, 0, 1000, func(*Job) bool { return true })
				all = append(all, page...)
			}
			if len(all) == 0 {
				r.Skip("no job")
			}
			return rapid.SampledFrom(all).Draw(r, "job")
		}
		from := func() From {
			return From{At: w.at, Job: anyJob().ID, Worker: rapid.SampledFrom(workers).Draw(r, "worker"), Attempt: rapid.IntRange(0, 3).Draw(r, "attempt")}
		}
		endpoints := rapid.SampledFrom([]fleet.EndpointID{"e", "f"})
		r.Repeat(map[string]func(*rapid.T){
			"submit": func(r *rapid.T) {
				p := Policy{
					Execution: uint32(rapid.IntRange(1, 100).Draw(r, "execution")), Life: uint32(rapid.IntRange(1, 300).Draw(r, "life")),
					Retention: uint32(rapid.IntRange(1, 100).Draw(r, "retention")), Retries: uint8(rapid.IntRange(0, 2).Draw(r, "retries")),
					Low: rapid.Bool().Draw(r, "low"), Webhook: rapid.Bool().Draw(r, "webhook"),
				}
				e := endpoints.Draw(r, "endpoint")
				w.ids++
				input := w.body(int64(w.ids))
				if _, err := w.q.Submit(Submit{At: w.at, ID: ID{w.ids}, Endpoint: e, Account: fleet.AccountID("a" + e), Policy: p, Input: input, MaxWaiting: 5, MaxBytes: 1500}); err != nil {
					delete(w.bodies, input.At)
				}
			},
			"take": func(r *rapid.T) {
				for _, j := range w.q.Take(Take{At: w.at, Endpoint: endpoints.Draw(r, "endpoint"), Worker: rapid.SampledFrom(workers).Draw(r, "worker"), Max: rapid.IntRange(1, 3).Draw(r, "max")}) {
					if j.Expired(w.at) {
						r.Fatalf("job %d was taken after its time", j.Seq)
					}
				}
			},
			"finish": func(r *rapid.T) {
				w.q.Finish(Finish{From: from(), Output: w.body(2), Failed: rapid.Bool().Draw(r, "failed")})
			},
			"progress": func(*rapid.T) { w.q.Progress(Progress{From: from(), Output: w.body(3)}) },
			"chunk": func(r *rapid.T) {
				_ = w.q.Chunk(Chunk{From: from(), Number: uint32(rapid.IntRange(1, 3).Draw(r, "number")), Body: w.body(4)})
			},
			"read": func(r *rapid.T) { w.q.Read(Read{Job: anyJob().ID, N: rapid.IntRange(0, 3).Draw(r, "n")}) },
			"lost": func(r *rapid.T) {
				w.q.Lost(Lost{From: from(), Untouched: rapid.Bool().Draw(r, "untouched")})
			},
			"lost worker": func(r *rapid.T) {
				w.q.LostWorker(LostWorker{At: w.at, Worker: rapid.SampledFrom(workers).Draw(r, "worker")})
			},
			"cancel": func(*rapid.T) { _, _ = w.q.Cancel(Cancel{At: w.at, Job: anyJob().ID}) },
			"retry": func(r *rapid.T) {
				j := anyJob()
				was, over := ended[j.ID], j.Expired(w.at)
				delete(ended, j.ID)
				if _, err := w.q.Retry(Retry{At: w.at, Job: j.ID}); (err == nil) != (!over && (was == Failed || was == TimedOut)) {
					r.Fatalf("retry of a job that is %v, over: %v: %v", was, over, err)
				} else if err != nil && was != 0 {
					ended[j.ID] = was
				}
			},
			"told":   func(*rapid.T) { w.q.Told(Told{At: w.at, Job: anyJob().ID}) },
			"retain": func(*rapid.T) { w.q.Retain(Retain{At: w.at, Job: anyJob().ID, Retention: 5}) },
			"time":   func(r *rapid.T) { w.at += Millis(rapid.IntRange(1, 100).Draw(r, "passes")) },
			"expire": func(r *rapid.T) {
				n := rapid.IntRange(1, 5).Draw(r, "max")
				if w.q.Expire(Expire{At: w.at, Max: n}) < n && w.q.NextDue() != 0 && w.q.NextDue() <= w.at {
					r.Fatalf("something is due still")
				}
			},
			"purge": func(r *rapid.T) {
				w.q.Purge(Purge{At: w.at, Endpoint: endpoints.Draw(r, "endpoint"), Max: 2, Failed: rapid.SampledFrom([]string{"", "never"}).Draw(r, "failed")})
			},
			"forget":  func(r *rapid.T) { w.q.Forget(Forget{Endpoint: endpoints.Draw(r, "endpoint"), Max: 2}) },
			"restart": func(*rapid.T) { w.restart() },
			"capture": func(r *rapid.T) {
				if pieces == nil || read == pieces.Len() {
					at, pieces, read = fmt.Sprintf("%+v", flat(imageOf(w.q.capture(2)))), w.q.capture(2), 0
					image = nil
				}
			},
			"piece": func(r *rapid.T) {
				if pieces == nil || read == pieces.Len() {
					r.Skip("nothing is captured")
				}
				image = append(image, pieces.Piece(read))
				if read++; read < pieces.Len() {
					return
				}
				if pieces.Close(); fmt.Sprintf("%+v", flat(image)) != at {
					r.Fatalf("captured was %s, read %+v", at, flat(image))
				}
			},
			"": func(r *rapid.T) {
				w.check(r)
				for id, j := range w.q.jobs {
					if told[id] != look(j) {
						r.Fatalf("job %d is %s; told was %q", j.Seq, look(j), told[id])
					}
				}
				if len(w.q.Untold()) > len(w.q.jobs) {
					r.Fatalf("%d jobs are to be told of %d", len(w.q.Untold()), len(w.q.jobs))
				}
				if len(told) != len(w.q.jobs) {
					r.Fatalf("%d jobs, %d of them told", len(w.q.jobs), len(told))
				}
			},
		})
	})
}

// flat has what jobs refer to in place of pointers.
func flat(image []ImageEndpoint) (out []any) {
	for _, e := range image {
		out = append(out, e.ID, e.Account, e.Seq, e.Counts)
		for _, j := range e.Jobs {
			out = append(out, j.ID, j.Policy, j.Seq, j.Submitted, j.Due, j.Input, look(&j), j.Run.Unread(), j.Run == nil || j.Run.Told)
		}
	}
	return out
}

// look is what a user sees of a job.
func look(j *Job) string {
	if j.Run == nil {
		return j.Status.String()
	}
	return fmt.Sprint(j.Status, j.Run.Workers, j.Run.Output, j.Run.Chunk, j.Run.Error)
}

// restart goes on with what an image of the queue says.
func (w *world) restart() {
	image := imageOf(w.q.Capture())
	drop, changed := w.q.Drop, w.q.Changed
	w.q = New()
	w.q.Restore(image)
	w.q.Drop, w.q.Changed = drop, changed
}

func (w *world) check(r *rapid.T) {
	counts, bytes, running, bodies := map[fleet.EndpointID]Counts{}, map[fleet.AccountID]int64{}, 0, 0
	for _, j := range w.q.jobs {
		e, a := j.Endpoint()
		c := counts[e]
		switch {
		case j.Status == InProgress:
			c.InProgress++
			running++
			if j.Attempt() == 0 || j.Attempt() > int(j.Policy.Retries)+1 || j.Due > j.Run.Started+Millis(j.Policy.Execution) {
				r.Fatalf("job %d runs: attempt %d of %d, due %d", j.Seq, j.Attempt(), j.Policy.Retries+1, j.Due)
			}
		case j.Status == InQueue && j.Policy.Low:
			c.WaitingLow++
		case j.Status == InQueue:
			c.Waiting++
		}
		if _, untold := w.q.untold[j.ID]; untold != (j.Status.Ended() && j.Policy.Webhook && !j.Run.Told) {
			r.Fatalf("job %d, %v, is to be told: %v", j.Seq, j.Status, untold)
		}
		latest := j.end()
		if j.Status.Ended() {
			latest = max(latest, j.Run.Ended+toldWithin)
		}
		if j.waitAt >= 0 != (j.Status == InQueue) || w.q.due.jobs[j.dueAt] != j || j.Due > latest {
			r.Fatalf("job %d, %v: indices %d and %d, due %d", j.Seq, j.Status, j.waitAt, j.dueAt, j.Due)
		}
		counts[e] = c
		if n := j.bytes(); n > 0 {
			bytes[a] += n
		}
		refs := []Body{j.Input}
		if j.Run != nil {
			refs = append(append(refs, j.Run.Output), j.Run.Chunks...)
		}
		for _, b := range refs {
			if b == (Body{}) {
				continue
			}
			if bodies++; w.bodies[b.At] != b.Size {
				r.Fatalf("job %d, %v: body %v is not there", j.Seq, j.Status, b)
			}
		}
	}
	workers := map[fleet.EndpointID]map[fleet.PodID]int{}
	for w, jobs := range w.q.running {
		running -= len(jobs)
		for _, j := range jobs {
			if j.Worker() != w {
				r.Fatalf("job %d of %s is with %s", j.Seq, j.Worker(), w)
			}
			e, _ := j.Endpoint()
			if workers[e] == nil {
				workers[e] = map[fleet.PodID]int{}
			}
			workers[e][w]++
		}
	}
	if running != 0 || bodies != len(w.bodies) {
		r.Fatalf("%d jobs run with nobody; %d bodies of %d are referred to", running, bodies, len(w.bodies))
	}
	for _, e := range w.q.Endpoints() {
		got := w.q.Counts(e)
		got.Completed, got.Failed, got.Retried = 0, 0, 0
		if got != counts[e] {
			r.Fatalf("%s: counts %+v, there are %+v", e, got, counts[e])
		}
		if !maps.Equal(w.q.endpoints[e].workers, workers[e]) {
			r.Fatalf("%s: workers %v, there are %v", e, w.q.endpoints[e].workers, workers[e])
		}
	}
	if fmt.Sprint(bytes) != fmt.Sprint(w.q.bytes) {
		r.Fatalf("bytes %v, there are %v", w.q.bytes, bytes)
	}
}

// BenchmarkCycle submits, takes and ends a job, with none and with a million that wait; bytes/job is what each of those costs.
func BenchmarkCycle(b *testing.B) {
	for _, waiting := range []int{0, 1_000_000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			q := New()
			n := uint64(0)
			submit := func() *Job {
				n++
				id := ID{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), byte(n * 2654435761 >> 13)}
				j, err := q.Submit(Submit{At: Millis(n), ID: id, Endpoint: "e", Account: "a", Policy: policy(), Input: Body{At: n, Size: 1}, MaxWaiting: 1 << 30, MaxBytes: 1 << 50})
				if err != nil {
					b.Fatal(err)
				}
				return j
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for range waiting {
				submit()
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ResetTimer()
			for range b.N {
				submit()
				j := q.Take(Take{At: Millis(n), Endpoint: "e", Worker: "w", Max: 1})[0]
				q.Finish(Finish{From: From{At: Millis(n), Job: j.ID, Worker: "w"}})
				q.Retain(Retain{At: Millis(n), Job: j.ID})
				q.Expire(Expire{At: Millis(n), Max: 10})
			}
			if waiting > 0 {
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(waiting), "bytes/job")
			}
		})
	}
}
