package scheduler

import (
	"context"
	"errors"
	"io"
	"time"

	"gantry/fleet"
)

var errNotBuilt = errors.New("not built yet")

// Members are the schedulers of the cluster as their leader sees them; see peers.Keeper.
type Members interface {
	// View returns all members; errors as of the replica's Barrier.
	View(ctx context.Context) (fleet.ClusterView, error)
	// Promote gives a member a vote and lets it keep one; Demote takes it until it is promoted.
	Promote(ctx context.Context, id fleet.MemberID) error
	Demote(ctx context.Context, id fleet.MemberID) error
	// Remove takes a member out for ever. Without force it is refused (rule) when the voters that answer would
	// not be a majority afterwards.
	Remove(ctx context.Context, id fleet.MemberID, force bool) error
	// Transfer hands leadership to a voter; empty: to the most up-to-date one.
	Transfer(ctx context.Context, id fleet.MemberID) error
}

// Cluster returns the control plane's members.
func (s *Service) Cluster(ctx context.Context) (fleet.ClusterView, error) {
	return fleet.ClusterView{}, errNotBuilt
}

// CreateMemberToken returns the text of a token with which one scheduler can join, once. replaces names a
// member that is removed once the new one votes; empty: none. Errors: not_found (replaces), invalid.
func (s *Service) CreateMemberToken(
	ctx context.Context, nonVoter bool, replaces fleet.MemberID, ttl time.Duration,
) (fleet.Secret, time.Time, error) {
	return "", time.Time{}, errNotBuilt
}

// PromoteMember, DemoteMember, RemoveMember and TransferLeadership are those of Members. Errors: not_found,
// rule, unavailable.
func (s *Service) PromoteMember(ctx context.Context, id fleet.MemberID) error { return errNotBuilt }

// DemoteMember takes a member's vote.
func (s *Service) DemoteMember(ctx context.Context, id fleet.MemberID) error { return errNotBuilt }

// RemoveMember takes a member out for ever.
func (s *Service) RemoveMember(ctx context.Context, id fleet.MemberID, force bool) error {
	return errNotBuilt
}

// TransferLeadership hands leadership on; with an empty id to the most up-to-date voter.
func (s *Service) TransferLeadership(ctx context.Context, id fleet.MemberID) error {
	return errNotBuilt
}

// SaveSnapshot writes a copy of everything that was acknowledged before the call, in the format of package
// backup, without encryption.
func (s *Service) SaveSnapshot(ctx context.Context, w io.Writer) error { return errNotBuilt }
