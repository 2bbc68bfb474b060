package scheduler

import (
	"context"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

const (
	capacityEvery = 5 * time.Minute
	maxCapacities = 24 * 12 // a day
	maxKinds      = 32      // GPU types of one of them
)

// capacities are what this scheduler saw of the fleet's capacity over the last day. They are in its memory alone.
type capacities struct {
	mu   sync.Mutex // guards the field below
	seen []fleet.CapacityAt
}

// noteCapacity looks at the capacity unless that was done a moment ago. Every scheduler does, from its own copy of the state, so that
// a change of leader ends no history.
func (s *Service) noteCapacity() error {
	s.capacities.mu.Lock()
	defer s.capacities.mu.Unlock()
	now, seen := s.Now(), s.capacities.seen
	if n := len(seen); n > 0 && now.Sub(seen[n-1].At) < capacityEvery {
		return nil
	}
	at := fleet.CapacityAt{At: now}
	if err := s.Store.View(func(v *state.View) error { at.GPUs, _ = CapacityOf(v); return nil }); err != nil {
		return err
	}
	at.GPUs = at.GPUs[:min(len(at.GPUs), maxKinds)]
	s.capacities.seen = append(slices.Clone(seen[max(0, len(seen)+1-maxCapacities):]), at)
	return nil
}

// CapacityHistory returns what the capacity was over the last day, oldest first, as far as this scheduler runs so long.
func (s *Service) CapacityHistory(context.Context) ([]fleet.CapacityAt, error) {
	s.capacities.mu.Lock()
	defer s.capacities.mu.Unlock()
	return s.capacities.seen, nil // it is replaced, never changed
}
