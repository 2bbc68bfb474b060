package membership

import (
	"context"
	"errors"
	"time"

	"gantry/fleet"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// firstWait is how long a view waits for members that were not yet asked by a new leader.
const firstWait = 1500 * time.Millisecond

// View returns all members, those that were removed too. Errors: as of the replica's Barrier.
func (k *Keeper) View(ctx context.Context) (fleet.ClusterView, error) {
	if err := k.cfg.Node.Barrier(ctx); err != nil {
		return fleet.ClusterView{}, err
	}
	k.waitFirst(ctx)
	var out fleet.ClusterView
	err := k.cfg.Store.View(func(v *state.View) error {
		cluster, _ := v.Cluster()
		out.ID, out.Lineage, out.Level = cluster.ID, cluster.Lineage, cluster.Level
		return nil
	})
	if err != nil {
		return out, err
	}
	l, err := k.look()
	if err != nil {
		return out, err
	}
	voters := map[string]bool{}
	inRaft := map[string]bool{}
	for _, s := range l.servers {
		inRaft[s.ID], voters[s.ID] = true, s.Voter
	}
	last, now, offsets := k.cfg.Node.LastIndex(), time.Now(), k.Offsets()
	for _, m := range l.members {
		if !m.RemovedAt.IsZero() {
			out.Members = append(out.Members, fleet.MemberView{Member: m})
			continue
		}
		h := l.heard[m.ID]
		view := fleet.MemberView{
			Member: m, Voter: voters[string(m.ID)], Leader: m.ID == l.self, Reachable: h.answers,
			Applied: h.applied, Problem: h.problem, Certificate: h.certificate,
		}
		if off, known := offsets[m.ID]; known {
			view.Clock = &off
		}
		if m.ID != l.self {
			view.Silent = k.silent(m, now)
		}
		if last > h.applied && m.ID != l.self {
			view.Lag = last - h.applied
		}
		switch {
		case !inRaft[string(m.ID)] && isReplaced(l.members, m.ID):
			view.Problem = "another scheduler takes its place"
		case view.Problem == "":
			view.Problem = memberProblem(h, inRaft[string(m.ID)], view.Voter)
		}
		out.Members = append(out.Members, view)
	}
	return out, nil
}

// memberProblem says what is out of order with a member that has no problem of its own.
func memberProblem(h heard, inRaft, votes bool) string {
	switch {
	case h.full:
		return "its disk is full: it cannot lead"
	case !h.known:
		return "it has not answered yet"
	case !inRaft:
		return "it is being added"
	case !votes && h.close < steady:
		return "it is catching up"
	}
	return ""
}

// silent is for how long a member has not answered; one that never did, since it joined or this leader began to
// ask.
func (k *Keeper) silent(m fleet.Member, now time.Time) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	since := k.leadAt
	if m.JoinedAt.After(since) {
		since = m.JoinedAt
	}
	if p := k.polls[m.ID]; p != nil && p.answer != nil {
		since = p.at
	}
	return max(now.Sub(since), 0)
}

// waitFirst waits, not for long, until everybody was asked once.
func (k *Keeper) waitFirst(ctx context.Context) {
	k.mu.Lock()
	first := k.first
	k.mu.Unlock()
	if first == nil {
		return // leadership has only begun, or is over
	}
	timer := time.NewTimer(firstWait)
	defer timer.Stop()
	select {
	case <-first:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// change runs fn, which changes a vote of a present member, with nobody else changing the membership.
func (k *Keeper) change(ctx context.Context, id fleet.MemberID, fn func(context.Context, look, fleet.Member) error) error {
	return k.alone(ctx, id, k.settled, fn)
}

// alone runs fn on a present member and a look, with nobody else changing the membership.
func (k *Keeper) alone(
	ctx context.Context, id fleet.MemberID, look func(context.Context) (look, error), fn func(context.Context, look, fleet.Member) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := k.cfg.Node.Barrier(ctx); err != nil {
		return err
	}
	if err := k.lock(ctx); err != nil {
		return err
	}
	defer k.unlock()
	l, err := look(ctx)
	if err != nil {
		return err
	}
	for _, m := range present(l.members) {
		if m.ID == id {
			return fn(ctx, l, m)
		}
	}
	return fleet.NotFound("scheduler")
}

// Promote gives a member a vote, as soon as it is close enough behind, and lets it keep one.
func (k *Keeper) Promote(ctx context.Context, id fleet.MemberID) error {
	return k.change(ctx, id, func(ctx context.Context, l look, m fleet.Member) error {
		if m.NonVoter {
			m.NonVoter = false
			if err := propose(ctx, k.cfg.Node, state.PutMember{Member: m}); err != nil {
				return err
			}
		}
		if l.heard[id].close < steady {
			return nil // the loop does it once it has caught up
		}
		for _, s := range l.servers {
			give := step{promote, s.Member}
			if s.ID == string(id) && !s.Voter && give.may(l) == nil {
				return k.take(ctx, l, give)
			}
		}
		return nil
	})
}

// Demote takes a member's vote until it is promoted.
func (k *Keeper) Demote(ctx context.Context, id fleet.MemberID) error {
	return k.change(ctx, id, func(ctx context.Context, l look, m fleet.Member) error {
		if err := mayGo(id, l, false); err != nil {
			return err
		}
		if !m.NonVoter {
			m.NonVoter = true
			if err := propose(ctx, k.cfg.Node, state.PutMember{Member: m}); err != nil {
				return err
			}
		}
		return handedOn(k.take(ctx, l, step{demote, replica.Member{ID: string(id)}}))
	})
}

// Remove takes a member out for ever. Without force it is refused (rule) when the voters that answer would not
// be a majority afterwards.
func (k *Keeper) Remove(ctx context.Context, id fleet.MemberID, force bool) error {
	return k.change(ctx, id, func(ctx context.Context, l look, _ fleet.Member) error {
		if err := mayGo(id, l, force); err != nil {
			return err
		}
		if err := propose(ctx, k.cfg.Node, state.RemoveMember{Member: id, At: time.Now()}); err != nil {
			return err
		}
		k.cfg.Log.Warn("a scheduler was removed", "member", id, "forced", force)
		return handedOn(k.take(ctx, l, step{expel, replica.Member{ID: string(id)}}))
	})
}

// handedOn hides that the leader, to carry out a change of its own vote, handed leadership on: what is left is
// done by the next one.
func handedOn(err error) error {
	if errors.Is(err, replica.ErrNotLeader) {
		return nil
	}
	return err
}

// replace commits cmd, which makes a member that takes the place of another at its address, and then takes that
// one out of Raft. Its record stays until the new one votes. When cmd is refused, nothing has changed. stale are
// members of whom nothing is left but the record; it goes last.
func (k *Keeper) replace(ctx context.Context, id fleet.MemberID, cmd state.Command, stale []fleet.MemberID) error {
	return k.change(ctx, id, func(ctx context.Context, l look, _ fleet.Member) error {
		if id == l.self {
			return fleet.BreaksRule("The scheduler to be replaced leads: stop it first, or hand leadership on.")
		}
		if err := mayGo(id, l, false); err != nil {
			return err
		}
		if err := propose(ctx, k.cfg.Node, cmd); err != nil {
			return err
		}
		// From here on something has happened, whatever the error says.
		if err := k.take(ctx, l, step{expel, replica.Member{ID: string(id)}}); err != nil {
			return fleet.Unavailable("The new scheduler is recorded, the one before it is not out of Raft.", errors.Join(replica.ErrUnknown, err))
		}
		for _, old := range stale {
			if err := propose(ctx, k.cfg.Node, state.RemoveMember{Member: old, At: time.Now()}); err != nil {
				return fleet.Unavailable("The new scheduler is recorded, one before it is still there.", errors.Join(replica.ErrUnknown, err))
			}
		}
		return nil
	})
}

// Transfer hands leadership to a voter; empty: to the most up-to-date one.
func (k *Keeper) Transfer(ctx context.Context, id fleet.MemberID) error {
	if id == "" {
		return k.cfg.Node.Transfer(ctx, "")
	}
	now := func(context.Context) (look, error) { return k.fresh() } //nolint:contextcheck // questions end with the asker
	return k.alone(ctx, id, now, func(ctx context.Context, l look, _ fleet.Member) error {
		if l.heard[id].full {
			return fleet.BreaksRule("The disk of that scheduler is full: it cannot lead.")
		}
		return k.cfg.Node.Transfer(ctx, string(id))
	})
}
