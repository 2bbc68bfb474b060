package main

import (
	"context"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

type registryCmd struct {
	List   listCmd           `cmd:"" help:"List your credentials."`
	Create registryCreateCmd `cmd:"" help:"Store a credential."`
	Update registryUpdateCmd `cmd:"" help:"Give a credential another user name and password."`
	Delete deleteCmd         `cmd:"" help:"Delete credentials."`
}

var registries = noun[v2.Registry, v2.RegistryList]{
	kind: "registry credential", all: (*client.Client).Registries, remove: (*client.Client).DeleteRegistry,
	items:   func(l v2.RegistryList) []v2.Registry { return l.Registries },
	thing:   func(r v2.Registry) thing { return thing{r.ID, r.Name} },
	columns: []string{"ID", "NAME"},
	row:     func(r v2.Registry, _ time.Time) []string { return []string{r.ID, r.Name} },
}

const maxPassword = 64 << 10 // bytes

type registryLogin struct {
	Username     string `required:"" placeholder:"NAME" help:"User name at the registry."`
	PasswordFile string `placeholder:"FILE" help:"File with the password or token; - is standard input. Asked for on a terminal when not given."`
}

func (l registryLogin) body(ctx context.Context, a *app) (v2.UpdateRegistryRequest, error) {
	password, err := a.hidden(ctx, "--password-file", l.PasswordFile, "password", maxPassword)
	return v2.UpdateRegistryRequest{Username: l.Username, Password: password}, err
}

type registryUpdateCmd struct {
	Credential string `arg:"" placeholder:"CREDENTIAL" help:"Credential, by id or name."`
	registryLogin
}

// Run replaces the user name and the password of a credential.
func (cmd registryUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	id, err := registries.id(ctx, c, cmd.Credential)
	if err != nil {
		return err
	}
	body, err := cmd.body(ctx, a)
	if err != nil {
		return err
	}
	r, err := c.UpdateRegistry(ctx, id, body)
	return registries.show(a, r, err)
}

type registryCreateCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Name of the credential."`
	registryLogin
	IdempotencyKey string `placeholder:"TEXT" help:"Idempotency key: run again with it within a day, the command creates nothing new."`
}

// Run stores a credential.
func (cmd registryCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body, err := cmd.body(ctx, a)
	if err != nil {
		return err
	}
	r, err := registries.create(a, c, cmd.IdempotencyKey, func(c *client.Client) (client.Answer[v2.Registry], error) {
		return c.CreateRegistry(ctx, v2.CreateRegistryRequest{Name: cmd.Name, UpdateRegistryRequest: body})
	})
	return registries.show(a, r, err)
}
