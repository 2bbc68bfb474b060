package replica

import (
	"context"
	"errors"
	"io"
)

// errNotBuilt is a placeholder.
var errNotBuilt = errors.New("not built yet")

// Server is a member as Raft's present configuration has it.
type Server struct {
	Member
	Voter bool
}

// Servers returns the members of the newest configuration that this node knows.
func (n *Node) Servers() []Server { return nil }

// AddNonVoter makes a member that gets a copy of everything and has no vote; one that is there already
// keeps its vote and gets the address. Errors: as of Propose.
func (n *Node) AddNonVoter(ctx context.Context, m Member) error { return errNotBuilt }

// Promote gives a member a vote. Errors: as of Propose.
func (n *Node) Promote(ctx context.Context, m Member) error { return errNotBuilt }

// Demote takes a member's vote. Errors: as of Propose; rule when it is the last voter.
func (n *Node) Demote(ctx context.Context, id string) error { return errNotBuilt }

// Remove takes a member out. A leader that removes itself hands leadership on first. Errors: as of Propose;
// rule when it is the last voter.
func (n *Node) Remove(ctx context.Context, id string) error { return errNotBuilt }

// Transfer hands leadership to the member, or with "" to the most up-to-date voter, and returns when this node
// does not lead any more. Errors: unavailable; rule (it has no vote, or there is no other voter).
func (n *Node) Transfer(ctx context.Context, id string) error { return errNotBuilt }

// LastIndex is the index of the newest entry on this node's log.
func (n *Node) LastIndex() uint64 { return 0 }

// AppliedIndex is the index up to which this node has applied the log.
func (n *Node) AppliedIndex() uint64 { return 0 }

// LeaderChanges returns a channel that is closed when the member that this node takes for the leader may have
// changed since the call.
func (n *Node) LeaderChanges() <-chan struct{} { return nil }

// DiskFull reports whether the disk is so full that nothing is accepted any more; see Config.DiskLimit.
func (n *Node) DiskFull() bool { return false }

// Install makes in dir, which must hold no replica, the data of a cluster whose only member is m and whose
// state is the snapshot (see state.Snapshot) in r. What it made is on disk when it returns; after an error
// dir is as it was.
func Install(dir string, m Member, r io.Reader) error { return errNotBuilt }

// Recover makes m the only member of the cluster whose data is in dir, for when a majority is lost for good.
// No node may have dir open. What the lost majority acknowledged and this member never received is gone.
func Recover(dir string, m Member) error { return errNotBuilt }
