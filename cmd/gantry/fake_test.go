package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const podID = "k3n8w0zq5r7d2a"

// podJSON is a pod's record as the API writes it, with some members replaced.
func podJSON(change map[string]any) string {
	record := map[string]any{
		"id": podID, "name": "web", "status": "PROVISIONING", "actions": []string{"stop", "terminate"},
		"image": "docker.io/library/nginx:alpine", "args": "", "disk": 10, "ports": []string{"80/http"},
		"env": map[string]string{"TOKEN": "hidden"}, "registry": nil, "mounts": map[string]any{},
		"cpu":   map[string]any{"id": "cpu3c", "vcpuCount": 2, "memory": 4},
		"cloud": "SECURE", "dataCenterId": "dev-1", "template": nil, "cost": 0.06, "locked": false,
		"globalNetworking": map[string]any{"enabled": false}, "runtime": nil,
		"createdAt": "2026-10-01T12:00:00.000Z", "startedAt": nil, "statusReason": nil, "exitCode": nil,
		"incarnation": 1, "hostId": "h7d2k9s4f1g6j3", "steps": map[string]any{}, "progress": nil, "logTail": nil,
	}
	for name, value := range change {
		record[name] = value
	}
	text, err := json.Marshal(record)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// fakeAPI answers each request with the next of the answers for it, and the last one for ever.
type fakeAPI struct {
	mu      sync.Mutex
	answers map[string][]string // "GET /v2/pods": status, a space, the body
	seen    []string            // requests with their bodies
	keys    []string
	told    func(string) // of each request, with its body; may be nil
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	what := r.Method + " " + r.URL.Path
	f.seen = append(f.seen, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	if f.told != nil {
		f.told(f.seen[len(f.seen)-1])
	}
	f.keys = append(f.keys, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	all := f.answers[what]
	answer := `404 {"title":"Not Found","status":404,"detail":"resource not found","code":"not_found","requestId":"r1"}`
	if len(all) > 0 {
		answer = all[0]
	}
	if len(all) > 1 {
		f.answers[what] = all[1:]
	}
	status, text, _ := strings.Cut(answer, " ")
	code := 0
	_, _ = fmt.Sscan(status, &code)
	kind := "application/json"
	switch {
	case code >= 400:
		kind = "application/problem+json"
	case strings.HasSuffix(r.URL.Path, "/logs"), strings.HasSuffix(r.URL.Path, "/events"):
		kind = "text/event-stream"
	}
	w.Header().Set("Content-Type", kind)
	if r.Header.Get("Idempotency-Key") == "again" {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text)
}

// ordered returns requests with the members of their bodies in the order of their names.
func ordered(requests []string) []string {
	var out []string
	for _, r := range requests {
		at := strings.Index(r, " {")
		var body map[string]any
		if at >= 0 && json.Unmarshal([]byte(r[at:]), &body) == nil {
			if text, err := json.Marshal(body); err == nil {
				r = r[:at+1] + string(text)
			}
		}
		out = append(out, r)
	}
	return out
}

// result is what one command line did.
type result struct {
	Code     int
	Out, Err string
}

type setup struct {
	api      map[string][]string
	env      map[string]string
	in       string       // standard input
	told     func(string) // of each request
	terminal bool
	ctx      context.Context //nolint:containedctx // of one command line
	every    time.Duration   // between two looks of --watch
	screen   int             // columns of standard output; 0: it is no terminal
}

// gantry runs a command line against a fake API.
func gantry(t *testing.T, s setup, args ...string) (result, *fakeAPI) {
	t.Helper()
	api := &fakeAPI{answers: s.api, told: s.told}
	srv := httptest.NewServer(api)
	defer srv.Close()
	env := map[string]string{"GANTRY_API": srv.URL, "GANTRY_API_KEY": "gk_user", "HOME": t.TempDir()}
	for name, value := range s.env {
		env[name] = strings.ReplaceAll(value, "$SERVER", srv.URL)
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$SERVER", srv.URL)
	}
	var out, err bytes.Buffer
	now := time.Date(2026, 10, 1, 12, 1, 30, 0, time.UTC)
	sys := system{
		in: strings.NewReader(s.in), out: &out, err: &err, terminal: s.terminal, width: func() int { return 60 },
		env: func(name string) (string, bool) { v, ok := env[name]; return v, ok && v != "" },
		now: func() time.Time { return now }, lookEvery: s.every, screenWidth: func() int { return s.screen },
	}
	ctx := s.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	code := run(ctx, args, sys)
	clean := func(b *bytes.Buffer) string { return strings.ReplaceAll(b.String(), srv.URL, "$SERVER") }
	return result{code, clean(&out), clean(&err)}, api
}

func get(path string) string { return "GET /v2/pods/" + path }
