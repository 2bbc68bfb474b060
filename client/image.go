package client

import (
	"context"
	"net/http"
	"net/url"

	"gantry/api/admin"
)

// PrefetchImage has hosts get an image in the background; for operators.
func (c *Client) PrefetchImage(ctx context.Context, body admin.PrefetchRequest) (Answer[admin.Prefetch], error) {
	return call[admin.Prefetch](ctx, c, http.MethodPost, "/admin/v1/images/prefetch", nil, body)
}

// Images tells which images hosts have: only that image and only those hosts, where they are given. For operators.
func (c *Client) Images(ctx context.Context, image string, hosts ...string) (Answer[admin.HostImagesList], error) {
	query := url.Values{}
	if image != "" {
		query.Set("image", image)
	}
	if len(hosts) > 0 {
		query["hostId"] = hosts
	}
	return list[admin.HostImagesList](ctx, c, "/admin/v1/images", query)
}
