package main

import (
	"context"
	"io"
	"os"
	"strings"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

type registryCmd struct {
	List   registryListCmd   `cmd:"" help:"List your credentials."`
	Create registryCreateCmd `cmd:"" help:"Store a credential."`
	Delete registryDeleteCmd `cmd:"" help:"Delete credentials."`
}

type registryListCmd struct{}

// Run lists registry credentials.
func (registryListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Registries(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string { return registryTable(list.Value.Registries) })
}

func registryTable(all []v2.Registry) string {
	var rows [][]string
	for _, r := range all {
		rows = append(rows, []string{r.ID, r.Name})
	}
	return table([]string{"ID", "NAME"}, rows)
}

// registries lists what a word for a registry credential may mean.
func registries(ctx context.Context, c *client.Client) func() ([]thing, error) {
	return func() ([]thing, error) {
		list, err := c.Registries(ctx)
		if err != nil {
			return nil, err
		}
		var out []thing
		for _, r := range list.Value.Registries {
			out = append(out, thing{r.ID, r.Name})
		}
		return out, nil
	}
}

type registryCreateCmd struct {
	Name           string `arg:"" placeholder:"NAME" help:"Name of the credential."`
	Username       string `required:"" placeholder:"NAME" help:"User name at the registry."`
	PasswordFile   string `placeholder:"FILE" help:"File with the password or token; - is standard input. Asked for on a terminal when not given."`
	IdempotencyKey string `placeholder:"TEXT" help:"Stored once under this key, however often the command is run within a day."`
}

// Run stores a credential.
func (cmd registryCreateCmd) Run(ctx context.Context, a *app) error {
	password, err := a.password(ctx, cmd.PasswordFile)
	if err != nil {
		return err
	}
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	key := onceKey(cmd.IdempotencyKey)
	r, err := c.Keyed(key).CreateRegistry(ctx, v2.CreateRegistryRequest{Name: cmd.Name, Username: cmd.Username, Password: v2.Hidden(password)})
	if err != nil {
		return a.uncertain(err, key)
	}
	a.sayReplayed(r.Replayed, r.Value.ID)
	return a.show(r.Raw, func() string { return registryTable([]v2.Registry{r.Value}) })
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

type registryDeleteCmd struct {
	Registries []string `arg:"" name:"registry" placeholder:"REGISTRY" help:"Ids or names of credentials."`
}

// Run deletes credentials.
func (cmd registryDeleteCmd) Run(ctx context.Context, a *app) error {
	return a.deleteAll(ctx, false, "registry credential", cmd.Registries, registries, (*client.Client).DeleteRegistry)
}
