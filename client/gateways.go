package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
)

// Gateways lists the gateways; for operators.
func (c *Client) Gateways(ctx context.Context) (Answer[admin.GatewayList], error) {
	return list[admin.GatewayList](ctx, c, "/admin/v1/gateways", nil)
}

// CreateGatewayToken makes a token with which one gateway may join, once; for operators.
func (c *Client) CreateGatewayToken(ctx context.Context, body admin.CreateGatewayTokenRequest) (Answer[admin.JoinToken], error) {
	return call[admin.JoinToken](ctx, c, http.MethodPost, "/admin/v1/gateways/tokens", nil, body)
}

// DrainGateway has a gateway take no new requests; for operators.
func (c *Client) DrainGateway(ctx context.Context, id string) (Answer[admin.Gateway], error) {
	return call[admin.Gateway](ctx, c, http.MethodPost, "/admin/v1/gateways/"+word(id)+"/drain", nil, nil)
}

// UndrainGateway lets a gateway take requests again; for operators.
func (c *Client) UndrainGateway(ctx context.Context, id string) (Answer[admin.Gateway], error) {
	return call[admin.Gateway](ctx, c, http.MethodPost, "/admin/v1/gateways/"+word(id)+"/undrain", nil, nil)
}

// RemoveGateway takes a gateway out for ever; for operators.
func (c *Client) RemoveGateway(ctx context.Context, id string) error {
	return c.remove(ctx, "/admin/v1/gateways/"+word(id))
}
