// Package jobs is the face of queue endpoints: /v2/{endpoint}/run and what belongs to it (interface.md, "Queue-based endpoint
// operations"; wire-facts.md, §2). It reads requests, bounds them and writes answers; what they mean is the service's.
//
// Errors on this plane are objects with one member, error. A key may come bare or after "Bearer".
package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gantry/api/auth"
	"gantry/api/v2"
	"gantry/fleet"
)

// Service has the jobs; see scheduler.Service.
type Service interface {
	SubmitJob(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, req fleet.JobRequest) (fleet.JobView, error)
	Job(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, id string, retention int64) (fleet.JobView, error)
	JobRequest(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, id string) ([]byte, error)
	AwaitJob(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, id string, wait time.Duration) (fleet.JobView, error)
	StreamJob(
		ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, id string, wait time.Duration,
	) (view fleet.JobView, chunks [][]byte, more bool, err error)
	CancelJob(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, id string) (fleet.JobView, error)
	RetryJob(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, id string) (fleet.JobView, error)
	PurgeJobs(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID) (int, error)
	JobCounts(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID) (fleet.JobCounts, error)
	ListJobs(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, page fleet.JobPage) (jobs []fleet.JobView, next uint64, err error)
}

// Config is what an API is made from.
type Config struct {
	Service Service
	Keys    auth.Keys
	// Workers returns the numbers of an endpoint's workers.
	Workers func(fleet.EndpointID) fleet.WorkerCounts
	// PerWorker is how many requests in ten seconds, and at a time, each running worker adds to the limits.
	PerWorker int
	Log       *slog.Logger
	Now       func() time.Time // nil: time.Now
}

// How long requests are held (wire-facts.md, §2.2).
const (
	leastWait   = time.Second
	longestWait = 300 * time.Second
	syncWait    = 90 * time.Second
	streamWait  = 5 * time.Second
	openAIWait  = 30 * time.Second // between looks at whether the caller is still there
)

// API serves the jobs of queue endpoints.
type API struct {
	cfg      Config
	counters counters
	room     room
}

// New returns an API.
func New(cfg Config) *API {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &API{
		cfg: cfg, counters: counters{perWorker: cfg.PerWorker, now: cfg.Now, all: map[counterKey]*counter{}},
		room: room{of: map[fleet.AccountID]int64{}},
	}
}

// call is one request.
type call struct {
	*API
	w        http.ResponseWriter
	r        *http.Request
	who      fleet.Principal
	endpoint fleet.EndpointID
	id       string // of the job, or the rest of the path
}

// action is what a path asks for.
type action struct {
	methods string // separated by spaces
	op      operation
	named   bool // the path ends with the id of a job
	do      func(*call) error
}

// actions has the paths behind the endpoint's id. Health has no limit but those of the connection.
var actions = map[string]action{
	"run":         {"POST", opRun, false, (*call).run},
	"runsync":     {"POST", opRunSync, false, (*call).runSync},
	"status":      {"GET POST", opStatus, true, (*call).status},
	"status-sync": {"GET POST", opStatus, true, (*call).statusSync},
	"stream":      {"GET POST", opStream, true, (*call).stream},
	"cancel":      {"POST", opCancel, true, (*call).cancel},
	"retry":       {"POST", opCancel, true, (*call).retry},
	"purge-queue": {"POST", opPurge, false, (*call).purge},
	"health":      {"GET", opStatus, false, (*call).health},
	"requests":    {"GET", opList, false, (*call).list},
	"openai":      {"GET POST", opOpenAI, true, (*call).openAI},
}

// parsePath cuts /v2/{endpoint}/{name}/{rest}.
func parsePath(path string) (endpoint fleet.EndpointID, name, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, "/v2/")
	if !ok {
		return "", "", "", false
	}
	id, path, _ := strings.Cut(path, "/")
	name, rest, _ = strings.Cut(path, "/")
	_, known := actions[name]
	return fleet.EndpointID(id), name, rest, fleet.ValidID(id) || known && fleet.ValidModelID(id)
}

// Owns reports whether a path is one of an endpoint's, or of a public model's, rather than of the rest of the API.
func Owns(path string) bool {
	_, _, _, ok := parsePath(path)
	return ok
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	endpoint, name, rest, ok := parsePath(r.URL.Path)
	do, known := actions[name]
	c := &call{API: a, w: w, r: r, endpoint: endpoint, id: rest}
	var err error
	switch {
	case !ok || !known || do.named != (rest != "") || do.named && do.op != opOpenAI && strings.Contains(rest, "/"):
		err = &fleet.Error{Code: fleet.CodeNotFound, Msg: "not allowed for QB API"}
	case !strings.Contains(" "+do.methods+" ", " "+r.Method+" "):
		w.Header().Set("Allow", strings.ReplaceAll(do.methods, " ", ", "))
		c.write(http.StatusMethodNotAllowed, v2.JobProblem{Error: "method not allowed"})
		return
	default:
		ctx := fleet.WithFresh(r.Context())
		c.r = r.WithContext(ctx)
		err = c.serve(ctx, do)
	}
	if err != nil {
		c.fail(err)
	}
}

// serve finds out who asks, and counts the request.
func (c *call) serve(ctx context.Context, do action) (err error) {
	if c.who, err = c.principal(ctx); err != nil {
		return err
	}
	leave, wait := c.counters.enter(counterKey{c.who.Account, c.endpoint, do.op}, c.cfg.Workers(c.endpoint).Running)
	if leave == nil {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		return &fleet.Error{Code: fleet.CodeLimited, Msg: "too many requests", NothingDone: true}
	}
	defer leave()
	return do.do(c)
}

// principal finds out who asks. Errors: unauthorized.
func (c *call) principal(ctx context.Context) (fleet.Principal, error) {
	refused := &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the API key is missing or wrong"}
	values := c.r.Header.Values("Authorization")
	if len(values) != 1 {
		return fleet.Principal{}, refused
	}
	key := KeyOf(values[0])
	if !fleet.ValidAPIKey(key) {
		return fleet.Principal{}, refused
	}
	return c.cfg.Keys.Authenticate(ctx, fleet.Secret(key))
}

// KeyOf takes the key out of Authorization.
func KeyOf(value string) string {
	if scheme, token, ok := strings.Cut(value, " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimLeft(token, " ")
	}
	return value
}

// StatusOf is the status of an error on this plane.
func StatusOf(code fleet.Code) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// Split cuts /v2/{endpoint}/{path}, and leaves path with its slash.
func Split(path string) (endpoint fleet.EndpointID, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, "/v2/")
	id, rest, _ := strings.Cut(path, "/")
	return fleet.EndpointID(id), "/" + rest, ok && fleet.ValidID(id)
}

// Reserved reports whether a path below an endpoint's is one of this face for endpoints of all types. Those of OpenAI's API are a
// worker's own where there is no queue.
func Reserved(path string) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	_, known := actions[name]
	return known && name != "openai"
}

// statuses are those of this plane where they differ from 500.
var statuses = map[fleet.Code]int{
	fleet.CodeUnauthorized: http.StatusUnauthorized, fleet.CodeForbidden: http.StatusUnauthorized, fleet.CodeSuspended: http.StatusForbidden,
	fleet.CodeNotFound: http.StatusNotFound, fleet.CodeLimited: http.StatusTooManyRequests, fleet.CodeNoCredit: http.StatusPaymentRequired,
	fleet.CodeUnavailable: http.StatusServiceUnavailable, fleet.CodeInvalid: http.StatusBadRequest, fleet.CodeConflictRule: http.StatusBadRequest,
	fleet.CodeNotAllowed: http.StatusBadRequest, fleet.CodeTooLarge: http.StatusBadRequest, fleet.CodeExists: http.StatusConflict,
}

// fail writes an error.
func (c *call) fail(err error) {
	var why *fleet.Error
	if !errors.As(err, &why) {
		if c.r.Context().Err() != nil { // nobody reads it
			return
		}
		c.cfg.Log.Error("a request about a job failed", "endpoint", string(c.endpoint), "err", err)
		c.write(http.StatusInternalServerError, v2.JobProblem{Error: "internal error"})
		return
	}
	status := StatusOf(why.Code)
	if (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) && c.w.Header().Get("Retry-After") == "" {
		c.w.Header().Set("Retry-After", "1")
	}
	text := why.Msg
	if len(why.Details) > 0 {
		text = strings.Join(why.Details, "; ")
	}
	c.write(status, v2.JobProblem{Error: text})
}

// write writes an answer in JSON.
func (c *call) write(status int, body any) {
	data, err := json.Marshal(body)
	if err != nil { // what a worker sent is no JSON
		c.cfg.Log.Error("write an answer about a job", "endpoint", string(c.endpoint), "err", err)
		status, data = http.StatusInternalServerError, []byte(`{"error":"internal error"}`)
	}
	c.send(status, data)
}

// send writes an answer of pieces of JSON.
func (c *call) send(status int, pieces ...[]byte) {
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(size))
	c.w.WriteHeader(status)
	for _, p := range pieces {
		_, _ = c.w.Write(p)
	}
}

// largeOutput is from how many bytes on an output is written as it was kept. It was found to be JSON then; to check and copy 20 MB of it
// once more costs as much as all else about the job.
const largeOutput = 64 << 10

// writeJob writes a job.
func (c *call) writeJob(j v2.Job) {
	output := j.Output
	if len(output) < largeOutput {
		c.write(http.StatusOK, j)
		return
	}
	j.Output = json.RawMessage("0") // takes its place; in a string there would be a backslash before the quotation mark
	data, _ := json.Marshal(j)      // its members can all be written
	before, after, _ := bytes.Cut(data, []byte(`"output":0`))
	c.send(http.StatusOK, append(before, `"output":`...), output, after)
}

// recordOf shows a job.
func recordOf(v *fleet.JobView) v2.Job {
	ms := func(d *time.Duration) *int64 {
		if d == nil {
			return nil
		}
		n := d.Milliseconds()
		return &n
	}
	return v2.Job{
		ID: v.ID, Status: v.Status, Delay: ms(v.Delay), Execution: ms(v.Execution), Worker: string(v.Worker), Output: v.Output, Error: v.Error,
		Retries: max(0, v.Attempts-1), Reason: v.Reason, Attempts: v.Attempts,
	}
}

// brief is a job of which nothing more is to be said.
func brief(v *fleet.JobView) v2.Job { return v2.Job{ID: v.ID, Status: v.Status, Reason: v.Reason} }
