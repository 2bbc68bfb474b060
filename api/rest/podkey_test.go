package rest_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"gantry/api/limit"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// podKey returns the header with a pod's own key, as its environment has it.
func podKey(t *testing.T, p *plane.Plane, id fleet.PodID) []string {
	t.Helper()
	pod, ok := p.Record(id)
	if !ok {
		t.Fatal("there is no such pod")
	}
	env, err := p.Environment(&pod)
	if err != nil || env["RUNPOD_API_KEY"] == "" || env["RUNPOD_API_KEY"] != env["GANTRY_API_KEY"] {
		t.Fatalf("the environment is %v, %v", env, err)
	}
	return []string{"Authorization", "Bearer " + env["GANTRY_API_KEY"]}
}

// What a pod's own key may is what a route says beside its scope, about that pod alone.
func TestAPodsOwnKeyOnEveryRoute(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	sibling := string(makePod(t, s.plane, fleet.EventRunning))
	var open []string
	everyRoute(t, s, func(t *testing.T, rt rest.Route, op operation) {
		if rt.Scope.Public {
			return
		}
		id := makePod(t, s.plane, fleet.EventRunning)
		key := podKey(t, s.plane, id)
		defer func() {
			if _, err := s.plane.ActPod(t.Context(), s.plane.Who(plane.User), id, fleet.ActionTerminate); err != nil && fleet.CodeOf(err) != fleet.CodeNotAllowed {
				t.Error(err)
			}
			report(t, s.plane, id, fleet.Trigger("gone"))
		}()
		ask := func(id string) answer { return s.ask(t, rt.Method, op.address(rt.Path, id), "", op.example(), key...) }
		if !rt.Scope.Pod {
			refused(t, ask(string(id)), http.StatusForbidden)
			refused(t, ask(sibling), http.StatusForbidden)
			return
		}
		open = append(open, rt.Method+" "+rt.Path)
		foreign, missing := ask(sibling), ask(missingID)
		refused(t, foreign, http.StatusNotFound)
		refused(t, missing, http.StatusNotFound)
		if starts := strings.HasSuffix(rt.Path, "/start"); starts {
			refused(t, ask(string(id)), http.StatusForbidden)
		} else if got := ask(string(id)); got.status != http.StatusOK && got.status != http.StatusNoContent {
			t.Errorf("its own pod: %d %s", got.status, got.body)
		}
	})
	want := []string{
		"DELETE /v1/pods/{id}", "DELETE /v2/pods/{id}", "GET /v1/pods/{id}", "GET /v2/pods/{id}", "POST /v1/pods/{id}/reset", "POST /v1/pods/{id}/restart",
		"POST /v1/pods/{id}/start", "POST /v1/pods/{id}/stop", "POST /v2/pods/{id}/action",
	}
	if slices.Sort(open); !slices.Equal(open, want) {
		t.Errorf("open to a pod's own key are %q", open)
	}
}

func TestAPodsOwnKeyActsOnItsPod(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	key, path := podKey(t, s.plane, id), "/v2/pods/"+string(id)
	act := func(action string) answer {
		return s.ask(t, "POST", path+"/action", "", `{"action":"`+action+`"}`, key...)
	}
	if got := s.ask(t, "GET", path, "", "", key...); got.status != http.StatusOK || strings.Contains(got.body, "API_KEY") || strings.Contains(got.body, key[1][10:]) {
		t.Errorf("reading: %d %s", got.status, got.body)
	}
	if got := act("restart"); got.status != http.StatusOK {
		t.Errorf("restart: %d %s", got.status, got.body)
	}
	if got := act("stop"); got.status != http.StatusOK {
		t.Errorf("stop: %d %s", got.status, got.body)
	}
	report(t, s.plane, id, fleet.EventExited)
	refused(t, act("start"), http.StatusForbidden)
	if got := act("terminate"); got.status != http.StatusNoContent {
		t.Errorf("terminate: %d %s", got.status, got.body)
	}
	refused(t, act("terminate"), http.StatusUnauthorized)
	refused(t, s.ask(t, "GET", path, "", "", key...), http.StatusUnauthorized)
}

// Pods have no quota beside that of their account.
func TestAPodsOwnKeyCountsForItsAccount(t *testing.T) {
	s := newSite(t, func(cfg *rest.Config) { cfg.Rates = limit.Quotas{Minute: 3} }, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	key, path := podKey(t, s.plane, id), "/v2/pods/"+string(id)
	for range 2 {
		if got := s.ask(t, "GET", path, "", "", key...); got.status != http.StatusOK {
			t.Fatal(got.body)
		}
	}
	refused(t, s.ask(t, "GET", "/v2/pods", "", "", key...), http.StatusForbidden)
	refused(t, s.ask(t, "GET", path, plane.User, ""), http.StatusTooManyRequests)
}
