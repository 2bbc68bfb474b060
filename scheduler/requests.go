package scheduler

import (
	"context"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// MayRequest refuses a key with which no requests may be sent to an endpoint. What this scheduler's state has is enough for a yes, be
// there a leader or not; a no must not be of a moment ago. Errors: unauthorized, account_suspended, forbidden, not_found, low_balance.
func (s *Service) MayRequest(ctx context.Context, key fleet.Secret, id fleet.EndpointID) error {
	now := s.Now()
	check := func(who fleet.Principal, view func(func(*state.View) error) error) error {
		return view(func(v *state.View) error {
			if _, err := mayInvoke(v, who, id); err != nil {
				return err
			}
			if broke(v, who.Account, now) {
				return fleet.NoCredit("Your account balance is too low to run requests", 0, v.Balance(who.Account, now))
			}
			return nil
		})
	}
	if who, ok := s.KnownKey(key); ok && check(who, s.Store.View) == nil {
		if who.Key != "" {
			s.uses.touch(who.Key, now)
		}
		return nil
	}
	who, err := s.Authenticate(ctx, key)
	if err != nil {
		return err
	}
	return check(who, func(fn func(*state.View) error) error { return s.read(ctx, fn) })
}
