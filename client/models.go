package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
)

// Models lists the public models; for operators.
func (c *Client) Models(ctx context.Context) (Answer[admin.ModelList], error) {
	return list[admin.ModelList](ctx, c, "/admin/v1/models", nil)
}

// Model reads a public model; for operators.
func (c *Client) Model(ctx context.Context, id string) (Answer[admin.Model], error) {
	return call[admin.Model](ctx, c, http.MethodGet, "/admin/v1/models/"+word(id), nil, nil)
}

// PutModel makes or replaces a public model; for operators.
func (c *Client) PutModel(ctx context.Context, id string, body admin.PutModelRequest) (Answer[admin.Model], error) {
	return call[admin.Model](ctx, c, http.MethodPut, "/admin/v1/models/"+word(id), nil, body)
}

// DeleteModel deletes a public model; for operators.
func (c *Client) DeleteModel(ctx context.Context, id string) error {
	return c.remove(ctx, "/admin/v1/models/"+word(id))
}

// ObjectStore reads where files of results are; for operators.
func (c *Client) ObjectStore(ctx context.Context) (Answer[admin.ObjectStore], error) {
	return call[admin.ObjectStore](ctx, c, http.MethodGet, "/admin/v1/object-storage", nil, nil)
}

// PutObjectStore sets where files of results are; for operators.
func (c *Client) PutObjectStore(ctx context.Context, body admin.PutObjectStoreRequest) (Answer[admin.ObjectStore], error) {
	return call[admin.ObjectStore](ctx, c, http.MethodPut, "/admin/v1/object-storage", nil, body)
}

// DeleteObjectStore has no files of results kept any more; for operators.
func (c *Client) DeleteObjectStore(ctx context.Context) error {
	return c.remove(ctx, "/admin/v1/object-storage")
}
