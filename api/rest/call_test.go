package rest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
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

// outer is a request to another face, with the key of that name.
func outer(t testing.TB, key string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://gantry.test/other", nil)
	r.Header.Set("Authorization", "Bearer "+plane.KeyText(key).Reveal())
	return r
}

// caller admits a request to another face, with the key of that name.
func caller(t testing.TB, s *site, key string) *rest.Caller {
	t.Helper()
	c, err := s.api.Admit(httptest.NewRecorder(), outer(t, key), auth.Bearer)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// calls calls f for each operation that a Caller has, with its route.
func calls(t *testing.T, s *site, f func(t *testing.T, id string, rt rest.Route, op operation)) {
	t.Helper()
	left := s.api.Operations()
	var doc struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	if err := json.Unmarshal(s.api.Document(), &doc); err != nil {
		t.Fatal(err)
	}
	everyRoute(t, s, func(t *testing.T, rt rest.Route, op operation) {
		id := doc.Paths[rt.Path][strings.ToLower(rt.Method)].OperationID
		at, ok := slices.BinarySearch(left, id)
		if !ok {
			return
		}
		left = slices.Delete(left, at, at+1)
		f(t, id, rt, op)
	})
	if len(left) > 0 {
		t.Errorf("no route has the operations %v", left)
	}
}

// sent are the parameters of an operation that a request to a path has.
func (o operation) sent(id string) url.Values {
	out := url.Values{"id": {id}}
	for _, p := range o.Parameters {
		if p.In == "query" && p.Required {
			out.Set(p.Name, fmt.Sprint(p.Schema.Examples[0]))
		}
	}
	return out
}

// outcome shows what a call returned as HTTP would.
func outcome(t *testing.T, rt rest.Route, out any, err error) string {
	t.Helper()
	shown := out
	if err != nil {
		shown = problem.For(httptest.NewRequest(rt.Method, rt.Path, nil), problem.From(err, "req-1"))
	}
	text, fault := json.Marshal(shown)
	if fault != nil {
		t.Fatal(fault)
	}
	return indented(string(text))
}

// TestCallsAreTheRoutes compares what each operation answers to a Caller with what its route answers.
func TestCallsAreTheRoutes(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	pod := string(makePod(t, s.plane))
	calls(t, s, func(t *testing.T, id string, rt rest.Route, op operation) {
		bodies := []string{op.example()}
		if op.example() != "" {
			bodies = append(bodies, `{`, `[]`, `{"a":1,"a":2}`, `{"zzz":1}`, `{}`, strings.Repeat(" ", 1<<20)+op.example())
		}
		for _, object := range []string{missingID, pod} {
			if object == pod && rt.Method != http.MethodGet || rt.Scope.Group == fleet.GroupAdmin && rt.Method != http.MethodGet {
				continue // is not to change, or answers a second time with something else
			}
			for _, body := range bodies {
				if body == op.example() && !strings.Contains(rt.Path, "{id}") && rt.Method != http.MethodGet {
					continue
				}
				over := s.ask(t, rt.Method, op.address(rt.Path, object), plane.Operator, body, "X-Request-Id", "req-1")
				out, err := caller(t, s, plane.Operator).Call(t.Context(), id, op.sent(object), []byte(body))
				if got := outcome(t, rt, out, err); over.status != http.StatusNoContent && canonical(t, got) != canonical(t, strings.ReplaceAll(over.body, s.base, "http://gantry.test")) {
					t.Errorf("%s: over HTTP %s\ncalled %s", body[:min(len(body), 100)], over.body, got)
				}
			}
		}
	})
	if n := len(s.api.Operations()); n > len(s.api.Routes()) || n < 60 {
		t.Errorf("%d operations can be called, of %d routes", n, len(s.api.Routes()))
	}
}

// canonical brings the members of objects into a fixed order.
func canonical(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestCallsNeedTheirPermission takes from a key that may do everything only what the operation needs.
func TestCallsNeedTheirPermission(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	all, _ := fleet.Preset("admin")
	calls(t, s, func(t *testing.T, id string, rt rest.Route, op operation) {
		if rt.Scope.Public {
			return
		}
		can := maps.Clone(all)
		can[rt.Scope.Group] = fleet.AccessNone
		s.plane.Restrict(plane.User, can)
		if _, err := caller(t, s, plane.User).Call(t.Context(), id, op.sent(missingID), []byte("broken")); fleet.CodeOf(err) != fleet.CodeForbidden {
			t.Errorf("without %s: %v", rt.Scope, err)
		}
		nobody := caller(t, s, plane.User)
		nobody.Who = fleet.Principal{}
		if _, err := nobody.Call(t.Context(), id, op.sent(missingID), nil); fleet.CodeOf(err) != fleet.CodeUnauthorized {
			t.Errorf("by nobody: %v", err)
		}
	})
}

func TestCallsTakeRecords(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	c := caller(t, s, plane.User)
	in := v2.CreatePodRequest{Name: "a", GPU: &v2.CreateGPUConfig{ID: plane.SimGPU}, PodSettings: v2.PodSettings{Image: new("busybox"), Env: map[string]string{"A": "<&>"}}}
	once := url.Values{"Idempotency-Key": {"k"}}
	pod, err := rest.As[v2.Pod](t.Context(), c, "createPod", once, in)
	if err != nil || pod.Env["A"] != "<&>" || pod.GPU.Count != 1 {
		t.Fatalf("%v: %+v", err, pod)
	}
	w := httptest.NewRecorder()
	again, err := s.api.Admit(w, outer(t, plane.User), auth.Bearer)
	must(t, err)
	same, err := rest.As[v2.Pod](t.Context(), again, "createPod", once, in)
	if err != nil || same.ID != pod.ID || w.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("asked for again: %v, %+v, %v", err, same, w.Header())
	}
	text, err := json.Marshal(in)
	must(t, err)
	if got := s.ask(t, "POST", "/v2/pods", plane.User, string(text), "Idempotency-Key", "k"); got.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("over HTTP: %d %s", got.status, got.body)
	}
	in.Name = ""
	_, err = c.Call(t.Context(), "createPod", nil, in)
	over := refused(t, s.ask(t, "POST", "/v2/pods", plane.User, strings.Replace(string(text), `"a"`, `""`, 1)), http.StatusUnprocessableEntity)
	if p := problem.From(err, ""); p.Status != over.Status || !slices.Equal(p.Errors, over.Errors) {
		t.Errorf("called %+v, over HTTP %+v", p, over)
	}
	list, err := rest.As[v2.PodList](t.Context(), c, "listPods", url.Values{"name": {"a"}, "limit": {"1"}}, nil)
	if err != nil || len(list.Pods) != 1 || list.Next != "" {
		t.Errorf("%v: %+v", err, list)
	}
	if _, err := rest.As[v2.PodList](t.Context(), c, "getPod", url.Values{"id": {pod.ID}}, nil); fleet.CodeOf(err) != fleet.CodeInternal {
		t.Errorf("as another record: %v", err)
	}
	if got, err := rest.As[v2.Pod](t.Context(), c, "actPod", url.Values{"id": {pod.ID}}, v2.ActionRequest{Action: "terminate"}); got != nil || err != nil {
		t.Errorf("terminate: %v, %v", got, err)
	}
	for _, params := range []url.Values{nil, {"id": {"a", "b"}}, {"id": {strings.Repeat("a", 2000)}}, {"id": {""}}} {
		if _, err := c.Call(t.Context(), "getPod", params, nil); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("%v: %v", params, err)
		}
	}
	if _, err := c.Call(t.Context(), "getDocs", nil, nil); fleet.CodeOf(err) != fleet.CodeInternal {
		t.Errorf("what streams: %v", err)
	}
}

// TestPodKeysCallForTheirPodAlone: as over HTTP, a pod's own key is good for that pod.
func TestPodKeysCallForTheirPodAlone(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	own, other := makePod(t, s.plane, fleet.EventRunning), makePod(t, s.plane)
	c := caller(t, s, plane.User)
	c.Who.Pod = own
	for id, want := range map[fleet.PodID]fleet.Code{own: "", other: fleet.CodeNotFound} {
		if _, err := c.Call(t.Context(), "getPod", url.Values{"id": {string(id)}}, nil); fleet.CodeOf(err) != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := c.Call(t.Context(), "listPods", nil, nil); fleet.CodeOf(err) != fleet.CodeForbidden {
		t.Error(err)
	}
}

// TestAdmitCountsOnce: an outer request counts as one, whatever it calls, and bad keys count against their address.
func TestAdmitCountsOnce(t *testing.T) {
	s := newSite(t, func(cfg *rest.Config) { cfg.Rates, cfg.Failures = limit.Quotas{Minute: 2}, 2 }, rest.Limits{})
	for range 2 {
		c := caller(t, s, plane.User)
		for range 5 {
			if _, err := c.Call(t.Context(), "listPods", nil, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := httptest.NewRecorder()
	if _, err := s.api.Admit(w, outer(t, plane.User), auth.Bearer); fleet.CodeOf(err) != fleet.CodeLimited || w.Header().Get("Retry-After") == "" || w.Header().Get("RateLimit") == "" {
		t.Errorf("%v %v", err, w.Header())
	}
	for _, want := range []fleet.Code{fleet.CodeUnauthorized, fleet.CodeUnauthorized, fleet.CodeLimited} {
		if _, err := s.api.Admit(httptest.NewRecorder(), outer(t, "stranger"), auth.Bearer); fleet.CodeOf(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// BenchmarkListOfThousandPods compares a call with the route, which also encodes the answer.
func BenchmarkListOfThousandPods(b *testing.B) {
	cp := plane.New(b)
	api, err := rest.New(rest.Config{Service: cp, Log: quiet(), Now: cp.Now, Rates: limit.Quotas{}})
	if err != nil {
		b.Fatal(err)
	}
	for range 1000 {
		req := webPod()
		req.GPU, req.CPU = nil, &fleet.CPURequest{Flavor: "cpu3g", VCPU: 2}
		request(b, cp, req, fleet.EventRunning, fleet.EventExited) // and its place is free for the next
	}
	s := &site{api: api}
	b.Run("service", func(b *testing.B) {
		for b.Loop() {
			if all, err := cp.Pods(b.Context(), cp.Who(plane.User)); err != nil || len(all) != 1000 {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("call", func(b *testing.B) {
		for b.Loop() {
			if list, err := rest.As[v2.PodList](b.Context(), caller(b, s, plane.User), "listPods", nil, nil); err != nil || len(list.Pods) != 1000 {
				b.Fatal(err)
			}
		}
	})
	b.Run("route", func(b *testing.B) {
		for b.Loop() {
			r := outer(b, plane.User)
			r.Method, r.URL.Path = http.MethodGet, "/v2/pods"
			w := httptest.NewRecorder()
			if api.ServeHTTP(w, r); w.Code != http.StatusOK {
				b.Fatal(w.Code)
			}
		}
	})
}
