// Package oidc asks a provider of OpenID Connect who someone is: authorization code with PKCE and a nonce. It dials the provider, and
// nothing else, when it is first asked.
package oidc

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"gantry/fleet"
)

const (
	within  = 10 * time.Second
	atOnce  = 8
	longest = 500 // bytes of subject and e-mail address
)

// Config is what a Provider is made from.
type Config struct {
	Issuer       string
	ClientID     string
	ClientSecret fleet.Secret
	Redirect     string // where the provider sends people back to
}

// Provider is a provider of OpenID Connect. It is safe for concurrent use.
type Provider struct {
	cfg  Config
	http *http.Client
	busy chan struct{}

	mu    sync.Mutex // guards the field below
	found *oidc.Provider
}

// New returns a Provider, which may not be reached yet.
func New(cfg Config) *Provider {
	return &Provider{cfg: cfg, http: &http.Client{Timeout: within}, busy: make(chan struct{}, atOnce)}
}

// take bounds how much is asked of the provider at a time. Errors: rate_limited.
func (p *Provider) take() (give func(), err error) {
	select {
	case p.busy <- struct{}{}:
		return func() { <-p.busy }, nil
	default:
		return nil, &fleet.Error{Code: fleet.CodeLimited, Msg: "too many people sign in at the moment", After: time.Second}
	}
}

func (p *Provider) provider(ctx context.Context) (*oidc.Provider, *oauth2.Config, error) {
	p.mu.Lock()
	found := p.found
	p.mu.Unlock()
	if found == nil {
		var err error
		// The keys are fetched later, with the client of this context, which must outlive the request.
		if found, err = oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), p.http), p.cfg.Issuer); err != nil {
			return nil, nil, fleet.Unavailable("The provider cannot be reached.", err)
		}
		p.mu.Lock()
		p.found = found
		p.mu.Unlock()
	}
	return found, &oauth2.Config{
		ClientID: p.cfg.ClientID, ClientSecret: p.cfg.ClientSecret.Reveal(), Endpoint: found.Endpoint(), RedirectURL: p.cfg.Redirect,
		Scopes: []string{oidc.ScopeOpenID, "email"},
	}, nil
}

// Begin returns where to send someone. Errors: unavailable, rate_limited.
func (p *Provider) Begin(ctx context.Context, state, nonce, verifier string) (string, error) {
	give, err := p.take()
	if err != nil {
		return "", err
	}
	defer give()
	_, conf, err := p.provider(ctx)
	if err != nil {
		return "", err
	}
	return conf.AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)), nil
}

// Finish returns whom the provider knows by a code that it gave. Until is not set. Errors: unauthorized, unavailable, rate_limited.
func (p *Provider) Finish(ctx context.Context, code, nonce, verifier string) (fleet.Assertion, error) {
	give, err := p.take()
	if err != nil {
		return fleet.Assertion{}, err
	}
	defer give()
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.http), within)
	defer cancel()
	found, conf, err := p.provider(ctx)
	if err != nil {
		return fleet.Assertion{}, err
	}
	token, err := conf.Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if err != nil {
		return fleet.Assertion{}, refused(fmt.Errorf("exchange the code: %w", err))
	}
	text, _ := token.Extra("id_token").(string)
	id, err := found.Verifier(&oidc.Config{ClientID: p.cfg.ClientID}).Verify(ctx, text)
	if err != nil {
		return fleet.Assertion{}, refused(fmt.Errorf("verify the id token: %w", err))
	}
	var claims struct {
		Email    string `json:"email"`
		Verified bool   `json:"email_verified"`
	}
	if err := id.Claims(&claims); err != nil {
		return fleet.Assertion{}, refused(fmt.Errorf("read the id token: %w", err))
	}
	out := fleet.Assertion{Subject: id.Issuer + " " + id.Subject}
	if claims.Verified {
		out.Email = claims.Email
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(nonce)) != 1 || id.Subject == "" || len(out.Subject)+len(out.Email) > longest {
		return fleet.Assertion{}, refused(errors.New("the id token is for another sign-in, or too long"))
	}
	return out, nil
}

func refused(err error) error {
	return &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the provider did not say who you are", Err: err}
}
