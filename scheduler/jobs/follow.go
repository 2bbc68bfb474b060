package jobs

import (
	"context"
	"log/slog"
	"time"

	"gantry/scheduler/replica"
)

// Control is the control plane's replica, as far as this group follows it; see replica.Node.
type Control interface {
	Leader() (replica.Member, bool)
	LeaderChanges() <-chan struct{}
	Servers() []replica.Server
}

// FollowEvery is how often Follow looks at the members, besides at changes of the leader.
const FollowEvery = time.Second

// Follow has the leader of the group make its members those of the control plane, with their votes, and hand leadership to the
// control plane's leader, so that requests have both in one place. It returns when ctx ends.
func Follow(ctx context.Context, control Control, g *replica.Node, self string, log *slog.Logger) error {
	return g.WhileLeader(ctx, func(ctx context.Context) error {
		for {
			changed := control.LeaderChanges()
			if err := followMembers(ctx, control.Servers(), g); err != nil && ctx.Err() == nil {
				log.Warn("the members of the jobs' group are not yet those of the control plane", "err", err)
			}
			if leader, ok := control.Leader(); ok && leader.ID != self && votes(g.Servers(), leader.ID) {
				if err := g.Transfer(ctx, leader.ID); err != nil && ctx.Err() == nil {
					log.Warn("leadership of the jobs' group was not taken by the control plane's leader", "err", err)
				}
			}
			select {
			case <-changed:
			case <-time.After(FollowEvery):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// votes reports whether a member of the group has a vote.
func votes(have []replica.Server, id string) bool {
	s, ok := find(have, id)
	return ok && s.Voter
}

func find(have []replica.Server, id string) (replica.Server, bool) {
	for _, s := range have {
		if s.ID == id {
			return s, true
		}
	}
	return replica.Server{}, false
}

// followMembers makes one change at a time until there is none to be made.
func followMembers(ctx context.Context, want []replica.Server, g *replica.Node) error {
	if len(want) == 0 { // not known yet
		return nil
	}
	have := g.Servers()
	for _, s := range want {
		is, there := find(have, s.ID)
		var err error
		switch {
		case s.Voter && (!there || !is.Voter || is.Address != s.Address):
			err = g.Promote(ctx, s.Member)
		case !s.Voter && there && is.Voter:
			err = g.Demote(ctx, s.ID)
		case !s.Voter && (!there || is.Address != s.Address):
			err = g.AddNonVoter(ctx, s.Member)
		}
		if err != nil {
			return err
		}
	}
	for _, s := range have {
		if _, wanted := find(want, s.ID); !wanted {
			if err := g.Remove(ctx, s.ID); err != nil {
				return err
			}
		}
	}
	return nil
}
