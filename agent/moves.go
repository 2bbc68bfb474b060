package agent

import (
	"sync/atomic"
	"time"
)

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

// moves tells whether the agent itself gets on. It blocks while a write of the ledger hangs.
func (d *daemon) moves() bool {
	d.book.Generation()
	return d.sessions.busy.lasts(time.Now()) < workAtMost
}
