package kernel

import (
	"context"

	"gantry/netctl"
)

// SetPolicy implements netctl.Controller.
func (c *Controller) SetPolicy(ctx context.Context, p netctl.Policy) error {
	return c.again(ctx, func(want *netctl.Config) { *want = want.WithPolicy(p) })
}
