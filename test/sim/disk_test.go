package sim

import (
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"gantry/scheduler/replica"
)

// disk is what is between a scheduler's Raft and its log: it can be slow, hang, be full, or lose its
// process.
type disk struct {
	mu    sync.Mutex // guards the fields below
	slow  time.Duration
	hung  chan struct{} // not nil while writes hang; closed when they go on
	since time.Time     // when the first write hung
	dead  bool          // the process was killed: nothing reaches the disk any more
	full  bool
}

var errNoProcess = errors.New("the process was killed")

func (d *disk) setSlow(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slow = by
}

func (d *disk) setFull(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

func (d *disk) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil {
		d.hung, d.since = make(chan struct{}), time.Time{}
	}
}

// hangsFor is how long the longest write hangs.
func (d *disk) hangsFor() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil || d.since.IsZero() {
		return 0
	}
	return time.Since(d.since)
}

// die ends what hangs, for a process that is killed; whole makes the disk a new process's.
func (d *disk) die() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
}

func (d *disk) whole() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead, d.slow, d.full, d.hung = false, 0, false, nil
}

// used implements replica.Config.DiskUsed.
func (d *disk) used() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return 99, nil
	}
	return 40, nil
}

// written waits as long as a write takes; false: it never reached the disk.
func (d *disk) written() bool {
	d.mu.Lock()
	slow, hung := d.slow, d.hung
	if hung != nil && d.since.IsZero() {
		d.since = time.Now()
	}
	d.mu.Unlock()
	if hung != nil {
		<-hung
	}
	if slow > 0 {
		time.Sleep(slow)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.dead
}

// simLog is a log on a disk.
type simLog struct {
	replica.Log
	disk *disk
}

// StoreLog implements raft.LogStore.
func (l simLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l simLog) StoreLogs(entries []*raft.Log) error {
	if !l.disk.written() {
		return errNoProcess
	}
	return l.Log.StoreLogs(entries)
}

// DeleteRange implements raft.LogStore.
func (l simLog) DeleteRange(from, to uint64) error {
	if !l.disk.written() {
		return errNoProcess
	}
	return l.Log.DeleteRange(from, to)
}

// Set implements raft.StableStore. Raft panics over an error here; what it does in a process that was
// killed nobody sees.
func (l simLog) Set(key, value []byte) error {
	if !l.disk.written() {
		return nil
	}
	return l.Log.Set(key, value)
}

// SetUint64 implements raft.StableStore, as Set.
func (l simLog) SetUint64(key []byte, value uint64) error {
	if !l.disk.written() {
		return nil
	}
	return l.Log.SetUint64(key, value)
}
