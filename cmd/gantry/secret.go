package main

import (
	"context"
	"strings"
	"unicode/utf8"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

type secretCmd struct {
	Set    secretSetCmd    `cmd:"" help:"Make a secret, or give it another value."`
	List   secretListCmd   `cmd:"" help:"List the names of your secrets."`
	Delete secretDeleteCmd `cmd:"" help:"Delete secrets."`
}

type secretSetCmd struct {
	Name     string `arg:"" placeholder:"NAME" help:"Name of the secret: letters, digits, '_' and '-'."`
	FromFile string `placeholder:"FILE" help:"File with the value; - is standard input. Asked for on a terminal when not given."`
}

// Run sets a secret.
func (cmd secretSetCmd) Run(ctx context.Context, a *app) error {
	value, err := a.secretValue(ctx, cmd.FromFile)
	if err != nil {
		return err
	}
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	secret, err := c.SetSecret(ctx, cmd.Name, value)
	if err != nil {
		return err
	}
	return a.show(secret.Raw, func() string { return secretTable([]v2.Secret{secret.Value}) })
}

// secretValue reads a value from a file, from standard input for -, or from the terminal for no file.
func (a *app) secretValue(ctx context.Context, path string) (fleet.Secret, error) {
	var text string
	var err error
	if path == "" {
		if text, err = a.prompt(ctx, "--from-file", "Value: "); err != nil {
			return "", err
		}
	} else if text, err = a.readFile("--from-file", path, fleet.MaxSecretBytes+2); err != nil {
		return "", err
	}
	text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r") // an editor's, or echo's
	switch {
	case text == "":
		return "", usage("the value is empty")
	case !utf8.ValidString(text):
		return "", usage("the value is not text in UTF-8, which variables are; encode it, as base64 does")
	}
	return fleet.Secret(text), nil
}

type secretListCmd struct{}

// Run lists secrets.
func (secretListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Secrets(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string { return secretTable(list.Value.Secrets) })
}

func secretTable(all []v2.Secret) string {
	var rows [][]string
	for _, s := range all {
		rows = append(rows, []string{s.Name, when(&s.CreatedAt), when(&s.UpdatedAt)})
	}
	return table([]string{"NAME", "CREATED", "VALUE SET"}, rows)
}

type secretDeleteCmd struct {
	Secrets []string `arg:"" name:"secret" placeholder:"SECRET" help:"Names of secrets."`
}

// Run deletes secrets.
func (cmd secretDeleteCmd) Run(ctx context.Context, a *app) error {
	return a.deleteAll(ctx, false, "secret", cmd.Secrets, unnamed, (*client.Client).DeleteSecret)
}
