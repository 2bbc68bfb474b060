package dns

import (
	"sync/atomic"
	"time"
)

// What one pod may do.
const (
	podRate     = 200 // questions a second
	podBurst    = 400 // at once after a rest
	podInFlight = 100 // questions that are sent on
	podConns    = 8   // TCP connections
)

// What all pods may do together.
const (
	allInFlight = 2000
	allConns    = 2000
)

// budget is what one sender may still do. The zero value is full. It is safe for concurrent use.
type budget struct {
	due      atomic.Int64 // nanoseconds; when all that was asked is paid for at podRate
	inFlight atomic.Int32
	conns    atomic.Int32
}

// take takes one question at a time in nanoseconds on a steady clock, and fails when it is one too many.
func (b *budget) take(now int64) bool {
	const each = int64(time.Second / podRate)
	for {
		due := b.due.Load()
		next := max(due, now) + each
		if next-now > podBurst*each {
			return false
		}
		if b.due.CompareAndSwap(due, next) {
			return true
		}
	}
}

// enterBoth counts one more in both, unless one of them has reached its limit. Leave counts one less.
func enterBoth(one *atomic.Int32, most int32, all *atomic.Int32, mostOfAll int32) (leave func(), ok bool) {
	if one.Add(1) > most {
		one.Add(-1)
		return nil, false
	}
	if all.Add(1) > mostOfAll {
		all.Add(-1)
		one.Add(-1)
		return nil, false
	}
	return func() {
		all.Add(-1)
		one.Add(-1)
	}, true
}
