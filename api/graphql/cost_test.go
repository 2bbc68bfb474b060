package graphql_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"gantry/api/graphql"
	"gantry/api/limit"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// counting counts the calls of a service that read lists.
type counting struct {
	*plane.Plane
	pods, catalog, volumes, one atomic.Int64
}

func (c *counting) Pods(ctx context.Context, who fleet.Principal) ([]fleet.PodView, error) {
	c.pods.Add(1)
	return c.Plane.Pods(ctx, who)
}

func (c *counting) Catalog(ctx context.Context, q fleet.CatalogQuery) (fleet.CatalogView, error) {
	c.catalog.Add(1)
	return c.Plane.Catalog(ctx, q)
}

func (c *counting) Volumes(ctx context.Context, who fleet.Principal) ([]fleet.VolumeView, error) {
	c.volumes.Add(1)
	return c.Plane.Volumes(ctx, who)
}

func (c *counting) Pod(ctx context.Context, who fleet.Principal, id fleet.PodID) (fleet.PodView, error) {
	c.one.Add(1)
	return c.Plane.Pod(ctx, who, id)
}

// TestManyPodsAreOneView asks for all pods with everything that belongs to them: the pods are read once, and what else is needed
// once for all of them.
func TestManyPodsAreOneView(t *testing.T) {
	s, c := countingSite(t)
	makePods(t, s, 200)
	got := s.ask(plane.User, `{ myself { pods { id machine { podHostId dataCenterId } } } }`)
	if got.status != http.StatusOK || strings.Count(got.body, `"id"`) != 200 {
		t.Fatalf("%d %.300s", got.status, got.body)
	}
	if c.pods.Load() != 1 || c.catalog.Load() != 0 || c.one.Load() != 0 {
		t.Errorf("pods were read %d times, the catalog %d times, single pods %d times", c.pods.Load(), c.catalog.Load(), c.one.Load())
	}
	got = s.ask(plane.User, `{ myself { pods { `+podFields+` } again: pods { id } } }`)
	if got.status != http.StatusOK || strings.Contains(got.body, "errors") {
		t.Fatalf("%d %.300s", got.status, got.body)
	}
	if c.pods.Load() != 2 || c.catalog.Load() > 2 || c.volumes.Load() > 1 || c.one.Load() != 0 {
		t.Errorf("pods were read %d times, the catalog %d times, volumes %d times", c.pods.Load()-1, c.catalog.Load(), c.volumes.Load())
	}
}

func countingSite(t testing.TB) (*site, *counting) {
	t.Helper()
	s := newSite(t)
	c := &counting{Plane: s.plane}
	s.serve(t, c, limit.Quotas{})
	return s, c
}

// makePods makes stopped CPU pods of User.
func makePods(t testing.TB, s *site, n int) {
	t.Helper()
	who := s.plane.Who(plane.User)
	for i := range n {
		view, err := s.plane.CreatePod(context.Background(), who, fleet.PodRequest{
			Name: fmt.Sprintf("pod-%d", i), Image: "docker.io/library/busybox:1.36", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 2},
			Env: map[string]string{"A": "1", "B": "2"}, Ports: []fleet.Port{{Number: 8080, Protocol: "http"}}, PortsSet: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.plane.ActPod(context.Background(), who, view.Pod.ID, fleet.ActionStop); err != nil {
			t.Fatal(err)
		}
		if err := s.plane.Report(view.Pod.ID, fleet.EventExited); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCallsCountAgainstTheRateLimit counts a request once, and each further call that it makes once more.
func TestCallsCountAgainstTheRateLimit(t *testing.T) {
	s := newSiteWith(t, limit.Quotas{Minute: 5})
	left := func(got answer) string { return got.header.Get("RateLimit") }
	if got := s.ask(plane.User, `{ myself { id } }`); got.status != 200 || left(got) != `"minute";r=4;t=60` {
		t.Errorf("%d %s", got.status, left(got))
	}
	if got := s.ask(plane.User, `{ myself { id networkVolumes { id } pods { id } } }`); got.status != 200 || left(got) != `"minute";r=1;t=60` {
		t.Errorf("%d %s", got.status, left(got))
	}
	got := s.ask(plane.User, `{ myself { id networkVolumes { id } } }`)
	if got.status != 200 || !strings.Contains(got.body, "rate limit exceeded for the minute window") || got.header.Get("Retry-After") != "60" {
		t.Errorf("%d %s", got.status, got.body)
	}
	got = s.ask(plane.User, `{ myself { id } }`)
	if got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") != "60" || !strings.Contains(got.body, `"code":"rate_limited"`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	// Who has no key counts by address.
	for range 5 {
		if got := s.ask("", `{ countryCodes }`); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if got := s.ask("", `{ countryCodes }`); got.status != http.StatusTooManyRequests {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestTransport(t *testing.T) {
	s := newSite(t)
	good := body(`{ myself { id } }`)
	key := plane.KeyText(plane.User).Reveal()
	request := func(method, path, text string, header ...string) answer {
		r := httptest.NewRequest(method, path, strings.NewReader(text))
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return s.do(s.face, r)
	}
	const kind, json = "Content-Type", "application/json"
	for _, c := range []struct {
		name   string
		got    answer
		status int
		says   string
	}{
		{"the key in the address", request("POST", "/graphql?api_key="+key, good, kind, json), 200, string(plane.Research)},
		{"a wrong key in the address", request("POST", "/graphql?api_key=nonsense", good, kind, json), 401, "invalid api_key"},
		{"two keys in the address", request("POST", "/graphql?api_key="+key+"&api_key="+key, good, kind, json), 401, "invalid api_key"},
		{"the header wins", request("POST", "/graphql?api_key="+key, good, kind, json, "Authorization", "Bearer nonsense"), 401, "invalid bearer token"},
		{"another scheme", request("POST", "/graphql", good, kind, json, "Authorization", "Basic abc"), 401, "malformed bearer token"},
		{"a charset", request("POST", "/graphql", good, kind, json+"; charset=utf-8", "Authorization", "Bearer "+key), 200, `"data"`},
		{"no content type", request("POST", "/graphql", good, "Authorization", "Bearer "+key), 415, "content type"},
		{"another content type", request("POST", "/graphql", good, kind, "text/plain", "Authorization", "Bearer "+key), 415, "content type"},
		{"GET", request("GET", "/graphql?query={myself{id}}", "", "Authorization", "Bearer "+key), 405, "POST"},
		{"no JSON", request("POST", "/graphql", "{", kind, json, "Authorization", "Bearer "+key), 400, "JSON object"},
		{"a list of requests", request("POST", "/graphql", "["+good+"]", kind, json, "Authorization", "Bearer "+key), 400, "JSON object"},
		{"variables that are no object", request("POST", "/graphql", `{"query":"{myself{id}}","variables":[]}`, kind, json, "Authorization", "Bearer "+key), 400, "JSON object"},
		{"members that are null", request("POST", "/graphql", `{"query":"{myself{id}}","variables":null,"operationName":null}`, kind, json, "Authorization", "Bearer "+key), 200, `"data"`},
		{"the schema", request("GET", "/graphql/schema.graphql", ""), 200, "type Query {"},
		{"a change of the schema", request("POST", "/graphql/schema.graphql", ""), 405, "not allowed"},
	} {
		if c.got.status != c.status || !strings.Contains(c.got.body, c.says) || c.got.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %s", c.name, c.got.status, c.got.body)
		}
		if strings.Contains(c.got.body, key) {
			t.Errorf("%s: the answer shows the key", c.name)
		}
	}
	if strings.Contains(s.log.String(), key) {
		t.Error("the log shows the key")
	}
	if !graphql.Owns("/graphql") || !graphql.Owns(graphql.SchemaPath) || graphql.Owns("/graphql/") || graphql.Owns("/v2/pods") {
		t.Error("the face owns other paths")
	}
	if s.plane.SetDown(true); s.ask(plane.User, `{ myself { id } }`).status != http.StatusServiceUnavailable {
		t.Errorf("%+v", s.ask(plane.User, `{ myself { id } }`))
	}
}

// TestPodsOwnKey may do with its pod what a pod may, and nothing else.
func TestPodsOwnKey(t *testing.T) {
	s := newSite(t)
	who := s.plane.Who(plane.User)
	var ids []fleet.PodID
	for range 2 {
		view, err := s.plane.CreatePod(t.Context(), who, fleet.PodRequest{Name: "p", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 2}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, view.Pod.ID)
	}
	record, _ := s.plane.Record(ids[0])
	env, err := s.plane.Environment(&record)
	if err != nil {
		t.Fatal(err)
	}
	own := env["RUNPOD_API_KEY"]
	ask := func(query string) answer {
		r := httptest.NewRequest(http.MethodPost, "/graphql?api_key="+own, strings.NewReader(body(query)))
		r.Header.Set("Content-Type", "application/json")
		return s.do(s.face, r)
	}
	for _, c := range []struct{ query, says string }{
		{`{ pod(input: {podId: "` + string(ids[0]) + `"}) { name } }`, `"name":"p"`},
		{`{ pod(input: {podId: "` + string(ids[1]) + `"}) { name } }`, `"pod":null`},
		{`{ myself { id } }`, "a pod's own key may not do this"},
		{`mutation { podResume(input: {podId: "` + string(ids[0]) + `"}) { id } }`, "errors"},
		{`mutation { podStop(input: {podId: "` + string(ids[1]) + `"}) { id } }`, "not_found"},
		{`mutation { podStop(input: {podId: "` + string(ids[0]) + `"}) { desiredStatus } }`, `"desiredStatus":"EXITED"`},
		{`mutation { podTerminate(input: {podId: "` + string(ids[0]) + `"}) }`, `"podTerminate":null`},
	} {
		if got := ask(c.query); !strings.Contains(got.body, c.says) {
			t.Errorf("%s\n%d %s", c.query, got.status, got.body)
		}
	}
}

var _ rest.Service = (*counting)(nil)
