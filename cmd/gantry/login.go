package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"gantry/api/login"
	"gantry/client"
	"gantry/fleet"
)

type loginCmd struct {
	Address   string `arg:"" optional:"" placeholder:"ADDRESS" help:"Address of the API; that of the context when not given."`
	ReadOnly  bool   `help:"Ask for a key that may read only."`
	NoBrowser bool   `help:"Print the address of the page, and open no browser."`
}

// Run asks for a key, waits until someone lets this command line in, and keeps the key in a context.
func (cmd loginCmd) Run(ctx context.Context, a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	name, address, err := cmd.where(a, all)
	if err != nil {
		return err
	}
	key, err := cmd.ask(ctx, a, address)
	if err != nil {
		return err
	}
	if all, err = a.contexts(); err != nil { // someone may have changed them meanwhile
		return err
	}
	t := all.Contexts[name]
	t.API, t.APIKey, t.Dev = address, key.Reveal(), ""
	all.Contexts[name], all.Current = t, name
	if err := a.keepContexts(all); err != nil {
		return err
	}
	return a.done("commands use", name)
}

// where returns the context that is to hold the key, and the address.
func (cmd loginCmd) where(a *app, all contexts) (name, address string, err error) {
	name = first(a.cli.Context, a.getenv("GANTRY_CONTEXT"))
	if address = first(cmd.Address, a.cli.API); address == "" && (name == "" || all.Contexts[name].API == "") {
		if name != "" && all.Contexts[name].Dev == "" {
			return "", "", usage("the context %s is new: give the ADDRESS of its API", printable(name))
		}
		conn, _, err := a.target()
		if err != nil {
			return "", "", err
		}
		address, name = conn.api, first(name, all.Current)
	}
	address = withScheme(first(address, all.Contexts[name].API))
	one, _, _ := strings.Cut(address, ",")
	u, err := url.Parse(one)
	if err != nil || u.Host == "" {
		return "", "", usage("the address must be that of an API, such as https://api.example.com")
	}
	if name = first(name, unnameable.ReplaceAllString(u.Hostname(), "-")); !nameable.MatchString(name) {
		return "", "", usage("a name must be 1 to 64 letters, digits, '.', '_' and '-', and begin with a letter or digit")
	}
	return name, address, nil
}

// ask has RFC 8628's client wait for a key.
func (cmd loginCmd) ask(ctx context.Context, a *app, addresses string) (fleet.Secret, error) {
	address, _, _ := strings.Cut(addresses, ",")
	address = strings.TrimRight(address, "/")
	conf := &oauth2.Config{ClientID: login.ClientID, Endpoint: oauth2.Endpoint{
		DeviceAuthURL: address + login.DevicePath, TokenURL: address + login.TokenPath, AuthStyle: oauth2.AuthStyleInParams,
	}}
	if cmd.ReadOnly {
		conf.Scopes = []string{login.ReadOnly}
	}
	ctx = context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Timeout: 30 * time.Second})
	host, _ := os.Hostname() // without it the page shows the address alone
	codes, err := conf.DeviceAuth(ctx, oauth2.SetAuthURLParam("device_name", host))
	if err != nil {
		return "", &exitError{exitUnavailable, fmt.Errorf("ask for a code: %w", loginFault(err))}
	}
	_, _ = fmt.Fprintf(a.err, "Open %s and let the code %s in.\n", printable(codes.VerificationURI), printable(codes.UserCode))
	if !cmd.NoBrowser {
		openBrowser(ctx, a, codes.VerificationURIComplete)
	}
	token, err := conf.DeviceAccessToken(ctx, codes)
	if err != nil {
		return "", &exitError{exitRefused, loginFault(err)}
	}
	if !fleet.ValidAPIKey(token.AccessToken) {
		return "", errors.New("the API did not send a key")
	}
	return fleet.Secret(token.AccessToken), nil
}

// loginFault says in plain words what an error of the protocol means.
func loginFault(err error) error {
	var refused *oauth2.RetrieveError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &refused) && refused.ErrorCode == "expired_token":
		return errors.New("nobody let this command line in: try again")
	case errors.As(err, &refused) && refused.ErrorCode == "access_denied":
		return errors.New("this command line was turned away")
	case errors.As(err, &refused) && refused.Response != nil:
		return fmt.Errorf("the API answered %s", refused.Response.Status)
	}
	return err
}

// openBrowser opens a page where there is a browser; where that fails, the address was printed.
func openBrowser(ctx context.Context, a *app, page string) {
	program := "xdg-open"
	switch {
	case !strings.HasPrefix(page, "https://") && !strings.HasPrefix(page, "http://"):
		return
	case runtime.GOOS == "darwin":
		program = "open"
	case a.getenv("DISPLAY") == "" && a.getenv("WAYLAND_DISPLAY") == "":
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_ = exec.CommandContext(ctx, program, page).Run() //nolint:gosec // an address, which no shell reads
}

type logoutCmd struct{}

// Run deletes the key that a context has, there and at the API.
func (logoutCmd) Run(ctx context.Context, a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	name := first(a.cli.Context, a.getenv("GANTRY_CONTEXT"), all.Current)
	if name == "" {
		return usage("no context is in use: say --context")
	}
	t, err := all.get(name)
	if err != nil {
		return err
	}
	if t.APIKey == "" {
		return usage("the context %s has no key", printable(name))
	}
	c, err := client.New(t.API, fleet.Secret(t.APIKey), "gantry/"+version)
	if err != nil {
		return usage("%v", err)
	}
	var p *client.Problem
	if err := c.SignOut(ctx); err != nil && (!errors.As(err, &p) || p.Status != http.StatusUnauthorized) {
		return err // the key is kept, so that it can be deleted later
	}
	t.APIKey = ""
	all.Contexts[name] = t
	if err := a.keepContexts(all); err != nil {
		return err
	}
	return a.done("signed out of", name)
}
