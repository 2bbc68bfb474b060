package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/api/jobs"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/test/plane"
)

// newJobSite is a site with the face of jobs, and an endpoint named embed.
func newJobSite(t *testing.T) (s *site, endpoint fleet.EndpointID) {
	t.Helper()
	cp := plane.New(t)
	cp.WithJobs()
	api, err := rest.New(rest.Config{Service: cp, Log: slog.New(slog.DiscardHandler), Now: cp.Now, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	face := jobs.New(jobs.Config{
		Service: cp, Keys: cp, Log: slog.New(slog.DiscardHandler), Now: cp.Now, PerWorker: 100,
		Workers: func(fleet.EndpointID) fleet.WorkerCounts { return fleet.WorkerCounts{Initializing: 1} },
	})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if jobs.Owns(r.URL.Path) {
			face.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		api.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	s = &site{t: t, plane: cp, url: srv.URL}
	return s, fleet.EndpointID(strings.TrimSpace(s.good("endpoint create embed img:1 --cpu cpu3g -q")))
}

// work plays a worker that answers the next job, once there is one.
func (s *site) work(endpoint fleet.EndpointID, failed bool, output string) {
	s.t.Helper()
	for ctx := s.t.Context(); ; {
		if n, err := s.plane.JobCounts(ctx, s.user(), endpoint); err != nil {
			s.t.Fatal(err)
		} else if n.Waiting > 0 {
			break
		}
		if err := sleep.For(ctx, time.Millisecond); err != nil {
			s.t.Fatal(err)
		}
	}
	from, _ := s.plane.TakeJob(endpoint)
	s.plane.FinishJob(from, failed, output)
}

func TestJobsThroughTheRealFace(t *testing.T) {
	s, endpoint := newJobSite(t)
	run := func(line string) string {
		return strings.TrimSpace(s.good("job run embed --input {\"a\":1} -q " + line))
	}
	first := run("--ttl 1h --execution-timeout 10s --low-priority --webhook https://example.com/ --idempotency-key k")
	if again := run("--ttl 1h --execution-timeout 10s --low-priority --webhook https://example.com/ --idempotency-key k"); again != first {
		t.Errorf("%s and %s under one key", first, again)
	}
	if out := s.good("job status embed " + first); !strings.HasPrefix(out, "Id:      "+first+"\nStatus:  IN_QUEUE\n") {
		t.Errorf("%s", out)
	}
	if out := s.good("job status embed " + first + " --input"); !strings.HasSuffix(out, "Input:\n{\n  \"a\": 1\n}\n") {
		t.Errorf("%s", out)
	}
	s.bad(exitUsage, "job status embed "+first+" --input --wait")
	s.work(endpoint, false, `{"b":[2]}`)
	if out := s.good("job status embed " + first + " --wait"); !strings.Contains(out, "Status:  COMPLETED\n") || !strings.HasSuffix(out, "Output:\n{\n  \"b\": [\n    2\n  ]\n}\n") {
		t.Errorf("%s", out)
	}
	second := run("")
	if out := s.good("job cancel " + string(endpoint) + " " + second); !strings.Contains(out, second+"  CANCELLED") {
		t.Errorf("%s", out)
	}
	if text := s.bad(exitUsage, "job retry embed "+second); !strings.Contains(text, "gantry: ") || strings.Contains(text, "{") {
		t.Errorf("%s", text)
	}
	third := run("")
	s.work(endpoint, true, "no such model")
	if out := s.good("job list embed"); strings.Count(out, "\n") != 4 || !strings.Contains(out, third+"  FAILED ") {
		t.Errorf("%s", out)
	}
	if text := s.bad(exitFailed, "job status embed "+third+" --wait"); text != "gantry: job "+third+" is FAILED: no such model\n" {
		t.Errorf("%s", text)
	}
	s.good("job retry embed " + third)
	if out := s.good("job list embed --status IN_QUEUE --status FAILED -q --since 1h"); out != third+"\n" {
		t.Errorf("%s", out)
	}
	if code, text := s.run(t.Context(), io.Discard, "job list embed --limit 1"); code != 0 || !strings.HasPrefix(text, "There are more: add --cursor ") {
		t.Errorf("%d %s", code, text)
	}
	if out := s.good("job purge embed"); out != "removed 1 job\n" {
		t.Errorf("%s", out)
	}
	if out := s.good("endpoint get embed"); !strings.Contains(out, "Jobs:          0 in the queue, 1 completed") {
		t.Errorf("%s", out)
	}
	s.good("endpoint update embed --max-workers 5")
	s.good("endpoint delete embed")
	s.bad(exitNotFound, "job status "+string(endpoint)+" "+first)
}

func TestRunsyncThroughTheRealFace(t *testing.T) {
	s, endpoint := newJobSite(t)
	try := func(failed bool, output, line string) (int, string, string) {
		var out bytes.Buffer
		worked := make(chan struct{})
		go func() { defer close(worked); s.work(endpoint, failed, output) }()
		code, text := s.run(t.Context(), &out, line)
		<-worked
		return code, out.String(), text
	}
	for _, command := range []string{"job runsync embed --input {}", "job run embed --input {} --wait"} {
		if code, out, text := try(false, `"two\nlines"`, command); code != 0 || out != "two\nlines\n" {
			t.Errorf("%s: %d %q %s", command, code, out, text)
		}
		if code, out, text := try(false, `{"a":1}`, command+" -o json"); code != 0 || !strings.Contains(out, `"status": "COMPLETED"`) {
			t.Errorf("%s: %d %q %s", command, code, out, text)
		}
		trace, err := json.Marshal(map[string]string{"error_type": "<class 'ValueError'>", "error_message": "bad", "error_traceback": "line 1\nline 2\n"})
		if err != nil {
			t.Fatal(err)
		}
		if code, out, text := try(true, string(trace), command); code != exitFailed || out != "" || !strings.HasSuffix(text, "is FAILED: ValueError: bad\nline 1\nline 2\n") {
			t.Errorf("%s: %d %q %s", command, code, out, text)
		}
		if code, out, _ := try(true, "bad", command+" -o jsonpath={.error}"); code != exitFailed || out != "bad\n" {
			t.Errorf("%s: %d %q", command, code, out)
		}
	}
	if text := s.bad(exitTimeout, "job runsync embed --input {} --timeout 50ms"); !strings.Contains(text, "gave up waiting for job sync-") {
		t.Errorf("%s", text)
	}
}

func TestAStreamThroughTheRealFace(t *testing.T) {
	s, endpoint := newJobSite(t)
	id := strings.TrimSpace(s.good("job run embed --input {} -q"))
	from, _ := s.plane.TakeJob(endpoint)
	for i, part := range []string{`{"output":"one"}`, `{"output":{"two":2}}`} {
		s.plane.Chunk(from, i+1, part)
	}
	s.plane.FinishJob(from, false, `[]`)
	if out := s.good("job stream embed " + id); out != "one\n{\n  \"two\": 2\n}\n" {
		t.Errorf("%q", out)
	}
}

// TestJobsOfOthers: a job is found at its own endpoint, by its own account, and nowhere else.
func TestJobsOfOthers(t *testing.T) {
	s, _ := newJobSite(t)
	s.good("endpoint create other img:1 --cpu cpu3g")
	id := strings.TrimSpace(s.good("job run embed --input {} -q"))
	for _, command := range []string{"status", "cancel", "retry", "stream"} {
		if text := s.bad(exitNotFound, "job "+command+" other "+id); text != "gantry: job not found\n" {
			t.Errorf("%s: %q", command, text)
		}
	}
	s.bad(exitNotFound, "job status embed ../../pods")
	for _, command := range []string{"job run zzzzzzzzzzzzzz --input {}", "job list zzzzzzzzzzzzzz"} {
		if text := s.bad(exitNotFound, command); text != "gantry: no endpoint has the id or name zzzzzzzzzzzzzz\n" {
			t.Errorf("%s: %q", command, text)
		}
	}
}

// waitingJob is an API at which a job waits, is not answered once, and ends in last.
func waitingJob(last string) map[string][]string {
	const id = `"id":"j1-u1","status":`
	return serverless(map[string][]string{
		"POST /v2/" + endpointID + "/runsync": {"200 {" + id + `"IN_QUEUE"}`},
		"GET /v2/" + endpointID + "/status/j1-u1": {
			"200 {" + id + `"IN_QUEUE","reason":"no worker yet: 1 starting, pulling image 3 %"}`, "200 {" + id + `"IN_QUEUE","reason":"no worker yet: 1 starting, pulling image 63 %"}`,
			`503 {"error":"no leader"}`,
			"200 {" + id + `"IN_QUEUE","reason":"no worker yet: 1 starting"}`, "200 {" + id + `"IN_QUEUE","reason":"no worker yet: 1 starting"}`,
			"200 {" + id + `"IN_QUEUE","reason":"no worker yet: 1 starting"}`, "200 {" + id + `"IN_QUEUE","reason":"no worker yet: 1 starting"}`,
			"200 {" + id + `"IN_QUEUE","reason":"no worker yet: 1 starting"}`, "200 {" + id + `"IN_QUEUE","reason":"no worker yet: 1 starting"}`,
			"200 {" + id + `"IN_PROGRESS"}`, "200 {" + id + last + "}",
		},
	})
}

func TestWaitingForAJobSaysWhy(t *testing.T) {
	line := []string{"job", "runsync", endpointID, "--input", "{}"}
	got, _ := gantry(t, setup{api: waitingJob(`"COMPLETED","output":{"a":"\u001b[1m"}`)}, line...)
	want := `job j1-u1
IN_QUEUE  no worker yet: 1 starting, pulling image 3 %  0.0 s
IN_QUEUE  the API does not answer at the moment  0.0 s
IN_QUEUE  no worker yet: 1 starting  0.0 s
IN_PROGRESS  0.0 s
COMPLETED  0.0 s
`
	if got.Code != 0 || got.Out != "{\n  \"a\": \"\\u001b[1m\"\n}\n" || got.Err != want {
		t.Errorf("%+v\n%s", got, cmp.Diff(want, got.Err))
	}
	got, _ = gantry(t, setup{api: waitingJob(`"TIMED_OUT"`), terminal: true}, line...)
	const one = "\r\x1b[KIN_QUEUE  no worker yet: 1 starting  queue: 3  workers: 2 r\r"
	if got.Code != exitFailed || !strings.Contains(got.Err, one) || !strings.HasSuffix(got.Err, "\r\x1b[Kgantry: job j1-u1 is TIMED_OUT\n") {
		t.Errorf("%d %q", got.Code, got.Err)
	}
}

func TestInterruptedWaitLeavesTheJob(t *testing.T) {
	api := waitingJob(`"COMPLETED"`)
	api["GET /v2/"+endpointID+"/status/j1-u1"] = []string{`200 {"id":"j1-u1","status":"IN_QUEUE"}`}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	waits := func(request string) {
		if strings.HasSuffix(request, "/status/j1-u1") {
			interrupt()
		}
	}
	got, fake := gantry(t, setup{api: api, ctx: ctx, told: waits}, "job", "runsync", endpointID, "--input", "{}")
	if got.Code != exitInterrupted || !strings.HasPrefix(got.Err, "job j1-u1\n") || strings.Contains(strings.Join(fake.seen, " "), "cancel") {
		t.Errorf("%+v", got)
	}
}
