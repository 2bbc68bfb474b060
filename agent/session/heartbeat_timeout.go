package session

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// heartbeatTimeout ends a session in which nothing is heard for too long. It looks a second time a moment after the limit: on a
// busy machine the clock may come before the reader that has to take what has come.
type heartbeatTimeout struct {
	limit time.Duration // 0: the scheduler need not say anything
	end   context.CancelCauseFunc

	mu     sync.Mutex // guards the fields below
	timer  *time.Timer
	rounds uint64 // of the clock
}

func newHeartbeatTimeout(limit time.Duration, end context.CancelCauseFunc) *heartbeatTimeout {
	s := &heartbeatTimeout{limit: limit, end: end}
	s.begin()
	return s
}

// over is called at the end of a round of the clock, and again a moment later.
func (s *heartbeatTimeout) over(round uint64, second bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.rounds != round:
	case second:
		s.end(errSilence)
	default:
		s.timer = time.AfterFunc(s.limit/8, func() { s.over(round, true) })
	}
}

// stop stops the clock: what was heard is worked on.
func (s *heartbeatTimeout) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rounds++; s.timer != nil {
		s.timer.Stop()
	}
}

// begin starts the clock: the reader is free.
func (s *heartbeatTimeout) begin() {
	if s.limit <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rounds++
	round := s.rounds
	s.timer = time.AfterFunc(s.limit, func() { s.over(round, false) })
}

// workAtMost is how long the agent may be at one message of a scheduler, or at a try to reach one. All of that is writing the
// ledger and handing on: whatever asks containerd, storage, GPUs or the network for something has goroutines and deadlines of its own.
const workAtMost = 30 * time.Second

// busy tells since when a loop has been at one piece of work.
type busy struct{ since atomic.Int64 } // Unix nanoseconds; 0: it waits for something to do

func (b *busy) works() { b.since.Store(time.Now().UnixNano()) }
func (b *busy) waits() { b.since.Store(0) }

// lasts is how long it has been at it; 0 while it waits.
func (b *busy) lasts(now time.Time) time.Duration {
	since := b.since.Load()
	if since == 0 {
		return 0
	}
	return now.Sub(time.Unix(0, since))
}
