package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// site is the real REST face over a control plane in memory.
type site struct {
	t     *testing.T
	plane *plane.Plane
	url   string
}

func newSite(t *testing.T) *site {
	t.Helper()
	cp := plane.New(t)
	api, err := rest.New(rest.Config{Service: cp, Log: slog.New(slog.DiscardHandler), Now: cp.Now, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(api)
	t.Cleanup(func() {
		api.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return &site{t: t, plane: cp, url: srv.URL}
}

// run runs a command line with the user's key, and the operator's where that is preferred.
func (s *site) run(ctx context.Context, out io.Writer, line string, rest ...string) (int, string) {
	env := map[string]string{
		"GANTRY_API": s.url, "GANTRY_API_KEY": plane.KeyText(plane.User).Reveal(),
		"GANTRY_ADMIN_KEY": plane.KeyText(plane.Operator).Reveal(),
	}
	var errOut bytes.Buffer
	code := run(ctx, append(strings.Fields(line), rest...), system{
		in: strings.NewReader(""), out: out, err: &errOut, now: s.plane.Now, width: func() int { return 80 },
		env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
	return code, errOut.String()
}

// good runs a command line that must succeed and returns its output.
func (s *site) good(line string, rest ...string) string {
	s.t.Helper()
	var out bytes.Buffer
	if code, text := s.run(context.Background(), &out, line, rest...); code != 0 {
		s.t.Fatalf("gantry %s %q: status %d\n%s", line, rest, code, text)
	}
	return out.String()
}

func (s *site) bad(want int, line string, rest ...string) string {
	s.t.Helper()
	code, text := s.run(context.Background(), io.Discard, line, rest...)
	if code != want {
		s.t.Errorf("gantry %s %q: status %d, want %d\n%s", line, rest, code, want, text)
	}
	return text
}

func (s *site) create(line string, rest ...string) fleet.PodID {
	s.t.Helper()
	var pod struct {
		ID fleet.PodID `json:"id"`
	}
	if err := json.Unmarshal([]byte(s.good(line+" -o json", rest...)), &pod); err != nil {
		s.t.Fatal(err)
	}
	return pod.ID
}

func (s *site) report(id fleet.PodID, events ...fleet.Trigger) {
	s.t.Helper()
	for _, e := range events {
		if err := s.plane.Report(id, e); err != nil {
			s.t.Fatal(err)
		}
	}
}

func TestPodsThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	if out := s.good("pod create web busybox --cpu cpu3g --vcpu 2 --dry-run"); !strings.Contains(out, "There is room: cpu3g 2 vCPU") {
		t.Errorf("dry run: %s", out)
	}
	id := s.create("pod create web busybox --cpu cpu3g --vcpu 2 --port 80 --port 22/tcp --env A=1 --disk 5 --data-center dev-1", "--", "httpd", "-f")
	s.report(id, fleet.EventStarting, fleet.EventRunning)
	if out := s.good("pod get web"); !strings.Contains(out, "Status:       RUNNING") || !strings.Contains(out, "Args:         httpd -f") {
		t.Errorf("get:\n%s", out)
	}
	s.good("pod get web -v")
	if out := s.good("pod list"); !strings.Contains(out, string(id)) {
		t.Errorf("list:\n%s", out)
	}
	s.bad(exitRefused, "pod start web")
	s.good("pod stop web")
	s.report(id, fleet.EventExited)
	s.good("pod start web")
	s.report(id, fleet.EventStarting, fleet.EventRunning)
	s.good("pod restart web")
	s.good("pod delete web")
	s.bad(exitNotFound, "pod get web")
	s.bad(exitNotFound, "pod delete zzzzzzzzzzzzzz")
	s.bad(exitUsage, "pod create web busybox --cpu cpu3g --vcpu 3")
	s.bad(exitUsage, "pod create web busybox --cpu no-such-flavor")
	if text := s.bad(exitNoRoom, "pod create big busybox --count 9 --gpu", "NVIDIA H100 80GB HBM3"); !strings.Contains(text, "host: ") {
		t.Errorf("no room: %s", text)
	}
	s.plane.SetDown(true)
	s.bad(exitUnavailable, "pod list")
}

func TestWaitThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	go func() { // ends with the pod's failure, or with the test's deadline
		for range 2000 {
			if pods, err := s.plane.Pods(context.Background(), s.user()); err == nil && len(pods) == 1 {
				_ = s.plane.Report(pods[0].Pod.ID, fleet.EventStarting)
				_ = s.plane.Report(pods[0].Pod.ID, fleet.EventFailed)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	if text := s.bad(exitFailed, "pod create web busybox --cpu cpu3g --wait --timeout 20s"); !strings.Contains(text, "is ERROR") {
		t.Errorf("%s", text)
	}
}

func (s *site) user() fleet.Principal {
	s.t.Helper()
	who, err := s.plane.Authenticate(context.Background(), plane.KeyText(plane.User))
	if err != nil {
		s.t.Fatal(err)
	}
	return who
}

func TestLogsThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	id := s.create("pod create web busybox --cpu cpu3g")
	s.plane.Log(id, "system", "create container busybox")
	for _, line := range []string{"one", "two"} {
		s.plane.Log(id, "container", line)
	}
	if out := s.good("pod logs web"); !strings.HasSuffix(out, "one\ntwo\n") || !strings.Contains(out, "[system] create container busybox\n") {
		t.Errorf("log:\n%s", out)
	}
	if out := s.good("pod logs web --source container --tail 1"); out != "two\n" {
		t.Errorf("tail:\n%s", out)
	}
	s.good("pod logs web --since 10m")
	for _, run := range []string{"first", "second"} {
		s.plane.BeginRun(id)
		s.plane.Log(id, "container", run)
	}
	if out := s.good("pod logs web --previous"); out != "first\n" {
		t.Errorf("the run before:\n%s", out)
	}
	if code, text := s.run(t.Context(), io.Discard, "pod logs web -p -f"); code != exitUsage || !strings.Contains(text, "is not followed") {
		t.Errorf("exit code %d, %s", code, text)
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	in, out := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code, _ := s.run(ctx, out, "pod logs web -f --tail 0")
		_ = out.Close()
		ended <- code
	}()
	got := make(chan string, 1)
	go func() {
		buf := make([]byte, 64)
		n, _ := in.Read(buf)
		got <- string(buf[:n])
		_, _ = io.Copy(io.Discard, in)
	}()
	for line := ""; line == ""; { // until the follower is there, nobody hears a line
		s.plane.Log(id, "container", "three")
		select {
		case line = <-got:
			if line != "three\n" {
				t.Errorf("followed: %q", line)
			}
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("the followed log brings no line")
		}
	}
	cancel()
	if code := <-ended; code != exitInterrupted {
		t.Errorf("status %d", code)
	}
}

func TestTheRestThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	for line, want := range map[string]string{
		"catalog gpus":           "NVIDIA H100 80GB HBM3",
		"catalog gpus --count 8": "NVIDIA H100 80GB HBM3",
		"catalog cpus":           "cpu3g",
		"catalog cpus --vcpu 4":  "cpu3g",
		"catalog datacenters":    "dev-1",
		"host list":              "8 × NVIDIA H100 80GB HBM3",
		"account list":           "research",
		"account create more":    "more",
		"key list":               "user",
	} {
		if out := s.good(line); !strings.Contains(out, want) {
			t.Errorf("gantry %s: no %q in\n%s", line, want, out)
		}
	}
	if key := s.good("key create ci --preset readOnly --expires-in 24h"); !fleet.ValidAPIKey(strings.TrimSpace(key)) {
		t.Errorf("key create: %q", key)
	}
	if token := s.good("host token --data-center EU-RO-1 --ttl 10m"); strings.TrimSpace(token) == "" {
		t.Error("host token: nothing")
	}
	id := func(line, list string) string {
		var all map[string][]struct{ ID, Name string }
		if err := json.Unmarshal([]byte(s.good(line+" -o json")), &all); err != nil {
			t.Fatal(err)
		}
		return all[list][len(all[list])-1].ID
	}
	s.good("host get " + id("host list", "hosts"))
	s.good("key delete " + id("key list", "keys"))
	if key := s.good("account key " + id("account list", "accounts")); !fleet.ValidAPIKey(strings.TrimSpace(key)) {
		t.Errorf("account key: %q", key)
	}
	s.bad(exitNotFound, "account key zzzzzzzzzzzzzz")
	s.bad(exitNotFound, "host get zzzzzzzzzzzzzz")
}
