package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"gantry/api/console"
	"gantry/api/oidc"
	"gantry/fleet"
	"gantry/internal/pki"
)

// peopleFlags say how people sign in.
type peopleFlags struct {
	SessionLife          time.Duration `default:"8h" help:"How long a person's session of the console lasts."`
	OIDCIssuer           string        `name:"oidc-issuer" help:"OpenID Connect provider through which people sign in; when not given, none is dialled." placeholder:"URL"`
	OIDCClientID         string        `name:"oidc-client-id" help:"Gantry's client id at the provider." placeholder:"ID"`
	OIDCClientSecretFile string        `name:"oidc-client-secret-file" help:"File with the client's secret." type:"path"`
	OIDCName             string        `name:"oidc-name" default:"your provider" help:"How the sign-in page calls the provider."`
}

const (
	minSessionLife = 5 * time.Minute
	maxSessionLife = 7 * 24 * time.Hour
)

func (f *peopleFlags) check() error {
	u, err := url.Parse(f.OIDCIssuer)
	set := 0
	for _, text := range []string{f.OIDCIssuer, f.OIDCClientID, f.OIDCClientSecretFile} {
		if text != "" {
			set++
		}
	}
	switch {
	case f.SessionLife < minSessionLife || f.SessionLife > maxSessionLife:
		return errors.New("--session-life must be 5m to 168h")
	case set != 0 && set != 3:
		return errors.New("--oidc-issuer, --oidc-client-id and --oidc-client-secret-file go together")
	case f.OIDCIssuer != "" && (err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(net.JoinHostPort(u.Hostname(), "0")))):
		return errors.New("--oidc-issuer must be an https URL, or an http one on this machine")
	}
	return nil
}

// provide completes the configuration of the console with the provider, if there is one.
func (f *peopleFlags) provide(conf console.Config, api string) (console.Config, error) {
	if f.OIDCIssuer == "" {
		return conf, nil
	}
	secret, err := pki.ReadSecretFile(f.OIDCClientSecretFile)
	if err != nil {
		return conf, fmt.Errorf("read the secret of the OpenID Connect client: %w", err)
	}
	conf.ProviderName = f.OIDCName
	conf.Provider = oidc.New(oidc.Config{
		Issuer: f.OIDCIssuer, ClientID: f.OIDCClientID, ClientSecret: fleet.Secret(bytes.TrimSpace(secret)), Redirect: api + console.CallbackPath,
	})
	return conf, nil
}
