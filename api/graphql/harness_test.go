package graphql_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"gantry/api/graphql"
	"gantry/api/limit"
	"gantry/api/rest"
	"gantry/test/plane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is the face over a control plane in memory.
type site struct {
	plane *plane.Plane
	face  *graphql.API
	rest  *rest.API
	log   *bytes.Buffer
}

func newSite(t testing.TB) *site { return newSiteWith(t, limit.Quotas{}) }

func newSiteWith(t testing.TB, rates limit.Quotas) *site {
	t.Helper()
	s := &site{plane: plane.New(t), log: &bytes.Buffer{}}
	s.serve(t, s.plane, rates)
	return s
}

// serve makes the face over a service.
func (s *site) serve(t testing.TB, service rest.Service, rates limit.Quotas) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(s.log, nil))
	var err error
	s.rest, err = rest.New(rest.Config{Service: service, Log: log, Now: s.plane.Now, Version: "test", Rates: rates, Failures: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.rest.Close)
	if s.face, err = graphql.New(s.rest, log); err != nil {
		t.Fatal(err)
	}
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends a body with a key, which may be empty.
func (s *site) send(key, body string) answer {
	r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", "req-1")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+plane.KeyText(key).Reveal())
	}
	return s.do(s.face, r)
}

func (s *site) do(h http.Handler, r *http.Request) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

// ask sends a document.
func (s *site) ask(key, query string) answer { return s.send(key, body(query)) }

func body(query string) string {
	data, _ := json.Marshal(map[string]any{"query": query}) //nolint:errchkjson // a text
	return string(data)
}
