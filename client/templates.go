package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"gantry/fleet"
)

// Template is the record of a template.
type Template struct {
	ID                  string            `json:"id"`
	Name                string            `json:"name"`
	Image               string            `json:"image"`
	Args                string            `json:"args"`
	Disk                int               `json:"disk"` // GB
	Ports               []string          `json:"ports"`
	Env                 map[string]string `json:"env"`
	Registry            string            `json:"registry"` // empty: none
	Mounts              Mounts            `json:"mounts"`
	Serverless          bool              `json:"serverless"`
	Public              bool              `json:"public"`
	Category            string            `json:"category"`
	StartSSH            bool              `json:"startSsh"`
	StartJupyter        bool              `json:"startJupyter"`
	AllowedCUDAVersions []string          `json:"allowedCudaVersions"`
	Source              string            `json:"source"` // of a public one: official, verified or community
	CreatedAt           time.Time         `json:"createdAt"`
}

// TemplateBody is the body that makes or changes a template; nil leaves a field to its default, or as it is.
type TemplateBody struct {
	Name                *string            `json:"name,omitempty"`
	Image               *string            `json:"image,omitempty"`
	Args                *string            `json:"args,omitempty"`
	Disk                *int               `json:"disk,omitempty"` // GB
	Ports               *[]string          `json:"ports,omitempty"`
	Env                 *map[string]string `json:"env,omitempty"`
	Registry            **string           `json:"registry,omitempty"` // of nil: none any more
	Mounts              *Mounts            `json:"mounts,omitempty"`
	Serverless          *bool              `json:"serverless,omitempty"`
	Public              *bool              `json:"public,omitempty"`
	Category            *string            `json:"category,omitempty"`
	StartSSH            *bool              `json:"startSsh,omitempty"`
	StartJupyter        *bool              `json:"startJupyter,omitempty"`
	AllowedCUDAVersions *[]string          `json:"allowedCudaVersions,omitempty"`

	IdempotencyKey string `json:"-"` // of a create; empty: the client makes one for each call
}

// TemplateList is the answer of a list of templates.
type TemplateList struct {
	Templates []Template `json:"templates"`
}

// Templates lists the account's templates.
func (c *Client) Templates(ctx context.Context) (Answer[TemplateList], error) {
	return list[TemplateList](ctx, c, "/v2/templates", nil)
}

// PublicTemplates lists the public templates of a source; official ones for the empty source.
func (c *Client) PublicTemplates(ctx context.Context, source fleet.TemplateSource) (Answer[TemplateList], error) {
	q := url.Values{}
	setText(q, "source", string(source))
	return list[TemplateList](ctx, c, "/v2/catalog/templates", q)
}

// Template reads a template of the account, or a public one.
func (c *Client) Template(ctx context.Context, id string) (Answer[Template], error) {
	return call[Template](ctx, c, http.MethodGet, "/v2/templates/"+word(id), nil, nil)
}

// CreateTemplate makes a template.
func (c *Client) CreateTemplate(ctx context.Context, body TemplateBody) (Answer[Template], error) {
	return create[Template](ctx, c, "/v2/templates", body.IdempotencyKey, body)
}

// UpdateTemplate changes a template; pods that were made from it stay as they are.
func (c *Client) UpdateTemplate(ctx context.Context, id string, body TemplateBody) (Answer[Template], error) {
	return call[Template](ctx, c, http.MethodPatch, "/v2/templates/"+word(id), nil, body)
}

// DeleteTemplate deletes a template that no pod was made from which is not terminated.
func (c *Client) DeleteTemplate(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/templates/"+word(id))
}

// Registry is the record of a credential for private images; what it holds is never shown.
type Registry struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// RegistryList is the answer of the list of registry credentials.
type RegistryList struct {
	Registries []Registry `json:"registries"`
}

// CreateRegistry is what a registry credential is made from.
type CreateRegistry struct {
	Name           string
	Username       string
	Password       fleet.Secret
	IdempotencyKey string // empty: the client makes one for each call
}

// Registries lists the account's registry credentials.
func (c *Client) Registries(ctx context.Context) (Answer[RegistryList], error) {
	return list[RegistryList](ctx, c, "/v2/registries", nil)
}

// Registry reads one registry credential.
func (c *Client) Registry(ctx context.Context, id string) (Answer[Registry], error) {
	return call[Registry](ctx, c, http.MethodGet, "/v2/registries/"+word(id), nil, nil)
}

// CreateRegistry stores a registry credential.
func (c *Client) CreateRegistry(ctx context.Context, r CreateRegistry) (Answer[Registry], error) {
	body := map[string]string{"name": r.Name, "username": r.Username, "password": r.Password.Reveal()}
	return create[Registry](ctx, c, "/v2/registries", r.IdempotencyKey, body)
}

// DeleteRegistry deletes a registry credential that nothing uses.
func (c *Client) DeleteRegistry(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/registries/"+word(id))
}
