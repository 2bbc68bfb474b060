package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

// SubmitJob submits a job of up to 10 MB, whose result is kept for half an hour after its end.
func (c *Client) SubmitJob(ctx context.Context, endpoint string, body v2.JobRequest) (Answer[v2.Job], error) {
	return create[v2.Job](ctx, c, jobPath(endpoint, "run"), body)
}

// RunJob submits a job of up to 20 MB, whose result is kept for a minute after its end, and waits for that. After wait, 1 s to 5 s, it
// answers with the job as it is.
func (c *Client) RunJob(ctx context.Context, endpoint string, body v2.JobRequest, wait time.Duration) (Answer[v2.Job], error) {
	return exchange[v2.Job](ctx, c, ask{
		method: http.MethodPost, path: jobPath(endpoint, "runsync"), query: waitFor(wait), body: body, key: c.onceKey(),
	})
}

// Job reads a job. 404 also says that it ended too long ago.
func (c *Client) Job(ctx context.Context, endpoint, id string) (Answer[v2.Job], error) {
	return call[v2.Job](ctx, c, http.MethodGet, jobPath(endpoint, "status", id), nil, nil)
}

// JobWithInput is Job with the job's input, unless the job has completed or was cancelled.
func (c *Client) JobWithInput(ctx context.Context, endpoint, id string) (Answer[v2.Job], error) {
	return call[v2.Job](ctx, c, http.MethodGet, jobPath(endpoint, "status", id), url.Values{"input": {"true"}}, nil)
}

// StreamJob returns the chunks of a job that nobody was given before. It waits for one up to wait, 1 s to 4 s.
func (c *Client) StreamJob(ctx context.Context, endpoint, id string, wait time.Duration) (Answer[v2.JobStream], error) {
	return call[v2.JobStream](ctx, c, http.MethodGet, jobPath(endpoint, "stream", id), waitFor(wait), nil)
}

// CancelJob ends a job that has not ended.
func (c *Client) CancelJob(ctx context.Context, endpoint, id string) (Answer[v2.Job], error) {
	return call[v2.Job](ctx, c, http.MethodPost, jobPath(endpoint, "cancel", id), nil, nil)
}

// RetryJob puts a job that failed, or timed out, back into the queue.
func (c *Client) RetryJob(ctx context.Context, endpoint, id string) (Answer[v2.Job], error) {
	return call[v2.Job](ctx, c, http.MethodPost, jobPath(endpoint, "retry", id), nil, nil)
}

// PurgeJobs removes the jobs that wait; those that run go on.
func (c *Client) PurgeJobs(ctx context.Context, endpoint string) (Answer[v2.JobsPurged], error) {
	return call[v2.JobsPurged](ctx, c, http.MethodPost, jobPath(endpoint, "purge-queue"), nil, nil)
}

// JobFilter selects a page of an endpoint's jobs; the zero value is the first page of all, as long as the API makes it.
type JobFilter struct {
	Statuses []string  // any of these
	From, To time.Time // of the submission; zero: no bound
	Limit    int       // 1 to 1000; 0: the API's
	Cursor   string    // Next of the page before
}

// Jobs lists jobs of an endpoint, the newest first.
func (c *Client) Jobs(ctx context.Context, endpoint string, f JobFilter) (Answer[v2.JobList], error) {
	q := url.Values{}
	joined(q, "status", f.Statuses)
	setMoment(q, "from", f.From)
	setMoment(q, "to", f.To)
	setNumber(q, "limit", f.Limit)
	setText(q, "cursor", f.Cursor)
	return call[v2.JobList](ctx, c, http.MethodGet, jobPath(endpoint, "requests"), q, nil)
}

// EndpointHealth counts an endpoint's jobs and workers.
func (c *Client) EndpointHealth(ctx context.Context, endpoint string) (Answer[v2.EndpointHealth], error) {
	return call[v2.EndpointHealth](ctx, c, http.MethodGet, jobPath(endpoint, "health"), nil, nil)
}

func jobPath(endpoint string, words ...string) string {
	out := "/v2/" + word(endpoint)
	for _, w := range words {
		out += "/" + word(w)
	}
	return out
}

// isJobPath reports whether a path is of the jobs of an endpoint, where errors have a form of their own.
func isJobPath(path string) bool {
	_, rest, ok := strings.Cut(path, "/v2/")
	id, _, more := strings.Cut(rest, "/")
	return ok && more && fleet.ValidID(id)
}

func waitFor(d time.Duration) url.Values {
	return url.Values{"wait": {strconv.FormatInt(d.Milliseconds(), 10)}}
}

func setMoment(q url.Values, name string, t time.Time) {
	if !t.IsZero() {
		q.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}
