package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
)

// Placement reads the setting of where pods go; for operators.
func (c *Client) Placement(ctx context.Context) (Answer[admin.PlacementSettings], error) {
	return call[admin.PlacementSettings](ctx, c, http.MethodGet, "/admin/v1/placement", nil, nil)
}

// SetPlacement replaces the setting of where pods go; for operators.
func (c *Client) SetPlacement(ctx context.Context, p admin.PlacementSettings) (Answer[admin.PlacementSettings], error) {
	return call[admin.PlacementSettings](ctx, c, http.MethodPut, "/admin/v1/placement", nil, p)
}

// Capacity reads what the hosts have room for; for operators.
func (c *Client) Capacity(ctx context.Context) (Answer[admin.Capacity], error) {
	return call[admin.Capacity](ctx, c, http.MethodGet, "/admin/v1/capacity", nil, nil)
}
