package replica

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"gantry/internal/sleep"
)

// logSize knows how many bytes the entries of the log take: those of two thousand may be a few hundred kilobytes, or gigabytes.
type logSize struct {
	most int64         // since the newest snapshot, until another is due
	due  chan struct{} // capacity 1

	mu      sync.Mutex // guards the fields below
	first   uint64     // index of the first of sizes
	sizes   []int64    // of entries, in order
	snapped uint64     // index of the newest snapshot
}

func newLogSize(most int64) *logSize { return &logSize{most: most, due: make(chan struct{}, 1)} }

// entrySize is about what an entry takes in the file.
func entrySize(e *raft.Log) int64 { return int64(len(e.Data)+len(e.Extensions)) + 64 }

// stored notes entries that were written.
func (s *logSize) stored(entries []*raft.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		s.add(e.Index, entrySize(e))
	}
	s.look()
}

// found notes the entries that were there when the log was opened.
func (s *logSize) found(indexes []uint64, sizes []int64, snapshot uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapped = snapshot
	for i, index := range indexes {
		s.add(index, sizes[i])
	}
	s.look()
}

// add adds an entry behind those that are there. The caller holds mu.
func (s *logSize) add(index uint64, size int64) {
	if index != s.first+uint64(len(s.sizes)) {
		s.first, s.sizes = index, nil
	}
	s.sizes = append(s.sizes, size)
}

// deleted notes that entries were removed, at the beginning or the end of the log.
func (s *logSize) deleted(from, to uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.first + uint64(len(s.sizes))
	switch {
	case to < s.first:
	case from <= s.first:
		n := min(to+1, end) - s.first
		s.first, s.sizes = s.first+n, append([]int64(nil), s.sizes[n:]...)
	default:
		s.sizes = s.sizes[:min(from, end)-s.first]
	}
}

// snapshotted notes that there is a snapshot of everything up to index.
func (s *logSize) snapshotted(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snapped = max(s.snapped, index)
}

// look says that a snapshot is due, if it is. The caller holds mu.
func (s *logSize) look() {
	if s.afterSnapshot() <= s.most {
		return
	}
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// past is how many of the entries are not after index. The caller holds mu.
func (s *logSize) past(index uint64) int {
	if index < s.first {
		return 0
	}
	return int(min(index-s.first+1, uint64(len(s.sizes)))) //nolint:gosec // not more than there are
}

func sum(sizes []int64) (total int64) {
	for _, n := range sizes {
		total += n
	}
	return total
}

// total is how many bytes all entries take.
func (s *logSize) total() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sum(s.sizes)
}

// grown is how many bytes the entries after the newest snapshot take.
func (s *logSize) grown() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.afterSnapshot()
}

// afterSnapshot is grown for those who hold mu.
func (s *logSize) afterSnapshot() int64 { return sum(s.sizes[s.past(s.snapped):]) }

// trailing is how many of the newest entries take no more than the most, at least one and at most limit.
func (s *logSize) trailing(limit uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := uint64(0), int64(0)
	for i := len(s.sizes) - 1; i >= 0 && n < limit; i-- {
		if size += s.sizes[i]; size > s.most {
			break
		}
		n++
	}
	return max(n, 1)
}

// snapshotAgain is the least time between two snapshots that are taken for the size of the log.
const snapshotAgain = time.Second

// watchSize has a snapshot taken when the log has grown by too many bytes, and lets go of what followers need no more, until the
// node closes.
func (n *Node) watchSize() {
	for {
		select {
		case <-n.size.due:
		case <-n.closing.Done():
			return
		}
		if err := n.shorten(); err != nil && n.closing.Err() == nil {
			n.log.Warn("the Raft log is too long and a snapshot cannot be taken", "err", err)
		}
		_ = sleep.For(n.closing, snapshotAgain)
	}
}

// shorten takes a snapshot after which no more of the log is kept than may be, in bytes too.
func (n *Node) shorten() error {
	conf := n.raft.ReloadableConfig()
	defer func() {
		conf.TrailingLogs = n.cfg.TrailingLogs
		if err := n.raft.ReloadConfig(conf); err != nil {
			n.log.Error("set how much of the log is kept", "err", err)
		}
	}()
	conf.TrailingLogs = n.size.trailing(n.cfg.TrailingLogs)
	if err := n.raft.ReloadConfig(conf); err != nil {
		return err
	}
	return n.Snapshot(n.closing)
}
