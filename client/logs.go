package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"gantry/api/v2"
	"gantry/internal/sleep"
)

// Waits between two tries to take up a log again, and how often a log that is not followed is tried.
const (
	resumeMin   = 100 * time.Millisecond
	resumeMax   = 5 * time.Second
	resumeTries = 5
	idleMax     = 60 * time.Second // the API sends a comment every 15 s
)

var errIdle = errors.New("the API stopped answering")

// LogQuery selects lines of a pod's log.
type LogQuery struct {
	Source string    // "container", "system", or "" for both
	Tail   int       // newest lines to begin with; below 0 leaves it to the API
	Since  time.Time // zero: no bound
	Follow bool
	// Previous selects the run of the container before the newest one. It is not followed.
	Previous bool
}

// LogLine is one line of a pod's log.
type LogLine struct {
	v2.LogLine
	ID  string          // orders the lines of a pod
	Raw json.RawMessage // as it was sent
}

// LogEvents receives what happens while a log is read. Both are called from one goroutine.
type LogEvents struct {
	Line func(LogLine) error // an error ends the reading and is returned
	Lost func(error)         // the connection was lost and is made again; may be nil
}

// PodLogs reads a pod's log in order. Without Follow it returns after the last line. With Follow it returns when ctx
// ends or the pod is gone; a connection that drops is made again, after the last line that arrived.
func (c *Client) PodLogs(ctx context.Context, id string, q LogQuery, on LogEvents) error {
	return c.logs(ctx, "/v2/pods/"+word(id)+"/logs", q, on)
}

// WorkerLogs is PodLogs of a worker of an endpoint.
func (c *Client) WorkerLogs(ctx context.Context, endpoint, worker string, q LogQuery, on LogEvents) error {
	return c.logs(ctx, endpointPath(endpoint)+"/workers/"+word(worker)+"/logs", q, on)
}

// logs reads the log at a path.
func (c *Client) logs(ctx context.Context, path string, q LogQuery, on LogEvents) error {
	r := &streamReader{client: c, open: func(ctx context.Context, last string) (*http.Response, error) {
		return c.openLog(ctx, path, q, last)
	}, take: func(ev event) error { return logEvent(ev, on) }}
	return r.follow(ctx, q.Follow, on.Lost)
}

// follow reads until ctx ends or the stream does; where it is not to stay, until a first end. It reconnects behind the last event.
func (r *streamReader) follow(ctx context.Context, stay bool, lost func(error)) error {
	pause, tries := resumeMin, 0
	for {
		before := r.last
		err := r.read(ctx)
		var sink *sinkError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &sink):
			return sink.err
		case err == nil && !stay:
			return nil
		case stay && r.opened && IsNotFound(err):
			return nil // deleted since
		case err != nil && (!r.opened || !Temporary(err)):
			return err
		}
		if r.last != before {
			pause, tries = resumeMin, 0
		}
		if tries++; !stay && tries > resumeTries {
			return err
		}
		if err != nil && lost != nil && tries == 1 {
			lost(err)
		}
		if sleep.For(ctx, max(pause, r.wait)) != nil {
			return context.Cause(ctx)
		}
		pause = min(2*pause, resumeMax)
	}
}

// sinkError marks an error of the receiver, which must not be taken for one of the connection.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }

// streamReader reads one stream of server-sent events over as many connections as it takes.
type streamReader struct {
	client *Client
	open   func(ctx context.Context, last string) (*http.Response, error)
	take   func(event) error

	opened bool          // the API answered with a stream at least once
	last   string        // id of the last event that arrived
	wait   time.Duration // that the API asked for before the next connection
}

// read reads one connection's worth.
func (r *streamReader) read(ctx context.Context) error {
	r.wait = 0
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	res, err := r.open(ctx, r.last)
	if err != nil {
		var problem *Problem
		if errors.As(err, &problem) {
			r.wait = problem.RetryAfter
		}
		return err
	}
	defer func() { _ = res.Body.Close() }() // not drained: a followed log has no end
	r.opened = true
	silence := time.AfterFunc(idleMax, func() { cancel(errIdle) })
	defer silence.Stop()
	body := readFunc(func(p []byte) (int, error) {
		n, err := res.Body.Read(p)
		silence.Reset(idleMax)
		return n, err
	})
	for events := newEventReader(body); ; {
		ev, err := events.next()
		switch {
		case err != nil && errors.Is(context.Cause(ctx), errIdle):
			return &Unreachable{Address: r.client.Address(), Err: errIdle}
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errEventTooLong):
			return err
		case err != nil:
			return &Unreachable{Address: r.client.Address(), Err: err}
		}
		if err := r.event(ev); err != nil {
			return err
		}
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func (r *streamReader) event(ev event) error {
	if ev.retry > 0 {
		r.wait = min(ev.retry, resumeMax)
	}
	if ev.kind == "error" {
		return eventProblem(ev.data)
	}
	if len(ev.data) > 0 {
		if err := r.take(ev); err != nil {
			return err
		}
	}
	r.last = ev.id
	return nil
}

func logEvent(ev event, on LogEvents) error {
	if ev.kind != "" && ev.kind != "message" {
		return nil
	}
	line := LogLine{ID: ev.id, Raw: ev.data}
	if err := json.Unmarshal(ev.data, &line.LogLine); err != nil {
		return fmt.Errorf("read the log: not what this API sends: %w", err)
	}
	if err := on.Line(line); err != nil {
		return &sinkError{err}
	}
	return nil
}

// eventProblem is a failure that the API found after it had begun to answer.
func eventProblem(data []byte) error {
	p := &Problem{}
	if json.Unmarshal(data, &p.Problem) != nil || p.Detail == "" {
		p = &Problem{Problem: v2.Problem{Detail: "The log ended early."}}
	}
	if p.Status == 0 {
		p.Status = http.StatusServiceUnavailable
	}
	return p
}

func (c *Client) openLog(ctx context.Context, path string, q LogQuery, last string) (*http.Response, error) {
	query := url.Values{"follow": {strconv.FormatBool(q.Follow)}}
	if q.Previous {
		query.Set("previous", "true")
	}
	if q.Source != "" {
		query.Set("source", q.Source)
	}
	if q.Tail >= 0 {
		query.Set("tail", strconv.Itoa(q.Tail))
	}
	if !q.Since.IsZero() {
		query.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	return c.openStream(ctx, path, query, last)
}

// openStream opens a stream of server-sent events behind the last one that arrived.
func (c *Client) openStream(ctx context.Context, path string, query url.Values, last string) (*http.Response, error) {
	req, err := c.request(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	res, err := c.send(req)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "text/event-stream" {
		defer drain(res)
		return nil, fmt.Errorf("read the stream: the answer of %s is not an event stream", c.Address())
	}
	return res, nil
}
