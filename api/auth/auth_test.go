package auth_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"gantry/api/auth"
	"gantry/fleet"
)

// keys knows one key.
type keys struct {
	key fleet.Secret
	who fleet.Principal
	err error
}

func (k keys) Authenticate(_ context.Context, key fleet.Secret) (fleet.Principal, error) {
	if k.err != nil {
		return fleet.Principal{}, k.err
	}
	if key != k.key {
		return fleet.Principal{}, &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "expired since monday"}
	}
	return k.who, nil
}

func request(values ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/?api_key=x", nil)
	r.Header["Authorization"] = values
	return r
}

func TestBearer(t *testing.T) {
	key := fleet.NewAPIKey().Reveal()
	for _, c := range []struct {
		header []string
		want   string
	}{
		{nil, "missing bearer token"},
		{[]string{""}, "missing bearer token"},
		{[]string{key}, "malformed bearer token"},
		{[]string{"Basic " + key}, "malformed bearer token"},
		{[]string{"Bearer"}, "malformed bearer token"},
		{[]string{"Bearer " + key, "Bearer " + key}, "malformed bearer token"},
		{[]string{"Bearer\t" + key}, "malformed bearer token"},
		{[]string{"Bearer " + key + " "}, "invalid bearer token"},
		{[]string{"Bearer " + key[1:]}, "invalid bearer token"},
		{[]string{"Bearer " + strings.Repeat("x", 10000)}, "invalid bearer token"},
		{[]string{"Bearer " + key}, ""},
		{[]string{"bearer  " + key}, ""},
	} {
		got, err := auth.Bearer(request(c.header...))
		if c.want == "" {
			if err != nil || got.Reveal() != key {
				t.Errorf("%q: %v", c.header, err)
			}
			continue
		}
		if err == nil || err.Error() != c.want || fleet.CodeOf(err) != fleet.CodeUnauthorized {
			t.Errorf("%q: got %v, want %s", c.header, err, c.want)
		}
	}
}

func TestKeyInTheQuery(t *testing.T) {
	key := fleet.NewAPIKey().Reveal()
	for _, c := range []struct {
		query  string
		header []string
		want   string
	}{
		{"", nil, "missing bearer token"},
		{"api_key=" + key, nil, ""},
		{"api_key=" + key, []string{"Basic x"}, "malformed bearer token"},
		{"api_key=x", []string{"Bearer " + key}, ""},
		{"api_key=" + key + "&api_key=" + key, nil, "invalid api_key"},
		{"api_key=", nil, "invalid api_key"},
		{"api_key=" + key[1:], nil, "invalid api_key"},
	} {
		r := request(c.header...)
		r.URL.RawQuery = c.query
		got, err := auth.BearerOrQuery(r)
		if c.want == "" && (err != nil || got.Reveal() != key) || c.want != "" && (err == nil || err.Error() != c.want || fleet.CodeOf(err) != fleet.CodeUnauthorized) {
			t.Errorf("%q %q: %v, want %q", c.query, c.header, err, c.want)
		}
	}
}

func TestPrincipal(t *testing.T) {
	key := fleet.NewAPIKey()
	can := map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessRead}
	known := keys{key: key, who: fleet.Principal{Account: "a", Can: can}}
	good := request("Bearer " + key.Reveal())
	ofPod := keys{key: key, who: fleet.Principal{Account: "a", Pod: "p", Can: can}}
	lost := keys{err: fleet.Unavailable("no leader", nil)}
	for _, c := range []struct {
		name  string
		keys  keys
		r     *http.Request
		scope auth.Scope
		want  fleet.Code
	}{
		{"public", known, request(), auth.Public(), ""},
		{"covered", known, good, auth.Read(fleet.GroupPods), ""},
		{"weaker", known, good, auth.Write(fleet.GroupPods), fleet.CodeForbidden},
		{"other group", known, good, auth.Read(fleet.GroupAdmin), fleet.CodeForbidden},
		{"undeclared", known, good, auth.Scope{}, fleet.CodeForbidden},
		{"no access named", known, good, auth.Scope{Group: fleet.GroupPods}, fleet.CodeForbidden},
		{"unknown", known, request("Bearer " + fleet.NewAPIKey().Reveal()), auth.Read(fleet.GroupPods), fleet.CodeUnauthorized},
		{"a pod's key", ofPod, good, auth.Write(fleet.GroupPods).OrPod(), ""},
		{"a pod's key where it is not named", ofPod, good, auth.Read(fleet.GroupPods), fleet.CodeForbidden},
		{"a pod's key, undeclared", ofPod, good, auth.Scope{}.OrPod(), fleet.CodeForbidden},
		{"another key where a pod's will do", known, good, auth.Write(fleet.GroupPods).OrPod(), fleet.CodeForbidden},
		{"cannot tell", lost, good, auth.Read(fleet.GroupPods), fleet.CodeUnavailable},
	} {
		_, err := auth.Principal(c.r, c.keys, auth.Bearer, &c.scope)
		if got := fleet.CodeOf(err); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "monday") {
			t.Errorf("%s: the caller learns why its key is refused", c.name)
		}
	}
	if _, err := auth.Principal(good, keys{err: errors.New("boom")}, auth.Bearer, nil); fleet.CodeOf(err) != fleet.CodeInternal {
		t.Error(err)
	}
}

// TestTheHolderOfAnEndedKeyHearsOfIt: it knows the key, so it learns nothing of anybody else.
func TestTheHolderOfAnEndedKeyHearsOfIt(t *testing.T) {
	key := fleet.NewAPIKey()
	_, err := auth.Principal(request("Bearer "+key.Reveal()), keys{err: fmt.Errorf("look up: %w", fleet.ErrKeyEnded)}, auth.Bearer, nil)
	if fleet.CodeOf(err) != fleet.CodeUnauthorized || err.Error() != "the key has ended" {
		t.Error(err)
	}
}

func TestARefusalNamesThePermission(t *testing.T) {
	read := map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessRead}
	for want, c := range map[string]struct {
		who   fleet.Principal
		scope auth.Scope
	}{
		"this key lacks networkVolumes:read":                                          {fleet.Principal{Can: read}, auth.Read(fleet.GroupVolumes)},
		"this key lacks pods:write: it has pods:read":                                 {fleet.Principal{Can: read}, auth.Write(fleet.GroupPods)},
		"this key lacks admin:read: it is an account's, and this takes an operator's": {fleet.Principal{Can: read}, auth.Read(fleet.GroupAdmin)},
		"this key lacks admin:write: it has admin:read":                               {fleet.Principal{Can: map[fleet.Group]fleet.Access{fleet.GroupAdmin: fleet.AccessRead}}, auth.Write(fleet.GroupAdmin)},
		"a pod's own key may not do this":                                             {fleet.Principal{Pod: "p", Can: read}, auth.Read(fleet.GroupPods)},
		"no key may do this":                                                          {fleet.Principal{Can: read}, auth.Scope{}},
	} {
		var e *fleet.Error
		if err := auth.Require(c.who, c.scope); !errors.As(err, &e) || e.Code != fleet.CodeForbidden || e.Msg != "access denied" || !slices.Equal(e.Details, []string{want}) {
			t.Errorf("%+v, want %s", e, want)
		}
	}
}
