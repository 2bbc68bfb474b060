package rest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/api/rest"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/plane"
)

// refused asserts that an answer is a problem with this status and returns it.
func refused(t *testing.T, got answer, status int) v2.Problem {
	t.Helper()
	var p v2.Problem
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

// operation is what the document says of a route that a request needs.
type operation struct {
	Parameters []struct {
		Name, In string
		Required bool
		Schema   struct{ Examples []any }
	}
	RequestBody *struct {
		Content map[string]struct{ Example json.RawMessage }
	}
}

// operations reads the document.
func operations(t *testing.T, api described) map[string]operation {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]operation
	}
	if err := json.Unmarshal(api.Document(), &doc); err != nil {
		t.Fatal(err)
	}
	out := map[string]operation{}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			out[strings.ToUpper(method)+" "+path] = op
		}
	}
	return out
}

// example returns the example of the JSON body, "" for a route without one.
func (o operation) example() string {
	if o.RequestBody == nil {
		return ""
	}
	return string(o.RequestBody.Content["application/json"].Example)
}

// address fills the parameters of a route's path with an id and adds what its query must have.
func (o operation) address(path, id string) string {
	query := url.Values{}
	for _, p := range o.Parameters {
		if p.In == "query" && p.Required {
			query.Set(p.Name, fmt.Sprint(p.Schema.Examples[0]))
		}
	}
	path = concrete(path, id)
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}

// concrete fills the parameters of a path with an id.
func concrete(path, id string) string { return strings.ReplaceAll(path, "{id}", id) }

// unhindered lets a matrix ask as often as it has to.
func unhindered(cfg *rest.Config) { cfg.Rates, cfg.Failures = limit.Quotas{Minute: 100_000}, 100_000 }

// everyRoute calls f for each registered route, with what the document says of it.
func everyRoute(t *testing.T, s *site, f func(*testing.T, rest.Route, operation)) {
	t.Helper()
	for _, face := range s.faces() {
		ops := operations(t, face)
		for _, rt := range face.Routes() {
			t.Run(rt.Method+" "+rt.Path, func(t *testing.T) { f(t, rt, ops[rt.Method+" "+rt.Path]) })
		}
	}
}

func TestEveryRouteNeedsItsKey(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	id := string(makePod(t, s.plane))
	everyRoute(t, s, func(t *testing.T, rt rest.Route, op operation) {
		path := op.address(rt.Path, id)
		if rt.Scope.Public {
			if got := s.ask(t, rt.Method, path, "stranger", op.example()); got.status != http.StatusOK {
				t.Errorf("%d for a stranger", got.status)
			}
			return
		}
		for _, key := range []string{"", "stranger", plane.Expired} {
			refused(t, s.ask(t, rt.Method, path, key, op.example()), http.StatusUnauthorized)
		}
		text := plane.KeyText(plane.Operator).Reveal()
		for _, header := range []string{text, "Basic " + text, "Bearer", "Bearer " + text + " x", "Bearer " + text[1:]} {
			refused(t, s.ask(t, rt.Method, path, "", op.example(), "Authorization", header), http.StatusUnauthorized)
		}
		mark := "?"
		if strings.Contains(path, "?") {
			mark = "&"
		}
		refused(t, s.ask(t, rt.Method, path+mark+"api_key="+text, "", op.example()), http.StatusUnauthorized)
	})
}

// TestEveryRouteNeedsItsPermission takes from a key that may do everything only what the route needs.
func TestEveryRouteNeedsItsPermission(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	id := string(makePod(t, s.plane))
	all, _ := fleet.Preset("admin")
	everyRoute(t, s, func(t *testing.T, rt rest.Route, op operation) {
		if rt.Scope.Public || rt.Scope.Self {
			return
		}
		for _, access := range []fleet.Access{fleet.AccessNone, fleet.AccessRead} {
			if access.Covers(rt.Scope.Access) {
				continue
			}
			can := maps.Clone(all)
			can[rt.Scope.Group] = access
			s.plane.Restrict(plane.User, can)
			for _, body := range []string{op.example(), "broken"} { // the body is not looked at before
				if p := refused(t, s.ask(t, rt.Method, op.address(rt.Path, id), plane.User, body), http.StatusForbidden); p.Detail != problem.TextForbidden {
					t.Errorf("with %q of %s: %s", access, rt.Scope.Group, p.Detail)
				}
			}
		}
		refused(t, s.ask(t, rt.Method, op.address(rt.Path, missingID), plane.User, op.example()), http.StatusForbidden) // nor the object
	})
}

func TestEveryRouteRefusesBadBodies(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	id := string(makePod(t, s.plane))
	everyRoute(t, s, func(t *testing.T, rt rest.Route, op operation) {
		path, full := op.address(rt.Path, id), plane.Operator // the only key that may everything
		if op.example() == "" {
			return
		}
		p := refused(t, s.ask(t, rt.Method, path, full, strings.Replace(op.example(), "{", `{"zzz":1,`, 1)), http.StatusUnprocessableEntity)
		if len(p.Errors) != 1 || p.Errors[0] != "$: an additional property, whose name the API does not have, is not allowed" {
			t.Errorf("unknown property: %q", p.Errors)
		}
		for body, status := range map[string]int{
			`{`: http.StatusBadRequest, `[]`: http.StatusBadRequest, ` `: http.StatusBadRequest, `{"a":1,"a":2}`: http.StatusBadRequest, "{\"a\":\"\xff\"}": http.StatusBadRequest,
			`{"a":"` + strings.Repeat("x", 1<<20) + `"}`: http.StatusRequestEntityTooLarge,
		} {
			refused(t, s.ask(t, rt.Method, path, full, body), status)
		}
		refused(t, s.ask(t, rt.Method, path, full, op.example(), "Content-Type", "text/plain"), http.StatusUnsupportedMediaType)
		for name := range members(t, op.example()) { // no member takes an object of nothing known, and none null that is not documented
			body := members(t, op.example())
			body[name] = json.RawMessage(`{"zzz":[]}`)
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			refused(t, s.ask(t, rt.Method, path, full, string(text)), http.StatusUnprocessableEntity)
		}
	})
}

func members(t *testing.T, object string) map[string]json.RawMessage {
	t.Helper()
	out := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(object), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestEveryPathKnowsItsMethods sends each path every method that it does not have.
func TestEveryPathKnowsItsMethods(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	for _, rt := range append(s.api.Routes(), s.v1.Routes()...) {
		path := concrete(rt.Path, missingID)
		methods := methodsOf(append(s.api.Routes(), s.v1.Routes()...), path)
		for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get"} {
			if slices.Contains(methods, m) {
				continue
			}
			got := s.ask(t, m, path, plane.Operator, "")
			refused(t, got, http.StatusMethodNotAllowed)
			allow := strings.Split(got.header.Get("Allow"), ", ")
			slices.Sort(allow)
			if !slices.Equal(allow, methods) {
				t.Errorf("%s %s: Allow is %q, want %q", m, path, allow, methods)
			}
		}
	}
}

// methodsOf lists the methods that some route takes at a path: a last word may also be read as an id.
func methodsOf(routes []rest.Route, path string) []string {
	var out []string
	for _, rt := range routes {
		want, have := strings.Split(rt.Path, "/"), strings.Split(path, "/")
		fits := len(want) == len(have)
		for i := range want {
			fits = fits && (want[i] == have[i] || want[i] == "{id}")
		}
		if fits {
			out = append(out, rt.Method)
		}
		if fits && rt.Method == http.MethodGet {
			out = append(out, http.MethodHead)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// objects makes one thing of User of each kind that a path's id may name; the longest prefix that fits counts.
func objects(t *testing.T, s *site) map[string]string {
	t.Helper()
	who := s.plane.Who(plane.User)
	template, _, err := s.plane.CreateTemplate(t.Context(), who, fleet.Template{Name: "mine", Image: "busybox", Category: fleet.CategoryCPU}, nil)
	if err != nil {
		t.Fatal(err)
	}
	registry, _, err := s.plane.CreateRegistry(t.Context(), who, "mine", fleet.Credential{Username: "u", Password: "p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.plane.PutSecret(t.Context(), who, "TOKEN", "value"); err != nil {
		t.Fatal(err)
	}
	volume := string(s.plane.PutVolume(plane.User, 1, "dev-1"))
	s3, _, err := s.plane.CreateS3Key(t.Context(), who, fleet.S3KeyRequest{Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	endpoint, pod := string(makeEndpoint(t, s.plane, func(*fleet.EndpointSpec) {})), string(makePod(t, s.plane, fleet.EventRunning))
	return map[string]string{
		"/v1/pods/": pod, "/v1/endpoints/": endpoint, "/v1/templates/": string(template.ID), "/v1/containerregistryauth/": string(registry.ID),
		"/v2/network-volumes/": volume, "/v1/networkvolumes/": volume, "/v2/s3-keys/": s3.ID,
		"/v2/secrets/":    "TOKEN",
		"/v2/serverless/": endpoint,
		"/v2/clusters/":   string(makeCluster(t, s.plane, 1)),
		"/v2/pods/":       pod, "/v2/templates/": string(template.ID), "/v2/registries/": string(registry.ID),
		"/v2/account/keys/":           "key00000000004",
		"/v2/registries/delegations/": missingID, // nobody can have one
	}
}

// TestForeignIsMissing compares the answers for another account's object with those for none.
func TestForeignIsMissing(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	owned := objects(t, s)
	everyRoute(t, s, func(t *testing.T, rt rest.Route, op operation) {
		if !strings.Contains(rt.Path, "{id}") || rt.Scope.Group == fleet.GroupCatalog || rt.Scope.Group == fleet.GroupAdmin || rt.Scope.Self || makesWhatIsMissing(rt) {
			return
		}
		foreign, best := "", ""
		for prefix, id := range owned {
			if strings.HasPrefix(rt.Path, prefix) && len(prefix) > len(best) {
				foreign, best = id, prefix
			}
		}
		if foreign == "" {
			t.Fatal("this test makes no object of the kind")
		}
		header := []string{"X-Request-Id", "same"}
		if op.RequestBody != nil && op.example() == "" {
			header = append(header, "Content-Type", "application/x-tar")
		}
		answer := func(id string) string {
			got := s.ask(t, rt.Method, op.address(rt.Path, id), plane.Other, op.example(), header...)
			refused(t, got, http.StatusNotFound)
			return got.body
		}
		if a, b, c := answer(foreign), answer(missingID), answer("-"); a != b || b != c {
			t.Errorf("tells apart:\n%s%s%s", a, b, c)
		}
	})
}

// makesWhatIsMissing reports whether a route puts a thing of the name that it is given.
func makesWhatIsMissing(rt rest.Route) bool {
	return rt.Method == http.MethodPut && strings.HasSuffix(rt.Path, "{id}")
}

// TestMissingIsMissing asks for things that nobody has, with a key that may everything.
func TestMissingIsMissing(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	everyRoute(t, s, func(t *testing.T, rt rest.Route, op operation) {
		if !strings.Contains(rt.Path, "{id}") || makesWhatIsMissing(rt) || rt.Unlisted { // rows speak of those
			return
		}
		header := []string{}
		if op.RequestBody != nil && op.example() == "" {
			header = append(header, "Content-Type", "application/x-tar")
		}
		refused(t, s.ask(t, rt.Method, op.address(rt.Path, missingID), plane.Operator, op.example(), header...), http.StatusNotFound)
	})
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

func TestScopeNames(t *testing.T) {
	if got := auth.Write(fleet.GroupPods).String() + " " + auth.Public().String() + " " + auth.Self().String(); got != "pods:write public self" {
		t.Error(got)
	}
}
