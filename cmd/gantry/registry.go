package main

import (
	"context"
	"io"
	"os"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

type registryCmd struct {
	List   listCmd           `cmd:"" help:"List your credentials."`
	Create registryCreateCmd `cmd:"" help:"Store a credential."`
	Delete deleteCmd         `cmd:"" help:"Delete credentials."`
}

var registries = noun[v2.Registry, v2.RegistryList]{
	kind: "registry credential", all: (*client.Client).Registries, remove: (*client.Client).DeleteRegistry,
	items:   func(l v2.RegistryList) []v2.Registry { return l.Registries },
	thing:   func(r v2.Registry) thing { return thing{r.ID, r.Name} },
	columns: []string{"ID", "NAME"},
	row:     func(r v2.Registry, _ time.Time) []string { return []string{r.ID, r.Name} },
}

type registryCreateCmd struct {
	Name           string `arg:"" placeholder:"NAME" help:"Name of the credential."`
	Username       string `required:"" placeholder:"NAME" help:"User name at the registry."`
	PasswordFile   string `placeholder:"FILE" help:"File with the password or token; - is standard input. Asked for on a terminal when not given."`
	IdempotencyKey string `placeholder:"TEXT" help:"Idempotency key: run again with it within a day, the command creates nothing new."`
}

// Run stores a credential.
func (cmd registryCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	password, err := a.password(ctx, cmd.PasswordFile)
	if err != nil {
		return err
	}
	r, err := registries.create(a, c, cmd.IdempotencyKey, func(c *client.Client) (client.Answer[v2.Registry], error) {
		return c.CreateRegistry(ctx, v2.CreateRegistryRequest{Name: cmd.Name, Username: cmd.Username, Password: v2.Hidden(password)})
	})
	return registries.show(a, r, err)
}

const maxPassword = 64 << 10 // bytes

// password reads a password from a file, from standard input for -, or from the terminal for no file.
func (a *app) password(ctx context.Context, path string) (fleet.Secret, error) {
	var text string
	var err error
	switch path {
	case "":
		text, err = a.prompt(ctx, "--password-file", "Password: ")
	default:
		text, err = a.readFile("--password-file", path, maxPassword)
	}
	if err != nil {
		return "", err
	}
	text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r") // an editor's, or echo's
	if text == "" {
		return "", usage("the password is empty")
	}
	return fleet.Secret(text), nil
}

// prompt asks on the terminal, without showing what is typed. flag is what would spare the question.
func (a *app) prompt(ctx context.Context, flag, question string) (string, error) {
	in, ok := a.in.(*os.File)
	if !ok || !isTerminal(in) {
		return "", usage("there is no terminal to ask on: give %s", flag)
	}
	text, err := readHidden(ctx, in, func() { _, _ = io.WriteString(a.err, question) })
	_, _ = io.WriteString(a.err, "\n") // that of the person is not shown
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return text, err
}

// readFile reads a small file; - is standard input.
func (a *app) readFile(flag, path string, most int64) (string, error) {
	in := a.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", usage("%s: %v", flag, err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	switch {
	case err != nil:
		return "", usage("%s: %v", flag, err)
	case int64(len(text)) > most:
		return "", usage("%s: more than %s", flag, bytesText(most))
	}
	return string(text), nil
}
