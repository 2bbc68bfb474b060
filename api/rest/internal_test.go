package rest

import (
	"bufio"
	"bytes"
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

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
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

func TestRouteForPodKeysWithoutAPodFails(t *testing.T) {
	for _, path := range []string{"/v2/x", "/v2/x/{id}", "/v2/pods", "/v2/pods/{id}x"} {
		a := newAPI(Config{Log: slog.New(slog.DiscardHandler)})
		handle(a, route{
			method: http.MethodGet, path: path, id: "x", status: 200, scope: auth.Read(fleet.GroupPods).OrPod(), limit: limit.PerAccount,
		}, func(context.Context, *call, *none) (*none, error) { return nil, nil })
		if err := a.finish(); err == nil || !strings.Contains(err.Error(), "names no pod") {
			t.Errorf("%s: %v", path, err)
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
			ctx, cancel := context.WithTimeout(t.Context(), length)
			defer cancel()
			w := httptest.NewRecorder()
			lines, none := make(chan fleet.LogLine), make(chan error)
			if err := copyLines(ctx, &stream{w: w, rc: http.NewResponseController(w)}, lines, none, none); err != nil {
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

func ruleOf[T any](t testing.TB) *rule {
	t.Helper()
	a := newAPI(Config{Log: slog.New(slog.DiscardHandler)})
	_, r := a.messageRule(reflect.TypeFor[T]())
	if len(a.faults) > 0 {
		t.Fatal(a.faults)
	}
	return r
}

// taken decodes a body and reports whether it was taken; what is not must be a refusal of the caller.
func taken(t *testing.T, data []byte, body *rule, in any) bool {
	t.Helper()
	err := decode(data, body, in)
	switch code := fleet.CodeOf(err); code {
	case fleet.CodeMalformed, fleet.CodeInvalid:
		var e *fleet.Error
		if errors.As(err, &e) && len(e.Details) > maxFailures {
			t.Errorf("%d failures in one answer", len(e.Details))
		}
		return false
	case "":
	default:
		t.Fatalf("%q: %v", data, err)
	}
	if !json.Valid(data) {
		t.Fatalf("taken: %q", data)
	}
	return true
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
	f.Add([]byte(`{"name":"a","templateId":"t","gpu":{"id":"x","allowedCudaVersions":["1.2"],"minRamPerGpu":1},"startSsh":true,"mounts":{"persistent":{"size":10,"path":"/a"}}}`))
	body := ruleOf[v2.CreatePodRequest](f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var in v2.CreatePodRequest
		if !taken(t, data, body, &in) {
			return
		}
		if in.Name == "" || given(in.Image) == "" && in.TemplateID == "" {
			t.Fatalf("taken: %q", data)
		}
		req := podRequest(&in)
		for _, p := range req.Ports {
			if p.Number < 1 || p.Number > maxPort {
				t.Fatalf("port %d", p.Number)
			}
		}
		if (req.GPU == nil) != (in.GPU == nil) || (req.CPU == nil) != (in.CPU == nil) {
			t.Fatalf("%q: %+v", data, req)
		}
	})
}

// FuzzDecodeUpdate does the same with the body that changes a pod.
func FuzzDecodeUpdate(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"name":"b","registry":null}`, `{"registry":"r","env":{},"ports":[],"args":""}`, `{"mounts":{"network":[]}}`, `{"mounts":{}}`, `{"mounts":{"persistent":{"size":10,"path":"/a"}}}`,
		`{"locked":true,"globalNetworking":false,"templateId":"t","disk":1e1}`, `{"name":null}`,
	} {
		f.Add([]byte(s))
	}
	body := ruleOf[v2.UpdatePodRequest](f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var in v2.UpdatePodRequest
		if !taken(t, data, body, &in) {
			return
		}
		var tree map[string]json.RawMessage
		if err := json.Unmarshal(data, &tree); err != nil {
			t.Fatal(err)
		}
		change := podUpdate(&in)
		for name, set := range map[string]bool{
			"name": change.Name != nil, "image": change.Image != nil, "args": change.Args != nil, "disk": change.DiskGB != nil, "ports": change.Ports != nil,
			"env": change.Env != nil, "registry": change.Registry != nil, "locked": change.Locked != nil, "globalNetworking": change.GlobalNetworking != nil,
			"templateId": change.Template != "",
		} {
			if _, there := tree[name]; there != set {
				t.Fatalf("%q: %s is set: %v", data, name, set)
			}
		}
	})
}

// FuzzOnce reads the header that makes a create happen once.
func FuzzOnce(f *testing.F) {
	for _, s := range []string{"", "a", "3f2a7c52", "a b", strings.Repeat("k", 256), "cl\u00e9", "a,b", "\"quoted\""} {
		f.Add(s, `{"a":1}`)
	}
	ps, err := compileParams([]*huma.Param{onceParam()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key, body string) {
		r := httptest.NewRequest(http.MethodPost, "/v2/pods", nil)
		r.Header[onceHeader] = []string{key}
		c := &call{r: r}
		if c.args, err = ps.read(r); err != nil {
			if fleet.CodeOf(err) != fleet.CodeInvalid || strings.Contains(err.Error(), key) && len(key) > 8 {
				t.Fatal(err)
			}
			return
		}
		once, err := c.once(body)
		if err != nil {
			if key != "" || fleet.CodeOf(err) != fleet.CodeInvalid {
				t.Fatal(err)
			}
			return
		}
		if once.Key != key || len(key) > 255 || len(once.Fingerprint) != 32 || strings.Trim(key, "\x00\x7f \t") != key {
			t.Fatalf("%q: %+v", key, once)
		}
		if again, err := c.once(body); err != nil || !bytes.Equal(again.Fingerprint, once.Fingerprint) {
			t.Fatal("the fingerprint of a request changes", err)
		}
		if other, err := c.once(body + "x"); err != nil || bytes.Equal(other.Fingerprint, once.Fingerprint) {
			t.Fatal("two requests have one fingerprint", err)
		}
	})
}

// FuzzExec reads the messages of a client.
func FuzzExec(f *testing.F) {
	f.Add(true, []byte(`{"command":["ls","-l"],"tty":true,"stdin":true,"cols":80,"rows":24,"term":"xterm"}`), []byte("\x00input"))
	f.Add(true, []byte(`{"command":["cat"]}`), []byte("\x04{\"cols\":1,\"rows\":1}"))
	f.Add(false, []byte(`{"command":[]}`), []byte{})
	f.Add(true, []byte(`{"command":["a"],"tty":true}`), []byte("\x05"))
	request, size := ruleOf[v2.ExecRequest](f), ruleOf[v2.ExecSize](f)
	f.Fuzz(func(t *testing.T, text bool, first, then []byte) {
		kind := map[bool]websocket.MessageType{true: websocket.MessageText, false: websocket.MessageBinary}[text]
		req, err := readExec(message{kind, first}, request)
		if err != nil {
			if code := fleet.CodeOf(err); code != fleet.CodeInvalid && code != fleet.CodeMalformed {
				t.Fatal(err)
			}
			return
		}
		if !text || len(req.Command) == 0 || req.Command[0] == "" || req.Cols < 0 || req.Cols > 65535 || req.Rows < 0 || req.Rows > 65535 {
			t.Fatalf("%q: %+v", first, req)
		}
		frame, wanted, err := readFrame(message{websocket.MessageBinary, then}, req, size)
		if err == nil && wanted && (len(then) == 0 || frame.Channel != fleet.ExecChannel(then[0]) || frame.Channel == fleet.ExecResize && !req.TTY || frame.Channel != fleet.ExecResize && !req.Stdin) {
			t.Fatalf("%q: %+v", then, frame)
		}
	})
}

// FuzzParams looks for queries that panic or end as anything but a refusal of the caller.
func FuzzParams(f *testing.F) {
	ps, err := compileParams([]*huma.Param{
		countParam("tail", "", 0, 5000), flagParam("follow", "", true), listParam("include", "", 3, "A", "B"), wordParam("source", "", "x"),
		queryParam("since", "", huma.Schema{Type: huma.TypeString, Format: "date-time"}),
		{Name: "path", In: "query", Required: true, Schema: &huma.Schema{Type: huma.TypeString, Pattern: `^/[^\x00]*$`}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("path=/a&path=")
	f.Add("path=/a&tail=1&follow&include=A,B&include=A&source=x&since=2026-01-01T00:00:00Z")
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
		if n := got.number("tail", 0); n < 0 || n > 5000 || len(got["include"]) > 3 || !strings.HasPrefix(got.text("path"), "/") {
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
