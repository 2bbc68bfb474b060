package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/client"
)

type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Make an API key; its text is printed once."`
	List   keyListCmd   `cmd:"" help:"List the account's API keys."`
	Delete keyDeleteCmd `cmd:"" help:"End API keys."`
}

// newKey is what a new key is made from.
type newKey struct {
	Preset    string `enum:"all,readOnly" default:"all" help:"What it may do: all or readOnly."`
	ExpiresIn string `placeholder:"TIME" help:"How long it works, for example 720h; for ever when not given."`
}

func (k newKey) body(name string, now time.Time) (client.CreateKey, error) {
	body := client.CreateKey{Name: name, Preset: k.Preset}
	if k.ExpiresIn != "" {
		d, err := time.ParseDuration(k.ExpiresIn)
		if err != nil || d <= 0 {
			return body, usage("--expires-in must be a time such as 720h")
		}
		at := now.Add(d).UTC().Truncate(time.Millisecond)
		body.ExpiresAt = &at
	}
	return body, nil
}

type keyCreateCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Name of the key, for people."`
	newKey
}

func (keyCreateCmd) Help() string {
	return `The key's text goes to standard output and cannot be shown again; the rest goes to standard error.

Examples:

    gantry key create ci > ci.key
    gantry key create dashboard --preset readOnly --expires-in 720h`
}

// Run makes a key.
func (cmd keyCreateCmd) Run(ctx context.Context, a *app) error {
	body, err := cmd.body(cmd.Name, a.now())
	if err != nil {
		return err
	}
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	key, err := c.CreateKey(ctx, body)
	if err != nil {
		return err
	}
	return a.showKey(key)
}

// showKey prints a new key so that its text can be sent to a file.
func (a *app) showKey(key client.Answer[client.NewKey]) error {
	k := key.Value.Key
	ends := "never ends"
	if k.ExpiresAt != nil {
		ends = "ends " + when(k.ExpiresAt)
	}
	return a.showSecret(key.Raw, key.Value.Text.Reveal(),
		fmt.Sprintf("Key %s (%s) was made and %s. Keep its text: it is not shown again.", k.ID, printable(k.Name), ends))
}

// showSecret prints a secret alone on standard output, and what it is on standard error.
func (a *app) showSecret(raw json.RawMessage, text, about string) error {
	if a.cli.Output == "json" {
		return a.showJSON(raw)
	}
	if text == "" {
		return errors.New("the API did not send the text")
	}
	_, _ = fmt.Fprintln(a.err, about)
	_, err := fmt.Fprintln(a.out, text)
	return err
}

type keyListCmd struct{}

func (keyListCmd) Help() string {
	return `Example:

    gantry key list`
}

// Run lists keys.
func (keyListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Keys(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string {
		var rows [][]string
		for _, k := range list.Value.Keys {
			rows = append(rows, []string{k.ID, k.Name, k.Hint + "…", permissions(k), when(&k.CreatedAt), orDash(when(k.ExpiresAt))})
		}
		return table([]string{"ID", "NAME", "KEY", "MAY", "CREATED", "ENDS"}, rows)
	})
}

// permissions shows in a stable order what a key may do.
func permissions(k client.Key) string {
	var out []string
	for group, access := range k.Permissions {
		out = append(out, group+":"+access)
	}
	slices.Sort(out)
	return orDash(strings.Join(out, " "))
}

type keyDeleteCmd struct {
	IDs []string `arg:"" name:"id" placeholder:"ID" help:"Ids of keys, as key list shows them."`
}

func (keyDeleteCmd) Help() string {
	return `Requests with the key are refused from then on.

Example:

    gantry key delete m2c9v4x7b1n5q8`
}

// Run ends keys.
func (cmd keyDeleteCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	var faults []error
	for _, id := range cmd.IDs {
		err := c.DeleteKey(ctx, id)
		if err == nil && a.cli.Output != "json" {
			_, err = fmt.Fprintf(a.out, "deleted %s\n", id)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		faults = append(faults, named(err, id, len(cmd.IDs)))
	}
	return a.several(faults)
}
