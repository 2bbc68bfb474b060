package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/v2"
)

// Networks lists the account's private networks with the pods in them.
func (c *Client) Networks(ctx context.Context) (Answer[v2.NetworkList], error) {
	return list[v2.NetworkList](ctx, c, "/v2/network", nil)
}

// CheckNetwork has the account's pods reach for each other.
func (c *Client) CheckNetwork(ctx context.Context) (Answer[v2.NetworkCheck], error) {
	return call[v2.NetworkCheck](ctx, c, http.MethodPost, "/v2/network/check", nil, nil)
}

// CheckAccountNetwork has the pods of an account reach for each other; for operators.
func (c *Client) CheckAccountNetwork(ctx context.Context, account string) (Answer[v2.NetworkCheck], error) {
	return call[v2.NetworkCheck](ctx, c, http.MethodPost, "/admin/v1/accounts/"+word(account)+"/network-check", nil, nil)
}

// NetworkSettings reads the settings of private networks; for operators.
func (c *Client) NetworkSettings(ctx context.Context) (Answer[admin.NetworkSettings], error) {
	return call[admin.NetworkSettings](ctx, c, http.MethodGet, "/admin/v1/network", nil, nil)
}

// UpdateNetworkSettings changes settings of private networks; for operators.
func (c *Client) UpdateNetworkSettings(ctx context.Context, body admin.UpdateNetworkRequest) (Answer[admin.NetworkSettings], error) {
	return call[admin.NetworkSettings](ctx, c, http.MethodPatch, "/admin/v1/network", nil, body)
}

// HostNetwork asks a host about its network; for operators.
func (c *Client) HostNetwork(ctx context.Context, id string) (Answer[admin.HostNetwork], error) {
	return call[admin.HostNetwork](ctx, c, http.MethodGet, "/admin/v1/hosts/"+word(id)+"/network", nil, nil)
}
