package kernel

import (
	"context"

	"gantry/netctl"
)

// SetOverlay implements netctl.Controller.
func (c *Controller) SetOverlay(context.Context, netctl.Overlay) error { return netctl.ErrNoHost }

// RemoveOverlay implements netctl.Controller.
func (c *Controller) RemoveOverlay(context.Context, uint32) error { return nil }

// SetUnderlay implements netctl.Controller.
func (c *Controller) SetUnderlay(context.Context, netctl.Underlay) error { return netctl.ErrNoHost }

// Drops implements netctl.Controller.
func (c *Controller) Drops(context.Context) ([]netctl.Drop, error) { return nil, nil }
