package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/dev"
)

const noPods = `200 {"pods":[]}`

func listPods() map[string][]string {
	return map[string][]string{"GET /v2/pods": {noPods}, "GET /admin/v1/hosts": {`200 {"hosts":[]}`}}
}

// TestContexts goes through the life of contexts, and sees where each command went and with which key.
func TestContexts(t *testing.T) {
	home := t.TempDir()
	keys := filepath.Join(home, "keys.json")
	if err := os.WriteFile(keys, []byte(`{"adminKey":"gk_lab_admin","apiKey":"gk_lab"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"HOME": home, "GANTRY_API": "", "GANTRY_API_KEY": ""}
	do := func(more map[string]string, line string) (result, *fakeAPI) {
		t.Helper()
		all := map[string]string{}
		for _, some := range []map[string]string{env, more} {
			for k, v := range some {
				all[k] = v
			}
		}
		return gantry(t, setup{api: listPods(), env: all}, strings.Fields(line)...)
	}
	good := func(line, want string) {
		t.Helper()
		if got, _ := do(nil, line); got.Code != 0 || got.Out != want || got.Err != "" {
			t.Errorf("gantry %s: %+v", line, got)
		}
	}
	good("context add prod --api gantry.example.com", "added prod\n")
	good("context add lab --api http://10.0.0.1:8080 --api-key-file "+keys+" --use", "added lab\n")
	good("context list", `   NAME  API                         KEYS
*  lab   http://10.0.0.1:8080        an account's, an operator's
   prod  https://gantry.example.com  of the environment
`)
	good("context list -q", "lab\nprod\n")
	good("context show", "API:   http://10.0.0.1:8080\nFrom:  the context lab\n")
	good("context show prod", "API:   https://gantry.example.com\nFrom:  the context prod\n")
	good("context use prod", "commands use prod\n")
	good("context remove prod", "removed prod\n")
	good("context list --no-headers", "  lab  http://10.0.0.1:8080  an account's, an operator's\n")
	path := filepath.Join(home, ".config", "gantry", "contexts.json")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	for line, want := range map[string]int{"context use prod": exitNotFound, "context show prod": exitNotFound, "context remove prod": exitNotFound, "pod list --context prod": exitNotFound} {
		if got, _ := do(nil, line); got.Code != want || !strings.Contains(got.Err, "no context has the name prod") {
			t.Errorf("gantry %s: %+v", line, got)
		}
	}
	// Which key goes with which command: $SERVER is the address of the fake.
	for _, step := range []struct {
		line string
		env  map[string]string
		key  string
	}{
		{"pod list --context lab", nil, "gk_lab"},
		{"host list --context lab", nil, "gk_lab_admin"},
		{"host list --context lab", map[string]string{"GANTRY_ADMIN_KEY": "gk_env"}, "gk_lab_admin"},
		{"pod list", map[string]string{"GANTRY_CONTEXT": "lab", "GANTRY_API": "http://127.0.0.1:1"}, "gk_lab"},
		{"pod list", map[string]string{"GANTRY_API_KEY": "gk_env"}, "gk_env"}, // lab is in use, but was not named
		{"pod list", nil, "gk_lab"},
		{"pod list --api $SERVER", map[string]string{"GANTRY_API_KEY": "gk_env"}, "gk_env"},
	} {
		api := &fakeAPI{answers: listPods()}
		srv := httptest.NewServer(api)
		text, err := json.Marshal(contexts{Current: "lab", Contexts: map[string]target{"lab": {API: srv.URL, APIKey: "gk_lab", AdminKey: "gk_lab_admin"}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, own := do(step.env, step.line)
		srv.Close()
		seen := slices.Concat(api.keys, own.keys)
		if got.Code != 0 || len(seen) != 1 || seen[0] != step.key {
			t.Errorf("gantry %s with %v: keys %q, %+v", step.line, step.env, seen, got)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := do(nil, "pod list"); got.Code != exitUsage || !strings.Contains(got.Err, "contexts: ") {
		t.Errorf("%+v", got)
	}
}

// TestAGuessedTargetIsNamed: nothing named the dev that a command goes to.
func TestAGuessedTargetIsNamed(t *testing.T) {
	api := &fakeAPI{answers: listPods()}
	srv := httptest.NewServer(api)
	defer srv.Close()
	home := t.TempDir()
	dir := filepath.Join(home, "my dev")
	state := filepath.Join(home, ".local", "state", "gantry")
	for _, d := range []string{dir, state} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	file, err := json.Marshal(map[string]string{"api": srv.URL, "apiKey": "gk_dev", "adminKey": "gk_dev_admin"})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{filepath.Join(dir, "dev.json"): file, filepath.Join(state, "dev"): []byte(dir + "\n")} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &app{system: system{env: func(name string) (string, bool) {
		if name != "HOME" {
			return "", false
		}
		return home, true
	}}}
	for range 2 {
		if err := a.addDev(dir); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{"HOME": home, "GANTRY_API": "", "GANTRY_API_KEY": ""}
	if got, _ := gantry(t, setup{env: env}, "pod", "list", "-q"); got != (result{}) {
		t.Errorf("the only context is said to be guessed: %+v", got)
	}
	gone := filepath.Join(home, "gone")
	for _, other := range []string{gone, filepath.Join(home, "other", "my dev"), dev.DefaultDataDir(a.stateHome())} {
		if err := errors.Join(os.MkdirAll(other, 0o700), a.addDev(other), os.RemoveAll(gone)); err != nil { // whose context goes with the next
			t.Fatal(err)
		}
	}
	got, _ := gantry(t, setup{env: env}, "pod", "list", "-q")
	want := "gantry: no context and no GANTRY_API: using gantry dev in " + dir + " (gantry context use dev-my-dev chooses it for good), " + srv.URL + "\n"
	if diff := cmp.Diff(result{Err: want}, got); diff != "" || len(api.keys) != 2 || api.keys[1] != "gk_dev" {
		t.Errorf("keys %q %s", api.keys, diff)
	}
	if got, _ = gantry(t, setup{env: env}, "context", "use", "dev-my-dev"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	if got, _ = gantry(t, setup{env: env}, "host", "list", "-q"); got.Code != 0 || got.Err != "" || api.keys[2] != "gk_dev_admin" {
		t.Errorf("keys %q %+v", api.keys, got)
	}
	if got, _ = gantry(t, setup{env: env}, "context", "list", "-o", "jsonpath=contexts[*].name"); got.Out != "dev dev-my-dev dev-my-dev-2\n" {
		t.Errorf("%+v", got)
	}
	if got, _ = gantry(t, setup{env: env}, "pod", "list", "--context", "dev"); got.Code != exitUnavailable || !strings.Contains(got.Err, "`gantry dev` is not running on ") {
		t.Errorf("%+v", got)
	}
}

func TestAddressesWithoutAScheme(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:8080": "http://127.0.0.1:8080", "localhost": "http://localhost", "[::1]:80": "http://[::1]:80",
		"gantry.example.com": "https://gantry.example.com", "10.0.0.1:8080, 10.0.0.2:8080": "https://10.0.0.1:8080,https://10.0.0.2:8080",
		"http://a,b": "http://a,https://b",
	} {
		if got := withScheme(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	api := listPods()
	got, _ := gantry(t, setup{api: api, env: map[string]string{"GANTRY_API": "$SERVER"}}, "pod", "list", "-q")
	if got.Code != 0 {
		t.Errorf("%+v", got)
	}
}

// TestAnotherServerIsNamed: what answers is a web server, but not ours.
func TestAnotherServerIsNamed(t *testing.T) {
	for name, answer := range map[string]struct {
		status int
		kind   string
		body   string
		want   int
	}{
		"404":       {404, "text/html", "<h1>Not Found</h1>", exitForeign},
		"400":       {400, "text/plain", "what?", exitForeign},
		"a page":    {200, "text/html", "<h1>It works!</h1>", exitForeign},
		"JSON":      {401, "application/json", `{"message":"who are you"}`, exitForeign},
		"a move":    {301, "text/html", "", exitForeign},
		"a gateway": {502, "text/html", "<h1>Bad Gateway</h1>", exitUnavailable},
		"limited":   {429, "text/html", "slow down", exitUnavailable},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", answer.kind)
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(answer.status)
			_, _ = io.WriteString(w, answer.body)
		}))
		got, _ := gantry(t, setup{}, "pod", "list", "--api", srv.URL)
		srv.Close()
		if got.Code != answer.want || answer.want == exitForeign != strings.Contains(got.Err, srv.URL+" is no Gantry API: it answered ") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
