package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Create an API key; its text is printed once."`
	List   listCmd      `cmd:"" help:"List the account's API keys."`
	Get    getCmd       `cmd:"" help:"Show an API key: what it may do, and when it was last used."`
	Update keyUpdateCmd `cmd:"" help:"Rename, disable or enable an API key."`
	Delete deleteCmd    `cmd:"" help:"Delete API keys."`
}

var keys = noun[v2.Key, v2.KeyList]{
	kind: "API key", bare: true, all: (*client.Client).Keys, one: (*client.Client).Key, remove: (*client.Client).DeleteKey,
	items:   func(l v2.KeyList) []v2.Key { return l.Keys },
	thing:   func(k v2.Key) thing { return thing{id: k.ID} },
	columns: []string{"ID", "NAME", "KEY", "PERMISSIONS", "STATE", "~CREATED", "LAST USED", "EXPIRES"},
	row: func(k v2.Key, now time.Time) []string {
		return []string{
			k.ID, k.Name, k.Hint + "…", permissions(k), keyState(k, now), when(&k.CreatedAt), orDash(when(k.LastUsedAt)), orDash(when(k.ExpiresAt)),
		}
	},
	sheet: keySheet,
}

// keyFlags are what a new key is made from, beside its name and preset.
type keyFlags struct {
	Permission []string `sep:"none" placeholder:"GROUP=ACCESS" help:"Access to a group of routes, over the preset's: none, read or write, such as pods=write. May be repeated."`
	Invoke     []string `sep:"none" placeholder:"ENDPOINT" help:"Endpoint whose jobs it may submit, or all. May be repeated."`
	ExpiresIn  string   `placeholder:"TIME" help:"How long it is valid, for example 720h; without end when not given."`
}

func (k keyFlags) body(name, preset string, now time.Time) (v2.CreateKeyRequest, error) {
	body := v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: name}, Preset: preset}
	for _, entry := range k.Permission {
		group, access, ok := strings.Cut(entry, "=")
		if !ok || group == "" {
			return body, usage("--permission must be GROUP=ACCESS, such as pods=write")
		}
		if body.Permissions == nil {
			body.Permissions = v2.WantedPermissions{}
		}
		body.Permissions[group] = access
	}
	switch {
	case slices.Contains(k.Invoke, "all") && len(k.Invoke) > 1:
		return body, usage("--invoke all stands alone")
	case slices.Contains(k.Invoke, "all"):
		body.Invoke = v2.Invoke{All: true}
	case len(k.Invoke) > 0:
		body.Invoke = v2.Invoke{IDs: k.Invoke}
	}
	if k.ExpiresIn != "" {
		d, err := time.ParseDuration(k.ExpiresIn)
		if err != nil || d <= 0 {
			return body, usage("--expires-in must be a time such as 720h")
		}
		at := now.Add(d).UTC().Truncate(time.Millisecond)
		body.ExpiresAt = v2.AtOrNull(at)
	}
	return body, nil
}

type keyCreateCmd struct {
	Name   string `arg:"" placeholder:"NAME" help:"Name of the key, for people."`
	Preset string `enum:"all,readOnly,restricted" default:"all" help:"What it may do: all, readOnly, or restricted, which is what --permission says and nothing else."`
	keyFlags
}

// Run makes a key.
func (cmd keyCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body, err := cmd.body(cmd.Name, cmd.Preset, a.now())
	if err != nil {
		return err
	}
	key, err := c.CreateKey(ctx, body)
	if err != nil {
		return err
	}
	return a.showKey(key)
}

// showKey prints a new key so that its text can be sent to a file.
func (a *app) showKey(key client.Answer[v2.NewKey]) error {
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
	if !a.forPeople() {
		return a.showRaw(raw)
	}
	if text == "" {
		return errors.New("the API did not send the text")
	}
	_, _ = fmt.Fprintln(a.err, about)
	_, err := fmt.Fprintln(a.out, text)
	return err
}

// keyState is whether requests with a key are taken.
func keyState(k v2.Key, now time.Time) string {
	switch {
	case k.ExpiresAt != nil && !now.Before(k.ExpiresAt.Time):
		return "ended"
	case k.Disabled:
		return "disabled"
	}
	return "active"
}

// operatorKey is what an operator's key may do on operators' routes; "" for a key of an account.
func operatorKey(k v2.Key) string {
	switch k.Permissions["admin"] {
	case "write":
		return "operator:write"
	case "read":
		return "operator:read"
	}
	return ""
}

// permissions shows in a stable order what a key may do, in few words where it is the same everywhere.
func permissions(k v2.Key) string {
	var out, accesses []string
	groups := slices.Sorted(maps.Keys(k.Permissions))
	if kind := operatorKey(k); kind != "" {
		out = []string{kind}
		groups = slices.DeleteFunc(groups, func(g string) bool { return g == "admin" })
	}
	for _, group := range groups {
		access := k.Permissions[group]
		if access != "none" {
			out = append(out, group+":"+access)
		}
		if !slices.Contains(accesses, access) {
			accesses = append(accesses, access)
		}
	}
	if len(accesses) == 1 && len(groups) > 1 && accesses[0] != "none" {
		return strings.TrimPrefix(operatorKey(k)+" all:"+accesses[0], " ")
	}
	return orDash(strings.Join(out, " "))
}

func keySheet(k v2.Key, now time.Time) string {
	fields := [][2]string{
		{"Id", k.ID},
		{"Name", k.Name},
		{"Key", k.Hint + "…"},
		{"State", keyState(k, now)},
		{"Created", when(&k.CreatedAt)},
		{"Last used", orDash(when(k.LastUsedAt))},
		{"Expires", orDash(when(k.ExpiresAt))},
		{"Invoke", orDash(strings.Join(k.Invoke.IDs, ", "))},
	}
	if k.Invoke.All {
		fields[len(fields)-1][1] = "all endpoints"
	}
	for _, group := range slices.Sorted(maps.Keys(k.Permissions)) {
		fields = append(fields, [2]string{"Access to " + group, k.Permissions[group]})
	}
	return sheet(fields)
}

type keyUpdateCmd struct {
	ID      string  `arg:"" placeholder:"ID" help:"Id of the key, as key list shows it."`
	Name    *string `placeholder:"NAME" help:"New name."`
	Disable bool    `help:"Refuse requests with it until it is enabled."`
	Enable  bool    `help:"Take requests with it again."`
}

// Run changes a key.
func (cmd keyUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body := v2.UpdateKeyRequest{Name: cmd.Name}
	switch {
	case cmd.Disable && cmd.Enable:
		return usage("--disable and --enable exclude each other")
	case cmd.Disable || cmd.Enable:
		body.Disabled = &cmd.Disable
	case cmd.Name == nil:
		return usage("say --name, --disable or --enable")
	}
	key, err := c.UpdateKey(ctx, cmd.ID, body)
	return keys.show(a, key, err)
}
