package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
)

// CA reads the state of the cluster's CA; for operators.
func (c *Client) CA(ctx context.Context) (Answer[admin.CAStatus], error) {
	return call[admin.CAStatus](ctx, c, http.MethodGet, "/admin/v1/ca", nil, nil)
}

// RotateCA begins to replace the cluster's CA; for operators.
func (c *Client) RotateCA(ctx context.Context) (Answer[admin.CAStatus], error) {
	return call[admin.CAStatus](ctx, c, http.MethodPost, "/admin/v1/ca/rotate", nil, nil)
}

// FinishCA ends a step of the replacement without the hosts that it waits for; for operators.
func (c *Client) FinishCA(ctx context.Context, step string) (Answer[admin.CAStatus], error) {
	body := admin.FinishCARequest{Step: step}
	return call[admin.CAStatus](ctx, c, http.MethodPost, "/admin/v1/ca/finish", nil, body)
}
