package client

import (
	"context"
	"net/http"

	"gantry/api/v2"
)

const volumesPath = "/v2/network-volumes"

// Volumes lists the account's network volumes.
func (c *Client) Volumes(ctx context.Context) (Answer[v2.NetworkVolumeList], error) {
	return list[v2.NetworkVolumeList](ctx, c, volumesPath, nil)
}

// Volume reads a network volume.
func (c *Client) Volume(ctx context.Context, id string) (Answer[v2.NetworkVolume], error) {
	return call[v2.NetworkVolume](ctx, c, http.MethodGet, volumesPath+"/"+word(id), nil, nil)
}

// CreateVolume makes a network volume.
func (c *Client) CreateVolume(ctx context.Context, body v2.CreateNetworkVolumeRequest) (Answer[v2.NetworkVolume], error) {
	return create[v2.NetworkVolume](ctx, c, volumesPath, body)
}

// UpdateVolume renames or grows a network volume.
func (c *Client) UpdateVolume(ctx context.Context, id string, body v2.UpdateNetworkVolumeRequest) (Answer[v2.NetworkVolume], error) {
	return call[v2.NetworkVolume](ctx, c, http.MethodPatch, volumesPath+"/"+word(id), nil, body)
}

// DeleteVolume deletes a network volume, with all that it holds, that no pod has which is not terminated.
func (c *Client) DeleteVolume(ctx context.Context, id string) error {
	return c.remove(ctx, volumesPath+"/"+word(id))
}

// S3Keys lists the account's key pairs.
func (c *Client) S3Keys(ctx context.Context) (Answer[v2.S3KeyList], error) {
	return list[v2.S3KeyList](ctx, c, "/v2/s3-keys", nil)
}

// CreateS3Key makes a key pair.
func (c *Client) CreateS3Key(ctx context.Context, body v2.CreateS3KeyRequest) (Answer[v2.NewS3Key], error) {
	return call[v2.NewS3Key](ctx, c, http.MethodPost, "/v2/s3-keys", nil, body)
}

// DeleteS3Key deletes a key pair by its access key.
func (c *Client) DeleteS3Key(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/s3-keys/"+word(id))
}
