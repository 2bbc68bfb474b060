package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"gantry/fleet"
)

// Account is the record of an account. Quotas is shown to operators alone.
type Account struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Balance    float64   `json:"balance"`    // USD; negative when more was charged than credited
	HourlyRate float64   `json:"hourlyRate"` // USD that it spends in an hour now
	Prepaid    bool      `json:"prepaid"`    // pods are refused and ended when the balance is used up
	Quotas     *Quotas   `json:"quotas"`     // nil: those of the daemon
	Egress     string    `json:"egress"`     // open or none
	CreatedAt  time.Time `json:"createdAt"`
	Limits     Limits    `json:"limits"` // by name

	Suspended *Suspended `json:"suspended"` // shown to operators alone; nil: it is not
}

// Suspended tells why and since when an account's keys are refused.
type Suspended struct {
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Limits are how much an account may have and has, by name.
type Limits map[string]LimitUse

// LimitUse is a limit and how much of it is used.
type LimitUse struct {
	Limit int64   `json:"limit"`
	Used  float64 `json:"used"`
}

// Quotas are how many requests an account may make in each window; 0 is any number.
type Quotas struct {
	Minute int `json:"minute"`
	Hour   int `json:"hour"`
	Day    int `json:"day"`
}

// OwnAccount reads the account of the key.
func (c *Client) OwnAccount(ctx context.Context) (Answer[Account], error) {
	return call[Account](ctx, c, http.MethodGet, "/v2/account", nil, nil)
}

// SSHKeys are the account's public keys, each a line as OpenSSH writes it.
type SSHKeys struct {
	Keys []string `json:"keys"`
}

// SSHKeys lists the account's public keys.
func (c *Client) SSHKeys(ctx context.Context) (Answer[SSHKeys], error) {
	return call[SSHKeys](ctx, c, http.MethodGet, "/v2/account/ssh-keys", nil, nil)
}

// SetSSHKeys replaces all of the account's public keys.
func (c *Client) SetSSHKeys(ctx context.Context, keys []string) (Answer[SSHKeys], error) {
	if keys == nil {
		keys = []string{}
	}
	return call[SSHKeys](ctx, c, http.MethodPut, "/v2/account/ssh-keys", nil, SSHKeys{Keys: keys})
}

// Key is the record of an API key.
type Key struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Hint        string            `json:"hint"` // its first characters
	Permissions map[string]string `json:"permissions"`
	Invoke      Invoke            `json:"invoke"`
	Disabled    bool              `json:"disabled"`
	CreatedAt   time.Time         `json:"createdAt"`
	ExpiresAt   *time.Time        `json:"expiresAt"`  // nil: never
	LastUsedAt  *time.Time        `json:"lastUsedAt"` // nil: never; exact to about a minute
}

// Invoke says which endpoints a key may call: all, or those of IDs.
type Invoke struct {
	All bool
	IDs []string
}

// invokeAll is the text that stands for every endpoint.
const invokeAll = "all"

// MarshalJSON writes "all" or a list of ids.
func (i Invoke) MarshalJSON() ([]byte, error) {
	if i.All {
		return json.Marshal(invokeAll)
	}
	return json.Marshal(append([]string{}, i.IDs...))
}

// UnmarshalJSON reads "all", a list of ids, or null for none.
func (i *Invoke) UnmarshalJSON(data []byte) error {
	*i = Invoke{}
	if string(data) == `"`+invokeAll+`"` {
		i.All = true
		return nil
	}
	return json.Unmarshal(data, &i.IDs)
}

// NewKey is a key that was just made, with its text, which is never shown again.
type NewKey struct {
	Key  Key          `json:"key"`
	Text fleet.Secret `json:"apiKey"`
}

// CreateKey is the body of a key's creation.
type CreateKey struct {
	Name        string            `json:"name"`
	Preset      string            `json:"preset,omitempty"`
	Permissions map[string]string `json:"permissions,omitempty"` // "none", "read" or "write" by group, over the preset's
	Invoke      *Invoke           `json:"invoke,omitempty"`
	ExpiresAt   *time.Time        `json:"expiresAt,omitempty"`
}

// UpdateKey is the body of a key's change; nil leaves a field as it is.
type UpdateKey struct {
	Name     *string `json:"name,omitempty"`
	Disabled *bool   `json:"disabled,omitempty"`
}

// KeyList is the answer of the list of keys.
type KeyList struct {
	Keys []Key `json:"keys"`
}

// Keys lists the account's keys, without their texts.
func (c *Client) Keys(ctx context.Context) (Answer[KeyList], error) {
	return list[KeyList](ctx, c, "/v2/account/keys", nil)
}

// Key reads one key, without its text.
func (c *Client) Key(ctx context.Context, id string) (Answer[Key], error) {
	return call[Key](ctx, c, http.MethodGet, "/v2/account/keys/"+word(id), nil, nil)
}

// CreateKey makes a key; its text is in this answer and never again.
func (c *Client) CreateKey(ctx context.Context, body CreateKey) (Answer[NewKey], error) {
	return call[NewKey](ctx, c, http.MethodPost, "/v2/account/keys", nil, body)
}

// UpdateKey renames, disables or enables a key.
func (c *Client) UpdateKey(ctx context.Context, id string, body UpdateKey) (Answer[Key], error) {
	return call[Key](ctx, c, http.MethodPatch, "/v2/account/keys/"+word(id), nil, body)
}

// DeleteKey ends a key.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/account/keys/"+word(id))
}
