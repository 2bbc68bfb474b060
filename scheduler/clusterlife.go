package scheduler

import (
	"context"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// RestartCluster starts all members of a cluster of the caller's account anew, or none. Errors: not_found, not_allowed, no_capacity,
// low_balance.
func (s *Service) RestartCluster(ctx context.Context, who fleet.Principal, id fleet.ClusterID) (fleet.ClusterPods, error) {
	return s.clusterView(s.restartCluster(ctx, who.Account, id, false))
}

// RestartFailedCluster restarts a cluster of which a member failed, if that is still due. Errors: those of RestartCluster.
func (s *Service) RestartFailedCluster(ctx context.Context, id fleet.ClusterID) error {
	var account fleet.AccountID
	err := s.read(ctx, func(v *state.View) error {
		c, _ := state.Find[fleet.Cluster](v, id)
		account = c.Account
		return nil
	})
	if err == nil {
		_, err = s.restartCluster(ctx, account, id, true)
	}
	return err
}

func (s *Service) restartCluster(ctx context.Context, account fleet.AccountID, id fleet.ClusterID, auto bool) (fleet.Cluster, error) {
	made, err := untilBound(ctx, s, func(mine *reserver) (fleet.Cluster, error) {
		cmd := state.RestartCluster{Account: account, ID: id, At: s.Now(), Auto: auto}
		err := s.read(ctx, func(v *state.View) error {
			c, err := state.Get[fleet.Cluster](v, account, id)
			if err != nil {
				return err
			}
			cmd.Rev = c.Rev
			cmd.Starts, err = bindMembers(v, id, cmd.At, mine)
			return err
		})
		if err != nil {
			return fleet.Cluster{}, err
		}
		return propose[fleet.Cluster](ctx, s, cmd)
	})
	if err == nil {
		s.Log.Info("cluster restarted", "cluster", id, "account", account, "tries", made.Tries)
	}
	return made, err
}

// bindMembers picks where the members of a cluster start that have ended: each on its host or, where that has no room, on one without
// another member.
func bindMembers(v *state.View, id fleet.ClusterID, now time.Time, mine *reserver) (out []state.MemberStart, err error) {
	members := v.MembersOf(id)
	if slices.ContainsFunc(members, func(p *fleet.Pod) bool { return p.Stopping() }) {
		return nil, nil // the state machine says why
	}
	var taken []fleet.HostID
	for _, p := range members {
		if p.Status.Active() {
			continue
		}
		bind, err := bindAgain(v, p, now, mine, taken...)
		if err != nil {
			return nil, err
		}
		taken = append(taken, bind.Host)
		out = append(out, state.MemberStart{Pod: p.ID, Rev: p.Rev, Bind: *bind})
	}
	return out, nil
}

// ReplaceMember starts a member of a cluster whose host was fenced on another host of its data center, with its rank and address. It does
// nothing to any other pod. Errors: those of a start by its owner.
func (s *Service) ReplaceMember(ctx context.Context, id fleet.PodID) error {
	pod, err := untilBound(ctx, s, func(mine *reserver) (fleet.Pod, error) {
		cmd := state.ActPod{Pod: id, Action: fleet.ActionStart, At: s.Now()}
		err := s.read(ctx, func(v *state.View) error {
			p, ok := v.Pod(id)
			if !ok || p.Owner.Kind != fleet.OwnerCluster || !state.LostHost(&p) {
				return nil
			}
			cmd.Account, cmd.Owner, cmd.Rev = p.Account, p.Owner, p.Rev
			var err error
			cmd.Bind, err = bindAgain(v, &p, cmd.At, mine)
			return err
		})
		if err != nil || cmd.Bind == nil {
			return fleet.Pod{}, err
		}
		return propose[fleet.Pod](ctx, s, cmd)
	})
	if err == nil && pod.ID != "" {
		s.Log.Info("member of a cluster was replaced", "pod", id, "account", pod.Account, "host", pod.Host)
	}
	return err
}
