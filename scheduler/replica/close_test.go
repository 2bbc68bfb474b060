package replica

import (
	"context"
	"fmt"
	"sync"
	"testing"

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
