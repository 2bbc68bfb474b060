package client

import (
	"context"
	"net/http"

	"gantry/api/v2"
)

// Registries lists the account's registry credentials.
func (c *Client) Registries(ctx context.Context) (Answer[v2.RegistryList], error) {
	return list[v2.RegistryList](ctx, c, "/v2/registries", nil)
}

// Registry reads one registry credential.
func (c *Client) Registry(ctx context.Context, id string) (Answer[v2.Registry], error) {
	return call[v2.Registry](ctx, c, http.MethodGet, "/v2/registries/"+word(id), nil, nil)
}

// CreateRegistry stores a registry credential.
func (c *Client) CreateRegistry(ctx context.Context, body v2.CreateRegistryRequest) (Answer[v2.Registry], error) {
	return create[v2.Registry](ctx, c, "/v2/registries", body)
}

// UpdateRegistry replaces the user name and the password of a registry credential.
func (c *Client) UpdateRegistry(ctx context.Context, id string, body v2.UpdateRegistryRequest) (Answer[v2.Registry], error) {
	return call[v2.Registry](ctx, c, http.MethodPatch, "/v2/registries/"+word(id), nil, body)
}

// DeleteRegistry deletes a registry credential that nothing uses.
func (c *Client) DeleteRegistry(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/registries/"+word(id))
}
