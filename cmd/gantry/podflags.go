package main

import (
	"bufio"
	"context"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

// containerFlags are the fields of a container that pods and templates share, on creates and on updates.
type containerFlags struct {
	Port       []string `sep:"none" placeholder:"8080/http" help:"Port to expose, with http or tcp; a bare number means http. May be repeated."`
	NoPorts    bool     `help:"Expose no port."`
	Env        []string `sep:"none" placeholder:"K=V" help:"Environment variable; K alone takes it from this environment. May be repeated."`
	EnvFile    []string `sep:"none" placeholder:"FILE" help:"File with a K=V in each line; lines that begin with # are left out. May be repeated."`
	Disk       *int     `placeholder:"GB" help:"Container disk in GB, wiped at every start."`
	Registry   string   `placeholder:"ID" help:"Credential for a private image: its id or name, see gantry registry list."`
	NoRegistry bool     `help:"No credential for the image."`
	Args       *string  `placeholder:"TEXT" help:"Arguments instead of the image's own, split as a shell does; empty for the image's own. Or give them after --."`
}

// read makes the members of the command line. What the API checks is left to it.
func (f containerFlags) read(ctx context.Context, a *app, c *client.Client) (v2.PodSettings, error) {
	out := v2.PodSettings{Args: f.Args, Disk: f.Disk}
	switch {
	case f.Args != nil && len(a.rest) > 0:
		return out, usage("--args and arguments after -- exclude each other")
	case len(f.Port) > 0 && f.NoPorts:
		return out, usage("--port and --no-ports exclude each other")
	case f.Registry != "" && f.NoRegistry:
		return out, usage("--registry and --no-registry exclude each other")
	}
	if len(a.rest) > 0 {
		words := shellJoin(a.rest)
		out.Args = &words
	}
	if len(f.Port) > 0 || f.NoPorts {
		out.Ports = []string{}
		for _, port := range f.Port {
			if !strings.Contains(port, "/") {
				port += "/http"
			}
			out.Ports = append(out.Ports, port)
		}
	}
	env, err := f.environment(a)
	if err != nil {
		return out, err
	}
	if len(env) > 0 {
		out.Env = env
	}
	switch {
	case f.NoRegistry:
		out.Registry = v2.Null[string]()
	case f.Registry != "":
		id, err := registries.id(ctx, c, f.Registry)
		if err != nil {
			return out, err
		}
		out.Registry = v2.Value(id)
	}
	return out, nil
}

// environment merges the files, in order, and then --env, where the later wins.
func (f containerFlags) environment(a *app) (map[string]string, error) {
	out := map[string]string{}
	for _, path := range f.EnvFile {
		if err := readEnvFile(path, out); err != nil {
			return nil, err
		}
	}
	return out, a.readEnv("--env", f.Env, out)
}

// readEnv reads K=V entries; the value of a K alone is taken from this program's own environment.
func (a *app) readEnv(flag string, entries []string, into map[string]string) error {
	for _, entry := range entries {
		name, value, given := strings.Cut(entry, "=")
		if name == "" {
			return usage("%s must be K=V, or K alone", flag)
		}
		if !given {
			var there bool
			if value, there = a.env(name); !there {
				return usage("%s %s: there is no such variable in this environment", flag, name)
			}
		}
		into[name] = value
	}
	return nil
}

// envChange changes the variables of what exists.
type envChange struct {
	NoEnv    bool     `help:"Take all variables away."`
	SetEnv   []string `sep:"none" placeholder:"K=V" help:"Set one variable and keep the others. May be repeated."`
	UnsetEnv []string `sep:"none" placeholder:"K" help:"Take one variable away and keep the others. May be repeated."`
}

// single reports whether single variables are changed.
func (c envChange) single() bool { return len(c.SetEnv) > 0 || len(c.UnsetEnv) > 0 }

func (c envChange) check(f containerFlags) error {
	all := len(f.Env) > 0 || len(f.EnvFile) > 0
	if c.single() && (all || c.NoEnv) || c.NoEnv && all {
		return usage("--env and --env-file, --set-env and --unset-env, and --no-env exclude each other")
	}
	return nil
}

// edit changes single variables of those that there are now.
func (c envChange) edit(a *app, now map[string]string) (map[string]string, error) {
	env := maps.Clone(now)
	if env == nil {
		env = map[string]string{}
	}
	for _, name := range c.UnsetEnv {
		delete(env, name)
	}
	return env, a.readEnv("--set-env", c.SetEnv, env)
}

const maxEnvFile = 1 << 20 // bytes

func readEnvFile(path string, into map[string]string) error {
	f, err := os.Open(path)
	if err != nil {
		return usage("--env-file: %v", err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(io.LimitReader(f, maxEnvFile))
	lines.Buffer(nil, maxEnvFile)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSuffix(lines.Text(), "\r")
		if text := strings.TrimSpace(line); text == "" || text[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return usage("--env-file %s: line %d is not K=V", path, n) // the line itself may hold a secret
		}
		into[name] = value
	}
	if err := lines.Err(); err != nil {
		return usage("--env-file %s: %v", path, err)
	}
	return nil
}

// shellJoin makes one text of words that a POSIX shell splits into the same words.
func shellJoin(words []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"
	out := make([]string, len(words))
	for i, w := range words {
		if w != "" && strings.Trim(w, plain) == "" {
			out[i] = w
			continue
		}
		out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(out, " ")
}

// mountFlags are the storage mounts of a pod.
type mountFlags struct {
	Persistent    string `placeholder:"GB:PATH" help:"Storage on the pod's host, which survives stops, such as 50:/workspace. GPU pods only."`
	NetworkVolume string `placeholder:"VOLUME[:PATH]" help:"Network volume by its id or name, such as datasets:/data; at /workspace when no path is given."`
}

// mounts returns nil when the command line names none.
func (f mountFlags) mounts(ctx context.Context, c *client.Client) (*v2.Mounts, error) {
	switch {
	case f.Persistent != "" && f.NetworkVolume != "":
		return nil, usage("--persistent and --network-volume exclude each other")
	case f.Persistent != "":
		return persistentMount(f.Persistent)
	case f.NetworkVolume != "":
		name, path, given := strings.Cut(f.NetworkVolume, ":")
		if !given {
			path = fleet.DefaultVolumePath
		}
		if name == "" || path == "" {
			return nil, usage("--network-volume must be VOLUME or VOLUME:PATH, such as datasets:/workspace")
		}
		id, err := volumes.id(ctx, c, name)
		if err != nil {
			return nil, err
		}
		return &v2.Mounts{Network: []v2.NetworkMount{{VolumeID: id, Path: path}}}, nil
	}
	return nil, nil
}

func persistentMount(text string) (*v2.Mounts, error) {
	size, path, ok := strings.Cut(text, ":")
	gb, err := strconv.Atoi(size)
	if !ok || err != nil || path == "" {
		return nil, usage("--persistent must be GB:PATH, such as 50:/workspace")
	}
	return &v2.Mounts{Persistent: &v2.PersistentMount{Size: gb, Path: path}}, nil
}
