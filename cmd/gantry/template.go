package main

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

type templateCmd struct {
	List    listCmd             `cmd:"" help:"List your templates."`
	Get     getCmd              `cmd:"" help:"Show a template, yours or a public one."`
	Create  templateCreateCmd   `cmd:"" help:"Create a template."`
	Update  templateUpdateCmd   `cmd:"" help:"Change a template; pods that were made from it stay as they are."`
	Delete  deleteCmd           `cmd:"" help:"Delete templates."`
	Catalog catalogTemplatesCmd `cmd:"" help:"List the public templates of all accounts."`
}

var templates = noun[v2.Template, v2.TemplateList]{
	kind: "template", all: (*client.Client).Templates, one: (*client.Client).Template, remove: (*client.Client).DeleteTemplate,
	items:   func(l v2.TemplateList) []v2.Template { return l.Templates },
	thing:   func(t v2.Template) thing { return thing{t.ID, t.Name} },
	columns: []string{"ID", "NAME", "IMAGE", "FOR", "DISK", "PORTS", "PUBLIC", "SERVERLESS"},
	row: func(t v2.Template, _ time.Time) []string {
		return []string{
			t.ID, t.Name, t.Image, t.Category, fmt.Sprint(t.Disk, " GB"), orDash(strings.Join(t.Ports, ",")), yes(t.Public), yes(t.Serverless),
		}
	},
	sheet: templateSheet,
}

func templateSheet(t v2.Template, _ time.Time) string {
	return sheet([][2]string{
		{"Id", t.ID},
		{"Name", t.Name},
		{"Image", t.Image},
		{"Args", t.Args},
		{"For", t.Category},
		{"Disk", fmt.Sprint(t.Disk, " GB")},
		{"Ports", strings.Join(t.Ports, ", ")},
		{"Env", strings.Join(slices.Sorted(maps.Keys(t.Env)), ", ")}, // names alone: values are often secret
		{"Registry", string(t.Registry)},
		{"Mounts", mountsText(v2.Mounts{Persistent: t.Mounts.Persistent})},
		{"CUDA", strings.Join(t.AllowedCUDA, ", ")},
		{"SSH", yes(t.StartSSH)},
		{"Jupyter", yes(t.StartJupyter)},
		{"Serverless", yes(t.Serverless)},
		{"Public", yes(t.Public)},
		{"Created", when(&t.CreatedAt)},
	})
}

// templateFlags are the fields of a template that a create and an update share.
type templateFlags struct {
	containerFlags
	Category     *string `placeholder:"NVIDIA" help:"What the image is for: CPU, NVIDIA or AMD."`
	Public       *bool   `negatable:"" help:"Let every account see and use it."`
	Serverless   *bool   `negatable:"" help:"It is for serverless endpoints, not for pods."`
	StartSSH     *bool   `name:"ssh" negatable:"" help:"Give its pods the account's SSH keys, as PUBLIC_KEY."`
	StartJupyter *bool   `name:"jupyter" negatable:"" help:"Give its pods a password for Jupyter, as JUPYTER_PASSWORD."`
	Persistent   string  `placeholder:"GB:PATH" help:"Storage on the host, which survives stops, such as 50:/workspace."`

	CUDA   []string `name:"cuda" sep:"none" placeholder:"12.8" help:"CUDA version that the image works with. May be repeated."`
	NoCUDA bool     `name:"no-cuda" help:"Any CUDA version."`
}

func (f templateFlags) settings(ctx context.Context, a *app, c *client.Client) (v2.TemplateSettings, error) {
	box, err := f.read(ctx, a, c)
	body := v2.TemplateSettings{
		Args: box.Args, Disk: box.Disk, Ports: box.Ports, Env: box.Env, Registry: box.Registry,
		Category: f.Category, Public: f.Public, Serverless: f.Serverless, StartSSH: f.StartSSH, StartJupyter: f.StartJupyter,
	}
	if err != nil {
		return body, err
	}
	if f.Persistent != "" {
		mounts, err := persistentMount(f.Persistent)
		if err != nil {
			return body, err
		}
		body.Mounts = &v2.TemplateMounts{Persistent: mounts.Persistent}
	}
	switch {
	case len(f.CUDA) > 0 && f.NoCUDA:
		return body, usage("--cuda and --no-cuda exclude each other")
	case len(f.CUDA) > 0 || f.NoCUDA:
		body.AllowedCUDA = append([]string{}, f.CUDA...)
	}
	return body, nil
}

type templateCreateCmd struct {
	Name  string `arg:"" placeholder:"NAME" help:"Name of the template."`
	Image string `arg:"" placeholder:"IMAGE" help:"Image reference, for example docker.io/library/nginx:alpine."`
	templateFlags
	IdempotencyKey string `placeholder:"TEXT" help:"Idempotency key: run again with it within a day, the command creates nothing new."`
}

// Run makes a template.
func (cmd templateCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	settings, err := cmd.settings(ctx, a, c)
	if err != nil {
		return err
	}
	t, err := templates.create(a, c, cmd.IdempotencyKey, func(c *client.Client) (client.Answer[v2.Template], error) {
		return c.CreateTemplate(ctx, v2.CreateTemplateRequest{Name: cmd.Name, Image: cmd.Image, TemplateSettings: settings})
	})
	return templates.show(a, t, err)
}

type templateUpdateCmd struct {
	Template string  `arg:"" placeholder:"TEMPLATE" help:"Id of the template, or the name of one of yours."`
	Name     *string `placeholder:"NAME" help:"New name."`
	Image    *string `placeholder:"IMAGE" help:"New image reference."`
	templateFlags
}

// Run changes a template.
func (cmd templateUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	settings, err := cmd.settings(ctx, a, c)
	if err != nil {
		return err
	}
	body := v2.UpdateTemplateRequest{Name: cmd.Name, Image: cmd.Image, TemplateSettings: settings}
	if reflect.ValueOf(body).IsZero() {
		return usage("say what to change")
	}
	return templates.on(ctx, c, cmd.Template, func(id string) error {
		t, err := c.UpdateTemplate(ctx, id, body)
		return templates.show(a, t, err)
	})
}
