package gpu

import (
	"context"

	"gantry/fleet"
)

// Meter tells how busy GPUs are. Implementations are safe for concurrent use.
type Meter interface {
	// Use returns one reading for each UUID, in that order; nil when they cannot be read before ctx ends.
	Use(ctx context.Context, uuids []string) []fleet.GPUUse
}

// Idle is the Meter of simulated GPUs, which nothing ever uses.
type Idle struct{}

// Use returns as many zeros as there are UUIDs.
func (Idle) Use(_ context.Context, uuids []string) []fleet.GPUUse {
	return make([]fleet.GPUUse, len(uuids))
}
