package main

import (
	"context"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"

	"gantry/internal/sleep"
	"gantry/serverless/queue"
)

const (
	headBytes     = 200 // of a job, about; see docs/design/serverless.md
	usualGarbage  = 100 // percent of what is in use, as Go has it
	littleGarbage = 50
	quietGarbage  = 25
	leastGarbage  = 10
	muchLive      = 64 << 20 // bytes, of which leastGarbage is enough for collecting to be rare
	garbageEvery  = time.Second
	quietRate     = 8 << 20          // bytes that are allocated in a second
	quietFor      = 10 * time.Second // no more than that each second
)

// garbageFor returns how many percent of the heap's live bytes its garbage may have. Where most of them are heads of jobs, which stay for
// long, it is less than usual: a million of them would cost as much again otherwise. And it is less while little is allocated, which makes
// collecting rare: what a fleet costs that does nothing is memory.
func garbageFor(jobs int, live uint64, quiet time.Duration) int {
	switch {
	case quiet >= quietFor && live >= muchLive:
		return leastGarbage
	case quiet >= quietFor:
		return quietGarbage
	case uint64(jobs)*headBytes > live/2: //nolint:gosec // not negative
		return littleGarbage
	}
	return usualGarbage
}

// boundGarbage keeps the heap's garbage within garbageFor, by how many jobs there are, until ctx ends, and gives the system back at once
// what a busy time has left, such as ten thousand hosts that came. An operator's GOGC stays as it is.
func boundGarbage(ctx context.Context, jobs func() int) {
	if os.Getenv("GOGC") != "" {
		return
	}
	defer debug.SetGCPercent(usualGarbage)
	heap, is := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}, usualGarbage
	var quiet time.Duration
	for before := uint64(0); ctx.Err() == nil; {
		runtimemetrics.Read(heap)
		live, allocated := heap[0].Value.Uint64(), heap[1].Value.Uint64()
		quiet += garbageEvery
		if allocated-before > quietRate {
			quiet = 0
		}
		before = allocated
		if percent := garbageFor(jobs(), live, quiet); percent != is { // setting it stops everything for a moment
			debug.SetGCPercent(percent)
			is = percent
		}
		if quiet == quietFor {
			debug.FreeOSMemory()
		}
		_ = sleep.For(ctx, garbageEvery)
	}
}

// countJobs returns how many jobs this member has.
func (d *parts) countJobs() (n int) {
	d.member.jobs.Jobs.View(func(q *queue.Queue) { n = q.Len() })
	return n
}
