package replica

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"gantry/internal/sleep"
)

// watchdog times calls that a hung disk can keep for ever.
type watchdog struct {
	limit time.Duration
	fatal func(error)

	mu     sync.Mutex
	next   uint64
	calls  map[uint64]call // under way
	looked time.Time       // zero: not yet
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
	for sleep.For(ctx, w.every()) == nil {
		if err := w.look(time.Now()); err != nil {
			w.fatal(err)
			return
		}
	}
}

func (w *watchdog) every() time.Duration { return w.limit / 10 }

// look tells of a call that hangs. Time in which this process did not run, since it or its machine was stopped, is no call's.
func (w *watchdog) look(now time.Time) error {
	w.mu.Lock()
	if paused := now.Sub(w.looked) - w.every(); !w.looked.IsZero() && paused > w.every() {
		for id, c := range w.calls {
			c.begun = c.begun.Add(min(paused, now.Sub(c.begun)))
			w.calls[id] = c
		}
	}
	w.looked = now
	w.mu.Unlock()
	if name, d := w.slowest(now); d > w.limit {
		return fmt.Errorf("%s hangs since %s: the disk does not answer", name, d.Round(time.Millisecond))
	}
	return nil
}

// watchedLog is the log with every call timed and guarded.
type watchedLog struct {
	store Log
	watch *watchdog
	size  *logSize            // nil: nobody asks
	wrote func(time.Duration) // the same
}

// guard makes a panic or a fault of the log's database, which comes of a file that was damaged since it was
// checked at Open, an error that ends the process.
func (l *watchedLog) guard(err *error) {
	if r := recover(); r != nil {
		*err = damaged("the log cannot be used: %v", r)
		l.watch.fatal(*err)
	}
}

// call times a call, and guards it.
func (l *watchedLog) call(name string, fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer l.guard(&err)
	defer l.watch.begin(name)()
	return fn()
}

// FirstIndex implements raft.LogStore.
func (l *watchedLog) FirstIndex() (index uint64, err error) {
	err = l.call("read log", func() (err error) { index, err = l.store.FirstIndex(); return err })
	return index, err
}

// LastIndex implements raft.LogStore.
func (l *watchedLog) LastIndex() (index uint64, err error) {
	err = l.call("read log", func() (err error) { index, err = l.store.LastIndex(); return err })
	return index, err
}

// GetLog implements raft.LogStore.
func (l *watchedLog) GetLog(index uint64, log *raft.Log) error {
	err := l.call("read log", func() error { return l.store.GetLog(index, log) })
	if errors.Is(err, ErrDamaged) {
		l.watch.fatal(err) // it was good when this node was opened
	}
	return err
}

// StoreLog implements raft.LogStore.
func (l *watchedLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (l *watchedLog) StoreLogs(logs []*raft.Log) error {
	begun := time.Now()
	err := l.call("write log", func() error { return l.store.StoreLogs(logs) })
	if err == nil && l.size != nil {
		l.size.stored(logs)
	}
	if l.wrote != nil {
		l.wrote(time.Since(begun))
	}
	return err
}

// DeleteRange implements raft.LogStore.
func (l *watchedLog) DeleteRange(from, to uint64) error {
	err := l.call("cut log", func() error { return l.store.DeleteRange(from, to) })
	if err == nil && l.size != nil {
		l.size.deleted(from, to)
	}
	return err
}

// Set implements raft.StableStore.
func (l *watchedLog) Set(key, value []byte) error {
	return l.call("write vote", func() error { return l.store.Set(key, value) })
}

// Get implements raft.StableStore.
func (l *watchedLog) Get(key []byte) (value []byte, err error) {
	err = l.call("read vote", func() (err error) { value, err = l.store.Get(key); return err })
	return value, err
}

// SetUint64 implements raft.StableStore.
func (l *watchedLog) SetUint64(key []byte, value uint64) error {
	return l.call("write vote", func() error { return l.store.SetUint64(key, value) })
}

// GetUint64 implements raft.StableStore.
func (l *watchedLog) GetUint64(key []byte) (value uint64, err error) {
	err = l.call("read vote", func() (err error) { value, err = l.store.GetUint64(key); return err })
	return value, err
}
