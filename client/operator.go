package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/v2"
)

// Accounts lists the accounts; for operators.
func (c *Client) Accounts(ctx context.Context) (Answer[admin.OperatorAccountList], error) {
	return list[admin.OperatorAccountList](ctx, c, "/admin/v1/accounts", nil)
}

// Account reads one account; for operators.
func (c *Client) Account(ctx context.Context, id string) (Answer[admin.OperatorAccount], error) {
	return call[admin.OperatorAccount](ctx, c, http.MethodGet, "/admin/v1/accounts/"+word(id), nil, nil)
}

// CreateAccount makes an account; for operators.
func (c *Client) CreateAccount(ctx context.Context, name string) (Answer[admin.OperatorAccount], error) {
	return call[admin.OperatorAccount](ctx, c, http.MethodPost, "/admin/v1/accounts", nil, admin.CreateAccountRequest{Name: name})
}

// Limits reads the limits of accounts that have none of their own; for operators.
func (c *Client) Limits(ctx context.Context) (Answer[admin.DefaultLimits], error) {
	return call[admin.DefaultLimits](ctx, c, http.MethodGet, "/admin/v1/limits", nil, nil)
}

// SetLimits changes limits of accounts that have none of their own; null takes one back to what Gantry comes with. For operators.
func (c *Client) SetLimits(ctx context.Context, change admin.LimitChanges) (Answer[admin.DefaultLimits], error) {
	return call[admin.DefaultLimits](ctx, c, http.MethodPatch, "/admin/v1/limits", nil, change)
}

// UpdateAccount changes an account; for operators.
func (c *Client) UpdateAccount(ctx context.Context, id string, body admin.UpdateAccountRequest) (Answer[admin.OperatorAccount], error) {
	return call[admin.OperatorAccount](ctx, c, http.MethodPatch, "/admin/v1/accounts/"+word(id), nil, body)
}

// SuspendAccount has an account's keys refused for a reason that their holders are told; for operators.
func (c *Client) SuspendAccount(ctx context.Context, id, reason string, stopPods bool) (Answer[admin.OperatorAccount], error) {
	body := admin.SuspendAccountRequest{Reason: reason, StopPods: stopPods}
	return call[admin.OperatorAccount](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(id)+"/suspend", nil, body)
}

// ResumeAccount ends a suspension; for operators.
func (c *Client) ResumeAccount(ctx context.Context, id string) (Answer[admin.OperatorAccount], error) {
	return call[admin.OperatorAccount](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(id)+"/resume", nil, nil)
}

// CreateAccountKey makes a key of another account, for example its first; for operators.
func (c *Client) CreateAccountKey(ctx context.Context, account string, body admin.CreateAccountKeyRequest) (Answer[v2.NewKey], error) {
	return call[v2.NewKey](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(account)+"/keys", nil, body)
}

// AddCredit adds amount USD to an account's balance, or takes off what is negative; for operators.
func (c *Client) AddCredit(ctx context.Context, account string, amount float64) (Answer[admin.Balance], error) {
	body := admin.AddCreditRequest{Amount: amount}
	return create[admin.Balance](ctx, c, "/admin/v1/accounts/"+word(account)+"/credits", body)
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
