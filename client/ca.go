package client

import (
	"context"
	"net/http"
	"time"
)

// CAStatus is the cluster's CA, how far its replacement has come, and the certificates of hosts and schedulers.
type CAStatus struct {
	CAs     []CA       `json:"cas"`  // the first signs
	Step    string     `json:"step"` // spreads or renews; empty: it is not being replaced
	BegunAt *time.Time `json:"begunAt"`
	SignsAt *time.Time `json:"signsAt"`
	EndsBy  *time.Time `json:"endsBy"`
	Waiting int        `json:"waiting"`
	Total   int        `json:"total"`
	Nodes   []CANode   `json:"nodes"` // some of them, those that the step waits for first
}

// CA is one certificate authority.
type CA struct {
	Digest    string    `json:"digest"`
	State     string    `json:"state"` // signs, next or retires
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// CANode is a host or a scheduler with its certificate.
type CANode struct {
	Kind   string     `json:"kind"`
	ID     string     `json:"id"`
	Name   string     `json:"name"`
	CA     string     `json:"ca"`
	EndsAt *time.Time `json:"endsAt"`
	Waits  string     `json:"waits"`
}

// CA reads the state of the cluster's CA; for operators.
func (c *Client) CA(ctx context.Context) (Answer[CAStatus], error) {
	return call[CAStatus](ctx, c, http.MethodGet, "/admin/v1/ca", nil, nil)
}

// RotateCA begins to replace the cluster's CA; for operators.
func (c *Client) RotateCA(ctx context.Context) (Answer[CAStatus], error) {
	return call[CAStatus](ctx, c, http.MethodPost, "/admin/v1/ca/rotate", nil, nil)
}

// FinishCA ends a step of the replacement without the hosts that it waits for; for operators.
func (c *Client) FinishCA(ctx context.Context, step string) (Answer[CAStatus], error) {
	body := struct {
		Step string `json:"step"`
	}{step}
	return call[CAStatus](ctx, c, http.MethodPost, "/admin/v1/ca/finish", nil, body)
}
