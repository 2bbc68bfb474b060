package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/hashicorp/raft"

	"gantry/scheduler/entry"
)

// fsm lets Raft drive the state machine. Raft calls it from one goroutine, but for Persist.
type fsm struct {
	n     *Node
	apply func([]entry.Entry) ([][]entry.Result, error)
}

// stepBytes is how much of a batch is applied, and watched, at a time. Small entries share a transaction of the file; one entry
// of its own has at most some hundred commands.
const stepBytes = 64 << 10

// Apply applies one entry.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies entries in as many transactions as it takes to be seen to go on. The answer to a command is a
// []entry.Result, or an error when this replica cannot go on.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	entries, at := make([]entry.Entry, 0, len(logs)), make([]int, 0, len(logs))
	for i, l := range logs {
		if l.Type == raft.LogCommand {
			entries = append(entries, entry.Entry{Index: l.Index, Term: l.Term, Data: l.Data})
			at = append(at, i)
		}
	}
	for len(entries) > 0 {
		n := oneStep(entries)
		results, err := f.step(entries[:n])
		if err != nil {
			f.n.fatal(fmt.Errorf("apply: %w", fullHint(err)))
			for _, i := range at {
				out[i] = err
			}
			return out
		}
		for j, r := range results {
			out[at[j]] = r
		}
		f.n.applied.reach(entries[n-1].Index)
		entries, at = entries[n:], at[n:]
	}
	f.n.applied.reach(logs[len(logs)-1].Index)
	return out
}

// oneStep is how many of the entries are applied at once.
func oneStep(entries []entry.Entry) (n int) {
	for size := 0; n < len(entries) && (n == 0 || size+len(entries[n].Data) <= stepBytes); n++ {
		size += len(entries[n].Data)
	}
	return n
}

// step applies entries under the eye of the watchdog.
func (f *fsm) step(entries []entry.Entry) ([][]entry.Result, error) {
	defer f.n.watch.begin("apply state")()
	return f.apply(entries)
}

// Snapshot takes the state as it is; Raft writes it later, beside further Apply calls.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	snap, err := f.n.machine.Snapshot()
	if err != nil {
		return nil, err
	}
	return &fsmSnapshot{snap: snap, log: f.n.log}, nil
}

// Restore replaces the state by a snapshot's.
func (f *fsm) Restore(r io.ReadCloser) error {
	err := errors.Join(f.n.machine.Restore(r), r.Close())
	if err == nil {
		f.n.exports.restored.Store(true)
	}
	return err
}

// fsmSnapshot writes a snapshot to Raft's sink, which sums and syncs it.
type fsmSnapshot struct {
	snap    Snapshot
	durable bool
	log     *slog.Logger
}

// Persist writes the snapshot.
func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.snap.WriteTo(sink); err != nil {
		return errors.Join(fmt.Errorf("write snapshot: %w", err), sink.Cancel())
	}
	err := sink.Close()
	s.durable = err == nil
	return err
}

// Release lets the state's old pages go.
func (s *fsmSnapshot) Release() {
	if err := s.snap.Release(s.durable); err != nil {
		s.log.Warn("release snapshot", "err", err)
	}
}

// progress is an index that grows, and who waits for it.
type progress struct {
	mu      sync.Mutex
	index   uint64
	changed chan struct{}
}

func (p *progress) init() { p.changed = make(chan struct{}) }

// at returns the index.
func (p *progress) at() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index
}

// reach says that everything up to index is applied.
func (p *progress) reach(index uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index > p.index {
		p.index = index
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// wait returns when everything up to index is applied.
func (p *progress) wait(ctx context.Context, index uint64) error {
	for {
		p.mu.Lock()
		have, changed := p.index, p.changed
		p.mu.Unlock()
		if have >= index {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
