package replica

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// watchdog times calls that a hung disk can keep for ever.
type watchdog struct {
	limit time.Duration
	fatal func(error)

	mu    sync.Mutex
	next  uint64
	calls map[uint64]call // under way
}

type call struct {
	name  string
	begun time.Time
}

func newWatchdog(limit time.Duration, fatal func(error)) *watchdog {
	return &watchdog{limit: limit, fatal: fatal, calls: map[uint64]call{}}
}

// begin says that a call begins; the function that it returns says that it ended.
func (w *watchdog) begin(name string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.next
	w.next++
	w.calls[id] = call{name, time.Now()}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.calls, id)
	}
}

// slowest returns the call that is under way for longest, and for how long.
func (w *watchdog) slowest(now time.Time) (name string, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if took := now.Sub(c.begun); took > d {
			name, d = c.name, took
		}
	}
	return name, d
}

// run watches until ctx ends.
func (w *watchdog) run(ctx context.Context) {
	tick := time.NewTicker(w.limit / 10)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			if name, d := w.slowest(now); d > w.limit {
				w.fatal(fmt.Errorf("%s hangs since %s: the disk does not answer", name, d.Round(time.Millisecond)))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// watchedLog is the log with every call timed.
type watchedLog struct {
	store Log
	watch *watchdog
}

var _ Log = (*raftboltdb.BoltStore)(nil)

// FirstIndex implements raft.LogStore.
func (l *watchedLog) FirstIndex() (uint64, error) {
	defer l.watch.begin("read log")()
	return l.store.FirstIndex()
}

// LastIndex implements raft.LogStore.
func (l *watchedLog) LastIndex() (uint64, error) {
	defer l.watch.begin("read log")()
	return l.store.LastIndex()
}

// GetLog implements raft.LogStore.
func (l *watchedLog) GetLog(index uint64, log *raft.Log) error {
	defer l.watch.begin("read log")()
	return l.store.GetLog(index, log)
}

// StoreLog implements raft.LogStore.
func (l *watchedLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (l *watchedLog) StoreLogs(logs []*raft.Log) error {
	defer l.watch.begin("write log")()
	return l.store.StoreLogs(logs)
}

// DeleteRange implements raft.LogStore.
func (l *watchedLog) DeleteRange(from, to uint64) error {
	defer l.watch.begin("cut log")()
	return l.store.DeleteRange(from, to)
}

// Set implements raft.StableStore.
func (l *watchedLog) Set(key, value []byte) error {
	defer l.watch.begin("write vote")()
	return l.store.Set(key, value)
}

// Get implements raft.StableStore.
func (l *watchedLog) Get(key []byte) ([]byte, error) {
	defer l.watch.begin("read vote")()
	return l.store.Get(key)
}

// SetUint64 implements raft.StableStore.
func (l *watchedLog) SetUint64(key []byte, value uint64) error {
	defer l.watch.begin("write vote")()
	return l.store.SetUint64(key, value)
}

// GetUint64 implements raft.StableStore.
func (l *watchedLog) GetUint64(key []byte) (uint64, error) {
	defer l.watch.begin("read vote")()
	return l.store.GetUint64(key)
}
