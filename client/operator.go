package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/v2"
)

// AccountList is the answer of the list of accounts.
type AccountList struct {
	Accounts []Account `json:"accounts"`
}

// Accounts lists the accounts; for operators.
func (c *Client) Accounts(ctx context.Context) (Answer[AccountList], error) {
	return list[AccountList](ctx, c, "/admin/v1/accounts", nil)
}

// Account reads one account; for operators.
func (c *Client) Account(ctx context.Context, id string) (Answer[Account], error) {
	return call[Account](ctx, c, http.MethodGet, "/admin/v1/accounts/"+word(id), nil, nil)
}

// CreateAccount makes an account; for operators.
func (c *Client) CreateAccount(ctx context.Context, name string) (Answer[Account], error) {
	return call[Account](ctx, c, http.MethodPost, "/admin/v1/accounts", nil, map[string]string{"name": name})
}

// UpdateAccount is the body of an account's change; nil leaves a field as it is.
type UpdateAccount struct {
	Name    *string               `json:"name,omitempty"`
	Prepaid *bool                 `json:"prepaid,omitempty"`
	Quotas  **admin.AccountQuotas `json:"quotas,omitempty"` // of nil: the daemon's again
	Egress  *string               `json:"egress,omitempty"` // open or none

	Limits map[string]*int64 `json:"limits,omitempty"` // by name; nil: that of all accounts again
}

// Limits reads the limits of accounts that have none of their own, by name; for operators.
func (c *Client) Limits(ctx context.Context) (Answer[map[string]int64], error) {
	return call[map[string]int64](ctx, c, http.MethodGet, "/admin/v1/limits", nil, nil)
}

// SetLimits changes limits of accounts that have none of their own; nil takes one back to what Gantry comes with. For operators.
func (c *Client) SetLimits(ctx context.Context, change map[string]*int64) (Answer[map[string]int64], error) {
	return call[map[string]int64](ctx, c, http.MethodPatch, "/admin/v1/limits", nil, change)
}

// UpdateAccount changes an account; for operators.
func (c *Client) UpdateAccount(ctx context.Context, id string, body UpdateAccount) (Answer[Account], error) {
	return call[Account](ctx, c, http.MethodPatch, "/admin/v1/accounts/"+word(id), nil, body)
}

// SuspendAccount has an account's keys refused for a reason that their holders are told; for operators.
func (c *Client) SuspendAccount(ctx context.Context, id, reason string, stopPods bool) (Answer[Account], error) {
	body := map[string]any{"reason": reason}
	if stopPods {
		body["stopPods"] = true
	}
	return call[Account](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(id)+"/suspend", nil, body)
}

// ResumeAccount ends a suspension; for operators.
func (c *Client) ResumeAccount(ctx context.Context, id string) (Answer[Account], error) {
	return call[Account](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(id)+"/resume", nil, nil)
}

// CreateAccountKey makes a key of another account, for example its first; for operators.
func (c *Client) CreateAccountKey(ctx context.Context, account string, body CreateKey) (Answer[v2.NewKey], error) {
	return call[v2.NewKey](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(account)+"/keys", nil, body)
}

// AddCredit adds amount USD to an account's balance, or takes off what is negative; for operators. Under one key that
// happens once; an empty key is replaced by a new one.
func (c *Client) AddCredit(ctx context.Context, account string, amount float64, key string) (Answer[admin.Balance], error) {
	body := map[string]float64{"amount": amount}
	return create[admin.Balance](ctx, c, "/admin/v1/accounts/"+word(account)+"/credits", key, body)
}

// Healthy reports whether the API's own health check answers 200.
func (c *Client) Healthy(ctx context.Context) error {
	req, err := c.request(ctx, http.MethodGet, "/healthz", nil, nil)
	if err != nil {
		return err
	}
	res, err := c.send(req)
	if err != nil {
		return err
	}
	drain(res)
	return nil
}
