package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
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

// held starts a member whose log takes no entry until open is called. One call, of so many commands, waits for the log,
// and others behind it, at least queued of them in the queue. Each call sends its error to answers.
func held(t *testing.T, cmds, queued int) (m *member, calls int, answers chan error, open func()) {
	t.Helper()
	var gate *gatedLog
	m = one(t, func(c *Config) {
		c.HangLimit, c.RequestTimeout = patience, patience
		c.WrapLog = func(l Log) Log { gate = &gatedLog{Log: l}; return gate }
	})
	open = sync.OnceFunc(gate.shut())
	t.Cleanup(open)
	answers = make(chan error, maxQueue)
	propose := func() {
		var list []state.Command
		for range cmds {
			list = append(list, account(calls*cmds+len(list)))
		}
		calls++
		go func() {
			got, err := m.Propose(within(t), list...)
			if err == nil && len(got) != cmds {
				err = fmt.Errorf("%d results of %d commands", len(got), cmds)
			}
			answers <- err
		}()
	}
	propose()
	eventually(t, "an entry is being written", func() bool { return gate.held.Load() })
	eventually(t, "others wait in the queue", func() bool {
		if len(m.queue) >= queued {
			return true
		}
		propose()
		return false
	})
	return m, calls, answers, open
}

// TestACommandThatTheEndOvertakes is of unknown outcome if it was taken already, and has not happened otherwise.
func TestACommandThatTheEndOvertakes(t *testing.T) {
	m, calls, answers, open := held(t, 1, 1)
	closed := make(chan error, 1)
	go func() { closed <- m.Close() }()
	unknown, refused := 0, 0
	for range calls {
		switch err := <-answers; {
		case errors.Is(err, ErrUnknown) && errors.Is(err, errClosed):
			unknown++
		case errors.Is(err, ErrNotLeader):
			refused++
		default:
			t.Errorf("got %v", err)
		}
	}
	if unknown == 0 || refused == 0 {
		t.Errorf("%d of unknown outcome, %d refused", unknown, refused)
	}
	open()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestWhatDoesNotFitIntoAnEntryGoesWithTheNext, and is answered.
func TestWhatDoesNotFitIntoAnEntryGoesWithTheNext(t *testing.T) {
	const each = maxPacked/2 + 1 // no two of them share an entry
	m, calls, answers, open := held(t, each, 2)
	open()
	for range calls {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	if m.accounts() != calls*each {
		t.Errorf("%d accounts of %d", m.accounts(), calls*each)
	}
}

// TestACloseThatTakesTooLongSaysSo, each time.
func TestACloseThatTakesTooLongSaysSo(t *testing.T) {
	dir := t.TempDir()
	if err := Create(dir); err != nil {
		t.Fatal(err)
	}
	store, err := state.Open(filepath.Join(dir, StateFile), state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	n, err := Open(Config{Dir: dir, ID: "a", Address: "a", Store: store, Log: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	n.spawn(func() { <-release })
	n.closeOnce.Do(func() { n.closeErr = n.shutdown(20 * time.Millisecond) })
	for range 2 {
		if err := n.Close(); err == nil || !strings.Contains(err.Error(), "does not stop") {
			t.Errorf("got %v", err)
		}
	}
	close(release)
	n.wg.Wait()
	eventually(t, "the log is closed", func() bool { _, err := n.logs.FirstIndex(); return err != nil })
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
