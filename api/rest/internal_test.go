package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

func TestRouteWithoutScopeFails(t *testing.T) {
	for _, scope := range []auth.Scope{{}, {Group: fleet.GroupPods}, {Access: fleet.AccessRead}, {Group: fleet.GroupPods, Access: "all"}, {Public: true, Group: fleet.GroupPods, Access: fleet.AccessRead}} {
		a := newAPI(Config{Log: slog.New(slog.DiscardHandler)})
		handle(a, route{method: http.MethodGet, path: "/v2/x", id: "x", status: 200, scope: scope, limit: limit.PerAccount},
			func(context.Context, *call, *none) (*none, error) { return nil, nil })
		if err := a.finish(); err == nil || !strings.Contains(err.Error(), "declares no scope") {
			t.Errorf("%+v: %v", scope, err)
		}
	}
}

func TestRouteWithoutLimitClassFails(t *testing.T) {
	user := auth.Read(fleet.GroupPods)
	for _, rt := range []route{
		{scope: user}, {scope: user, limit: "some"}, {scope: user, limit: limit.Exempt}, {scope: auth.Public()}, {scope: auth.Public(), limit: limit.PerAccount},
	} {
		a := newAPI(Config{Log: slog.New(slog.DiscardHandler)})
		rt.method, rt.path, rt.id, rt.status = http.MethodGet, "/v2/x", "x", 200
		handle(a, rt, func(context.Context, *call, *none) (*none, error) { return nil, nil })
		if err := a.finish(); err == nil || !strings.Contains(err.Error(), "declares no limit class") {
			t.Errorf("%s %q: %v", rt.scope, rt.limit, err)
		}
	}
}

func TestUncheckableSchemaFails(t *testing.T) {
	a := newAPI(Config{Log: slog.New(slog.DiscardHandler)})
	type body struct {
		N int `json:"n" multipleOf:"3"`
	}
	handle(a, route{method: http.MethodPost, path: "/v2/x", id: "x", status: 200, scope: auth.Public(), limit: limit.Exempt, in: body{}},
		func(context.Context, *call, *body) (*none, error) { return nil, nil })
	if err := a.finish(); err == nil {
		t.Error("a keyword that is not checked was taken")
	}
}

// TestKeepAlive follows a silent log through a minute of pretended time.
func TestKeepAlive(t *testing.T) {
	for length, comments := range map[time.Duration]int{time.Second: 0, 61 * time.Second: 4} {
		synctest.Test(t, func(t *testing.T) {
			a := newAPI(Config{Log: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithTimeout(t.Context(), length)
			defer cancel()
			w := httptest.NewRecorder()
			lines, ended := make(chan fleet.LogLine), make(chan error)
			if err := a.copyLines(ctx, &stream{w: w, rc: http.NewResponseController(w)}, lines, ended); err != nil {
				t.Error(err)
			}
			if w.Code != http.StatusOK || !w.Flushed {
				t.Error("the header of a silent log is not sent")
			}
			if got := strings.Count(w.Body.String(), ": keep-alive\n\n"); got != comments {
				t.Errorf("%d comments in %s: %q", got, length, w.Body)
			}
		})
	}
}

func TestEventIDHasOneLine(t *testing.T) {
	w := httptest.NewRecorder()
	s := &stream{w: w, rc: http.NewResponseController(w)}
	if err := s.line(fleet.LogLine{ID: "1\ndata: forged\n\n", Line: "a\nb\r\n"}); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for sc := bufio.NewScanner(w.Body); sc.Scan(); {
		lines++
	}
	if lines != 3 {
		t.Errorf("an event of %d lines", lines)
	}
}

func TestStreamsAreCounted(t *testing.T) {
	c := newCounter(2)
	for i, want := range []bool{true, true, false} {
		if c.take("a") != want {
			t.Errorf("take %d: %v", i, !want)
		}
	}
	if !c.take("b") {
		t.Error("another account is refused")
	}
	c.give("a")
	if !c.take("a") {
		t.Error("what was given back cannot be taken")
	}
	for _, who := range []fleet.AccountID{"a", "a", "b"} {
		c.give(who)
	}
	if len(c.held) != 0 {
		t.Errorf("left: %v", c.held)
	}
}

func podRule(t testing.TB) *rule {
	t.Helper()
	reg := huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer)
	r, err := compile(reg, reg.Schema(reflect.TypeFor[CreatePodRequest](), true, ""))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// FuzzDecode looks for bodies that panic, end as internal errors, or are taken though another
// reader would see something else in them.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"name":"a","image":"busybox","cpu":{"id":"cpu3g","vcpuCount":2}}`, `{"name":"a","image":"b","gpu":{"id":"x","count":1e0}}`,
		`{"name":"a","name":"b"}`, `{"Name":"a"}`, `[`, `null`, `{"a":{"b":[[[[]]]]}}`, "{\"name\":\"\xff\"}", `{"disk":1e999,"ports":["1/tcp"],"env":{"A":"b"}}`,
		`{"name":"\ud800","image":"b","cpu":{"id":"c","vcpuCount":2.0},"args":"{\"cmd\":[\"x\"]}","mounts":{"network":[]},"registry":null}`,
	} {
		f.Add([]byte(s))
	}
	body := podRule(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var in CreatePodRequest
		err := decode(data, body, &in)
		switch code := fleet.CodeOf(err); code {
		case fleet.CodeMalformed, fleet.CodeInvalid:
			var e *fleet.Error
			if errors.As(err, &e) && len(e.Details) > maxFailures {
				t.Errorf("%d failures in one answer", len(e.Details))
			}
			return
		case "":
		default:
			t.Fatalf("%q: %v", data, err)
		}
		if !json.Valid(data) || in.Name == "" || in.Image == "" {
			t.Fatalf("taken: %q", data)
		}
		_ = in.rules()
		req := in.request()
		for _, p := range req.Ports {
			if p.Number < 1 || p.Number > maxPort {
				t.Fatalf("port %d", p.Number)
			}
		}
	})
}

// FuzzParams looks for queries that panic or end as anything but a refusal of the caller.
func FuzzParams(f *testing.F) {
	ps, err := compileParams([]*huma.Param{
		countParam("tail", "", 0, 5000), flagParam("follow", "", true), listParam("include", "", 3, "A", "B"), wordParam("source", "", "x"),
		queryParam("since", "", huma.Schema{Type: huma.TypeString, Format: "date-time"}),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("tail=1&follow&include=A,B&include=A&source=x&since=2026-01-01T00:00:00Z")
	f.Add("tail=%31&tail=2;x")
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL.RawQuery = query
		got, err := ps.read(r)
		if err != nil {
			if code := fleet.CodeOf(err); code != fleet.CodeInvalid && code != fleet.CodeMalformed {
				t.Fatal(err)
			}
			return
		}
		if n := got.number("tail", 0); n < 0 || n > 5000 || len(got["include"]) > 3 {
			t.Fatalf("%q: %v", query, got)
		}
	})
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		if _, err := New(Config{Log: slog.New(slog.DiscardHandler)}); err != nil {
			b.Fatal(err)
		}
	}
}
