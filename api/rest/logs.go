package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/api/v2"
	"gantry/fleet"
)

const (
	defaultTail  = 100
	maxTail      = 5000
	keepAlive    = 15 * time.Second
	firstLine    = 250 * time.Millisecond // an error within it still gets its own status
	streamWrite  = 30 * time.Second       // for one write to a reader
	maxStreams   = 64                     // per account
	eventIDForm  = `^[0-9TZ:.+-]{1,40}(/[0-9]{1,20})?$`
	logMediaType = "text/event-stream"
)

const (
	textLogs = "Each event has `id: <time>/<sequence>` and " +
		"`data: {\"source\":\"container|system\",\"line\":\"…\",\"ts\":\"…\"}`. Last-Event-ID beats since, which beats tail. The stream stays open " +
		"for new lines unless follow=false; a comment is sent every 15 seconds. When the log fails after it began, an event named error " +
		"with a problem as its data is the last one; so it does when the key or the session ends.\n\n"
	textLogErrors = " 429: the account follows more than 64 logs. 503: the host cannot be reached."
)

func (a *API) registerLogs() {
	a.registerLog(route{
		path: "/v2/pods/{id}/logs", id: "getPodLogs", tag: "Pods", summary: "Read or follow a pod's log",
		text: "Streams the pod's log as server-sent events. " + textLogs +
			"404: there is no such pod. 409: the pod is terminated, and its log is gone; or there is no previous run in it." + textLogErrors,
		scope: logScope, errors: []int{http.StatusConflict}, params: []*huma.Param{
			podIDParam(), flagParam("previous", "Only lines of the run of the container before the newest one, to its end: nothing is followed.", false),
		},
	}, a.podLogs)
}

// registerLog registers a route that streams a log; it names what is particular to it.
func (a *API) registerLog(rt route, f func(context.Context, *call) error) {
	idForm := huma.Schema{Type: huma.TypeString, Pattern: eventIDForm, PatternDescription: "an event id"}
	rt.method, rt.limit, rt.status, rt.errors = http.MethodGet, limit.PerAccount, http.StatusOK, append(rt.errors, http.StatusTooManyRequests)
	rt.params = append(rt.params,
		wordParam("source", "Only lines of the container, or of the system. Omitted: both.", "container", "system"),
		countParam("tail", "Begin with this many last lines, 0 to 5000. Default 100.", 0, maxTail),
		queryParam("since", "Begin with the lines at or after this moment (RFC 3339).", huma.Schema{Type: huma.TypeString, Format: "date-time"}),
		flagParam("follow", "Stay open for new lines.", true),
		&huma.Param{Name: "Last-Event-ID", In: "header", Description: "Begin after the event with this id.", Schema: &idForm},
	)
	op := a.declare(rt)
	op.Responses["200"] = &huma.Response{
		Description: "The log.",
		Content: map[string]*huma.MediaType{logMediaType: {
			Schema:  &huma.Schema{Type: huma.TypeString},
			Example: "id: 2026-10-01T12:00:00.000Z/1\ndata: {\"source\":\"container\",\"line\":\"ready\",\"ts\":\"2026-10-01T12:00:00.000Z\"}\n\n",
		}},
	}
	a.serve(op, rt, f)
}

func (a *API) podLogs(ctx context.Context, c *call) error {
	id, err := pathID[fleet.PodID](c, "pod")
	if err != nil {
		return err
	}
	q := c.logQuery()
	if q.Previous = c.args.flag("previous", false); q.Previous {
		q.Follow = false
	}
	return a.sendLog(ctx, c, func(ctx context.Context, sink fleet.LogSink) error {
		return part[InsideService](a).PodLogs(ctx, c.who, id, q, sink)
	})
}

// logQuery reads which lines of a log are asked for.
func (c *call) logQuery() fleet.LogQuery {
	return fleet.LogQuery{
		Source: c.args.text("source"), Tail: c.args.number("tail", defaultTail), Since: c.args.time("since"),
		After: c.args.text("Last-Event-ID"), Follow: c.args.flag("follow", true) && c.r.Method != http.MethodHead,
	}
}

// sendLog answers with what read gives to its sink.
func (a *API) sendLog(ctx context.Context, c *call, read func(context.Context, fleet.LogSink) error) error {
	if !a.streams.take(c.who.Account) {
		return &fleet.Error{Code: fleet.CodeLimited, Msg: fmt.Sprintf("the account follows more than %d logs", maxStreams)}
	}
	defer a.streams.give(c.who.Account)
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // else the server ends the request after its read limit

	ctx, cancel := context.WithCancel(ctx)
	lines, ended, refused := make(chan fleet.LogLine), make(chan error, 1), make(chan error, 1)
	var watch sync.WaitGroup
	watch.Go(func() { refused <- a.untilRefused(ctx, c) })
	go func() { // ends when cancelled, and is waited for
		ended <- read(ctx, func(l fleet.LogLine) error {
			select {
			case lines <- l:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		close(ended)
	}()
	defer func() {
		cancel()
		watch.Wait()
		for range ended { // closed when the goroutine is done
			continue
		}
	}()
	s := &stream{w: c.w, rc: http.NewResponseController(c.w)}
	return copyLines(ctx, s, lines, ended, refused)
}

// copyLines writes lines until the log ends, or the reader is gone or refused. It returns an error only while nothing was written.
func copyLines(ctx context.Context, s *stream, lines <-chan fleet.LogLine, ended, refused <-chan error) error {
	begin, idle := time.NewTimer(firstLine), time.NewTicker(keepAlive)
	defer begin.Stop()
	defer idle.Stop()
	for {
		var err error
		select {
		case l := <-lines:
			err = s.line(l)
		case <-begin.C:
			err = s.begin()
		case <-idle.C:
			err = s.write(": keep-alive\n\n")
		case <-ctx.Done():
			return nil
		case err := <-refused:
			if errors.Is(err, errClosing) {
				return nil
			}
			return s.end(ctx, err)
		case err := <-ended:
			return s.end(ctx, err)
		}
		if err != nil { // the reader is gone or too slow
			return nil //nolint:nilerr // nobody is left to tell
		}
	}
}

// stream is one reader of a log.
type stream struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func (s *stream) begin() error {
	if s.begun {
		return nil
	}
	s.begun = true
	s.extend()
	h := s.w.Header()
	h.Set("Content-Type", logMediaType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	s.w.WriteHeader(http.StatusOK)
	return s.rc.Flush()
}

// extend gives the reader time for what is written next; only tests write to something else than a
// connection, which does not support it.
func (s *stream) extend() { _ = s.rc.SetWriteDeadline(time.Now().Add(streamWrite)) }

func (s *stream) write(text string) error {
	if err := s.begin(); err != nil {
		return err
	}
	s.extend()
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.rc.Flush()
}

func (s *stream) line(l fleet.LogLine) error {
	data, err := json.Marshal(v2.LogLine{Source: l.Source, Line: l.Line, At: v2.At(l.At)})
	if err != nil {
		return err
	}
	return s.write("id: " + oneLine(l.ID) + "\ndata: " + string(data) + "\n\n")
}

// end closes the log. An error that comes before anything was written is the answer itself.
func (s *stream) end(ctx context.Context, err error) error {
	switch {
	case err != nil && !s.begun:
		return err
	case err != nil:
		data, merr := json.Marshal(problem.From(err, problem.RequestID(ctx)))
		if merr == nil {
			_ = s.write("event: error\ndata: " + string(data) + "\n\n")
		}
	default:
		_ = s.begin()
	}
	return nil
}

func oneLine(id string) string {
	return strings.NewReplacer("\n", "", "\r", "", "\x00", "").Replace(id)
}
