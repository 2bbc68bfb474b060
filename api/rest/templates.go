package rest

import (
	"cmp"
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/v2"
	"gantry/fleet"
)

// TemplateService keeps templates.
type TemplateService interface {
	// CreateTemplate makes a template of ID, Account, Rev and CreatedAt of its own; replayed tells that once was seen before.
	CreateTemplate(ctx context.Context, who fleet.Principal, t fleet.Template, once *fleet.Once) (made fleet.Template, replayed bool, err error)
	// Templates lists the account's templates, oldest first.
	Templates(ctx context.Context, who fleet.Principal) ([]fleet.Template, error)
	// Template returns a template of the account, or a public one; of another account's, without its registry credential.
	Template(ctx context.Context, who fleet.Principal, id fleet.TemplateID) (fleet.Template, error)
	// UpdateTemplate does to a template of the account what change does; it may be called more than once.
	UpdateTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID, change func(*fleet.Template)) (fleet.Template, error)
	DeleteTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID) error
	SetTemplateSource(ctx context.Context, id fleet.TemplateID, source fleet.TemplateSource) (fleet.Template, error)
}

func (a *API) registerTemplates() {
	n := noun[TemplateService, fleet.TemplateID, fleet.Template, v2.Template, v2.TemplateList]{
		path: "/v2/templates", tag: "Templates", one: "a template", name: "Template", names: "Templates", group: fleet.GroupTemplates,
		id: pathParam("Template identifier.", "t5f8k2m7q1w4z9"), example: exampleTemplate(), record: templateRecord,
		records: func(all []v2.Template) v2.TemplateList { return v2.TemplateList{Templates: all} },
	}
	n.list(a, "Lists the account's templates, oldest first. Public templates of others are at /v2/catalog/templates.", TemplateService.Templates)
	on(a, n.create(
		"Makes a reusable configuration: a pod made with templateId takes from it what its own body leaves out. Sizes are GB of 10^9 bytes.\n\n"+
			"400: a mount path is relative, / or a system path. 404: the registry credential does not exist (errors names the field). "+
			"422: a single value is wrong.", exampleCreateTemplate()).once().fails(http.StatusNotFound), createTemplate)
	n.get(a, "Returns a template of the account, or a public one of another, without its registry credential. 404: there is no such template.",
		TemplateService.Template)
	on(a, n.update(
		"Changes a template of the account; what is left out stays. env and ports are replaced as a whole, an empty allowedCudaVersions "+
			"clears the list, registry null takes the credential away, mounts may be changed and not taken away. Pods that exist keep what they were made with.\n\n"+
			"400: a mount path is relative, / or a system path. 404: the account has no such template, or the registry credential does not exist. "+
			"422: a single value is wrong.", v2.UpdateTemplateRequest{Image: new("docker.io/library/nginx:1.29")}), byID("template", updateTemplate))
	n.delete(a, "Deletes a template of the account. 400: a pod that is not terminated was made from it. 404: the account has no such template.",
		TemplateService.DeleteTemplate)

	source := n.operation(http.MethodPut, "/{id}/source", "", "",
		"Says in which slice of the public catalog a template is. 400: it is not public. 404: there is no such template.",
		admin.TemplateSourceRequest{Source: "verified"})
	source.path, source.id, source.tag = "/admin/v1/templates/{id}/source", "setTemplateSource", "Operators"
	source.summary, source.scope = "Set the source of a public template", auth.Write(fleet.GroupAdmin)
	on(a, source, byID("template", setTemplateSource))
}

func createTemplate(ctx context.Context, svc TemplateService, c *call, in *v2.CreateTemplateRequest) (*v2.Template, error) {
	return show(templateRecord)(atMostOnce(c, in, func(once *fleet.Once) (fleet.Template, bool, error) {
		return svc.CreateTemplate(ctx, c.who, newTemplate(in), once)
	}))
}

func newTemplate(in *v2.CreateTemplateRequest) fleet.Template {
	t := fleet.Template{Name: in.Name, Image: in.Image, Category: fleet.CategoryNVIDIA, StartSSH: true, StartJupyter: true}
	changeTemplate(&t, &in.TemplateSettings)
	return t
}

func updateTemplate(ctx context.Context, svc TemplateService, id fleet.TemplateID, c *call, in *v2.UpdateTemplateRequest) (*v2.Template, error) {
	return show(templateRecord)(svc.UpdateTemplate(ctx, c.who, id, func(t *fleet.Template) {
		put(&t.Name, in.Name)
		put(&t.Image, in.Image)
		changeTemplate(t, &in.TemplateSettings)
	}))
}

func setTemplateSource(ctx context.Context, svc TemplateService, id fleet.TemplateID, _ *call, in *admin.TemplateSourceRequest) (*v2.Template, error) {
	return show(publicRecord)(svc.SetTemplateSource(ctx, id, fleet.TemplateSource(in.Source)))
}

// changeTemplate writes what a body says into a template.
func changeTemplate(t *fleet.Template, in *v2.TemplateSettings) {
	put(&t.Args, in.Args)
	put(&t.DiskGB, in.Disk)
	put(&t.Registry, wantedRegistry(in.Registry))
	put(&t.Serverless, in.Serverless)
	put(&t.Public, in.Public)
	put(&t.Category, (*fleet.Category)(in.Category))
	put(&t.StartSSH, in.StartSSH)
	put(&t.StartJupyter, in.StartJupyter)
	if in.Ports != nil {
		t.Ports = parsePorts(in.Ports)
	}
	if in.Env != nil {
		t.Env = in.Env
	}
	if in.AllowedCUDA != nil {
		t.AllowedCUDA = in.AllowedCUDA
	}
	if m := given(in.Mounts).Persistent; m != nil {
		t.Persistent = &fleet.PersistentMount{SizeGB: m.Size, Path: m.Path}
	}
}

// The container disk of a template that names none, in GB.
const (
	defaultDiskGPU = 20
	defaultDiskCPU = 10
)

func templateRecord(t fleet.Template) v2.Template {
	out := v2.Template{
		ID: string(t.ID), Name: t.Name, Image: t.Image, Args: t.Args, Disk: t.DiskGB, Ports: portTexts(t.Ports), Env: t.Env, Registry: v2.Text(t.Registry),
		Serverless: t.Serverless, Public: t.Public, Category: string(t.Category), StartSSH: t.StartSSH, StartJupyter: t.StartJupyter,
		AllowedCUDA: append([]string{}, t.AllowedCUDA...), CreatedAt: v2.At(t.CreatedAt),
	}
	if t.DiskGB == 0 {
		out.Disk = defaultDiskGPU
		if t.Category == fleet.CategoryCPU {
			out.Disk = defaultDiskCPU
		}
	}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	out.Mounts.Persistent = mountsOf(&fleet.PodSpec{Persistent: t.Persistent}).Persistent
	if t.Public {
		out.Source = v2.Text(cmp.Or(t.Source, fleet.SourceCommunity))
	}
	return out
}

// publicRecord shows a public template to others than its owner, who cannot use its credential.
func publicRecord(t fleet.Template) v2.Template {
	t.Registry = ""
	return templateRecord(t)
}

func exampleCreateTemplate() v2.CreateTemplateRequest {
	return v2.CreateTemplateRequest{Name: "notebook", Image: "docker.io/library/nginx:1.29", TemplateSettings: v2.TemplateSettings{
		Ports: []string{"8888/http", "22/tcp"}, Env: map[string]string{"EPOCHS": "3"},
		Mounts: &v2.TemplateMounts{Persistent: &v2.PersistentMount{Size: 20, Path: "/workspace"}},
	}}
}

func exampleTemplate() v2.Template {
	in := exampleCreateTemplate()
	t := newTemplate(&in)
	t.ID, t.CreatedAt = "t5f8k2m7q1w4z9", exampleTime(0).Time
	return templateRecord(t)
}

func examplePublicTemplate() v2.Template {
	out := exampleTemplate()
	out.Public, out.Source = true, v2.Text(fleet.SourceOfficial)
	return out
}
