package client

import (
	"context"
	"net/http"
	"time"

	"gantry/fleet"
)

// Volume is the record of a network volume.
type Volume struct {
	ID           string    `json:"id"` // also its bucket of the S3 interface
	Name         string    `json:"name"`
	Size         int       `json:"size"` // GB
	DataCenter   string    `json:"dataCenter"`
	Type         string    `json:"type"`        // STANDARD or HIGH_PERFORMANCE
	Provisioned  int       `json:"provisioned"` // GB that its storage has at present
	Status       string    `json:"status"`      // CREATING, READY, UPDATING or READ_ONLY
	StatusReason string    `json:"statusReason"`
	Used         *int64    `json:"used"` // bytes; nil: not known
	CreatedAt    time.Time `json:"createdAt"`
}

// VolumeList is the answer of the list of network volumes.
type VolumeList struct {
	Volumes []Volume `json:"networkVolumes"`
}

// CreateVolume is the body that makes a network volume.
type CreateVolume struct {
	Name       string `json:"name"`
	Size       int    `json:"size"` // GB
	DataCenter string `json:"dataCenter"`
	Type       string `json:"type,omitempty"` // empty: what the data center offers

	IdempotencyKey string `json:"-"` // empty: the client makes one for each call
}

// UpdateVolume is the body that changes a network volume; nil leaves a field as it is.
type UpdateVolume struct {
	Name *string `json:"name,omitempty"`
	Size *int    `json:"size,omitempty"` // GB
}

const volumesPath = "/v2/network-volumes"

// Volumes lists the account's network volumes.
func (c *Client) Volumes(ctx context.Context) (Answer[VolumeList], error) {
	return list[VolumeList](ctx, c, volumesPath, nil)
}

// Volume reads a network volume.
func (c *Client) Volume(ctx context.Context, id string) (Answer[Volume], error) {
	return call[Volume](ctx, c, http.MethodGet, volumesPath+"/"+word(id), nil, nil)
}

// CreateVolume makes a network volume.
func (c *Client) CreateVolume(ctx context.Context, body CreateVolume) (Answer[Volume], error) {
	return create[Volume](ctx, c, volumesPath, body.IdempotencyKey, body)
}

// UpdateVolume renames or grows a network volume.
func (c *Client) UpdateVolume(ctx context.Context, id string, body UpdateVolume) (Answer[Volume], error) {
	return call[Volume](ctx, c, http.MethodPatch, volumesPath+"/"+word(id), nil, body)
}

// DeleteVolume deletes a network volume, with all that it holds, that no pod has which is not terminated.
func (c *Client) DeleteVolume(ctx context.Context, id string) error {
	return c.remove(ctx, volumesPath+"/"+word(id))
}

// S3Key is a key pair of the S3 interface; its secret is shown when it is made.
type S3Key struct {
	ID        string     `json:"id"` // the access key
	Name      string     `json:"name"`
	ReadOnly  bool       `json:"readOnly"`
	CreatedAt time.Time  `json:"createdAt"`
	ExpiresAt *time.Time `json:"expiresAt"` // nil: never
}

// NewS3Key is a key pair with its secret.
type NewS3Key struct {
	Key    S3Key        `json:"key"`
	Secret fleet.Secret `json:"secretAccessKey"`
}

// S3KeyList is the answer of the list of key pairs.
type S3KeyList struct {
	S3Keys []S3Key `json:"s3Keys"`
}

// CreateS3Key is the body that makes a key pair.
type CreateS3Key struct {
	Name      string     `json:"name"`
	ReadOnly  bool       `json:"readOnly,omitempty"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"` // nil: never
}

// S3Keys lists the account's key pairs.
func (c *Client) S3Keys(ctx context.Context) (Answer[S3KeyList], error) {
	return list[S3KeyList](ctx, c, "/v2/s3-keys", nil)
}

// CreateS3Key makes a key pair.
func (c *Client) CreateS3Key(ctx context.Context, body CreateS3Key) (Answer[NewS3Key], error) {
	return call[NewS3Key](ctx, c, http.MethodPost, "/v2/s3-keys", nil, body)
}

// DeleteS3Key deletes a key pair by its access key.
func (c *Client) DeleteS3Key(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/s3-keys/"+word(id))
}
