package client

import (
	"context"
	"net/http"

	"gantry/api/v2"
	"gantry/fleet"
)

// Secrets lists the account's secrets.
func (c *Client) Secrets(ctx context.Context) (Answer[v2.SecretList], error) {
	return list[v2.SecretList](ctx, c, "/v2/secrets", nil)
}

// SetSecret makes a secret, or gives the one of this name another value.
func (c *Client) SetSecret(ctx context.Context, name string, value fleet.Secret) (Answer[v2.Secret], error) {
	return call[v2.Secret](ctx, c, http.MethodPut, "/v2/secrets/"+word(name), nil, v2.PutSecretRequest{Value: v2.Hidden(value)})
}

// DeleteSecret deletes a secret that no pod refers to which is not terminated.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.remove(ctx, "/v2/secrets/"+word(name))
}
