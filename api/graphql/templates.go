package graphql

import (
	"context"
	"net/url"
	"slices"

	"gantry/api/v2"
	"gantry/fleet"
)

// template shows a template.
type template struct {
	ID, Name, ImageName, Category, Ports, DockerArgs, Readme string
	IsServerless, IsPublic, IsRunpod, StartSSH, StartJupyter bool
	ContainerDiskInGb                                        int32
	VolumeInGb                                               float64
	VolumeMountPath, ContainerRegistryAuthID                 *string
	Env                                                      []pair
	CreatedAt                                                *scalar
}

func newTemplate(_ *session, r *v2.Template) *template {
	t := &template{
		ID: r.ID, Name: r.Name, ImageName: r.Image, Category: r.Category, Ports: join(r.Ports), DockerArgs: r.Args, IsServerless: r.Serverless,
		IsPublic: r.Public, IsRunpod: r.Source == v2.Text(fleet.SourceOfficial), StartSSH: r.StartSSH, StartJupyter: r.StartJupyter,
		ContainerDiskInGb: int32(r.Disk), ContainerRegistryAuthID: null(r.Registry), Env: pairsOf(r.Env), CreatedAt: moment(&r.CreatedAt),
	}
	if m := r.Mounts.Persistent; m != nil {
		t.VolumeInGb, t.VolumeMountPath = float64(m.Size), &m.Path
	}
	return t
}

// PodTemplates are the templates of the public catalog.
func (root) PodTemplates(ctx context.Context, args with) ([]*template, error) {
	s := sessionOf(ctx)
	sources := []fleet.TemplateSource{fleet.SourceOfficial, fleet.SourceVerified, fleet.SourceCommunity}
	if official, ok := args.Input["isRunpod"].(bool); ok && official {
		sources = sources[:1]
	} else if ok {
		sources = sources[1:]
	}
	var all []v2.Template
	for _, source := range sources {
		some, err := read[v2.TemplateList](s, "listPublicTemplates", url.Values{"source": {string(source)}})
		if err != nil {
			return nil, err
		}
		all = append(all, some.Templates...)
	}
	return list(s, all, newTemplate)
}

// PodTemplate is a template, or null.
func (root) PodTemplate(ctx context.Context, args byID) (*template, error) {
	return maybe(ctx, "getTemplate", text(args.ID), newTemplate)
}

var templateMembers = []member{
	{from: "name", to: "name"},
	{from: "imageName", to: "image"},
	{from: "dockerArgs", to: "args"},
	{from: "containerDiskInGb", to: "disk"},
	{from: "ports", to: "ports", as: split},
	{from: "env", to: "env", as: pairs},
	{from: "isServerless", to: "serverless"},
	{from: "isPublic", to: "public"},
	{from: "containerRegistryAuthId", to: "registry", as: orNull},
	{from: "startSsh", to: "startSsh"},
	{from: "startJupyter", to: "startJupyter"},
	{from: "category", to: "category", as: word},
	{from: "mounts", to: "mounts"},
	{from: "volumeInGb", to: "mounts.persistent.size"},
	{from: "volumeMountPath", to: "mounts.persistent.path"},
}

// textNoScript says why there is no startScript.
const textNoScript = "there are no start scripts: put the command into dockerArgs"

// SaveTemplate makes or changes a template.
func (root) SaveTemplate(ctx context.Context, args with) (*template, error) {
	in := args.Input
	if err := unsupported(in, map[string]string{"startScript": textNoScript}); err != nil {
		return nil, sessionOf(ctx).fail(err)
	}
	mountOf(in)
	operation := "createTemplate"
	if in.text("id") != "" {
		operation = "updateTemplate"
	}
	return save(ctx, operation, in.text("id"), in, templateMembers, newTemplate)
}

// DeleteTemplate deletes the template of a name, or of an id.
func (root) DeleteTemplate(ctx context.Context, args struct{ TemplateName *string }) (*scalar, error) {
	s, name := sessionOf(ctx), text(args.TemplateName)
	all, err := ask[v2.TemplateList](s, "listTemplates", nil)
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(all.Templates, func(t v2.Template) bool { return t.ID != name && t.Name != name })
	if i := slices.IndexFunc(found, func(t v2.Template) bool { return t.ID == name }); i >= 0 {
		found = found[i : i+1]
	}
	switch len(found) {
	case 0:
		return nil, s.fail(fleet.NotFound("template"))
	case 1:
		return remove(ctx, "deleteTemplate", found[0].ID)
	}
	return nil, s.fail(refused("templateName: %d templates have this name: give the id of one", len(found)))
}

// The storage of a pod that says how much, and not where, or less than the least.
const (
	defaultPath = "/workspace"
	leastVolume = 10
)

// mountOf writes the mount that an input asks for into its member mounts: host-local storage, unless it is none; less than the
// least is the least.
func mountOf(in input) {
	if in == nil {
		return
	}
	size, _ := in.number("volumeInGb")
	path, id := in.text("volumeMountPath"), in.text("networkVolumeId")
	for _, name := range []string{"volumeInGb", "volumeMountPath", "networkVolumeId"} {
		delete(in, name)
	}
	if path == "" {
		path = defaultPath
	}
	switch {
	case id != "": // takes the place of host-local storage
		in["mounts"] = body{"network": []body{{"volumeId": id, "path": path}}}
	case size > 0:
		in["mounts"] = body{"persistent": body{"size": max(size, leastVolume), "path": path}}
	case size < 0:
		in["mounts"] = body{"persistent": body{"size": size, "path": path}}
	}
}
