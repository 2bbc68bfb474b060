package jobs

import (
	"net/http"
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

// sells puts the public model draw before the site's endpoint, and has requests go there from now on.
func (s *site) sells() {
	s.t.Helper()
	_, err := s.PutModel(s.t.Context(), fleet.Model{
		ID: "draw", Endpoint: s.endpoint, Price: fleet.ModelPrice{Request: 2 * fleet.Dollar}, Limits: fleet.ModelLimits{Jobs: 1},
		Schema: []byte(`{"type":"object","properties":{"prompt":{"type":"string"},"width":{"type":"integer","maximum":1024}},"required":["prompt"]}`),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.endpoint = "draw"
}

// TestAPublicModelByHTTP: what a caller is told of each wrong way.
func TestAPublicModelByHTTP(t *testing.T) {
	s := newSite(t)
	behind := s.endpoint
	s.sells()
	s.do("POST", "run", `{"input":{"width":2048,"prompt":7}}`, 400, `{"error":"\$\.input\.prompt: must be of the type string; \$\.input\.width: must be at most 1024"}`)
	s.do("POST", "run", `{"input":{}}`, 400, `{"error":"\$\.input: lacks prompt"}`)
	id := s.run(`{"input":{"prompt":"a cat"}}`)
	s.do("GET", "status/"+id, "", 200, `{.*"status":"IN_QUEUE".*}`)
	s.do("POST", "runsync", `{"input":{"prompt":"a cat"}}`, 429, `{"error":"the account has as many jobs of public models as may wait or run"}`)
	s.do("POST", "purge-queue", "", 400, `{"error":"the queue of a public model has others' jobs too: cancel your own"}`)
	s.do("GET", "requests", "", 200, `{.*`+id+`.*}`)
	s.do("GET", "health", "", 200, `{.*"inQueue":1.*}`)
	other := s.request("GET", "status/"+id, "")
	other.Header.Set("Authorization", plane.KeyText(plane.Other).Reveal())
	if got := s.send(other); got.status != http.StatusNotFound {
		t.Errorf("another account's key: %d %s", got.status, got.body)
	}
	s.endpoint = behind
	s.do("GET", "status/"+id, "", 404, `{"error":".*"}`)
	s.endpoint = "draw"
	s.do("POST", "cancel/"+id, "", 200, `{.*"status":"CANCELLED".*}`)
	s.endpoint = "paint"
	s.do("POST", "run", `{"input":{}}`, 404, `{"error":".*"}`)
}

func TestACallWithoutCredit(t *testing.T) {
	s := newSite(t)
	s.sells()
	s.SetBroke(plane.User, true)
	s.do("POST", "run", `{"input":{"prompt":"a cat"}}`, 402, `{"error":"Your account balance is too low to call this model: a job may cost \$2.000, and \$0.000 are not held for others"}`)
}

func TestPathsOfModels(t *testing.T) {
	for path, want := range map[string]bool{
		"/v2/draw/run": true, "/v2/draw-2/status/x": true, "/v2/draw/openai/v1/models": true, "/v2/draw": false, "/v2/draw/nothing": false,
		"/v2/pods/run": false, "/v2/network-volumes/health": false, "/v2/Draw/run": false, "/v2/serverless/abc/requests": false, "/v2/keys/status": false,
	} {
		if Owns(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}
