package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"gantry/client"
	"gantry/dev"
	"gantry/fleet"
)

// stateHome is where the pointer to the last dev.json lies.
func (a *app) stateHome() string {
	home := a.getenv("HOME")
	return dev.StateHome(a.getenv("XDG_STATE_HOME"), home)
}

// lastDev returns the dev.json of the dev that was started last. The error says in plain words why there is none.
func (a *app) lastDev() (dev.File, error) {
	dir, err := dev.LastDir(a.stateHome())
	if errors.Is(err, fs.ErrNotExist) {
		return dev.File{}, errors.New("no `gantry dev` was started by this user")
	}
	if err != nil {
		return dev.File{}, err
	}
	file, err := dev.ReadFile(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return dev.File{}, fmt.Errorf("`gantry dev` is not running on %s", dir)
	}
	return file, err
}

// connection is where to call, with which key, and what dev.json knows of it.
type connection struct {
	api         string
	key         fleet.Secret // of this command
	user, admin fleet.Secret // that belong to the address
	named       bool         // by --context or GANTRY_CONTEXT, so that its keys go before the environment's
	dev         dev.File     // zero when the API is not that of a dev of this user
}

// connect returns a client for a user's command, or for an operator's.
func (a *app) connect(operator bool) (*client.Client, connection, error) {
	conn, from, err := a.target()
	if err != nil {
		return nil, conn, err
	}
	if from == "" {
		a.sayGuess(conn)
	}
	if conn.key, err = a.key(operator, conn); err != nil {
		return nil, conn, err
	}
	a.operator = operator
	return a.dial(conn)
}

func (a *app) dial(conn connection) (*client.Client, connection, error) {
	c, err := client.New(conn.api, conn.key, "gantry/"+version)
	if err != nil {
		return nil, conn, usage("%v", err)
	}
	return c, conn, nil
}

// target returns where commands go, and in words what says so: "" when it was guessed from the last dev.
func (a *app) target() (conn connection, from string, err error) {
	if a.cli.API != "" && a.cli.Context != "" {
		return conn, "", usage("--api and --context exclude each other")
	}
	last, lastErr := a.lastDev()
	direct := func(api, from string) (connection, string, error) {
		conn := connection{api: withScheme(api)}
		if lastErr == nil && sameAddress(conn.api, devAddresses(last)) {
			conn = devConnection(last) // its keys are for this address alone
			conn.api = withScheme(api)
		}
		return conn, from, nil
	}
	if a.cli.API != "" {
		return direct(a.cli.API, "--api")
	}
	all, err := a.contexts()
	if err != nil {
		return conn, "", err
	}
	name := first(a.cli.Context, a.getenv("GANTRY_CONTEXT"))
	named := name != ""
	switch api := a.getenv("GANTRY_API"); {
	case named:
	case api != "":
		return direct(api, "GANTRY_API")
	case all.Current != "":
		name = all.Current
	case lastErr != nil:
		return conn, "", &exitError{exitUnavailable, fmt.Errorf("no API address: %w; set GANTRY_API, give --api, or add a context: gantry context add --help", lastErr)}
	default:
		return devConnection(last), "", nil
	}
	t, err := all.get(name)
	if err != nil {
		return conn, "", err
	}
	conn, err = t.connection()
	conn.named = named
	return conn, "the context " + name, err
}

// sayGuess tells that nothing named the cluster that a command goes to, unless this user knows no other.
func (a *app) sayGuess(conn connection) {
	if a.guessed {
		return
	}
	a.guessed = true
	text := "the gantry dev that was started last"
	if dir, err := dev.LastDir(a.stateHome()); err == nil {
		text = "gantry dev in " + dir
		if all, err := a.contexts(); err == nil {
			name := all.nameOfDev(dir)
			if name != "" && len(all.Contexts) == 1 {
				return
			}
			if name != "" {
				text += fmt.Sprintf(" (gantry context use %s chooses it for good)", name)
			}
		}
	}
	_, _ = fmt.Fprintf(a.err, "gantry: no context and no GANTRY_API: using %s, %s\n", printable(text), printable(conn.api))
}

// withScheme completes addresses that are only HOST:PORT: http for this machine, https for all others.
func withScheme(addresses string) string {
	var out []string
	for one := range strings.SplitSeq(addresses, ",") {
		one = strings.TrimSpace(one)
		if one != "" && !strings.Contains(one, "://") {
			scheme := "https://"
			if local("http://" + one) {
				scheme = "http://"
			}
			one = scheme + one
		}
		out = append(out, one)
	}
	return strings.Join(out, ",")
}

// devAddresses are those of all schedulers of a dev, that of its first one first.
func devAddresses(last dev.File) string {
	all := []string{last.API}
	for _, p := range last.Processes {
		if p.API != "" && !slices.Contains(all, p.API) {
			all = append(all, p.API)
		}
	}
	return strings.Join(all, ",")
}

// key finds the key. An operator's command prefers keys that are an operator's for sure.
func (a *app) key(operator bool, conn connection) (fleet.Secret, error) {
	if a.cli.APIKeyFile != "" {
		return readKey(a.cli.APIKeyFile, operator)
	}
	user := fleet.Secret(strings.TrimSpace(a.getenv("GANTRY_API_KEY")))
	admin := fleet.Secret(strings.TrimSpace(a.getenv("GANTRY_ADMIN_KEY")))
	keys := []fleet.Secret{user, conn.user}
	switch {
	case conn.named && operator:
		keys = []fleet.Secret{conn.admin, conn.user, admin, user}
	case conn.named:
		keys = []fleet.Secret{conn.user, user}
	case operator:
		keys = []fleet.Secret{admin, conn.admin, user, conn.user}
	}
	for _, key := range keys {
		if key != "" {
			return key, nil
		}
	}
	return "", &exitError{exitRefused, errors.New("no API key: set GANTRY_API_KEY or give --api-key-file")}
}

// readKey reads a file that holds one key, or those that gantry-scheduler init wrote: the operator's is for operators' commands, the
// first account's for all others.
func readKey(path string, operator bool) (fleet.Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", usage("API key file: %v", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", usage("API key file: %v", err)
	}
	key := strings.TrimSpace(string(text))
	if strings.HasPrefix(key, "{") {
		var keys struct {
			AdminKey string `json:"adminKey"`
			APIKey   string `json:"apiKey"`
		}
		if err := json.Unmarshal(text, &keys); err != nil {
			return "", usage("API key file %s: it begins as the keys of gantry-scheduler init do, and cannot be read: %v", path, err)
		}
		if key = keys.APIKey; operator {
			key = keys.AdminKey
		}
	}
	if key == "" || strings.ContainsAny(key, " \t\r\n") {
		return "", usage("API key file %s: must hold one key and nothing else, or the keys that gantry-scheduler init wrote", path)
	}
	return fleet.Secret(key), nil
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// sameAddress reports whether every address of a, which may be a list, is among those of b.
func sameAddress(a, b string) bool {
	for one := range strings.SplitSeq(a, ",") {
		if !slices.ContainsFunc(strings.Split(b, ","), func(other string) bool { return sameURL(one, other) }) {
			return false
		}
	}
	return true
}

func sameURL(a, b string) bool {
	x, err1 := url.Parse(strings.TrimRight(strings.TrimSpace(a), "/"))
	y, err2 := url.Parse(strings.TrimRight(strings.TrimSpace(b), "/"))
	return err1 == nil && err2 == nil && x.Scheme == y.Scheme && x.Path == y.Path && x.Port() == y.Port() &&
		(x.Hostname() == y.Hostname() || loopback(x.Hostname()) && loopback(y.Hostname()))
}

func local(address string) bool {
	u, err := url.Parse(address)
	return err == nil && loopback(u.Hostname())
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
