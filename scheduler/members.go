package scheduler

import (
	"context"
	"errors"
	"io"
	"time"

	"gantry/fleet"
	"gantry/scheduler/backup"
	"gantry/scheduler/state"
)

// defaultMemberTTL is longer than a host's: whoever adds a scheduler prepares its machine meanwhile.
const defaultMemberTTL = time.Hour

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

// Clock is the time as the leader and the log have it; see control.Timekeeper.
type Clock interface {
	View() fleet.ClockView
	// Confirm returns the command that sets the log's time to the leader's, which an operator saw to be at. Errors:
	// rule (it says something else by now).
	Confirm(at time.Time) (state.TickClock, error)
}

// errAlone is the answer of a service that was made without members.
var errAlone = fleet.NotAllowed("this scheduler has no members to speak of")

// Cluster returns the control plane's members.
func (s *Service) Cluster(ctx context.Context) (fleet.ClusterView, error) {
	var out fleet.ClusterView
	if s.Members != nil {
		out, err := s.Members.View(ctx)
		if s.Clock != nil {
			out.Clock = s.Clock.View()
		}
		return out, err
	}
	err := s.read(ctx, func(v *state.View) error {
		c, _ := v.Cluster()
		out.ID, out.Lineage, out.Level = c.ID, c.Lineage, c.Level
		return nil
	})
	return out, err
}

// ConfirmClock sets the log's time to the leader's, which an operator saw to be at and found right. Errors: rule (it
// says something else by now).
func (s *Service) ConfirmClock(ctx context.Context, at time.Time) error {
	if s.Clock == nil {
		return errAlone
	}
	cmd, err := s.Clock.Confirm(at)
	if err != nil {
		return err
	}
	_, err = propose[state.Clock](ctx, s, cmd)
	if err == nil {
		s.Log.Warn("an operator confirmed the leader's clock", "time", cmd.At.UTC().Format(time.RFC3339))
	}
	return err
}

// CreateMemberToken returns the text of a token with which one scheduler can join, once. replaces names a
// member that is removed once the new one votes; empty: none. Errors: not_found (replaces), invalid.
func (s *Service) CreateMemberToken(
	ctx context.Context, nonVoter bool, replaces fleet.MemberID, ttl time.Duration,
) (fleet.Secret, time.Time, error) {
	if nonVoter && replaces != "" {
		return "", time.Time{}, fleet.Invalid("$.replaces", "cannot be named for a member that never votes")
	}
	if replaces != "" {
		err := s.read(ctx, func(v *state.View) error {
			if m, ok := v.Member(replaces); !ok || !m.RemovedAt.IsZero() {
				return fleet.NotFound("scheduler")
			}
			return nil
		})
		if err != nil {
			return "", time.Time{}, err
		}
	}
	return s.createToken(ctx, fleet.JoinToken{Role: fleet.TokenScheduler, NonVoter: nonVoter, Replaces: replaces}, ttl, defaultMemberTTL)
}

// changeMembers runs one of the changes of Members.
func (s *Service) changeMembers(ctx context.Context, fn func(Members) error) error {
	if s.Members == nil {
		return errAlone
	}
	// Afterwards this member may not lead any more.
	if err := s.NoteAudit(ctx); err != nil {
		return err
	}
	return fn(s.Members)
}

// PromoteMember gives a member a vote. Its errors and those of the next three are those of Members: not_found,
// rule, unavailable.
func (s *Service) PromoteMember(ctx context.Context, id fleet.MemberID) error {
	return s.changeMembers(ctx, func(m Members) error { return m.Promote(ctx, id) })
}

// DemoteMember takes a member's vote.
func (s *Service) DemoteMember(ctx context.Context, id fleet.MemberID) error {
	return s.changeMembers(ctx, func(m Members) error { return m.Demote(ctx, id) })
}

// RemoveMember takes a member out for ever.
func (s *Service) RemoveMember(ctx context.Context, id fleet.MemberID, force bool) error {
	return s.changeMembers(ctx, func(m Members) error { return m.Remove(ctx, id, force) })
}

// TransferLeadership hands leadership on; with an empty id to the most up-to-date voter.
func (s *Service) TransferLeadership(ctx context.Context, id fleet.MemberID) error {
	return s.changeMembers(ctx, func(m Members) error { return m.Transfer(ctx, id) })
}

// SaveSnapshot writes a copy of everything that was acknowledged before the call, in the format of package
// backup, without encryption.
func (s *Service) SaveSnapshot(ctx context.Context, w io.Writer) error {
	if err := s.Node.Barrier(ctx); err != nil {
		return err
	}
	snap, err := s.Store.Snapshot()
	if err != nil {
		return err
	}
	h := backup.Header{Index: snap.Index, SavedAt: s.Now(), Program: s.Version}
	err = s.Store.View(func(v *state.View) error {
		c, _ := v.Cluster()
		h.ClusterID, h.Lineage, h.Level = c.ID, c.Lineage, c.Level
		return nil
	})
	if err != nil {
		return errors.Join(err, snap.Release())
	}
	lead, end := s.leads(ctx)
	defer end()
	return backup.Stream(lead, w, snapshotStall, func(w io.Writer) error {
		return errors.Join(backup.Write(w, h, snap), snap.Release())
	})
}

const (
	// snapshotStall is how long a snapshot that nobody takes a byte of holds the pages of the state.
	snapshotStall = 30 * time.Second
	// leadCheck is how often a long read looks whether this scheduler still leads. One that does not may be given
	// all of the state anew, which waits for the readers.
	leadCheck = 250 * time.Millisecond
)

var errDeposed = errors.New("this scheduler does not lead any more")

// leads returns a context that ends with ctx and when this scheduler does not lead any more.
func (s *Service) leads(ctx context.Context) (lead context.Context, end func()) {
	lead, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(leadCheck)
		defer tick.Stop()
		for {
			if !s.Node.IsLeader() {
				cancel(errDeposed)
			}
			select {
			case <-tick.C:
			case <-lead.Done():
				return
			}
		}
	}()
	return lead, func() { cancel(nil); <-done }
}
