package scheduler

import (
	"context"

	"gantry/fleet"
)

// Events begins to watch events of the caller's account, or operators' where the query says so: the caller has found that it
// may. The reader must be closed. Errors: unavailable.
func (s *Service) Events(ctx context.Context, who fleet.Principal, q fleet.EventQuery) (fleet.EventReader, error) {
	if err := s.Node.Barrier(ctx); err != nil {
		return nil, err
	}
	return s.hub.Watch(who.Account, q), nil //nolint:contextcheck // Close ends it
}
