package main

import (
	"bytes"
	"context"
	"math"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"testing"
	"testing/synctest"
	"time"
)

// TestGarbageIsLittleWhereJobsAreMostOfTheHeap, and where nothing has happened for a while, and as usual everywhere else.
func TestGarbageIsLittleWhereJobsAreMostOfTheHeap(t *testing.T) {
	for _, c := range []struct {
		jobs  int
		live  uint64
		quiet time.Duration
		want  int
	}{
		{0, 0, 0, usualGarbage},
		{0, 30 << 20, 0, usualGarbage},
		{10_000, 30 << 20, 0, usualGarbage},
		{1_000_000, 215 << 20, 0, littleGarbage},
		{1_000_000, 400_000_000, 0, usualGarbage},
		{1_000_000, 399_999_998, 0, littleGarbage},
		{0, 30 << 20, 9 * time.Second, usualGarbage},
		{0, 30 << 20, 10 * time.Second, quietGarbage},
		{1_000_000, 215 << 20, 10 * time.Second, leastGarbage},
	} {
		if got := garbageFor(c.jobs, c.live, c.quiet); got != c.want {
			t.Errorf("%d jobs, %d bytes: %d %%", c.jobs, c.live, got)
		}
	}
}

// TestGarbageIsBoundWhileThereAreJobs, and not where the operator has set how much there may be.
func TestGarbageIsBoundWhileThereAreJobs(t *testing.T) {
	t.Setenv("GOGC", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	asked := make(chan struct{}, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		boundGarbage(ctx, func() int {
			select {
			case asked <- struct{}{}:
			default:
			}
			return math.MaxInt / headBytes
		})
	}()
	<-asked
	<-asked // what was said the first time is set
	if got := debug.SetGCPercent(littleGarbage); got != littleGarbage {
		t.Errorf("%d %%", got)
	}
	cancel()
	<-over
	if got := debug.SetGCPercent(usualGarbage); got != usualGarbage {
		t.Errorf("%d %% afterwards", got)
	}
	t.Setenv("GOGC", "70")
	boundGarbage(t.Context(), nil)
}

func TestWhatABusyTimeLeftIsGivenBack(t *testing.T) {
	t.Setenv("GOGC", "")
	held := func() uint64 {
		s := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
		runtimemetrics.Read(s)
		return s[0].Value.Uint64() + s[1].Value.Uint64()
	}
	const left = 64 << 20
	synctest.Test(t, func(t *testing.T) {
		busy := bytes.Repeat([]byte{1}, left)
		before := held()
		runtime.KeepAlive(busy)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go boundGarbage(ctx, func() int { return 0 })
		time.Sleep(quietFor + 2*garbageEvery)
		synctest.Wait()
		if after := held(); after > before-left/2 {
			t.Errorf("%d MB before, %d after", before>>20, after>>20)
		}
	})
}
