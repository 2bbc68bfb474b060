package replica

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// TestWhoComesLaterSharesTheNextRound: a round that began before a call does not answer it, and all calls that come
// meanwhile share the next one.
func TestWhoComesLaterSharesTheNextRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{}
		n.closing, n.close = context.WithCancel(t.Context())
		began, answers := 0, make(chan error)
		n.verifying.ask = func() error { began++; return <-answers }
		ask := func() chan error {
			got := make(chan error, 1)
			go func() { got <- n.verifying.verify(t.Context(), n) }()
			synctest.Wait()
			return got
		}
		lost := errors.New("lost")
		first, second, third := ask(), ask(), ask()
		if began != 1 {
			t.Fatalf("%d rounds at a time", began)
		}
		answers <- lost
		synctest.Wait()
		if began != 2 || len(first) != 1 || len(second) != 0 || len(third) != 0 {
			t.Fatalf("after the first round %d began; answered: %d, %d, %d", began, len(first), len(second), len(third))
		}
		answers <- nil
		synctest.Wait()
		if one, two, three := <-first, <-second, <-third; !errors.Is(one, lost) || two != nil || three != nil || began != 2 {
			t.Errorf("%v, %v, %v in %d rounds", one, two, three, began)
		}
		last := ask()
		if began != 3 {
			t.Errorf("%d rounds, and one more is due", began)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.verifying.verify(ctx, n); !errors.Is(err, ErrBusy) {
			t.Errorf("of a caller that left: %v", err)
		}
		n.close()
		if err := <-last; !errors.Is(err, ErrNotLeader) || !errors.Is(err, errClosed) {
			t.Errorf("at the end of the node: %v", err)
		}
		answers <- nil
		n.wg.Wait()
	})
}

// TestASingleVoterAsksNobody who leads: its reads wait for no round.
func TestASingleVoterAsksNobody(t *testing.T) {
	m := one(t, nil)
	m.verifying.mu.Lock()
	defer m.verifying.mu.Unlock()
	got := make(chan error, 1)
	go func() { got <- m.Barrier(within(t)) }()
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-within(t).Done():
		t.Error("it waits")
	}
}

// TestAnswersOfMembersWithoutAVoteDoNotCount, neither for a leader nor for how many it needs.
func TestAnswersOfMembersWithoutAVoteDoNotCount(t *testing.T) {
	members := three(t, calm)
	first := leader(t, members)
	rest := others(members, first)
	if err := first.Demote(within(t), rest[0].cfg.ID); err != nil {
		t.Fatal(err)
	}
	term := first.Term() + 1000 // in which nobody else answers
	follow := func(m *member) bool {
		id := raft.ServerID(m.cfg.ID)
		first.acks.mu.Lock()
		was := first.acks.follows[id]
		first.acks.follows[id] = position{8, term}
		first.acks.mu.Unlock()
		defer func() {
			first.acks.mu.Lock()
			defer first.acks.mu.Unlock()
			first.acks.follows[id] = was
		}()
		return first.mostFollow(term, 7)
	}
	if follow(rest[0]) {
		t.Error("one without a vote confirms a leader")
	}
	if !follow(rest[1]) {
		t.Error("one of two voters confirms no leader")
	}
	first.ready(t)
}

// TestAClosedNodeBeginsNothing: no work of a leader, no goroutine, and it says nothing of its log.
func TestAClosedNodeBeginsNothing(t *testing.T) {
	var said words
	m := one(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&said, nil)) })
	m.stop(t)
	err := m.WhileLeader(within(t), func(context.Context) error { t.Error("it leads"); return nil })
	if !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
	m.spawn(func() { t.Error("a goroutine began") })
	m.wg.Wait()
	for m.size.due <- struct{}{}; len(m.size.due) > 0; { // it may see first that the node is closed
		m.watchSize()
	}
	if strings.Contains(said.all(), "too long") {
		t.Error(said.all())
	}
}
