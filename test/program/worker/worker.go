// Package worker is a serverless worker for tests, written from docs of the protocol alone, in the ways of several versions of the
// library that worker images use. It is told where to ask by the same variables.
package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"gantry/internal/sleep"
)

// Config is how a worker behaves.
type Config struct {
	Env     func(name string) string
	Library string // 1.6, 1.7.12 or 1.10; empty: 1.10
	// Handler is echo, clock, sleep, error, crash, stream, progress, refresh, empty, openai or lie; any: what the input's "do" says.
	Handler     string
	Concurrency int            // jobs at a time; 0: one
	Exit        func(code int) // of crash and of an unhealthy worker
	Say         func(line string)
	Client      *http.Client // nil: one with connections of its own
}

// worker is one that runs.
type worker struct {
	Config
	mu   sync.Mutex
	jobs map[string]context.CancelFunc // that it has
	free chan struct{}                 // woken when one has ended
}

// job is what a worker is given.
type job struct {
	ID    string          `json:"id"`
	Input json.RawMessage `json:"input"`
}

// Run asks for jobs until ctx ends, as SIGTERM ends a worker: it waits for the polls that are open and for its jobs.
func Run(ctx context.Context, c Config) error {
	if c.Env("RUNPOD_WEBHOOK_GET_JOB") == "" {
		return errors.New("RUNPOD_WEBHOOK_GET_JOB is not set")
	}
	if c.Library == "" {
		c.Library = "1.10"
	}
	c.Concurrency = max(c.Concurrency, 1)
	if c.Client == nil {
		c.Client = &http.Client{Transport: &http.Transport{}}
		defer c.Client.CloseIdleConnections()
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &worker{Config: c, jobs: map[string]context.CancelFunc{}, free: make(chan struct{}, 1)}
	var wg, pings sync.WaitGroup
	defer func() { cancel(); pings.Wait() }()
	if c.Env("RUNPOD_AI_API_KEY") != "" && c.Env("RUNPOD_POD_ID") != "" {
		pings.Go(func() { w.ping(life) })
	}
	if c.Library == "1.10" {
		wg.Go(func() { w.watchStops(life, ctx.Done()) })
	}
	for ctx.Err() == nil {
		free := w.room()
		if free == 0 {
			select {
			case <-w.free:
			case <-ctx.Done():
			}
			continue
		}
		for _, j := range w.take(life, free) {
			w.begin(life, j, &wg)
		}
	}
	wg.Wait()
	return nil
}

func (w *worker) room() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Concurrency - len(w.jobs)
}

// url fills in a template as the library does. id replaces $ID.
func (w *worker) url(name, id string) string {
	return strings.NewReplacer("$RUNPOD_POD_ID", w.Env("RUNPOD_POD_ID"), "$ID", id).Replace(w.Env(name))
}

// ask sends a request. The library limits each to its own time.
func (w *worker) ask(ctx context.Context, method, url string, body []byte, limit time.Duration, job string) (int, string, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, "", nil, err
	}
	r.Header.Set("Authorization", w.Env("RUNPOD_AI_API_KEY"))
	r.Header.Set("User-Agent", "RunPod-Python-SDK/"+w.Library+" (Linux 6; x86_64) Language/Python 3.11")
	if job != "" {
		r.Header.Set("X-Request-ID", job)
		r.Header.Set("charset", "utf-8")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	got, err := w.Client.Do(r)
	if err != nil {
		return 0, "", nil, err
	}
	defer func() { _ = got.Body.Close() }()
	answer, err := io.ReadAll(got.Body)
	return got.StatusCode, got.Header.Get("Content-Type"), answer, err
}

// take asks for jobs once. SIGTERM does not interrupt it.
func (w *worker) take(ctx context.Context, free int) (out []job) {
	url := w.url("RUNPOD_WEBHOOK_GET_JOB", w.Env("RUNPOD_POD_ID"))
	busy := 0
	if free < w.Concurrency {
		busy = 1
	}
	batch := free > 1
	if batch {
		url = strings.Replace(url, "/job-take/", "/job-take-batch/", 1) + "&batch_size=" + strconv.Itoa(free)
	}
	url += "&job_in_progress=" + strconv.Itoa(busy)
	status, kind, body, err := w.ask(ctx, http.MethodGet, url, nil, 90*time.Second, "")
	switch {
	case err != nil:
		w.Say("take: " + err.Error())
		time.Sleep(50 * time.Millisecond) // the library has no pause, which this machine would feel
		return nil
	case status == http.StatusTooManyRequests:
		time.Sleep(5 * time.Second)
		return nil
	case status != http.StatusOK || kind != "application/json" || len(body) == 0:
		return nil
	}
	if batch {
		err = json.Unmarshal(body, &out)
	} else {
		var one job
		if err = json.Unmarshal(body, &one); err == nil && (one.ID == "" || one.Input == nil) {
			err = errors.New("job has missing field(s): id or input")
		}
		out = []job{one}
	}
	if err != nil {
		w.Say("take: " + err.Error())
		return nil
	}
	return out
}

func (w *worker) begin(ctx context.Context, j job, wg *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.jobs[j.ID] = cancel
	w.mu.Unlock()
	wg.Go(func() {
		defer cancel()
		w.work(ctx, j)
		w.mu.Lock()
		delete(w.jobs, j.ID)
		w.mu.Unlock()
		select {
		case w.free <- struct{}{}:
		default:
		}
	})
}

// work runs the handler. A job that was stopped says nothing.
func (w *worker) work(ctx context.Context, j job) {
	w.Say("job " + j.ID)
	stream := "false"
	var result any
	handler := w.Handler
	if handler == "any" {
		handler = chosen(j.Input)
	}
	switch handler {
	case "sleep":
		var in struct{ Seconds float64 }
		_ = json.Unmarshal(j.Input, &in)
		if sleep.For(ctx, time.Duration(in.Seconds*float64(time.Second))) != nil {
			w.Say("stopped " + j.ID)
			return
		}
		result = map[string]any{"output": j.Input}
	case "clock":
		result = map[string]any{"output": time.Now().UnixNano()}
	case "error":
		text, _ := json.Marshal(map[string]string{
			"error_type": "<class 'ValueError'>", "error_message": "bad", "error_traceback": "…", "hostname": "unknown",
			"worker_id": w.Env("RUNPOD_POD_ID"), "runpod_version": w.Library,
		})
		result = map[string]any{"error": string(text)}
	case "crash":
		w.Exit(1)
		return
	case "stream":
		stream = "true"
		for n := range 3 {
			w.tell(ctx, "RUNPOD_WEBHOOK_POST_STREAM", j.ID, "false", map[string]any{"output": fmt.Sprint("chunk ", n)})
		}
		result = map[string]any{"output": []any{}}
	case "progress":
		w.tell(ctx, "RUNPOD_WEBHOOK_POST_OUTPUT", j.ID, "false", map[string]any{"status": "IN_PROGRESS", "output": "half"})
		result = map[string]any{"output": j.Input}
	case "refresh":
		result = map[string]any{"output": j.Input, "stopPod": true}
	case "openai":
		stream = "true"
		chunks := openAI(j.Input)
		for _, c := range chunks {
			w.tell(ctx, "RUNPOD_WEBHOOK_POST_STREAM", j.ID, "false", map[string]any{"output": c})
		}
		result = map[string]any{"output": chunks}
	case "empty":
		result = map[string]any{}
	case "lie":
		w.lie(ctx, j.ID)
		result = map[string]any{"output": j.Input}
	default:
		result = map[string]any{"output": j.Input}
	}
	w.tell(ctx, "RUNPOD_WEBHOOK_POST_OUTPUT", j.ID, stream, result)
	if handler == "progress" { // late
		w.tell(ctx, "RUNPOD_WEBHOOK_POST_OUTPUT", j.ID, "false", map[string]any{"status": "IN_PROGRESS", "output": "late"})
	}
}

// tell posts what is to be said of a job: three tries while the answer is 5xx or none.
func (w *worker) tell(ctx context.Context, template, id, stream string, what any) {
	body, err := json.Marshal(what)
	if err != nil {
		w.Say(err.Error())
		return
	}
	for _, pause := range []time.Duration{time.Second, time.Second, 0} {
		status, _, _, err := w.ask(ctx, http.MethodPost, w.url(template, id)+"&isStream="+stream, body, 600*time.Second, id)
		switch {
		case err == nil && status < 400:
			if template == "RUNPOD_WEBHOOK_POST_OUTPUT" {
				w.Say("told " + id)
			}
			return
		case err == nil && status < 500:
			w.Say(fmt.Sprintf("Failed to return job results: %d", status))
			return
		}
		w.Say(fmt.Sprintf("tell: %d %v", status, err))
		time.Sleep(pause)
	}
}

// lie does what no library does.
func (w *worker) lie(ctx context.Context, id string) {
	for _, other := range []string{"", "..", "nobody-s", strings.Repeat("x", 4096), id + "2"} {
		w.tell(ctx, "RUNPOD_WEBHOOK_POST_OUTPUT", other, "false", map[string]any{"output": "mine"})
		w.tell(ctx, "RUNPOD_WEBHOOK_POST_STREAM", other, "false", map[string]any{"output": "mine"})
	}
	for _, url := range []string{"/", "/v2", "/v2/x/job-take/", "/v2/x/nothing/y"} {
		base, _, _ := strings.Cut(w.Env("RUNPOD_WEBHOOK_GET_JOB"), "/v2/")
		_, _, _, _ = w.ask(ctx, http.MethodPut, base+url, []byte("{"), 5*time.Second, "")
	}
}

// ping says which jobs the worker has, in its own process with the real library.
func (w *worker) ping(ctx context.Context) {
	every, _ := strconv.Atoi(w.Env("RUNPOD_PING_INTERVAL"))
	if every < 1000 {
		every = 10_000
	}
	tick := time.NewTicker(time.Duration(every) * time.Millisecond)
	defer tick.Stop()
	for {
		var ids []string
		w.mu.Lock()
		for id := range w.jobs {
			ids = append(ids, id)
		}
		w.mu.Unlock()
		url := w.url("RUNPOD_WEBHOOK_PING", "")
		if len(ids) > 0 {
			url += "&job_id=" + strings.Join(ids, ",")
		}
		_, _, _, _ = w.ask(ctx, http.MethodGet, url+"&runpod_version="+w.Library, nil, 2*time.Duration(every)*time.Millisecond, "")
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// watchStops asks which jobs to stop.
func (w *worker) watchStops(ctx context.Context, ended <-chan struct{}) {
	url := strings.Replace(w.url("RUNPOD_WEBHOOK_GET_JOB", w.Env("RUNPOD_POD_ID")), "/job-take/", "/job-stop/", 1)
	for {
		select {
		case <-ended:
			return
		default:
		}
		status, _, body, err := w.ask(ctx, http.MethodGet, url, nil, 90*time.Second, "")
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		if status != http.StatusOK {
			continue
		}
		var list struct {
			Jobs []any `json:"jobsToStop"`
		}
		if err := json.Unmarshal(body, &list); err != nil {
			w.Say("stop: " + err.Error())
			continue
		}
		w.mu.Lock()
		for _, id := range list.Jobs {
			if text, ok := id.(string); ok && w.jobs[text] != nil {
				w.jobs[text]()
			}
		}
		w.mu.Unlock()
	}
}
