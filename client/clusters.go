package client

import (
	"context"
	"net/http"
	"net/url"

	"gantry/api/v2"
)

// InstantClusters lists the account's instant clusters, oldest first.
func (c *Client) InstantClusters(ctx context.Context) (Answer[v2.ClusterList], error) {
	return list[v2.ClusterList](ctx, c, "/v2/clusters", nil)
}

// InstantCluster reads one cluster.
func (c *Client) InstantCluster(ctx context.Context, id string) (Answer[v2.InstantCluster], error) {
	return call[v2.InstantCluster](ctx, c, http.MethodGet, "/v2/clusters/"+word(id), nil, nil)
}

// CreateCluster creates a cluster with all its pods, or none.
func (c *Client) CreateCluster(ctx context.Context, body v2.CreateClusterRequest) (Answer[v2.InstantCluster], error) {
	return create[v2.InstantCluster](ctx, c, "/v2/clusters", body)
}

// PlanCluster answers as CreateCluster would at this moment, and creates nothing.
func (c *Client) PlanCluster(ctx context.Context, body v2.CreateClusterRequest) (Answer[v2.InstantCluster], error) {
	return call[v2.InstantCluster](ctx, c, http.MethodPost, "/v2/clusters", url.Values{"dryRun": {"true"}}, body)
}

// RenameCluster gives a cluster another name.
func (c *Client) RenameCluster(ctx context.Context, id, name string) (Answer[v2.InstantCluster], error) {
	return call[v2.InstantCluster](ctx, c, http.MethodPatch, "/v2/clusters/"+word(id), nil, v2.UpdateClusterRequest{Name: &name})
}

// RestartCluster restarts all pods of a cluster together.
func (c *Client) RestartCluster(ctx context.Context, id string) (Answer[v2.InstantCluster], error) {
	return call[v2.InstantCluster](ctx, c, http.MethodPost, "/v2/clusters/"+word(id)+"/restart", nil, nil)
}

// DeleteCluster deletes a cluster with its pods and its network.
func (c *Client) DeleteCluster(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/clusters/"+word(id))
}

// ClusterPods lists the pods of a cluster by rank.
func (c *Client) ClusterPods(ctx context.Context, id string) (Answer[v2.PodList], error) {
	return list[v2.PodList](ctx, c, "/v2/clusters/"+word(id)+"/pods", nil)
}
