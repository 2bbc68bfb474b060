package client

import (
	"context"
	"net/http"
	"time"

	"gantry/fleet"
)

// Secret is a secret of the account; its value is never shown.
type Secret struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"` // when its value was last set
}

// SecretList is the answer of the list of secrets.
type SecretList struct {
	Secrets []Secret `json:"secrets"`
}

// Secrets lists the account's secrets.
func (c *Client) Secrets(ctx context.Context) (Answer[SecretList], error) {
	return list[SecretList](ctx, c, "/v2/secrets", nil)
}

// SetSecret makes a secret, or gives the one of this name another value.
func (c *Client) SetSecret(ctx context.Context, name string, value fleet.Secret) (Answer[Secret], error) {
	return call[Secret](ctx, c, http.MethodPut, "/v2/secrets/"+word(name), nil, map[string]string{"value": value.Reveal()})
}

// DeleteSecret deletes a secret that no pod refers to which is not terminated.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	return c.remove(ctx, "/v2/secrets/"+word(name))
}
