package scheduler

import (
	"context"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// SetHostDuty cordons a host, drains it, or opens it again. keepRunning makes a drain wait for running pods
// rather than move those that may be moved. Errors: not_found, invalid, not_allowed.
func (s *Service) SetHostDuty(ctx context.Context, id fleet.HostID, duty fleet.Duty, keepRunning bool) (fleet.HostView, error) {
	view, err := s.changeHost(ctx, id, state.SetHostDuty{Host: id, Duty: duty, KeepRunning: keepRunning, At: s.Now()})
	if err == nil {
		s.Log.Info("host has a new duty", "host", id, "state", view.Host.Shown(), "keepRunning", keepRunning)
	}
	return view, err
}

// SetHostLabels sets and removes labels of a host; those that are not named stay. Errors: not_found, invalid,
// not_allowed (it is gone).
func (s *Service) SetHostLabels(ctx context.Context, id fleet.HostID, set map[string]string, unset []string) (fleet.HostView, error) {
	if err := fleet.CheckLabels(set); err != nil {
		return fleet.HostView{}, err
	}
	return s.changeHost(ctx, id, state.SetHostLabels{Host: id, Set: set, Unset: unset})
}

// FenceHost records that nothing runs on a host any more; see state.FenceHost. Errors: not_found, not_allowed
// (it is connected).
func (s *Service) FenceHost(ctx context.Context, id fleet.HostID) (fleet.HostView, error) {
	view, err := s.changeHost(ctx, id, state.FenceHost{Host: id, At: s.Now()})
	if err == nil {
		s.Log.Warn("host was fenced: what it held is free", "host", id, "name", view.Host.Name)
	}
	return view, err
}

// RemoveHost takes a host out for ever. Errors: not_found, rule (pods are there).
func (s *Service) RemoveHost(ctx context.Context, id fleet.HostID) error {
	_, err := propose[any](ctx, s, state.RemoveHost{Host: id, At: s.Now()})
	if err == nil {
		s.Log.Warn("host was removed", "host", id)
	}
	return err
}

// ClearHostAlarm ends the alarm of a host. Errors: not_found.
func (s *Service) ClearHostAlarm(ctx context.Context, id fleet.HostID) (fleet.HostView, error) {
	return s.changeHost(ctx, id, state.AlarmHost{Host: id, At: s.Now()})
}

// changeHost commits a command on a host and returns how it is afterwards.
func (s *Service) changeHost(ctx context.Context, id fleet.HostID, cmd state.Command) (fleet.HostView, error) {
	if _, err := propose[any](ctx, s, cmd); err != nil {
		return fleet.HostView{}, err
	}
	return s.Host(ctx, id)
}

// HostPods returns the pods that hold something of a host or keep data there, and those that are being moved
// from there, by id, for operators. Of each the reason why a drain waits for it is told in HeldPod.Waits.
// Errors: not_found.
func (s *Service) HostPods(ctx context.Context, id fleet.HostID) ([]fleet.HeldPod, error) {
	out := []fleet.HeldPod{}
	err := s.read(ctx, func(v *state.View) error {
		host, ok := v.Host(id)
		if !ok {
			return fleet.NotFound("host")
		}
		for _, p := range v.HeldPods(id) {
			out = append(out, fleet.HeldPod{
				ID: p.ID, Account: p.Account, Status: p.Status, GPUs: len(p.GPUs), Moving: p.Moving, Waits: waits(&host, &p),
			})
		}
		return nil
	})
	return out, err
}

// waits tells why a drain waits for a pod; empty when it does not, or there is no drain.
func waits(host *fleet.Host, p *fleet.Pod) string {
	switch {
	case host.Duty != fleet.DutyDraining:
		return ""
	case p.Status == fleet.StatusTerminated:
		return "what it left is being removed"
	case p.Moving && !p.Status.Active():
		return "no room elsewhere"
	case p.Stopping():
		return "it is being stopped"
	case p.KeepsData():
		return "it keeps data on this host"
	case p.Locked:
		return "it is locked"
	case host.KeepRunning:
		return "it still runs and the drain keeps running pods"
	case host.State != fleet.HostReady:
		return "the host cannot be reached"
	}
	return ""
}

// StartMoved starts a pod that was taken from a host which is drained, if it is still to be started. Errors:
// those of a start by its owner.
func (s *Service) StartMoved(ctx context.Context, id fleet.PodID) error {
	started := false
	pod, err := untilBound(ctx, s, func(mine *holding) (fleet.Pod, error) {
		var old fleet.Pod
		if err := s.read(ctx, func(v *state.View) error { old, _ = v.Pod(id); return nil }); err != nil {
			return fleet.Pod{}, err
		}
		started = old.Moving && !old.Status.Active()
		if !started {
			return old, nil
		}
		cmd := state.ActPod{Account: old.Account, Pod: id, Action: fleet.ActionStart, At: s.Now()}
		if err := s.bindStart(ctx, fleet.Principal{Account: old.Account}, &cmd, mine); err != nil {
			return fleet.Pod{}, err
		}
		if cmd.Rev != old.Rev {
			return fleet.Pod{}, fleet.Stale("the pod changed") // by its owner, who may want it stopped
		}
		return propose[fleet.Pod](ctx, s, cmd)
	})
	if err == nil && started {
		s.Log.Info("pod was moved", "pod", id, "account", pod.Account, "host", pod.Host)
	}
	return err
}
