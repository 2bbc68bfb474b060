package replica

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// TestCloseWithCommittedEntriesUnderWay closes members whose state machine is held up, so that committed
// entries lie between Raft's log and it: Raft forgets those when it shuts down, and nobody may wait for them.
func TestCloseWithCommittedEntriesUnderWay(t *testing.T) {
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			m := one(t, nil)
			held, release := make(chan struct{}), make(chan struct{})
			viewed := make(chan error, 1)
			go func() {
				viewed <- m.store.View(func(*state.View) error {
					close(held)
					<-release
					return nil
				})
			}()
			<-held
			entries := cap(m.inFlight)
			last := m.raft.LastIndex()
			free := sync.OnceFunc(func() { close(release) })
			defer free() // also when the test fails
			answers := make(chan error, entries)
			for n := range entries {
				go func() {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					_, err := m.Propose(ctx, state.PutAccount{Account: fleet.Account{ID: fleet.AccountID(fmt.Sprint("acc", n))}})
					answers <- err
				}()
				eventually(t, "the entry is in the log", func() bool { return m.raft.LastIndex() > last+uint64(n) })
			}
			eventually(t, "all are committed", func() bool { return m.raft.CommitIndex() >= last+uint64(entries) })
			closed := make(chan error, 1)
			go func() { closed <- m.Close() }()
			eventually(t, "Raft shuts down", func() bool { return m.closing.Err() != nil })
			free()
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if err := <-viewed; err != nil {
				t.Error(err)
			}
			for range entries {
				if err := <-answers; err != nil && fleet.CodeOf(err) != fleet.CodeUnavailable {
					t.Error(err)
				}
			}
		})
	}
}

// heldTerm is a log that holds up the write of one term.
type heldTerm struct {
	Log
	term          uint64
	begun, resume chan struct{}
}

func (h *heldTerm) SetUint64(key []byte, value uint64) error {
	if string(key) == keyTerm && value == h.term {
		close(h.begun)
		<-h.resume
	}
	return h.Log.SetUint64(key, value)
}

// TestCloseWaitsForAHeartbeat closes a member while a heartbeat writes a new term. Raft would panic if it could not.
func TestCloseWaitsForAHeartbeat(t *testing.T) {
	held := &heldTerm{term: 7, begun: make(chan struct{}), resume: make(chan struct{})}
	resume := sync.OnceFunc(func() { close(held.resume) })
	defer resume()
	m := start(t, t.TempDir(), "f", "127.0.0.1:0", func(c *Config) {
		c.WrapLog = func(l Log) Log { held.Log = l; return held }
	})
	trans, err := raft.NewTCPTransport("127.0.0.1:0", nil, 1, 5*time.Second, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = trans.Close() }()
	answered := make(chan error, 1)
	go func() {
		req := &raft.AppendEntriesRequest{
			RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a")}, Term: held.term,
		}
		answered <- trans.AppendEntries("f", raft.ServerAddress(m.cfg.Address), req, &raft.AppendEntriesResponse{})
	}()
	select {
	case <-held.begun:
	case <-within(t).Done():
		t.Fatal("the heartbeat writes no term")
	}
	closed := make(chan error, 1)
	go func() { closed <- m.Close() }()
	select {
	case <-m.stopped:
	case <-within(t).Done():
		t.Fatal("Raft does not stop")
	}
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err := m.logs.FirstIndex(); err != nil {
			t.Fatal("the log was closed under the heartbeat: ", err)
		}
	}
	if m.during(func() {}) {
		t.Error("another heartbeat began")
	}
	resume()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	t.Log(<-answered) // an answer, or a closed connection
}
