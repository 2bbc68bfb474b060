package rest_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/api/rest"
	"gantry/api/rest/resttest"
	"gantry/fleet"
)

// concrete fills the parameters of a path with an id.
func concrete(path, id string) string { return strings.ReplaceAll(path, "{id}", id) }

// refused asserts that an answer is a problem with this status and returns it.
func refused(t *testing.T, got answer, status int) problem.Problem {
	t.Helper()
	var p problem.Problem
	if err := json.Unmarshal([]byte(got.body), &p); err != nil {
		t.Fatalf("%s: %v: %s", got.request, err, got.body)
	}
	if got.status != status || p.Status != status || got.header.Get("Content-Type") != problem.ContentType || p.Title == "" || p.Detail == "" {
		t.Errorf("%s: got %d %s, want a problem with %d", got.request, got.status, got.body, status)
	}
	if id := got.header.Get("X-Request-Id"); id == "" || id != p.RequestID {
		t.Errorf("%s: request id %q in the header, %q in the body", got.request, id, p.RequestID)
	}
	return p
}

// TestEveryRoute asks of every registered route what every route must refuse.
func TestEveryRoute(t *testing.T) {
	s := newSite(t, func(cfg *rest.Config) { cfg.Rates, cfg.Failures = limit.Quotas{Minute: 10_000}, 10_000 }, rest.Limits{})
	id := string(makePod(t, s.fake))
	bodies := requestBodies(t, s.api)
	for _, rt := range s.api.Routes() {
		t.Run(rt.Method+" "+rt.Path, func(t *testing.T) {
			path, full := concrete(rt.Path, id), resttest.Operator // the only key that may everything
			if !rt.Scope.Public {
				refused(t, s.ask(t, rt.Method, path, "", ""), http.StatusUnauthorized)
				refused(t, s.ask(t, rt.Method, path, "stranger", ""), http.StatusUnauthorized)
				refused(t, s.ask(t, rt.Method, path, resttest.Expired, ""), http.StatusUnauthorized)
			}
			if rt.Scope.Access == fleet.AccessWrite {
				refused(t, s.ask(t, rt.Method, path, resttest.Reader, "{}"), http.StatusForbidden)
			}
			if rt.Scope.Group == fleet.GroupAdmin {
				refused(t, s.ask(t, rt.Method, path, resttest.User, ""), http.StatusForbidden)
			}
			if bodies[rt.Method+" "+rt.Path] {
				p := refused(t, s.ask(t, rt.Method, path, full, `{"zzz":1}`), http.StatusUnprocessableEntity)
				if len(p.Errors) == 0 || p.Errors[0] != "$: additional properties 'zzz' not allowed" {
					t.Errorf("unknown property: %q", p.Errors)
				}
				refused(t, s.ask(t, rt.Method, path, full, `{`), http.StatusBadRequest)
				refused(t, s.ask(t, rt.Method, path, full, `{}`, "Content-Type", "text/plain"), http.StatusUnsupportedMediaType)
				refused(t, s.ask(t, rt.Method, path, full, `{"a":"`+strings.Repeat("x", 1<<20)+`"}`), http.StatusRequestEntityTooLarge)
			}
			resp := s.ask(t, http.MethodTrace, path, full, "")
			refused(t, resp, http.StatusMethodNotAllowed)
			if !strings.Contains(resp.header.Get("Allow"), rt.Method) {
				t.Errorf("Allow is %q", resp.header.Get("Allow"))
			}
		})
	}
}

// TestForeignIsMissing compares the answers for another account's object with those for none.
func TestForeignIsMissing(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	makePod(t, s.fake)
	foreign := map[string]string{"pods": podID, "account": "key00000000004"}
	bodies := requestBodies(t, s.api)
	for _, rt := range s.api.Routes() {
		group := string(rt.Scope.Group)
		if !strings.Contains(rt.Path, "{id}") || foreign[group] == "" {
			continue
		}
		body := ""
		if bodies[rt.Method+" "+rt.Path] {
			body = `{"action":"stop"}`
		}
		answer := func(id string) string {
			got := s.ask(t, rt.Method, concrete(rt.Path, id), resttest.Other, body, "X-Request-Id", "same")
			refused(t, got, http.StatusNotFound)
			return got.body
		}
		if a, b := answer(foreign[group]), answer("none0000000001"); a != b {
			t.Errorf("%s %s tells apart:\n%s%s", rt.Method, rt.Path, a, b)
		}
	}
}

func TestRequestIDIsReplacedUnlessSane(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	for _, id := range []string{"a b", strings.Repeat("x", 65), "a\"b", "ünï"} {
		resp := s.ask(t, "GET", "/healthz", "", "", "X-Request-Id", id)
		if got := resp.header.Get("X-Request-Id"); !fleet.ValidID(got) {
			t.Errorf("%q was answered with %q", id, got)
		}
	}
}

// requestBodies tells which operations of the document take a body.
func requestBodies(t *testing.T, api *rest.API) map[string]bool {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			RequestBody *struct{} `json:"requestBody"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(api.Document(), &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			out[strings.ToUpper(method)+" "+path] = op.RequestBody != nil
		}
	}
	return out
}

func TestScopeNames(t *testing.T) {
	if got := auth.Write(fleet.GroupPods).String() + " " + auth.Public().String(); got != "pods:write public" {
		t.Error(got)
	}
}
