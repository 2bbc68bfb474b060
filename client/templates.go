package client

import (
	"context"
	"net/http"
	"net/url"

	"gantry/api/v2"
	"gantry/fleet"
)

// TemplateBody is the body that makes or changes a template; nil leaves a field to its default, or as it is.
type TemplateBody struct {
	Name                *string            `json:"name,omitempty"`
	Image               *string            `json:"image,omitempty"`
	Args                *string            `json:"args,omitempty"`
	Disk                *int               `json:"disk,omitempty"` // GB
	Ports               *[]string          `json:"ports,omitempty"`
	Env                 *map[string]string `json:"env,omitempty"`
	Registry            **string           `json:"registry,omitempty"` // of nil: none any more
	Mounts              *v2.Mounts         `json:"mounts,omitempty"`
	Serverless          *bool              `json:"serverless,omitempty"`
	Public              *bool              `json:"public,omitempty"`
	Category            *string            `json:"category,omitempty"`
	StartSSH            *bool              `json:"startSsh,omitempty"`
	StartJupyter        *bool              `json:"startJupyter,omitempty"`
	AllowedCUDAVersions *[]string          `json:"allowedCudaVersions,omitempty"`

	IdempotencyKey string `json:"-"` // of a create; empty: the client makes one for each call
}

// Templates lists the account's templates.
func (c *Client) Templates(ctx context.Context) (Answer[v2.TemplateList], error) {
	return list[v2.TemplateList](ctx, c, "/v2/templates", nil)
}

// PublicTemplates lists the public templates of a source; official ones for the empty source.
func (c *Client) PublicTemplates(ctx context.Context, source fleet.TemplateSource) (Answer[v2.TemplateList], error) {
	q := url.Values{}
	setText(q, "source", string(source))
	return list[v2.TemplateList](ctx, c, "/v2/catalog/templates", q)
}

// Template reads a template of the account, or a public one.
func (c *Client) Template(ctx context.Context, id string) (Answer[v2.Template], error) {
	return call[v2.Template](ctx, c, http.MethodGet, "/v2/templates/"+word(id), nil, nil)
}

// CreateTemplate makes a template.
func (c *Client) CreateTemplate(ctx context.Context, body TemplateBody) (Answer[v2.Template], error) {
	return create[v2.Template](ctx, c, "/v2/templates", body.IdempotencyKey, body)
}

// UpdateTemplate changes a template; pods that were made from it stay as they are.
func (c *Client) UpdateTemplate(ctx context.Context, id string, body TemplateBody) (Answer[v2.Template], error) {
	return call[v2.Template](ctx, c, http.MethodPatch, "/v2/templates/"+word(id), nil, body)
}

// DeleteTemplate deletes a template that no pod was made from which is not terminated.
func (c *Client) DeleteTemplate(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/templates/"+word(id))
}

// CreateRegistry is what a registry credential is made from.
type CreateRegistry struct {
	Name           string
	Username       string
	Password       fleet.Secret
	IdempotencyKey string // empty: the client makes one for each call
}

// Registries lists the account's registry credentials.
func (c *Client) Registries(ctx context.Context) (Answer[v2.RegistryList], error) {
	return list[v2.RegistryList](ctx, c, "/v2/registries", nil)
}

// Registry reads one registry credential.
func (c *Client) Registry(ctx context.Context, id string) (Answer[v2.Registry], error) {
	return call[v2.Registry](ctx, c, http.MethodGet, "/v2/registries/"+word(id), nil, nil)
}

// CreateRegistry stores a registry credential.
func (c *Client) CreateRegistry(ctx context.Context, r CreateRegistry) (Answer[v2.Registry], error) {
	body := map[string]string{"name": r.Name, "username": r.Username, "password": r.Password.Reveal()}
	return create[v2.Registry](ctx, c, "/v2/registries", r.IdempotencyKey, body)
}

// DeleteRegistry deletes a registry credential that nothing uses.
func (c *Client) DeleteRegistry(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/registries/"+word(id))
}
