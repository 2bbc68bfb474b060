package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"gantry/fleet"
)

// Pods lists the caller's pods.
func (c *Client) Pods(ctx context.Context) (Answer[PodList], error) {
	return call[PodList](ctx, c, http.MethodGet, "/v2/pods", nil, nil)
}

// Pod reads one pod.
func (c *Client) Pod(ctx context.Context, id string) (Answer[Pod], error) {
	return call[Pod](ctx, c, http.MethodGet, "/v2/pods/"+word(id), nil, nil)
}

// CreatePod creates a pod: once it answers, host and devices are reserved.
func (c *Client) CreatePod(ctx context.Context, body CreatePod) (Answer[Pod], error) {
	return call[Pod](ctx, c, http.MethodPost, "/v2/pods", nil, body)
}

// PlanPod answers as CreatePod would at this moment, and creates nothing.
func (c *Client) PlanPod(ctx context.Context, body CreatePod) (Answer[Pod], error) {
	return call[Pod](ctx, c, http.MethodPost, "/v2/pods", url.Values{"dryRun": {"true"}}, body)
}

// ActPod starts, stops or restarts a pod, or terminates it, which answers no record.
func (c *Client) ActPod(ctx context.Context, id string, action fleet.Trigger) (Answer[Pod], error) {
	body := map[string]string{"action": string(action)}
	return call[Pod](ctx, c, http.MethodPost, "/v2/pods/"+word(id)+"/action", nil, body)
}

// DeletePod terminates a pod for good.
func (c *Client) DeletePod(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, http.MethodDelete, "/v2/pods/"+word(id), nil, nil)
	return err
}

// GPUList is the answer of the catalog of GPU types.
type GPUList struct {
	GPUs []GPUOffer `json:"gpus"`
}

// GPUs lists the GPU types; query narrows and widens the answer as the catalog defines it.
func (c *Client) GPUs(ctx context.Context, query url.Values) (Answer[GPUList], error) {
	return call[GPUList](ctx, c, http.MethodGet, "/v2/catalog/gpus", query, nil)
}

// CPUList is the answer of the catalog of CPU flavors.
type CPUList struct {
	CPUs []CPUOffer `json:"cpus"`
}

// CPUs lists the CPU flavors.
func (c *Client) CPUs(ctx context.Context, query url.Values) (Answer[CPUList], error) {
	return call[CPUList](ctx, c, http.MethodGet, "/v2/catalog/cpus", query, nil)
}

// DataCenterList is the answer of the catalog of data centers.
type DataCenterList struct {
	DataCenters []DataCenter `json:"dataCenters"`
}

// DataCenters lists the data centers.
func (c *Client) DataCenters(ctx context.Context, query url.Values) (Answer[DataCenterList], error) {
	return call[DataCenterList](ctx, c, http.MethodGet, "/v2/catalog/datacenters", query, nil)
}

// KeyList is the answer of the list of keys.
type KeyList struct {
	Keys []Key `json:"keys"`
}

// Keys lists the account's keys, without their texts.
func (c *Client) Keys(ctx context.Context) (Answer[KeyList], error) {
	return call[KeyList](ctx, c, http.MethodGet, "/v2/account/keys", nil, nil)
}

// CreateKey makes a key; its text is in this answer and never again.
func (c *Client) CreateKey(ctx context.Context, body CreateKey) (Answer[NewKey], error) {
	return call[NewKey](ctx, c, http.MethodPost, "/v2/account/keys", nil, body)
}

// DeleteKey ends a key.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, http.MethodDelete, "/v2/account/keys/"+word(id), nil, nil)
	return err
}

// HostList is the answer of the list of hosts.
type HostList struct {
	Hosts []Host `json:"hosts"`
}

// Hosts lists the hosts; for operators.
func (c *Client) Hosts(ctx context.Context) (Answer[HostList], error) {
	return call[HostList](ctx, c, http.MethodGet, "/admin/v1/hosts", nil, nil)
}

// Host reads one host; for operators.
func (c *Client) Host(ctx context.Context, id string) (Answer[Host], error) {
	return call[Host](ctx, c, http.MethodGet, "/admin/v1/hosts/"+word(id), nil, nil)
}

// CreateJoinToken is the body of a join token's creation.
type CreateJoinToken struct {
	DataCenterID string `json:"dataCenterId"`
	Cloud        string `json:"cloud,omitempty"`
	TTLSeconds   int64  `json:"ttlSeconds,omitempty"`
}

// JoinToken lets one host join, once.
type JoinToken struct {
	Token     fleet.Secret `json:"token"`
	ExpiresAt time.Time    `json:"expiresAt"`
}

// CreateJoinToken makes a join token; for operators.
func (c *Client) CreateJoinToken(ctx context.Context, body CreateJoinToken) (Answer[JoinToken], error) {
	return call[JoinToken](ctx, c, http.MethodPost, "/admin/v1/hosts/tokens", nil, body)
}

// AccountList is the answer of the list of accounts.
type AccountList struct {
	Accounts []Account `json:"accounts"`
}

// Accounts lists the accounts; for operators.
func (c *Client) Accounts(ctx context.Context) (Answer[AccountList], error) {
	return call[AccountList](ctx, c, http.MethodGet, "/admin/v1/accounts", nil, nil)
}

// CreateAccount makes an account; for operators.
func (c *Client) CreateAccount(ctx context.Context, name string) (Answer[Account], error) {
	return call[Account](ctx, c, http.MethodPost, "/admin/v1/accounts", nil, map[string]string{"name": name})
}

// CreateAccountKey makes a key of another account, for example its first; for operators.
func (c *Client) CreateAccountKey(ctx context.Context, account string, body CreateKey) (Answer[NewKey], error) {
	return call[NewKey](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(account)+"/keys", nil, body)
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
