package scheduler

import (
	"context"
	"errors"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// SuspendAccount has the keys of an account, and of its pods, refused for a reason that their holders are told. Pods run
// on, and are charged, unless stopPods: then those that run are stopped as though their owner had. It may be called
// again, for what was not stopped. Errors: not_found, invalid, not_allowed (one of its keys is an operator's).
func (s *Service) SuspendAccount(ctx context.Context, id fleet.AccountID, reason string, stopPods bool) (fleet.AccountView, error) {
	if _, err := propose[fleet.Account](ctx, s, state.SuspendAccount{Account: id, Reason: reason, At: s.Now()}); err != nil {
		return fleet.AccountView{}, err
	}
	s.Log.Info("account suspended", "account", id, "stopsPods", stopPods)
	if stopPods {
		if err := s.stopPodsOf(ctx, id); err != nil {
			return fleet.AccountView{}, err
		}
	}
	return s.AccountByID(ctx, id)
}

// stopPodsOf stops every pod of an account that runs or is to run.
func (s *Service) stopPodsOf(ctx context.Context, id fleet.AccountID) error {
	var running []fleet.PodID
	err := s.read(ctx, func(v *state.View) error {
		for _, p := range v.PodsOf(id) {
			if fleet.Allowed(p.Status, p.Goal, fleet.ActionStop) {
				running = append(running, p.ID)
			}
		}
		return nil
	})
	faults := []error{err}
	for _, pod := range running {
		_, err := s.ActPod(ctx, fleet.Principal{Account: id}, pod, fleet.ActionStop)
		if code := fleet.CodeOf(err); err != nil && code != fleet.CodeNotAllowed && code != fleet.CodeNotFound { // else it ended meanwhile
			faults = append(faults, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(faults...)
}

// ResumeAccount ends the suspension of an account; of one that is not suspended it does nothing. It starts no pod.
// Errors: not_found.
func (s *Service) ResumeAccount(ctx context.Context, id fleet.AccountID) (fleet.AccountView, error) {
	if _, err := propose[fleet.Account](ctx, s, state.SuspendAccount{Account: id, Resume: true, At: s.Now()}); err != nil {
		return fleet.AccountView{}, err
	}
	s.Log.Info("account resumed", "account", id)
	return s.AccountByID(ctx, id)
}

// NoteBackup remembers of when a back-up is that is whole where it is kept, and returns of when the newest is. Errors:
// invalid.
func (s *Service) NoteBackup(ctx context.Context, savedAt time.Time) (time.Time, error) {
	return propose[time.Time](ctx, s, state.NoteBackup{SavedAt: savedAt, At: s.Now()})
}
