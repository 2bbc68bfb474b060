package client

import (
	"context"
	"net/http"

	"gantry/api/v2"
)

// SetAccount changes what the account of the key says of its own money.
func (c *Client) SetAccount(ctx context.Context, body v2.UpdateAccountSettingsRequest) (Answer[v2.Account], error) {
	return call[v2.Account](ctx, c, http.MethodPatch, "/v2/account", nil, body)
}

// OwnAccount reads the account of the key.
func (c *Client) OwnAccount(ctx context.Context) (Answer[v2.Account], error) {
	return call[v2.Account](ctx, c, http.MethodGet, "/v2/account", nil, nil)
}

// SSHKeys lists the account's public keys.
func (c *Client) SSHKeys(ctx context.Context) (Answer[v2.SSHKeys], error) {
	return call[v2.SSHKeys](ctx, c, http.MethodGet, "/v2/account/ssh-keys", nil, nil)
}

// SetSSHKeys replaces all of the account's public keys.
func (c *Client) SetSSHKeys(ctx context.Context, keys []string) (Answer[v2.SSHKeys], error) {
	if keys == nil {
		keys = []string{}
	}
	return call[v2.SSHKeys](ctx, c, http.MethodPut, "/v2/account/ssh-keys", nil, v2.SSHKeys{Keys: keys})
}

// Keys lists the account's keys, without their texts.
func (c *Client) Keys(ctx context.Context) (Answer[v2.KeyList], error) {
	return list[v2.KeyList](ctx, c, "/v2/account/keys", nil)
}

// Key reads one key, without its text.
func (c *Client) Key(ctx context.Context, id string) (Answer[v2.Key], error) {
	return call[v2.Key](ctx, c, http.MethodGet, "/v2/account/keys/"+word(id), nil, nil)
}

// CreateKey makes a key; its text is in this answer and never again.
func (c *Client) CreateKey(ctx context.Context, body v2.CreateKeyRequest) (Answer[v2.NewKey], error) {
	return call[v2.NewKey](ctx, c, http.MethodPost, "/v2/account/keys", nil, body)
}

// UpdateKey renames, disables or enables a key.
func (c *Client) UpdateKey(ctx context.Context, id string, body v2.UpdateKeyRequest) (Answer[v2.Key], error) {
	return call[v2.Key](ctx, c, http.MethodPatch, "/v2/account/keys/"+word(id), nil, body)
}

// DeleteKey ends a key.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/account/keys/"+word(id))
}
