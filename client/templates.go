package client

import (
	"context"
	"net/http"
	"net/url"

	"gantry/api/v2"
	"gantry/fleet"
)

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
func (c *Client) CreateTemplate(ctx context.Context, body v2.CreateTemplateRequest) (Answer[v2.Template], error) {
	return create[v2.Template](ctx, c, "/v2/templates", body)
}

// UpdateTemplate changes a template; pods that were made from it stay as they are.
func (c *Client) UpdateTemplate(ctx context.Context, id string, body v2.UpdateTemplateRequest) (Answer[v2.Template], error) {
	return call[v2.Template](ctx, c, http.MethodPatch, "/v2/templates/"+word(id), nil, body)
}

// DeleteTemplate deletes a template that no pod was made from which is not terminated.
func (c *Client) DeleteTemplate(ctx context.Context, id string) error {
	return c.remove(ctx, "/v2/templates/"+word(id))
}
