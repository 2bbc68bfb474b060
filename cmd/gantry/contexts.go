package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"gantry/dev"
	"gantry/fleet"
)

// contexts is the file that holds them, of mode 0600 in the user's configuration folder.
type contexts struct {
	Current  string            `json:"current,omitempty"`
	Contexts map[string]target `json:"contexts"`
}

// target is where a context leads.
type target struct {
	API      string `json:"api,omitempty"`
	APIKey   string `json:"apiKey,omitempty"`
	AdminKey string `json:"adminKey,omitempty"`
	Dev      string `json:"dev,omitempty"` // data folder of a gantry dev, whose addresses and keys are read there
}

const maxContexts = 1 << 20 // bytes

// contextsPath is "" where there is no home folder.
func (a *app) contextsPath() string {
	home := a.getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(home) {
		if home = a.getenv("HOME"); home == "" {
			return ""
		}
		home = filepath.Join(home, ".config")
	}
	return filepath.Join(home, "gantry", "contexts.json")
}

// contexts reads the file; none is no context.
func (a *app) contexts() (contexts, error) {
	out := contexts{Contexts: map[string]target{}}
	path := a.contextsPath()
	info, err := os.Stat(path)
	if path == "" || errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err == nil && info.Size() > maxContexts {
		err = fmt.Errorf("%s: longer than %d bytes", path, maxContexts)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return out, usage("contexts: %v", err)
	}
	if out.Contexts == nil {
		out.Contexts = map[string]target{}
	}
	return out, nil
}

// keepContexts writes the file as a whole.
func (a *app) keepContexts(all contexts) error {
	path := a.contextsPath()
	if path == "" {
		return usage("there is no home folder to keep contexts in: set HOME or XDG_CONFIG_HOME")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	out, err := newWhole(path, true)
	if err != nil {
		return err
	}
	defer out.drop()
	if _, err := out.Write(append(text, '\n')); err != nil {
		return err
	}
	return out.keep()
}

func (all contexts) get(name string) (target, error) {
	t, ok := all.Contexts[name]
	if !ok {
		return t, &exitError{exitNotFound, fmt.Errorf("no context has the name %s: gantry context list shows them", printable(name))}
	}
	return t, nil
}

// connection returns where the context leads now.
func (t target) connection() (connection, error) {
	if t.Dev == "" {
		return connection{api: t.API, user: fleet.Secret(t.APIKey), admin: fleet.Secret(t.AdminKey)}, nil
	}
	file, err := dev.ReadFile(t.Dev)
	if errors.Is(err, fs.ErrNotExist) {
		return connection{}, &exitError{exitUnavailable, fmt.Errorf("`gantry dev` is not running on %s", t.Dev)}
	}
	return devConnection(file), err
}

func devConnection(file dev.File) connection {
	return connection{api: devAddresses(file), user: file.APIKey, admin: file.AdminKey, dev: file}
}

// addDev registers a gantry dev as a context, under a name that no other context has. Contexts of devs whose folders are gone go, but for
// the one in use.
func (a *app) addDev(dir string) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	maps.DeleteFunc(all.Contexts, func(name string, t target) bool {
		if t.Dev == "" || t.Dev == dir || name == all.Current {
			return false
		}
		_, err := os.Stat(t.Dev)
		return errors.Is(err, fs.ErrNotExist)
	})
	base := "dev"
	if dir != dev.DefaultDataDir(a.stateHome()) {
		base = "dev-" + unnameable.ReplaceAllString(filepath.Base(dir), "-")
	}
	name := base
	for n := 2; ; n++ {
		old, taken := all.Contexts[name]
		if taken && old.Dev == dir {
			return nil
		}
		if !taken {
			break
		}
		name = fmt.Sprintf("%s-%d", base, n)
	}
	all.Contexts[name] = target{Dev: dir}
	return a.keepContexts(all)
}

// nameOfDev is the context of a dev's folder; "" when it has none.
func (all contexts) nameOfDev(dir string) string {
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		if all.Contexts[name].Dev == dir {
			return name
		}
	}
	return ""
}

type contextCmd struct {
	List   contextListCmd   `cmd:"" help:"List the contexts; * marks the one in use."`
	Show   contextShowCmd   `cmd:"" help:"Show a context, or where commands go now."`
	Use    contextUseCmd    `cmd:"" help:"Choose the context that commands use."`
	Add    contextAddCmd    `cmd:"" help:"Add a context, or replace one."`
	Remove contextRemoveCmd `cmd:"" help:"Remove contexts, with the keys that they hold."`
}

var (
	nameable   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	unnameable = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
)

// contextRecord is what programs see of a context: no key.
type contextRecord struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	API     string `json:"api,omitempty"`
	Dev     string `json:"dev,omitempty"`
	Keys    string `json:"keys"`
}

func (all contexts) records() []contextRecord {
	out := []contextRecord{}
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		t := all.Contexts[name]
		keys := "of the environment"
		switch {
		case t.Dev != "":
			keys = "those of its gantry dev"
		case t.APIKey != "" && t.AdminKey != "":
			keys = "an account's, an operator's"
		case t.APIKey != "":
			keys = "an account's"
		case t.AdminKey != "":
			keys = "an operator's"
		}
		out = append(out, contextRecord{Name: name, Current: name == all.Current, API: t.API, Dev: t.Dev, Keys: keys})
	}
	return out
}

func contextTable(all []contextRecord) string {
	var rows [][]string
	for _, r := range all {
		mark, where := "", r.API
		if r.Current {
			mark = "*"
		}
		if r.Dev != "" {
			where = "gantry dev in " + r.Dev
		}
		rows = append(rows, []string{mark, r.Name, where, r.Keys})
	}
	return table([]string{"", "NAME", "API", "KEYS"}, rows)
}

type contextListCmd struct{}

// Run lists contexts.
func (contextListCmd) Run(a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(map[string]any{"contexts": all.records()})
	if err != nil {
		return err
	}
	return a.show(raw, func() string { return contextTable(all.records()) })
}

type contextShowCmd struct {
	Name string `arg:"" optional:"" placeholder:"NAME" help:"Name of the context; where commands go now when it is not given."`
}

// Run shows where commands go.
func (cmd contextShowCmd) Run(a *app) error {
	conn, from, err := a.target()
	if cmd.Name != "" {
		var all contexts
		if all, err = a.contexts(); err != nil {
			return err
		}
		t, err := all.get(cmd.Name)
		if err != nil {
			return err
		}
		conn, err = t.connection()
		if err != nil {
			return err
		}
		from = "the context " + cmd.Name
	}
	if err != nil {
		return err
	}
	raw, err := json.Marshal(map[string]string{"api": conn.api, "from": from})
	if err != nil {
		return err
	}
	return a.show(raw, func() string { return sheet([][2]string{{"API", conn.api}, {"From", from}}) })
}

type contextUseCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Name of the context."`
}

// Run chooses a context.
func (cmd contextUseCmd) Run(a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	if _, err := all.get(cmd.Name); err != nil {
		return err
	}
	all.Current = cmd.Name
	if err := a.keepContexts(all); err != nil {
		return err
	}
	return a.done("commands use", cmd.Name)
}

type contextAddCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Name of the context: letters, digits, '.', '_' and '-'."`
	Use  bool   `help:"Use it from now on."`
}

// Run adds a context.
func (cmd contextAddCmd) Run(a *app) error {
	switch {
	case !nameable.MatchString(cmd.Name):
		return usage("a name must be 1 to 64 letters, digits, '.', '_' and '-', and begin with a letter or digit")
	case a.cli.API == "":
		return usage("say --api, the address of the context")
	}
	t := target{API: withScheme(a.cli.API)}
	if _, _, err := a.dial(connection{api: t.API}); err != nil {
		return err
	}
	if file := a.cli.APIKeyFile; file != "" {
		user, err := readKey(file, false)
		if err != nil {
			return err
		}
		admin, err := readKey(file, true)
		if err != nil {
			return err
		}
		if t.APIKey = user.Reveal(); admin != user {
			t.AdminKey = admin.Reveal()
		}
	}
	all, err := a.contexts()
	if err != nil {
		return err
	}
	all.Contexts[cmd.Name] = t
	if cmd.Use {
		all.Current = cmd.Name
	}
	if err := a.keepContexts(all); err != nil {
		return err
	}
	return a.done("added", cmd.Name)
}

type contextRemoveCmd struct {
	Names []string `arg:"" name:"name" placeholder:"NAME" help:"Names of contexts."`
}

// Run removes contexts.
func (cmd contextRemoveCmd) Run(_ context.Context, a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	for _, name := range cmd.Names {
		if _, err := all.get(name); err != nil {
			return err
		}
		delete(all.Contexts, name)
		if all.Current == name {
			all.Current = ""
		}
	}
	if err := a.keepContexts(all); err != nil {
		return err
	}
	for _, name := range cmd.Names {
		if err := a.done("removed", name); err != nil {
			return err
		}
	}
	return nil
}
