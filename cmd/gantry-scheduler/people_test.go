package main

import (
	"strings"
	"testing"
	"time"
)

func TestHowPeopleSignInIsChecked(t *testing.T) {
	provider := func(issuer string) peopleFlags {
		return peopleFlags{SessionLife: time.Hour, OIDCIssuer: issuer, OIDCClientID: "gantry", OIDCClientSecretFile: "secret"}
	}
	for _, c := range []struct {
		flags peopleFlags
		says  string // empty: it is good
	}{
		{peopleFlags{SessionLife: time.Hour}, ""},
		{peopleFlags{SessionLife: minSessionLife - 1}, "--session-life"},
		{peopleFlags{SessionLife: maxSessionLife + 1}, "--session-life"},
		{peopleFlags{SessionLife: time.Hour, OIDCIssuer: "https://id.example.com"}, "go together"},
		{peopleFlags{SessionLife: time.Hour, OIDCClientID: "gantry", OIDCClientSecretFile: "secret"}, "go together"},
		{provider("https://id.example.com/dex"), ""},
		{provider("http://127.0.0.1:5556/dex"), ""},
		{provider("http://localhost"), ""},
		{provider("http://[::1]:5556"), ""},
		{provider("http://id.example.com"), "--oidc-issuer"},
		{provider("http://192.0.2.1:5556"), "--oidc-issuer"},
		{provider("ftp://127.0.0.1"), "--oidc-issuer"},
		{provider("https://"), "--oidc-issuer"},
		{provider("%zz"), "--oidc-issuer"},
	} {
		err := c.flags.check()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.flags, err)
		}
	}
}
