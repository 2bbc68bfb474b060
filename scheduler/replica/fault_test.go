package replica

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"gantry/fleet"
)

// faultyLog is a log whose writes fail, or wait, as told.
type faultyLog struct {
	Log
	fail  atomic.Pointer[error]
	panic atomic.Bool
}

func (l *faultyLog) StoreLogs(logs []*raft.Log) error {
	if err := l.fail.Load(); err != nil {
		return *err
	}
	return l.Log.StoreLogs(logs)
}

func (l *faultyLog) GetLog(index uint64, e *raft.Log) error {
	if l.panic.Load() {
		panic("a page is gone")
	}
	return l.Log.GetLog(index, e)
}

// A leader whose log has no room steps down, and leads or follows again when there is room.
func TestALeaderWithoutRoomStepsDown(t *testing.T) {
	logs := map[string]*faultyLog{}
	members := three(t, func(c *Config) {
		id := c.ID
		c.RequestTimeout = 5 * time.Second
		c.WrapLog = func(l Log) Log {
			logs[id] = &faultyLog{Log: l}
			return logs[id]
		}
	})
	first := leader(t, members)
	first.put(t, 1)
	full := error(syscall.ENOSPC)
	logs[first.cfg.ID].fail.Store(&full)
	if _, err := first.Propose(within(t), account(2)); err == nil || fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	rest := others(members, first)
	second := leader(t, rest)
	second.put(t, 3)
	logs[first.cfg.ID].fail.Store(nil)
	second.put(t, 4)
	eventually(t, "it caught up", func() bool { return first.hash(t) == second.hash(t) })
}

// A log that breaks after it was checked at the start ends the process instead of the goroutine's panic.
func TestALogThatBreaksLaterIsFatal(t *testing.T) {
	var log *faultyLog
	m := one(t, func(c *Config) {
		c.WrapLog = func(l Log) Log {
			log = &faultyLog{Log: l}
			return log
		}
	})
	m.put(t, 1)
	log.panic.Store(true)
	watched := &watchedLog{store: log, watch: m.watch}
	var e raft.Log
	if err := watched.GetLog(1, &e); !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
	select {
	case err := <-m.fatal:
		if !strings.Contains(err.Error(), "a page is gone") {
			t.Errorf("got %v", err)
		}
	case <-within(t).Done():
		t.Error("nobody was told")
	}
}

func TestFullDiskIsExplained(t *testing.T) {
	if err := fullHint(syscall.ENOSPC); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "when there is room") {
		t.Errorf("got %v", err)
	}
	if err := fullHint(syscall.EIO); !errors.Is(err, syscall.EIO) || strings.Contains(err.Error(), "room") {
		t.Errorf("got %v", err)
	}
}

// A leader that everything but itself has left behind, as after a pause, answers no read.
func TestAPausedLeaderAnswersNoOldRead(t *testing.T) {
	layers := map[string]*switchable{}
	members := three(t, func(c *Config) {
		c.RequestTimeout = time.Second
		// This one's own clock of the lease never tells it: only asking the others does.
		c.HeartbeatTimeout, c.LeaseTimeout = 300*time.Millisecond, 300*time.Millisecond
		layers[c.ID] = &switchable{loopback: c.Streams.(loopback)}
		c.Streams = layers[c.ID]
	})
	first := leader(t, members)
	first.put(t, 1)
	layers[first.cfg.ID].disconnect()
	answered := func() bool {
		n := first.accounts()
		return first.Barrier(within(t)) == nil && n < 2
	}
	second := leader(t, others(members, first))
	second.put(t, 2)
	// The others have moved on; whatever it believes of itself, it does not answer.
	for range 20 {
		if answered() {
			t.Fatal("an old read was answered")
		}
	}
	layers[first.cfg.ID].cut.Store(false)
	eventually(t, "it caught up", func() bool { return first.accounts() == 2 })
}

// A follower that is slow gets a snapshot: the log does not grow for it.
func TestTheLogDoesNotGrowForASlowFollower(t *testing.T) {
	layers := map[string]*switchable{}
	members := three(t, func(c *Config) {
		calm(c)
		c.TrailingLogs, c.SnapshotThreshold, c.SnapshotInterval = 8, 16, 20*time.Millisecond
		layers[c.ID] = &switchable{loopback: c.Streams.(loopback)}
		c.Streams = layers[c.ID]
	})
	first := leader(t, members)
	first.put(t, 0)
	slow := others(members, first)[0]
	layers[slow.cfg.ID].disconnect()
	for i := 1; i < 120; i++ {
		first.put(t, i)
	}
	eventually(t, "the log is short", func() bool {
		begins, err := first.logs.FirstIndex()
		return err == nil && begins > slow.LastIndex()+1 && first.LastIndex()-begins < 100
	})
	layers[slow.cfg.ID].cut.Store(false)
	alike(t, members, 120)
}

// What a removed member still has on its disk disturbs nobody: it asks before it raises a term.
func TestARemovedMemberDisturbsNobody(t *testing.T) {
	members := three(t, calm)
	first := leader(t, members)
	first.put(t, 1)
	gone := others(members, first)[0]
	alike(t, members, 1)
	gone.stop(t)
	if err := first.Remove(within(t), gone.cfg.ID); err != nil {
		t.Fatal(err)
	}
	first.put(t, 2)
	term := first.raft.CurrentTerm()
	back := startAgain(t, gone)
	eventually(t, "it tries to be elected, or was told before the cut", func() bool {
		known := back.raft.GetConfiguration().Configuration().Servers
		return back.raft.State() == raft.Candidate || !slices.ContainsFunc(known, func(s raft.Server) bool { return string(s.ID) == string(back.cfg.ID) })
	})
	for i := 3; i < 60; i++ {
		first.put(t, i)
	}
	if first.raft.CurrentTerm() != term || !first.IsLeader() {
		t.Errorf("term %d became %d", term, first.raft.CurrentTerm())
	}
	if back.accounts() != 1 {
		t.Errorf("a removed member has %d accounts", back.accounts())
	}
}

// Refusals say which of the limits was hit.
func TestRefusalsSayWhatIsFull(t *testing.T) {
	n := &Node{queue: make(chan *proposal, 1)}
	_ = n.enqueue(&proposal{data: make([]byte, 1)})
	count := n.enqueue(&proposal{data: make([]byte, 1)})
	n = &Node{queue: make(chan *proposal, 9)}
	_ = n.enqueue(&proposal{data: make([]byte, maxQueuedBytes-1)})
	bytes := n.enqueue(&proposal{data: make([]byte, 2)})
	raftBusy := raftError(raft.ErrEnqueueTimeout)
	texts := map[string]bool{diskRefusal().Error(): true, refused(ErrNotLeader, nil).Error(): true}
	for _, err := range []error{count, bytes, raftBusy} {
		if !errors.Is(err, ErrBusy) {
			t.Errorf("got %v", err)
		}
		texts[err.Error()] = true
	}
	if len(texts) != 5 {
		t.Errorf("texts %v", texts)
	}
}
