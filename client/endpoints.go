package client

import (
	"context"
	"net/http"

	"gantry/api/v2"
)

// Endpoints lists the account's serverless endpoints, oldest first.
func (c *Client) Endpoints(ctx context.Context) (Answer[v2.EndpointList], error) {
	return list[v2.EndpointList](ctx, c, "/v2/serverless", nil)
}

// Endpoint reads one endpoint.
func (c *Client) Endpoint(ctx context.Context, id string) (Answer[v2.Endpoint], error) {
	return call[v2.Endpoint](ctx, c, http.MethodGet, endpointPath(id), nil, nil)
}

// CreateEndpoint makes an endpoint, which has no workers before it has jobs unless it keeps some.
func (c *Client) CreateEndpoint(ctx context.Context, body v2.CreateEndpointRequest) (Answer[v2.Endpoint], error) {
	return create[v2.Endpoint](ctx, c, "/v2/serverless", body)
}

// UpdateEndpoint changes an endpoint. A change of what its workers are made from is a new release.
func (c *Client) UpdateEndpoint(ctx context.Context, id string, body v2.UpdateEndpointRequest) (Answer[v2.Endpoint], error) {
	return call[v2.Endpoint](ctx, c, http.MethodPatch, endpointPath(id), nil, body)
}

// DeleteEndpoint deletes an endpoint with its jobs, and ends its workers.
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	return c.remove(ctx, endpointPath(id))
}

// Workers lists the workers of an endpoint, oldest first.
func (c *Client) Workers(ctx context.Context, id string) (Answer[v2.WorkerList], error) {
	return list[v2.WorkerList](ctx, c, endpointPath(id)+"/workers", nil)
}

// Releases lists the last releases of an endpoint, oldest first.
func (c *Client) Releases(ctx context.Context, id string) (Answer[v2.ReleaseList], error) {
	return list[v2.ReleaseList](ctx, c, endpointPath(id)+"/releases", nil)
}

func endpointPath(id string) string { return "/v2/serverless/" + word(id) }
