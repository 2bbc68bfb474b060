package queue

import (
	"fmt"
	"testing"
)

// TestACaptureStaysAsItWas changes a job in each of the ways there are between a capture and its reading.
func TestACaptureStaysAsItWas(t *testing.T) {
	changes := map[string]func(w *world, j *Job){
		"take":        func(w *world, _ *Job) { w.take("v", 5) },
		"finish":      func(w *world, j *Job) { w.finish(j, "w", false) },
		"progress":    func(w *world, j *Job) { w.q.Progress(Progress{From: w.from(j, "w"), Output: w.body(7)}) },
		"chunk":       func(w *world, j *Job) { _ = w.q.Chunk(Chunk{From: w.from(j, "w"), Number: 2, Body: w.body(7)}) },
		"read":        func(w *world, j *Job) { w.q.Read(Read{Job: j.ID, N: 1}) },
		"lost":        func(w *world, j *Job) { w.q.Lost(Lost{From: w.from(j, "w")}) },
		"untouched":   func(w *world, j *Job) { w.q.Lost(Lost{From: w.from(j, "w"), Untouched: true}) },
		"lost worker": func(w *world, _ *Job) { w.q.LostWorker(LostWorker{At: w.at, Worker: "w"}) },
		"cancel":      func(w *world, j *Job) { _, _ = w.q.Cancel(Cancel{At: w.at, Job: j.ID}) },
		"told":        func(w *world, j *Job) { w.finish(j, "w", false); w.q.Told(Told{At: w.at, Job: j.ID}) },
		"retain":      func(w *world, j *Job) { w.q.Retain(Retain{At: w.at, Job: j.ID, Retention: 5}) },
		"time out":    func(w *world, _ *Job) { w.at += 10 * minute; w.expire() },
		"expire":      func(w *world, _ *Job) { w.at += 1000 * hour; w.expire() },
		"purge":       func(w *world, _ *Job) { w.q.Purge(Purge{At: w.at, Endpoint: "e", Max: 5}) },
		"fail":        func(w *world, _ *Job) { w.q.Purge(Purge{At: w.at, Endpoint: "e", Max: 5, Failed: "never"}) },
		"forget":      func(w *world, _ *Job) { w.q.Forget(Forget{Endpoint: "e", Max: 5}) },
		"move":        func(w *world, j *Job) { w.q.Move(j.ID, j.Input, Body{At: 99, Size: 1}) },
		"submit":      func(w *world, _ *Job) { w.submit(nil) },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			j := w.submit(func(p *Policy) { p.Webhook = true })
			w.take("w", 1)
			_ = w.q.Chunk(Chunk{From: w.from(j, "w"), Number: 1, Body: w.body(3)})
			for range 4 {
				w.submit(nil)
			}
			want := fmt.Sprintf("%+v", flat(imageOf(w.q.capture(2))))
			c, all := w.q.capture(2), w.q.capture(pieceJobs)
			change(w, j)
			if now := fmt.Sprintf("%+v", flat(imageOf(w.q.capture(2)))); now == want {
				t.Error("nothing changed")
			}
			if got := fmt.Sprintf("%+v", flat(imageOf(c))); got != want {
				t.Errorf("captured was\n%s, read\n%s", want, got)
			}
			if got := imageOf(all); len(got) != 1 || len(got[0].Jobs) != 5 || got[0].Jobs[0].Run.Chunks[0].Size != 3 {
				t.Errorf("in one piece: %+v", got)
			}
			if len(w.q.captures) != 0 {
				t.Errorf("%d captures are left", len(w.q.captures))
			}
		})
	}
}

// TestACaptureKeepsNoMoreThanItNeeds: no copy of what was read, or came later.
func TestACaptureKeepsNoMoreThanItNeeds(t *testing.T) {
	w := newWorld(t)
	for range 4 {
		w.submit(nil)
	}
	c := w.q.capture(2)
	c.Piece(0)
	w.submit(nil)
	w.take("w", 5)
	if kept := len(c.pieces[0].before) + len(c.pieces[1].before); kept != 2 {
		t.Errorf("%d jobs are kept, not two", kept)
	}
}
