package main

import (
	"context"
	"time"
	"unicode/utf8"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

type secretCmd struct {
	Set    secretSetCmd `cmd:"" help:"Create a secret, or give it another value."`
	List   listCmd      `cmd:"" help:"List the names of your secrets."`
	Delete deleteCmd    `cmd:"" help:"Delete secrets."`
}

var secrets = noun[v2.Secret, v2.SecretList]{
	kind: "secret", ids: "Name", bare: true, all: (*client.Client).Secrets, remove: (*client.Client).DeleteSecret,
	items:   func(l v2.SecretList) []v2.Secret { return l.Secrets },
	thing:   func(s v2.Secret) thing { return thing{id: s.Name} },
	columns: []string{"NAME", "CREATED", "VALUE SET"},
	row: func(s v2.Secret, _ time.Time) []string {
		return []string{s.Name, when(&s.CreatedAt), when(&s.UpdatedAt)}
	},
}

type secretSetCmd struct {
	Name     string `arg:"" placeholder:"NAME" help:"Name of the secret: letters, digits, '_' and '-'."`
	FromFile string `placeholder:"FILE" help:"File with the value; - is standard input. Asked for on a terminal when not given."`
}

// Run sets a secret.
func (cmd secretSetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	value, err := a.hidden(ctx, "--from-file", cmd.FromFile, "value", fleet.MaxSecretBytes+2)
	if err != nil {
		return err
	}
	if !utf8.ValidString(value.Reveal()) {
		return usage("the value is not text in UTF-8, which variables are; encode it, as base64 does")
	}
	secret, err := c.SetSecret(ctx, cmd.Name, value.Secret())
	return secrets.show(a, secret, err)
}
