package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/test/devtest"
	"gantry/test/program/workerimage"
)

// command is the args of an endpoint whose worker does what an input says, in the ways of a version of the library.
func command(library string) string {
	return fmt.Sprintf(`{"cmd":[%q,"--handler","any","--library",%q]}`, workerimage.Program, library)
}

// endpoint makes one of a worker at most, which goes with the test.
func endpoint(t *testing.T, m *mcp, image, library string) (id string) {
	t.Helper()
	var made struct{ ID string }
	m.good(t, &made, "create-endpoint", body(args{
		"name": "jobs of " + library, "type": "QUEUE", "image": image, "args": command(library), "cpu": []args{{"id": "cpu3c", "vcpuCount": 2}},
		"scaling": args{"type": "QUEUE_DELAY", "queueDelay": 1}, "workers": args{"min": 0, "max": 1, "idleTimeout": 60},
	}))
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		t.Logf("workers: %s", m.tool(t, "list-endpoint-workers", args{"id": made.ID}).text)
	})
	return made.ID
}

// script runs a program of testdata with the clients that are installed, and decodes the last line that it prints.
func script(t *testing.T, name, endpoint string, out any, env ...string) {
	t.Helper()
	const limit = 3 * time.Minute
	dir := t.TempDir()
	installed, err := filepath.Abs(filepath.Join("..", "..", ".bin", "clients"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
	}
	if err == nil {
		err = os.Symlink(filepath.Join(installed, "node_modules"), filepath.Join(dir, "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(installed, "node"), name)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Env = append(slices.Clone(env), "PATH="+os.Getenv("PATH"), "HOME="+dir, "API="+suite.info.API+"/v2", "KEY="+suite.info.APIKey, "ENDPOINT="+endpoint)
	err = cmd.Run()
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if err == nil {
		err = json.Unmarshal([]byte(lines[len(lines)-1]), out)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s\n%s", name, err, &stdout, &stderr)
	}
}

// record is what a client sees of a job.
type record struct {
	ID, Status               string
	Completed, Succeeded     bool
	Output                   any
	Error                    string
	DelayTime, ExecutionTime *int
	WorkerID                 string
}

// purged is what a purge answers.
type purged struct {
	Removed int
	Status  string
}

// shows compares what a client printed with what it should have.
func shows(t *testing.T, what string, got any, want string) {
	t.Helper()
	if text, err := json.Marshal(got); err != nil || string(text) != want {
		t.Errorf("%s: got %s, want %s (%v)", what, text, want, err)
	}
}

// TestTheSDKOfJobs makes every call of runpod-sdk, with workers in the ways of all libraries.
func TestTheSDKOfJobs(t *testing.T) {
	m := startMCP(t, suite.info.API, suite.info.APIKey)
	image := workerimage.Serve(t, "")
	for _, library := range []string{"1.6", "1.7.12", "1.10"} {
		t.Run(library, func(t *testing.T) {
			id := endpoint(t, m, image, library)
			var got struct {
				Sync, Run, StatusSync, Status, Streamed, Failed, PurgedStatus, Cancel, Cancelled, After record

				Chunks                []any
				Health                struct{ Jobs, Workers map[string]int }
				Purged                purged
				NoJob, NoKey, NoInput int
			}
			script(t, "sdk.mjs", id, &got)
			if s := got.Sync; s.Status != "COMPLETED" || !s.Completed || !s.Succeeded || s.WorkerID == "" || s.DelayTime == nil || s.ExecutionTime == nil || !strings.HasPrefix(s.ID, "sync-") {
				t.Errorf("runSync: %+v", s)
			}
			shows(t, "the output", got.Sync.Output, `{"do":"echo","n":[1,"zwei"]}`)
			if got.Run.Status != "IN_QUEUE" || got.StatusSync.Status != "COMPLETED" || got.Status.Status != "COMPLETED" || got.Status.ID != got.Run.ID {
				t.Errorf("run %+v, statusSync %+v, status %+v", got.Run, got.StatusSync, got.Status)
			}
			shows(t, "the stream", got.Chunks, `["chunk 0","chunk 1","chunk 2"]`)
			if got.Streamed.Status != "COMPLETED" || got.Failed.Status != "FAILED" || got.Failed.Succeeded || !strings.Contains(got.Failed.Error, `"error_message":"bad"`) {
				t.Errorf("streamed %+v, failed %+v", got.Streamed, got.Failed)
			}
			if h := got.Health; h.Jobs["inQueue"] != 3 || h.Jobs["inProgress"] != 1 || h.Jobs["completed"] != 3 || h.Jobs["failed"] != 1 || h.Workers["running"] != 1 {
				t.Errorf("health %+v", h)
			}
			if got.Purged.Removed != 3 || got.Purged.Status != "completed" || got.PurgedStatus.Status != "CANCELLED" {
				t.Errorf("purged %+v, then %+v", got.Purged, got.PurgedStatus)
			}
			if got.Cancel.Status != "CANCELLED" || got.Cancelled.Status != "CANCELLED" || got.After.Status != "COMPLETED" {
				t.Errorf("cancel %+v, then %+v, and after it %+v", got.Cancel, got.Cancelled, got.After)
			}
			if got.NoJob != 404 || got.NoKey != 401 || got.NoInput != 400 {
				t.Errorf("refused with %d, %d, %d", got.NoJob, got.NoKey, got.NoInput)
			}
			m.good(t, nil, "delete-endpoint", args{"id": id})
		})
	}
}

// TestClientsOfLanguageModels drives OpenAI's client and the AI SDK's provider.
func TestClientsOfLanguageModels(t *testing.T) {
	m := startMCP(t, suite.info.API, suite.info.APIKey)
	id := endpoint(t, m, workerimage.Serve(t, ""), "1.10")
	var got, sdk map[string]any
	script(t, "openai.mjs", id, &got)
	shows(t, "openai", got, `{"models":["parrot"],"noKey":["AuthenticationError",401],"noModel":["NotFoundError",404],`+
		`"streamed":["one ","two ","three","stop"],"whole":"one two three"}`)
	script(t, "ai.mjs", id, &sdk)
	shows(t, "the AI SDK", sdk, `{"finish":"stop","noModel":["AI_APICallError",404],"streamed":["one ","two ","three"],"whole":["one two three","stop",7]}`)
	m.good(t, nil, "delete-endpoint", args{"id": id})
}

// TestOpenAIThroughABalancer drives OpenAI's client against a worker that answers by itself: from none that runs, and with streams.
func TestOpenAIThroughABalancer(t *testing.T) {
	m := startMCP(t, suite.info.API, suite.info.APIKey)
	var made struct{ ID string }
	m.good(t, &made, "create-endpoint", body(args{
		"name": "balanced", "type": "LOAD_BALANCER", "image": workerimage.Serve(t, ""), "args": fmt.Sprintf(`{"cmd":[%q,"--serve"]}`, workerimage.Program),
		"cpu": []args{{"id": "cpu3c", "vcpuCount": 2}}, "scaling": args{"type": "REQUEST_COUNT", "requestCount": 4},
		"workers": args{"min": 0, "max": 1, "idleTimeout": 60}, "env": args{"PORT": "8080"},
	}))
	var got map[string]any
	script(t, "openai.mjs", made.ID, &got, "BASE="+suite.info.API+"/v2/"+made.ID+"/v1")
	shows(t, "openai", got, `{"models":["parrot"],"noKey":["AuthenticationError",401],"noModel":["NotFoundError",404],`+
		`"streamed":["one ","two ","three","stop"],"whole":"one two three"}`)
	m.good(t, nil, "delete-endpoint", args{"id": made.ID})
}

// jobTools calls the tools for endpoints and their jobs.
func jobTools(t *testing.T, m *mcp) {
	id := endpoint(t, m, workerimage.Serve(t, ""), "1.10")
	of1 := func(more args) args {
		more["endpointId"] = id
		return more
	}
	var made struct {
		ID, Name, Type, Flashboot string
		Workers                   struct{ Min, Max, IdleTimeout int }
		RequestURLs               map[string]string
	}
	m.good(t, nil, "update-endpoint", of(id, args{"name": "renamed", "workers": args{"max": 2}}))
	m.good(t, &made, "get-endpoint", args{"id": id})
	if made.Name != "renamed" || made.Workers.Max != 2 || made.Workers.IdleTimeout != 60 || !strings.HasPrefix(made.RequestURLs["runSync"], "http") {
		t.Errorf("the endpoint: %+v", made)
	}
	list := m.tool(t, "list-endpoints", nil)
	if list.failed || !strings.Contains(list.text, id) {
		t.Errorf("endpoints: %s", list.text)
	}
	var done, job record
	m.good(t, &done, "runsync-endpoint", of1(args{"input": args{"do": "echo"}, "wait": 60000}))
	if done.Status != "COMPLETED" || done.WorkerID == "" {
		t.Errorf("runsync: %+v", done)
	}
	var workers struct {
		Workers []struct{ ID, Status string }
		Summary struct{ Idle, Total int }
	}
	m.good(t, &workers, "list-endpoint-workers", args{"id": id})
	if len(workers.Workers) != 1 || workers.Workers[0].ID != done.WorkerID || workers.Summary.Total != 1 {
		t.Errorf("workers: %+v", workers)
	}
	logs := m.tool(t, "stream-worker-logs", args{"endpointId": id, "workerId": done.WorkerID, "source": "container", "maxWaitMs": 1000})
	if logs.failed || !strings.Contains(logs.text, "job "+done.ID) {
		t.Errorf("logs: %s", logs.text)
	}
	var releases struct {
		Releases []struct{ ID string }
		Rollout  struct{ WorkersTotal int }
	}
	m.good(t, &releases, "list-endpoint-releases", args{"id": id})
	if len(releases.Releases) == 0 {
		t.Errorf("releases: %+v", releases)
	}
	m.good(t, &job, "run-endpoint", of1(args{"input": args{"do": "stream"}}))
	var stream struct {
		Status string
		Stream []struct{ Output any }
	}
	m.good(t, &stream, "stream-job", of1(args{"jobId": job.ID}))
	if stream.Status != "COMPLETED" || len(stream.Stream) != 3 {
		t.Errorf("streamed %+v", stream)
	}
	m.good(t, &job, "run-endpoint", of1(args{"input": args{"do": "error"}}))
	ended := func(want string) {
		t.Helper()
		var now record
		if m.good(t, &now, "get-job-status", of1(args{"jobId": job.ID, "wait": 20000})); now.Status != want {
			t.Errorf("the job: %+v, want %s", now, want)
		}
	}
	ended("FAILED")
	var again record
	if m.good(t, &again, "retry-job", of1(args{"jobId": job.ID})); again.ID != job.ID || again.Status != "IN_QUEUE" {
		t.Errorf("retried: %+v", again)
	}
	ended("FAILED")
	m.good(t, &job, "run-endpoint", of1(args{"input": args{"do": "sleep", "seconds": 600}}))
	if m.good(t, &again, "cancel-job", of1(args{"jobId": job.ID})); again.Status != "CANCELLED" {
		t.Errorf("cancelled: %+v", again)
	}
	var health struct{ Jobs map[string]int }
	m.good(t, &health, "endpoint-health", of1(args{}))
	if health.Jobs["failed"] != 2 || health.Jobs["retried"] != 1 {
		t.Errorf("health: %+v", health)
	}
	m.good(t, nil, "purge-endpoint-queue", of1(args{}))
	if got := m.tool(t, "retry-job", of1(args{"jobId": done.ID})); !got.failed || !strings.Contains(got.text, "only a job that is FAILED or TIMED_OUT can be retried") {
		t.Errorf("a job that is done was retried: %s", got.text)
	}
	m.good(t, nil, "delete-endpoint", args{"id": id})
	m.refused(t, 404, "not_found", "get-endpoint", args{"id": id})
	gpuTools(t, m)
}

// gpuTools makes an endpoint of GPUs that never has a worker.
func gpuTools(t *testing.T, m *mcp) {
	var kind struct{ Pool string }
	m.good(t, &kind, "get-gpu-type", args{"id": devtest.GPUType})
	var made struct {
		ID  string
		GPU struct {
			Pools, ExcludedTypes []string
			Count                int
		}
	}
	m.good(t, &made, "create-endpoint", body(args{
		"name": "gpus", "type": "QUEUE", "image": devtest.Image, "gpu": args{"pools": []string{kind.Pool}},
		"scaling": args{"type": "REQUEST_COUNT", "requestCount": 2}, "workers": args{"min": 0, "max": 1},
	}))
	m.good(t, nil, "set-endpoint-gpus", args{"endpointId": made.ID, "pools": []string{kind.Pool}, "gpuCount": 2})
	m.good(t, &made, "get-endpoint", args{"id": made.ID})
	if made.GPU.Count != 2 || len(made.GPU.Pools) != 1 {
		t.Errorf("GPUs: %+v", made)
	}
	m.good(t, nil, "delete-endpoint", args{"id": made.ID})
}
