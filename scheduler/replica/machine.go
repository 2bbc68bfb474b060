package replica

import (
	"errors"
	"io"
	"path/filepath"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// Machine is a state machine that the log drives. Apply, Snapshot, Restore and Close are called one at a time, beside the
// others and beside snapshots that are being written.
type Machine interface {
	// Index is that of the newest entry in the state. After an open, one that is behind the newest snapshot has that restored.
	Index() uint64
	// Apply decides entries in order, and returns a result for each command of each entry. An error means that this
	// replica cannot go on.
	Apply(entries []entry.Entry) ([][]entry.Result, error)
	// Snapshot returns the state as it is now.
	Snapshot() (Snapshot, error)
	// SnapshotIndex reads the index from the beginning of a snapshot.
	SnapshotIndex(r io.Reader) (uint64, error)
	// Restore replaces all of the state by a snapshot's, of this member or exported by another one.
	Restore(r io.Reader) error
	// Export makes of a snapshot on this member's disk, of so many bytes, one that another member can restore, and says
	// how many bytes it will be. The caller closes what it returns, or, after an error, the snapshot.
	Export(snapshot io.ReadCloser, size int64) (io.ReadCloser, int64, error)
	Close() error
}

// Snapshot is the state of a Machine at one moment.
type Snapshot interface {
	io.WriterTo
	// Release is called once, at the end. durable says that what was written is this member's newest snapshot, on disk.
	Release(durable bool) error
}

// storeMachine is the control plane's state as a Machine.
type storeMachine struct{ *state.Store }

// OpenState opens the control plane's state in a folder that no node has open.
func OpenState(dir string) (Machine, error) {
	store, err := state.Open(filepath.Join(dir, StateFile), state.Options{})
	if err != nil {
		return nil, err
	}
	return storeMachine{store}, nil
}

// Snapshot implements Machine.
func (m storeMachine) Snapshot() (Snapshot, error) {
	snap, err := m.Store.Snapshot()
	return storeSnapshot{snap}, err
}

// SnapshotIndex implements Machine.
func (storeMachine) SnapshotIndex(r io.Reader) (uint64, error) { return state.SnapshotIndex(r) }

// Export implements Machine: a snapshot of the state holds all of it.
func (storeMachine) Export(snapshot io.ReadCloser, size int64) (io.ReadCloser, int64, error) {
	return snapshot, size, nil
}

type storeSnapshot struct{ state.Snapshot }

// Release implements Snapshot.
func (s storeSnapshot) Release(bool) error { return s.Snapshot.Release() }

// exporter has Raft read snapshots as other members need them, once this member has restored its own.
type exporter struct {
	*snapStore
	machine  Machine
	restored atomic.Bool
}

// Open implements raft.SnapshotStore.
func (e *exporter) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := e.snapStore.Open(id)
	if err != nil || !e.restored.Load() {
		return meta, r, err
	}
	out, size, err := e.machine.Export(r, meta.Size)
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	whole := *meta
	whole.Size = size
	return &whole, out, nil
}
