package replica

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestAHandoverThatMayStillComeIsOfUnknownOutcome for a caller that does not wait for its end.
func TestAHandoverThatMayStillComeIsOfUnknownOutcome(t *testing.T) {
	members := three(t, func(c *Config) {
		calm(c)
		c.RequestTimeout = 3 * time.Second // Raft waits that long for the answer, and a watch for longer
	})
	first := leader(t, members)
	first.put(t, 1)
	mute := others(members, first)[0]
	eventually(t, "the member has the whole log", func() bool {
		_, err := first.upToDate(mute.cfg.ID, first.LastIndex())
		return err == nil
	})
	mute.stop(t)
	silent(t, mute.cfg.Address)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := first.Transfer(ctx, mute.cfg.ID); !errors.Is(err, ErrUnknown) || errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
	eventually(t, "a handover that failed is watched", first.handover.Load)
	eventually(t, "the leader takes commands again", func() bool {
		_, err := first.Propose(within(t), account(2))
		return err == nil && !first.handover.Load()
	})
	if len(first.fatal) > 0 {
		t.Error(<-first.fatal)
	}
}

// TestAHandoverIsWatchedOnce, by one watch that ends with the handover or the node, and ends nothing but itself.
func TestAHandoverIsWatchedOnce(t *testing.T) {
	m := one(t, nil)
	m.watchHandover()
	eventually(t, "the watch of a handover that is over ends", func() bool { return !m.handover.Load() })
	m.handover.Store(true)
	m.watchHandover()
	m.stop(t)
	if !m.handover.Load() {
		t.Error("a second watch has ended the first one's")
	}
	if len(m.fatal) > 0 {
		t.Error(<-m.fatal)
	}
}

// TestAnEntryIsWrittenForTheNextHandover, but on no full disk and by no node that has ended.
func TestAnEntryIsWrittenForTheNextHandover(t *testing.T) {
	m := one(t, func(c *Config) { c.DiskUsed = func() (int, error) { return 0, errors.New("no answer") } })
	last := m.LastIndex()
	if got := m.barrierIndex(); got != last+1 || m.LastIndex() != got {
		t.Errorf("entry %d, behind %d", got, last)
	}
	m.diskFull.Store(true)
	if got := m.barrierIndex(); got != 0 || m.LastIndex() != last+1 {
		t.Errorf("entry %d on a full disk", got)
	}
	m.diskFull.Store(false)
	m.stop(t)
	if got := m.barrierIndex(); got != 0 {
		t.Errorf("entry %d of a node that has ended", got)
	}
}

// TestWhatALeaderWasToldEndsWithItsLeadership, also in the same term.
func TestWhatALeaderWasToldEndsWithItsLeadership(t *testing.T) {
	members := three(t, nil)
	first := leader(t, members)
	first.put(t, 1)
	rest := others(members, first)
	id := rest[0].cfg.ID
	eventually(t, "a follower has the whole log", func() bool { return first.Acked(id) == first.LastIndex() })
	for _, m := range rest {
		m.stop(t)
	}
	term := first.Term()
	eventually(t, "it leads no more", func() bool { return first.raft.State() != raft.Leader })
	if at := first.Acked(id); at != 0 {
		t.Errorf("who leads no more was told of entries up to %d", at)
	}
	if first.Term() == term && first.acks.newest(id, term) == 0 {
		t.Error("nothing of the term is left to tell: the test shows nothing")
	}
}

// hasty is a transport in which a second call begins and ends within the first, and which answers as a test says.
type hasty struct {
	Transport
	acks    *acks
	nested  bool
	refuses bool
}

func (h *hasty) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if !h.nested {
		h.nested = true
		if err := h.acks.AppendEntries(id, to, args, &raft.AppendEntriesResponse{}); err != nil {
			return err
		}
	}
	resp.Success = !h.refuses
	return nil
}

// TestWhoRefusesACallDoesNotFollow, though it answers.
func TestWhoRefusesACallDoesNotFollow(t *testing.T) {
	for _, refuses := range []bool{true, false} {
		a := newAcks(&hasty{nested: true, refuses: refuses})
		if err := a.AppendEntries("b", "", &raft.AppendEntriesRequest{Term: 3}, &raft.AppendEntriesResponse{}); err != nil {
			t.Fatal(err)
		}
		if a.followed("b", 3, 0) == refuses {
			t.Errorf("refuses: %v, follows: %v", refuses, !refuses)
		}
	}
}

// TestALateAnswerTakesNothingBack of what a member said to a later call.
func TestALateAnswerTakesNothingBack(t *testing.T) {
	h := &hasty{}
	h.acks = newAcks(h)
	if err := h.acks.AppendEntries("b", "", &raft.AppendEntriesRequest{Term: 3}, &raft.AppendEntriesResponse{}); err != nil {
		t.Fatal(err)
	}
	if h.acks.begun() != 2 || !h.acks.followed("b", 3, 1) || h.acks.followed("b", 3, 2) {
		t.Errorf("of %d calls the latest answered is %+v", h.acks.begun(), h.acks.follows["b"])
	}
}

// sent is what comes out of a pipeline.
type sent struct {
	raft.AppendFuture
	args *raft.AppendEntriesRequest
	err  error
}

func (s sent) Error() error                        { return s.err }
func (s sent) Request() *raft.AppendEntriesRequest { return s.args }
func (sent) Response() *raft.AppendEntriesResponse { return &raft.AppendEntriesResponse{Success: true} }

// pipe is a pipeline whose answers a test makes, and onlyPipelines a transport that gives it out.
type (
	pipe struct {
		raft.AppendPipeline
		out chan raft.AppendFuture
	}
	onlyPipelines struct {
		Transport
		pipe pipe
	}
)

func (p pipe) Consumer() <-chan raft.AppendFuture { return p.out }
func (p pipe) Close() error                       { return nil }

func (p onlyPipelines) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return p.pipe, nil
}

// TestAnAnswerThatWasNotReadSaysNothing, whatever its parts say.
func TestAnAnswerThatWasNotReadSaysNothing(t *testing.T) {
	p := pipe{out: make(chan raft.AppendFuture)}
	a := newAcks(onlyPipelines{pipe: p})
	line, err := a.AppendEntriesPipeline("b", "")
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		err  error
		want uint64
	}{{nil, 5}, {errors.New("cut"), 5}, {nil, 7}} {
		args := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 5 + uint64(i)}
		p.out <- sent{args: args, err: c.err}
		select {
		case f := <-line.Consumer():
			if f.Request() != args {
				t.Errorf("answer %d is another one's", i)
			}
		case <-time.After(patience):
			t.Fatal("an answer is not handed on")
		}
		if got := a.newest("b", 3); got != c.want {
			t.Errorf("after answer %d the member has entries up to %d, want %d", i, got, c.want)
		}
	}
	for range 2 {
		if err := line.Close(); err != nil {
			t.Error(err)
		}
	}
}
