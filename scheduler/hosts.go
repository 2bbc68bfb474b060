package scheduler

import (
	"context"
	"strconv"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// SetHostEligibility cordons a host, or opens it again. Errors: not_found, invalid, not_allowed.
func (s *Service) SetHostEligibility(ctx context.Context, id fleet.HostID, eligibility fleet.Eligibility) (fleet.HostView, error) {
	return s.setEligibility(ctx, state.SetHostEligibility{Host: id, Eligibility: eligibility, At: s.Now()})
}

func (s *Service) setEligibility(ctx context.Context, cmd state.SetHostEligibility) (fleet.HostView, error) {
	view, err := s.changeHost(ctx, cmd.Host, cmd)
	if err == nil {
		s.Log.Info("host eligibility changed", "host", cmd.Host, "state", view.Host.Shown(), "keepRunning", cmd.KeepRunning, "deadline", cmd.Deadline)
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
		s.Log.Warn("host was fenced: its resources are free", "host", id, "name", view.Host.Name)
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

// CordonGPU takes a GPU of a host, by UUID or by its place in the host's record from 0 on, out of service. Errors:
// not_found, invalid, not_allowed (the host is gone).
func (s *Service) CordonGPU(ctx context.Context, id fleet.HostID, gpu, reason string) (fleet.HostView, error) {
	uuid, err := s.gpuOf(ctx, id, gpu)
	if err != nil {
		return fleet.HostView{}, err
	}
	view, err := s.changeHost(ctx, id, state.CordonGPU{Host: id, GPU: uuid, Reason: reason, At: s.Now()})
	if err == nil {
		s.Log.Info("GPU was cordoned", "host", id, "gpu", uuid)
	}
	return view, err
}

// OpenGPU gives a cordoned GPU pods again; with forget also one that is gone is forgotten. Errors: not_found, rule (it is
// gone), not_allowed (the host is gone).
func (s *Service) OpenGPU(ctx context.Context, id fleet.HostID, gpu string, forget bool) (fleet.HostView, error) {
	uuid, err := s.gpuOf(ctx, id, gpu)
	if err != nil {
		return fleet.HostView{}, err
	}
	view, err := s.changeHost(ctx, id, state.OpenGPU{Host: id, GPU: uuid, Forget: forget})
	if err == nil {
		s.Log.Info("GPU was uncordoned", "host", id, "gpu", uuid)
	}
	return view, err
}

// gpuOf returns the UUID of a GPU that is named by it or by its place in the host's record.
func (s *Service) gpuOf(ctx context.Context, id fleet.HostID, gpu string) (string, error) {
	place, err := strconv.Atoi(gpu)
	if err != nil {
		return gpu, nil
	}
	err = s.read(ctx, func(v *state.View) error {
		host, ok := v.Host(id)
		switch {
		case !ok:
			return fleet.NotFound("host")
		case place < 0 || place >= len(host.Inventory.GPUs):
			return fleet.NotFound("GPU")
		}
		gpu = host.Inventory.GPUs[place].UUID
		return nil
	})
	return gpu, err
}

// changeHost commits a command on a host and returns how it is afterwards.
func (s *Service) changeHost(ctx context.Context, id fleet.HostID, cmd state.Command) (fleet.HostView, error) {
	if _, err := propose[any](ctx, s, cmd); err != nil {
		return fleet.HostView{}, err
	}
	return s.Host(ctx, id)
}
