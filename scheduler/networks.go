package scheduler

import (
	"context"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// NetworkSettings returns the operator's settings of private networks.
func (s *Service) NetworkSettings(ctx context.Context) (fleet.NetworkSettings, error) {
	var out fleet.NetworkSettings
	err := s.read(ctx, func(v *state.View) error { out = v.NetworkSettings(); return nil })
	return out, err
}

// PutNetworkSettings replaces the settings of private networks. Those of addresses concern what is made from then on. Errors:
// invalid, rule (what is there already does not agree with them).
func (s *Service) PutNetworkSettings(ctx context.Context, settings fleet.NetworkSettings) error {
	now, err := propose[fleet.NetworkSettings](ctx, s, state.PutNetworkSettings{Settings: settings})
	if err == nil {
		s.Log.Info("settings of private networks set", "pool", now.Pool, "bits", now.Bits, "tunnel", now.Tunnel, "suffix", now.Suffix,
			"mtu", now.MTU, "podMbps", now.PodMbps)
	}
	return err
}

// Networks lists the private networks of the caller's account by id, each with the pods that a host holds in it now.
func (s *Service) Networks(ctx context.Context, who fleet.Principal) ([]fleet.NetworkView, error) {
	out := []fleet.NetworkView{}
	err := s.read(ctx, func(v *state.View) error {
		suffix := v.NetworkSettings().Suffix
		for _, overlay := range v.OverlaysOf(who.Account) {
			out = append(out, fleet.NetworkView{Overlay: overlay, Suffix: suffix, Members: v.OverlayMembers(overlay.ID, 0)})
		}
		return nil
	})
	return out, err
}
