package client

import (
	"context"
	"net/http"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
)

// Account is the record of an account. Quotas is shown to operators alone.
type Account struct {
	ID         string               `json:"id"`
	Name       string               `json:"name"`
	Balance    float64              `json:"balance"`    // USD; negative when more was charged than credited
	HourlyRate float64              `json:"hourlyRate"` // USD that it spends in an hour now
	Prepaid    bool                 `json:"prepaid"`    // pods are refused and ended when the balance is used up
	Quotas     *admin.AccountQuotas `json:"quotas"`     // nil: those of the daemon
	Egress     string               `json:"egress"`     // open or none
	CreatedAt  time.Time            `json:"createdAt"`
	Limits     Limits               `json:"limits"` // by name

	Suspended *admin.Suspended `json:"suspended"` // shown to operators alone; nil: it is not
}

// Limits are how much an account may have and has, by name.
type Limits map[string]LimitUse

// LimitUse is a limit and how much of it is used.
type LimitUse struct {
	Limit int64   `json:"limit"`
	Used  float64 `json:"used"`
}

// OwnAccount reads the account of the key.
func (c *Client) OwnAccount(ctx context.Context) (Answer[Account], error) {
	return call[Account](ctx, c, http.MethodGet, "/v2/account", nil, nil)
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

// CreateKey is the body of a key's creation.
type CreateKey struct {
	Name        string            `json:"name"`
	Preset      string            `json:"preset,omitempty"`
	Permissions map[string]string `json:"permissions,omitempty"` // "none", "read" or "write" by group, over the preset's
	Invoke      *v2.Invoke        `json:"invoke,omitempty"`
	ExpiresAt   *time.Time        `json:"expiresAt,omitempty"`
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
func (c *Client) CreateKey(ctx context.Context, body CreateKey) (Answer[v2.NewKey], error) {
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
