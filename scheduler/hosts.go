package scheduler

import (
	"context"

	"gantry/fleet"
)

// SetHostDuty cordons a host, drains it, or opens it again. keepRunning makes a drain wait for running pods
// rather than move those that may be moved. Errors: not_found, not_allowed.
func (s *Service) SetHostDuty(ctx context.Context, id fleet.HostID, duty fleet.Duty, keepRunning bool) (fleet.HostView, error) {
	return fleet.HostView{}, errNotBuilt
}

// SetHostLabels replaces the labels of a host. Errors: not_found, invalid.
func (s *Service) SetHostLabels(ctx context.Context, id fleet.HostID, labels map[string]string) (fleet.HostView, error) {
	return fleet.HostView{}, errNotBuilt
}

// FenceHost records that nothing runs on a host any more; see state.FenceHost. Errors: not_found, not_allowed
// (it is connected).
func (s *Service) FenceHost(ctx context.Context, id fleet.HostID) (fleet.HostView, error) {
	return fleet.HostView{}, errNotBuilt
}

// RemoveHost takes a host out for ever. Errors: not_found, rule (pods are there).
func (s *Service) RemoveHost(ctx context.Context, id fleet.HostID) error { return errNotBuilt }

// ClearHostAlarm ends the alarm of a host. Errors: not_found.
func (s *Service) ClearHostAlarm(ctx context.Context, id fleet.HostID) (fleet.HostView, error) {
	return fleet.HostView{}, errNotBuilt
}

// HostPods returns the pods that hold something of a host or keep data there, by id, for operators. Of each the
// reason why a drain waits for it is told in HeldPod.Waits. Errors: not_found.
func (s *Service) HostPods(ctx context.Context, id fleet.HostID) ([]fleet.HeldPod, error) {
	return nil, errNotBuilt
}
