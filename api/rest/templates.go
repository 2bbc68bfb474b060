package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// TemplateService keeps templates.
type TemplateService interface {
	// CreateTemplate makes a template of ID, Account, Rev and CreatedAt of its own; replayed tells that
	// once was seen before.
	CreateTemplate(ctx context.Context, who fleet.Principal, t fleet.Template, once *fleet.Once) (made fleet.Template, replayed bool, err error)
	// Templates lists the account's templates, oldest first; PublicTemplates those of a source.
	Templates(ctx context.Context, who fleet.Principal) ([]fleet.Template, error)
	// Template returns a template of the account, or a public one; of another account's, without its
	// registry credential.
	Template(ctx context.Context, who fleet.Principal, id fleet.TemplateID) (fleet.Template, error)
	UpdateTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID, change fleet.TemplateUpdate) (fleet.Template, error)
	DeleteTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID) error
	SetTemplateSource(ctx context.Context, id fleet.TemplateID, source fleet.TemplateSource) (fleet.Template, error)
}

func templateIDParam() *huma.Param { return pathParam("Template identifier.", "t5f8k2m7q1w4z9") }

func (a *API) registerTemplates() {
	read, write := auth.Read(fleet.GroupTemplates), auth.Write(fleet.GroupTemplates)
	one := []*huma.Param{templateIDParam()}
	handle(a, route{
		method: http.MethodGet, path: "/v2/templates", id: "listTemplates", tag: "Templates", summary: "List templates",
		text:  "Lists the account's templates, oldest first. Public templates of others are at /v2/catalog/templates.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: v2.TemplateList{Templates: []v2.Template{exampleTemplate()}},
	}, a.listTemplates)
	handle(a, route{
		method: http.MethodPost, path: "/v2/templates", id: "createTemplate", tag: "Templates", summary: "Make a template",
		text: "Makes a reusable configuration: a pod made with templateId takes from it what its own body leaves out. Sizes are GB of 10^9 bytes.\n\n" +
			"400: a mount path is relative, / or a system path. 404: the registry credential does not exist (errors names the field). " +
			"422: a single value is wrong.\n\n" + onceText,
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: []*huma.Param{onceParam()}, errors: []int{http.StatusNotFound},
		in: exampleCreateTemplate(), out: exampleTemplate(),
	}, a.createTemplate)
	handle(a, route{
		method: http.MethodGet, path: "/v2/templates/{id}", id: "getTemplate", tag: "Templates", summary: "Get a template",
		text:  "Returns a template of the account, or a public one of another, without its registry credential. 404: there is no such template.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: one, out: exampleTemplate(),
	}, a.getTemplate)
	handle(a, route{
		method: http.MethodPatch, path: "/v2/templates/{id}", id: "updateTemplate", tag: "Templates", summary: "Change a template",
		text: "Changes a template of the account; what is left out stays. env and ports are replaced as a whole, an empty allowedCudaVersions " +
			"clears the list, registry null takes the credential away, mounts may be changed and not taken away. Pods that exist keep what they were made with.\n\n" +
			"400: a mount path is relative, / or a system path. 404: the account has no such template, or the registry credential does not exist. " +
			"422: a single value is wrong.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: one, in: v2.UpdateTemplateRequest{Image: new("docker.io/library/nginx:1.29")},
		out: exampleTemplate(),
	}, a.updateTemplate)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/templates/{id}", id: "deleteTemplate", tag: "Templates", summary: "Delete a template",
		text:  "Deletes a template of the account. 400: a pod that is not terminated was made from it. 404: the account has no such template.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: one,
	}, a.deleteTemplate)
}

func (a *API) listTemplates(ctx context.Context, c *call, _ *none) (*v2.TemplateList, error) {
	all, err := showAll(templateRecord)(a.svc.Templates(ctx, c.who))
	return &v2.TemplateList{Templates: all}, err
}

func (a *API) createTemplate(ctx context.Context, c *call, in *v2.CreateTemplateRequest) (*v2.Template, error) {
	if err := templateMountRules(in.Mounts); err != nil {
		return nil, err
	}
	once, err := c.once(in)
	if err != nil {
		return nil, err
	}
	made, replayed, err := a.svc.CreateTemplate(ctx, c.who, newTemplate(in), once)
	c.replayed(replayed)
	return show(templateRecord)(made, err)
}

func (a *API) getTemplate(ctx context.Context, c *call, _ *none) (*v2.Template, error) {
	id, err := pathID[fleet.TemplateID](c, "template")
	if err != nil {
		return nil, err
	}
	return show(templateRecord)(a.svc.Template(ctx, c.who, id))
}

func (a *API) updateTemplate(ctx context.Context, c *call, in *v2.UpdateTemplateRequest) (*v2.Template, error) {
	id, err := pathID[fleet.TemplateID](c, "template")
	if err != nil {
		return nil, err
	}
	if err := templateMountRules(in.Mounts); err != nil {
		return nil, err
	}
	return show(templateRecord)(a.svc.UpdateTemplate(ctx, c.who, id, templateUpdate(in)))
}

func (a *API) deleteTemplate(ctx context.Context, c *call, _ *none) (*none, error) {
	id, err := pathID[fleet.TemplateID](c, "template")
	if err != nil {
		return nil, err
	}
	return nil, a.svc.DeleteTemplate(ctx, c.who, id)
}
