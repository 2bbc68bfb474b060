package replica

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"gantry/internal/sleep"
)

// leadership is one time of leading, from when all entries of earlier leaders were applied here.
type leadership struct {
	ctx  context.Context
	term uint64
}

// IsLeader reports whether this node believes that it leads. Another may have been elected since:
// only Barrier and Propose know.
func (n *Node) IsLeader() bool { return n.raft.State() == raft.Leader }

// Leader returns the member that leads, as far as this node knows; false when it knows none.
func (n *Node) Leader() (Member, bool) {
	address, id := n.raft.LeaderWithID()
	return Member{ID: string(id), Address: string(address)}, id != ""
}

// followLeadership keeps lead up to date until the node closes.
func (n *Node) followLeadership() {
	end := func(error) {} // the node's end ends a time of leading, too
	for {
		select {
		case leads := <-n.raft.LeaderCh():
			// Two "true" in a row are two terms: the "false" between them was overwritten.
			n.setLead(nil)
			end(ErrNotLeader)
			if leads {
				end = n.beginLead()
			}
		case <-n.closing.Done():
			return
		}
	}
}

// beginLead starts a time of leading and returns what ends it.
func (n *Node) beginLead() (end func(cause error)) {
	ctx, cancel := context.WithCancelCause(n.closing)
	n.wg.Go(func() { n.settle(ctx) })
	return cancel
}

// retrySettle is the pause before a new leader tries again to apply what earlier ones left.
const retrySettle = 50 * time.Millisecond

// settle applies what earlier leaders left, then lets the leader's work begin.
func (n *Node) settle(ctx context.Context) {
	for ctx.Err() == nil {
		term := n.raft.CurrentTerm()
		index, err := n.barrier()
		if err == nil && n.raft.CurrentTerm() == term {
			n.applied.reach(index)
			n.setLead(&leadership{ctx: ctx, term: term})
			return
		}
		if n.raft.State() != raft.Leader {
			return
		}
		n.watchHandover()
		n.log.Warn("leader has not applied its log yet", "err", err)
		_ = sleep.For(ctx, retrySettle)
	}
}

// barrier has Raft write an entry that changes nothing, and returns its index when everything up to it is applied.
func (n *Node) barrier() (uint64, error) {
	future := n.raft.Barrier(n.cfg.RequestTimeout)
	if err := n.wait(future); err != nil {
		return 0, err
	}
	return future.(raft.IndexFuture).Index(), nil
}

// setLead begins or, with nil, ends the time of leading. A time that ended already does not begin.
func (n *Node) setLead(lead *leadership) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if lead != nil && lead.ctx.Err() != nil {
		return
	}
	n.lead = lead
	close(n.changed)
	n.changed = make(chan struct{})
}

// leading returns the present time of leading, nil when there is none, and what tells of a change.
func (n *Node) leading() (*leadership, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lead, n.changed
}

// WhileLeader calls fn each time that this node leads and has applied everything that earlier
// leaders committed, under a context that ends with leadership, with ctx and with the node, and
// waits for it to return. It returns when ctx ends or the node closes, with that error, or when fn
// returns an error while it still leads.
func (n *Node) WhileLeader(ctx context.Context, fn func(context.Context) error) error {
	var last *leadership
	for {
		lead, changed := n.leading()
		if lead != nil && lead != last {
			last = lead
			if err := underBoth(ctx, lead.ctx, fn); err != nil && lead.ctx.Err() == nil && ctx.Err() == nil {
				return err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-n.closing.Done():
			return errClosed
		}
	}
}

// underBoth calls fn under a context that has the values of ctx and ends with either.
func underBoth(ctx, other context.Context, fn func(context.Context) error) error {
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	defer stop()
	return fn(both)
}

// Barrier returns when a view of the store shows everything that was committed before the call,
// here or by an earlier leader: reads after it are linearizable. It waits until ctx ends, at most
// Config.RequestTimeout. Errors: unavailable, matching ErrNotLeader, or ErrBusy when it took too long.
func (n *Node) Barrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	term, err := n.settledTerm(ctx)
	if err != nil {
		return err
	}
	commit := n.raft.CommitIndex()
	if !n.onlyVoter() {
		if err := n.verifying.verify(ctx, n); err != nil {
			return err
		}
	}
	// Terms only grow and a term has one leader: it led in this one throughout.
	if n.raft.State() != raft.Leader || n.raft.CurrentTerm() != term {
		return refused(ErrNotLeader, nil)
	}
	if err := n.applied.wait(ctx, commit); err != nil {
		return refused(ErrBusy, err)
	}
	return nil
}

// settledTerm returns the term in which this node leads, once it has applied all before it.
func (n *Node) settledTerm(ctx context.Context) (uint64, error) {
	for {
		lead, changed := n.leading()
		if n.raft.State() != raft.Leader {
			return 0, refused(ErrNotLeader, nil)
		}
		if lead != nil {
			return lead.term, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, refused(ErrBusy, ctx.Err())
		case <-n.closing.Done():
			return 0, refused(ErrNotLeader, errClosed)
		}
	}
}

// onlyVoter reports whether this node alone elects the leader: then nobody else can be one.
func (n *Node) onlyVoter() bool {
	voters := 0
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter {
			if s.ID != raft.ServerID(n.cfg.ID) {
				return false
			}
			voters++
		}
	}
	return voters == 1
}

// verifier asks the other members whether this node still leads, once for all who ask meanwhile.
type verifier struct {
	ask func() error // Node.ask

	mu      sync.Mutex
	running *round
	next    *round // begins when running ends: who comes now must not share what began before
}

type round struct {
	done chan struct{}
	err  error
}

// verify returns when a round that began after the call has ended.
func (v *verifier) verify(ctx context.Context, n *Node) error {
	v.mu.Lock()
	r := v.next
	if r == nil {
		r = &round{done: make(chan struct{})}
		if v.running != nil {
			v.next = r
		} else {
			v.begin(r, n)
		}
	}
	v.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return refused(ErrBusy, ctx.Err())
	case <-n.closing.Done():
		return refused(ErrNotLeader, errClosed)
	}
}

// begin starts a round, unless the node closes. The caller holds mu.
func (v *verifier) begin(r *round, n *Node) {
	v.running = r
	n.spawn(func() {
		r.err = v.ask()
		close(r.done)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.running = nil
		if next := v.next; next != nil {
			v.next = nil
			v.begin(next, n)
		}
	})
}

// ask returns nil once most voters have taken a heartbeat of this leader that was sent after the call. Raft also counts answers to
// those that were under way: such an answer may be older than another's election, and than what was acknowledged since.
func (n *Node) ask() error {
	calls, term := n.acks.begun(), n.raft.CurrentTerm()
	for {
		if err := n.wait(n.raft.VerifyLeader()); err != nil { // has Raft send heartbeats
			return refused(ErrNotLeader, err)
		}
		switch {
		case n.raft.CurrentTerm() != term: // it led in it no longer
			return refused(ErrNotLeader, nil)
		case n.mostFollow(term, calls):
			return nil
		}
	}
}

// mostFollow reports whether most voters, this node among them, have taken a call of a term that began after so many others.
func (n *Node) mostFollow(term, calls uint64) bool {
	voters, follow := 0, 0
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == raft.ServerID(n.cfg.ID) || n.acks.followed(s.ID, term, calls) {
			follow++
		}
	}
	return follow > voters/2
}
