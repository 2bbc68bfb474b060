package client

import (
	"context"
	"net/http"
	"net/url"

	"gantry/api/admin"
)

const backendsPath = "/admin/v1/volume-backends"

// Backends lists the backends of network volumes; for operators.
func (c *Client) Backends(ctx context.Context) (Answer[admin.BackendList], error) {
	return list[admin.BackendList](ctx, c, backendsPath, nil)
}

// Backend reads a backend; for operators.
func (c *Client) Backend(ctx context.Context, id string) (Answer[admin.Backend], error) {
	return call[admin.Backend](ctx, c, http.MethodGet, backendsPath+"/"+word(id), nil, nil)
}

// CreateBackend adds a backend; for operators.
func (c *Client) CreateBackend(ctx context.Context, body admin.CreateBackendRequest) (Answer[admin.Backend], error) {
	return call[admin.Backend](ctx, c, http.MethodPost, backendsPath, nil, body)
}

// UpdateBackend changes a backend; for operators.
func (c *Client) UpdateBackend(ctx context.Context, id string, body admin.UpdateBackendRequest) (Answer[admin.Backend], error) {
	return call[admin.Backend](ctx, c, http.MethodPatch, backendsPath+"/"+word(id), nil, body)
}

// DeleteBackend takes out a backend without volumes; for operators.
func (c *Client) DeleteBackend(ctx context.Context, id string) error {
	return c.remove(ctx, backendsPath+"/"+word(id))
}

// ForceDeleteBackend takes out a backend whose storage is lost, and forgets volumes that are being deleted on it; for
// operators.
func (c *Client) ForceDeleteBackend(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, http.MethodDelete, backendsPath+"/"+word(id), url.Values{"force": {"true"}}, nil)
	return err
}

// SetHostRoles replaces what a host may do beside running pods; for operators.
func (c *Client) SetHostRoles(ctx context.Context, id string, roles []string) (Answer[admin.Host], error) {
	if roles == nil {
		roles = []string{}
	}
	return call[admin.Host](ctx, c, http.MethodPatch, "/admin/v1/hosts/"+word(id), nil, admin.UpdateHostRequest{Roles: &roles})
}
