package replica

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"gantry/fleet"
	"gantry/internal/sleep"
)

// Server is a member as Raft's present configuration has it.
type Server struct {
	Member
	Voter bool
}

// Servers returns the members of the newest configuration that this node knows.
func (n *Node) Servers() []Server {
	have := n.raft.GetConfiguration().Configuration().Servers
	out := make([]Server, 0, len(have))
	for _, s := range have {
		out = append(out, Server{
			Member: Member{ID: string(s.ID), Address: string(s.Address)},
			Voter:  s.Suffrage == raft.Voter,
		})
	}
	return out
}

// AddNonVoter makes a member that gets a copy of everything and has no vote; one that is there already
// keeps its vote and gets the address. Errors: as of Propose.
func (n *Node) AddNonVoter(ctx context.Context, m Member) error {
	return n.change(ctx, func(wait time.Duration) (raft.IndexFuture, error) {
		return n.raft.AddNonvoter(raft.ServerID(m.ID), raft.ServerAddress(m.Address), 0, wait), nil
	})
}

// Promote gives a member a vote. Errors: as of Propose.
func (n *Node) Promote(ctx context.Context, m Member) error {
	return n.change(ctx, func(wait time.Duration) (raft.IndexFuture, error) {
		return n.raft.AddVoter(raft.ServerID(m.ID), raft.ServerAddress(m.Address), 0, wait), nil
	})
}

// Demote takes a member's vote. One that has none, or is not there, stays as it is. A leader that is to
// demote itself hands leadership on instead and answers ErrNotLeader: the next leader is asked again.
// Errors: as of Propose; rule when it is the last voter.
func (n *Node) Demote(ctx context.Context, id string) error {
	return n.change(ctx, func(wait time.Duration) (raft.IndexFuture, error) {
		if s, _ := n.server(id); !s.Voter {
			return nil, nil
		}
		if err := n.mayLose(ctx, id); err != nil {
			return nil, err
		}
		return n.raft.DemoteVoter(raft.ServerID(id), 0, wait), nil
	})
}

// Remove takes a member out; one that is not there is no error. A leader that is to remove itself hands
// leadership on instead and answers ErrNotLeader: the next leader is asked again. Errors: as of Propose;
// rule when it is the last voter.
func (n *Node) Remove(ctx context.Context, id string) error {
	return n.change(ctx, func(wait time.Duration) (raft.IndexFuture, error) {
		if _, ok := n.server(id); !ok {
			return nil, nil
		}
		if err := n.mayLose(ctx, id); err != nil {
			return nil, err
		}
		return n.raft.RemoveServer(raft.ServerID(id), 0, wait), nil
	})
}

// server returns a member of the present configuration; one that is not there has no vote.
func (n *Node) server(id string) (Server, bool) {
	for _, s := range n.Servers() {
		if s.ID == id {
			return s, true
		}
	}
	return Server{}, false
}

// otherVoter reports whether a member besides id has a vote.
func (n *Node) otherVoter(id string) bool {
	for _, s := range n.Servers() {
		if s.Voter && s.ID != id {
			return true
		}
	}
	return false
}

// mayLose refuses that the last voter loses its vote, and hands leadership on when it is this node's.
func (n *Node) mayLose(ctx context.Context, id string) error {
	if !n.otherVoter(id) {
		return fleet.BreaksRule("The last scheduler that votes cannot be removed.")
	}
	if id != n.cfg.ID {
		return nil
	}
	if err := n.Transfer(ctx, ""); err != nil {
		return err
	}
	return refused(ErrNotLeader, nil)
}

// change runs a change of the membership, one at a time, until it is committed. begin is given how long it
// may wait for Raft to take it; it returns nil when nothing is to be done.
func (n *Node) change(ctx context.Context, begin func(wait time.Duration) (raft.IndexFuture, error)) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	if !n.IsLeader() {
		return refused(ErrNotLeader, nil)
	}
	select {
	case n.changing <- struct{}{}:
	case <-ctx.Done():
		return refused(ErrBusy, ctx.Err())
	case <-n.closing.Done():
		return refused(ErrNotLeader, errClosed)
	}
	return n.bounded(ctx, func() error {
		defer func() { <-n.changing }()
		future, err := begin(n.cfg.RequestTimeout)
		if err != nil || future == nil {
			return err
		}
		return changeError(n.wait(future))
	})
}

// lastVoterText begins Raft's error about a configuration in which nobody votes; the error has no name.
const lastVoterText = "need at least one voter"

// changeError tells what did not happen from what may have.
func changeError(err error) error {
	switch {
	case err == nil:
		return nil
	case strings.HasPrefix(err.Error(), lastVoterText):
		return fleet.BreaksRule("The last scheduler that votes cannot be removed.")
	}
	return raftError(err)
}

// retryTransfer is the pause before leadership is handed on again: the one that was to have it did not take it.
const retryTransfer = 20 * time.Millisecond

// Transfer hands leadership to the member, or with "" to the most up-to-date voter, and returns when this node
// does not lead any more. Errors: unavailable; rule (it has no vote, it leads already, or there is no other voter).
func (n *Node) Transfer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.RequestTimeout)
	defer cancel()
	if !n.IsLeader() {
		return refused(ErrNotLeader, nil)
	}
	if !n.otherVoter(n.cfg.ID) {
		return fleet.BreaksRule("There is no other scheduler that votes.")
	}
	to, _ := n.server(id)
	switch {
	case id == "":
	case !to.Voter:
		return fleet.BreaksRule("The scheduler has no vote, so that it cannot lead.")
	case id == n.cfg.ID:
		return fleet.BreaksRule("The scheduler leads already.")
	}
	for want := n.LastIndex(); ; {
		member, err := n.upToDate(id, want)
		if err == nil {
			err = n.bounded(ctx, func() error { return n.transferOnce(member) })
			want = n.LastIndex()
			if err != nil {
				want = max(want, n.barrierIndex())
			}
		}
		if !n.IsLeader() {
			return nil
		}
		if errors.Is(err, ErrUnknown) {
			return err
		}
		select {
		case <-time.After(retryTransfer):
		case <-ctx.Done():
			return refused(ErrBusy, errors.Join(err, ctx.Err()))
		case <-n.closing.Done():
			return refused(ErrNotLeader, errClosed)
		}
	}
}

// barrierIndex writes an entry that changes nothing, so that a member that acknowledges it was sent something after a handover that
// failed (see watchHandover), and returns its index; 0: it was not written.
func (n *Node) barrierIndex() uint64 {
	if n.DiskFull() {
		return 0
	}
	index, _ := n.barrier()
	return index
}

var errBehind = errors.New("the member that is to lead does not have the whole log yet")

// upToDate returns the member of that id, or with "" any other voter, if it has the log up to an index; see acks. A
// leader acknowledges nothing to itself.
func (n *Node) upToDate(id string, index uint64) (Member, error) {
	term := n.raft.CurrentTerm()
	for _, s := range n.Servers() {
		if s.Voter && (id == "" || id == s.ID) && n.acks.acked(s.ID, index, term) {
			return s.Member, nil
		}
	}
	return Member{}, errBehind
}

// Acked is the index up to which a member has said to this leader that it has the log; 0 when it has not said so yet, or
// this node does not lead.
func (n *Node) Acked(id string) uint64 {
	if !n.IsLeader() {
		return 0
	}
	return n.acks.newest(id, n.raft.CurrentTerm())
}

// transferOnce asks Raft once to hand leadership to a member.
func (n *Node) transferOnce(to Member) error {
	err := n.wait(n.raft.LeadershipTransferToServer(raft.ServerID(to.ID), raft.ServerAddress(to.Address)))
	if err != nil {
		n.watchHandover()
	}
	return err
}

// ErrHandover is what Config.Fatal gets when Raft takes no entry any more: the process has to be started anew.
var ErrHandover = errors.New("a handover of leadership does not end")

// handoverLimit is how many election timeouts a handover may last; Raft gives one up after two.
const handoverLimit = 5

// watchHandover ends the process if Raft stays in a handover of leadership: it refuses all entries then, for good, also when this member
// leads again. That is so when the member that was to lead is behind and this one stops sending to it at the wrong moment
// (hashicorp/raft 1.7.3, leadershipTransfer: it waits for that sender without looking whether it was told to stop).
func (n *Node) watchHandover() {
	if !n.handover.CompareAndSwap(false, true) {
		return
	}
	n.spawn(func() {
		defer n.handover.Store(false)
		for range 2 * handoverLimit {
			if sleep.For(n.closing, n.cfg.ElectionTimeout/2) != nil {
				return
			}
			if _, err := n.barrier(); !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
				return
			}
		}
		n.fatal(ErrHandover)
	})
}

// LastIndex is the index of the newest entry on this node's log.
func (n *Node) LastIndex() uint64 { return n.raft.LastIndex() }

// LogBytes returns about how many bytes of log there are since the newest snapshot.
func (n *Node) LogBytes() int64 { return n.size.grown() }

// AppliedIndex is the index up to which this node has applied the log. Entries of Raft's own, which change
// no state, may follow it.
func (n *Node) AppliedIndex() uint64 { return max(n.applied.at(), n.machine.Index()) }

// LeaderChanges returns a channel that is closed when the member that this node takes for the leader may have
// changed since the call.
func (n *Node) LeaderChanges() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leaderChanged
}

// followLeader tells those who wait for another leader, until the node closes.
func (n *Node) followLeader() {
	// One place suffices: what does not fit is about a change that nobody was told of yet.
	seen := make(chan raft.Observation, 1)
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	n.raft.RegisterObserver(observer)
	defer n.raft.DeregisterObserver(observer)
	for {
		n.mu.Lock()
		close(n.leaderChanged)
		n.leaderChanged = make(chan struct{})
		n.mu.Unlock()
		select {
		case <-seen:
		case <-n.closing.Done():
			return
		}
	}
}

// DiskFull reports whether the disk is so full that nothing is accepted any more; see Config.DiskLimit.
func (n *Node) DiskFull() bool { return n.diskFull.Load() }

// DiskUsed returns how many percent of the disk are used, as it was seen last; 0 before that.
func (n *Node) DiskUsed() int { return int(n.diskUsed.Load()) }

// Term returns the term of Raft that this node knows of.
func (n *Node) Term() uint64 { return n.raft.CurrentTerm() }
