package client

import (
	"context"
	"net/http"
	"net/url"
)

// Prefetch is the body that has hosts get an image: those of HostIDs in those of DataCenterIDs, where empty is all.
type Prefetch struct {
	Image         string   `json:"image"`
	DataCenterIDs []string `json:"dataCenterIds,omitempty"`
	HostIDs       []string `json:"hostIds,omitempty"`
}

// Prefetched tells which hosts were asked to get an image.
type Prefetched struct {
	Image string           `json:"image"` // its full reference
	Hosts []PrefetchedHost `json:"hosts"`
}

// PrefetchedHost is a host that was asked to get an image.
type PrefetchedHost struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Present bool   `json:"present"` // it was there already
}

// PrefetchImage has hosts get an image in the background; for operators.
func (c *Client) PrefetchImage(ctx context.Context, body Prefetch) (Answer[Prefetched], error) {
	return call[Prefetched](ctx, c, http.MethodPost, "/admin/v1/images/prefetch", nil, body)
}

// HostImages is what images a host has.
type HostImages struct {
	ID           string   `json:"id"`
	Name         string   `json:"name"`
	DataCenterID string   `json:"dataCenterId"`
	Connected    bool     `json:"connected"`
	Images       []string `json:"images"`
	Present      *bool    `json:"present"` // nil: no image was asked for
}

// HostImagesList is the answer to asking which images hosts have.
type HostImagesList struct {
	Hosts []HostImages `json:"hosts"`
}

// Images tells which images hosts have: only that image and only those hosts, where they are given. For operators.
func (c *Client) Images(ctx context.Context, image string, hosts ...string) (Answer[HostImagesList], error) {
	query := url.Values{}
	if image != "" {
		query.Set("image", image)
	}
	if len(hosts) > 0 {
		query["hostId"] = hosts
	}
	return list[HostImagesList](ctx, c, "/admin/v1/images", query)
}
