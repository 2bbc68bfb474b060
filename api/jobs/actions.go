package jobs

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

// millis reads an argument in milliseconds; 0: it is not there. Errors: invalid.
func (c *call) millis(name string) (time.Duration, error) {
	text := c.r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > longest {
		return 0, invalid(fmt.Sprintf("%s must be 1 to %d milliseconds", name, longest))
	}
	return time.Duration(n) * time.Millisecond, nil
}

// wait reads for how long the caller waits.
func (c *call) wait(otherwise time.Duration) (time.Duration, error) {
	d, err := c.millis("wait")
	if d == 0 {
		return otherwise, err
	}
	return min(max(d, leastWait), longestWait), nil
}

// body reads the request's body, for which there has to be room. leave lets it go.
func (c *call) body(most int64) (body []byte, leave func(), err error) {
	size := c.r.ContentLength
	if size < 0 || size > most {
		size = most
	}
	if leave = c.room.enter(c.who.Account, size); leave == nil {
		return nil, nil, &fleet.Error{Code: fleet.CodeLimited, Msg: "too many large requests at a time", NothingDone: true}
	}
	if body, err = readBody(c.w, c.r, most); err != nil {
		leave()
		return nil, nil, err
	}
	return body, leave, nil
}

// submit reads a job request and submits it.
func (c *call) submit(most int64, sync bool) (fleet.JobView, error) {
	body, leave, err := c.body(most)
	if err != nil {
		return fleet.JobView{}, err
	}
	defer leave()
	req, err := parseJob(body, most)
	if err != nil {
		return fleet.JobView{}, err
	}
	if req.Once, err = c.once(); err != nil {
		return fleet.JobView{}, err
	}
	req.Sync = sync
	return c.cfg.Service.SubmitJob(c.r.Context(), c.who, c.endpoint, req)
}

// once reads the idempotency key.
func (c *call) once() (*fleet.Once, error) {
	switch keys := c.r.Header.Values("Idempotency-Key"); {
	case len(keys) == 0:
		return nil, nil
	case len(keys) > 1 || keys[0] == "" || len(keys[0]) > 255:
		return nil, invalid("Idempotency-Key must have 1 to 255 bytes")
	default:
		return &fleet.Once{Key: keys[0]}, nil
	}
}

func (c *call) run() error {
	v, err := c.submit(maxRun, false)
	if err == nil {
		c.write(http.StatusOK, brief(&v))
	}
	return err
}

func (c *call) runSync() error {
	wait, err := c.wait(syncWait)
	if err != nil {
		return err
	}
	v, err := c.submit(maxSync, true)
	if err != nil {
		return err
	}
	c.id = v.ID
	return c.await(wait)
}

// await answers with a job once it has ended, or the wait is over.
func (c *call) await(wait time.Duration) error {
	v, err := c.cfg.Service.AwaitJob(c.r.Context(), c.who, c.endpoint, c.id, wait)
	switch {
	case err != nil:
		return err
	case v.Ended:
		c.writeJob(recordOf(&v))
	default:
		c.write(http.StatusOK, brief(&v))
	}
	return nil
}

func (c *call) status() error {
	retention, err := c.millis("ttl")
	if err != nil {
		return err
	}
	v, err := c.cfg.Service.Job(c.r.Context(), c.who, c.endpoint, c.id, retention.Milliseconds())
	out := recordOf(&v)
	if err == nil && c.r.URL.Query().Get("input") == "true" {
		var request []byte
		request, err = c.cfg.Service.JobRequest(c.r.Context(), c.who, c.endpoint, c.id)
		_ = json.Unmarshal(request, &out) // which has the input, or is not kept any more
	}
	if err == nil {
		c.writeJob(out)
	}
	return err
}

func (c *call) statusSync() error {
	wait, err := c.wait(syncWait)
	if err != nil {
		return err
	}
	return c.await(wait)
}

func (c *call) stream() error {
	wait, err := c.wait(streamWait)
	if err != nil {
		return err
	}
	v, chunks, more, err := c.cfg.Service.StreamJob(c.r.Context(), c.who, c.endpoint, c.id, wait)
	if err != nil {
		return err
	}
	out := v2.JobStream{Status: v.Status, Stream: []json.RawMessage{}, Error: v.Error}
	if more { // callers stop at a status that is final
		out.Status, out.Error = "IN_PROGRESS", ""
	}
	for _, chunk := range chunks {
		out.Stream = append(out.Stream, chunk)
	}
	c.write(http.StatusOK, out)
	return nil
}

func (c *call) cancel() error {
	v, err := c.cfg.Service.CancelJob(c.r.Context(), c.who, c.endpoint, c.id)
	if err == nil {
		out := recordOf(&v)
		c.write(http.StatusOK, v2.Job{ID: out.ID, Status: out.Status, Delay: out.Delay, Execution: out.Execution})
	}
	return err
}

func (c *call) retry() error {
	v, err := c.cfg.Service.RetryJob(c.r.Context(), c.who, c.endpoint, c.id)
	if err == nil {
		c.write(http.StatusOK, brief(&v))
	}
	return err
}

func (c *call) purge() error {
	n, err := c.cfg.Service.PurgeJobs(c.r.Context(), c.who, c.endpoint)
	if err == nil {
		c.write(http.StatusOK, v2.JobsPurged{Removed: n, Status: "completed"})
	}
	return err
}

func (c *call) health() error {
	jobs, err := c.cfg.Service.JobCounts(c.r.Context(), c.who, c.endpoint)
	if err != nil {
		return err
	}
	workers := c.cfg.Workers(c.endpoint)
	c.write(http.StatusOK, v2.EndpointHealth{
		Jobs: v2.EndpointJobs{
			Completed: jobs.Completed, Failed: jobs.Failed, InProgress: jobs.Running, InQueue: jobs.Waiting, Retried: jobs.Retried,
		},
		Workers: v2.EndpointWorkers{
			Idle: workers.Idle, Initializing: workers.Initializing, Ready: workers.Idle + workers.Running, Running: workers.Running,
			Throttled: workers.Throttled, Unhealthy: workers.Unhealthy,
		},
	})
	return nil
}

// The pages of a list.
const defaultPage, maxPage = 100, 1000

func (c *call) list() error {
	page, err := c.page()
	if err != nil {
		return err
	}
	list, next, err := c.cfg.Service.ListJobs(c.r.Context(), c.who, c.endpoint, page)
	if err != nil {
		return err
	}
	out := v2.JobList{Requests: []v2.Job{}}
	for i := range list {
		one := recordOf(&list[i])
		one.CreatedAt = list[i].Submitted.Format(time.RFC3339Nano)
		out.Requests = append(out.Requests, one)
	}
	if next > 0 {
		out.Next = strconv.FormatUint(next, 10)
	}
	c.write(http.StatusOK, out)
	return nil
}

// page reads which jobs a list is to have.
func (c *call) page() (page fleet.JobPage, err error) {
	q := c.r.URL.Query()
	page.Limit = defaultPage
	if text := q.Get("limit"); text != "" {
		if page.Limit, err = strconv.Atoi(text); err != nil || page.Limit < 1 || page.Limit > maxPage {
			return page, invalid(fmt.Sprintf("limit must be 1 to %d", maxPage))
		}
	}
	if text := q.Get("cursor"); text != "" {
		if page.Before, err = strconv.ParseUint(text, 10, 64); err != nil || page.Before == 0 {
			return page, invalid("cursor must be the next of an earlier page")
		}
	}
	if text := q.Get("status"); text != "" {
		page.Statuses = strings.Split(text, ",")
	}
	for name, to := range map[string]*time.Time{"from": &page.From, "to": &page.To} {
		if text := q.Get(name); text != "" {
			if *to, err = time.Parse(time.RFC3339, text); err != nil {
				return page, invalid(name + " must be a time as in RFC 3339")
			}
		}
	}
	return page, nil
}
