package scheduler

import (
	"context"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// Gateways knows what gateways said last; see gateways.Server.
type Gateways interface {
	Views(all []fleet.Gateway) []fleet.GatewayView
}

// heard returns gateways with what they said last.
func (s *Service) heard(all []fleet.Gateway) []fleet.GatewayView {
	if s.Heard != nil {
		return s.Heard.Views(all)
	}
	out := make([]fleet.GatewayView, len(all))
	for i, g := range all {
		out[i].Gateway = g
	}
	return out
}

// ListGateways returns the gateways by id.
func (s *Service) ListGateways(ctx context.Context) ([]fleet.GatewayView, error) {
	var all []fleet.Gateway
	if err := s.read(ctx, func(v *state.View) error { all = v.Gateways(); return nil }); err != nil {
		return nil, err
	}
	return s.heard(all), nil
}

// CreateGatewayToken returns the text of a token with which one gateway can join, once: for the hosts of a data center; empty: of all.
// Errors: not_found (the data center), invalid.
func (s *Service) CreateGatewayToken(ctx context.Context, dc fleet.DataCenterID, ttl time.Duration) (fleet.Secret, time.Time, error) {
	return s.createToken(ctx, fleet.JoinToken{Role: fleet.TokenGateway, DataCenter: dc}, ttl, defaultMemberTTL)
}

// DrainGateway has a gateway take no new requests, or take them again. Errors: not_found.
func (s *Service) DrainGateway(ctx context.Context, id fleet.GatewayID, draining bool) (fleet.GatewayView, error) {
	g, err := propose[fleet.Gateway](ctx, s, state.DrainGateway{ID: id, Draining: draining, At: s.Now()})
	if err != nil {
		return fleet.GatewayView{}, err
	}
	s.Log.Info("gateway", "gateway", id, "draining", draining)
	return s.heard([]fleet.Gateway{g})[0], nil
}

// RemoveGateway takes a gateway out for ever: its certificate is refused from then on. Errors: not_found.
func (s *Service) RemoveGateway(ctx context.Context, id fleet.GatewayID) error {
	_, err := propose[any](ctx, s, state.RemoveGateway{ID: id})
	if err == nil {
		s.Log.Warn("gateway was removed", "gateway", id)
	}
	return err
}
