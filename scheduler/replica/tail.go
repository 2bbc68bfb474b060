package replica

import (
	"sync"

	"github.com/hashicorp/raft"
)

// tailLog replaces the end of the log so that Raft can go on whatever fails. A follower whose last entries are not its leader's cuts
// them off and writes the leader's. When the second fails, Raft goes on counting on those that it had (raft.go, appendEntries), and
// panics over an entry that is not there. So what is cut off the end stays until its place is taken: it is written over first and
// shortened afterwards. A cut that nothing was written for is forgotten, as by Raft.
type tailLog struct {
	Log
	mu       sync.Mutex // guards the fields below
	from, to uint64     // what is cut off and still stored; from is 0 when nothing is
}

// DeleteRange implements raft.LogStore.
func (l *tailLog) DeleteRange(from, to uint64) error {
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if to < last {
		return l.Log.DeleteRange(from, to)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from, l.to = from, to
	return nil
}

// StoreLog implements raft.LogStore.
func (l *tailLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l *tailLog) StoreLogs(entries []*raft.Log) error {
	if err := l.Log.StoreLogs(entries); err != nil || len(entries) == 0 {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := entries[len(entries)-1].Index + 1
	if entries[0].Index == l.from && rest <= l.to {
		if err := l.Log.DeleteRange(rest, l.to); err != nil {
			return err
		}
	}
	l.from, l.to = 0, 0
	return nil
}
