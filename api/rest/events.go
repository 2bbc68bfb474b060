package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// EventService knows what changes.
type EventService interface {
	// Events begins to watch events of the caller's account, or operators' where the query says so.
	Events(ctx context.Context, who fleet.Principal, q fleet.EventQuery) (fleet.EventReader, error)
}

const (
	maxWatches      = 32   // of one account
	maxAllWatches   = 2048 // of all accounts
	reservedWatches = 512  // of these, for accounts that have none
	maxEventIDs     = 100
)

const textEvents = "Streams what changes as server-sent events, from now on or, with Last-Event-ID, from behind that event. Each has `id` and " +
	"`data: {\"eventId\",\"kind\",\"id\",\"parentId\",\"type\",\"at\",\"status\",\"reason\",\"record\"}`: type is created, changed or deleted, and record the object " +
	"as GET shows it when the event is sent, or null. The first event is named ready; or reset, when events are missing: read again " +
	"what you keep. A reset may also come later, to a reader that is too slow. An `id` without data, every 15 seconds, is where to go on from. When " +
	"the stream cannot go on, an event named error with a problem is the last one. An event may come twice, never too few times.\n\n"

func (a *API) registerEvents() {
	kinds := slices.Sorted(maps.Keys(fleet.EventKinds()))
	a.registerEventStream(route{
		path: "/v2/events", id: "getEvents", tag: "Account", summary: "Follow what changes in the account",
		text: textEvents + "Without kind, of all kinds that the key may read. 403: it may read none of those asked for. 429: the account has 32 streams " +
			"of events, or all accounts 2048.",
		scope: auth.Read(fleet.GroupAccount),
	}, kinds, false)
	a.registerEventStream(route{
		path: "/admin/v1/events", id: "getOperatorEvents", tag: "Operators", summary: "Follow what changes in the fleet",
		text: textEvents, scope: auth.Read(fleet.GroupAdmin),
	}, fleet.OperatorEventKinds(), true)
}

func (a *API) registerEventStream(rt route, kinds []fleet.EventKind, operator bool) {
	words := make([]string, len(kinds))
	for i, k := range kinds {
		words[i] = string(k)
	}
	form := huma.Schema{Type: huma.TypeString, Pattern: fleet.EventPlaceForm, PatternDescription: "the id of an event"}
	rt.method, rt.limit, rt.status, rt.errors = http.MethodGet, limit.PerAccount, http.StatusOK, []int{http.StatusTooManyRequests}
	rt.params = []*huma.Param{
		listParam("kind", "Only events of these kinds.", len(kinds), words...),
		listParam("id", "Only events of objects with these ids, and of what is part of them.", maxEventIDs),
		{Name: "Last-Event-ID", In: "header", Description: "Begin behind the event with this id.", Schema: &form},
	}
	op := a.declare(rt)
	op.Extensions["x-gantry"] = true
	op.Responses["200"] = &huma.Response{
		Description: "The events.",
		Content: map[string]*huma.MediaType{logMediaType: {
			Schema: &huma.Schema{Type: huma.TypeString},
			Example: "id: 0-4711-1\ndata: {\"eventId\":\"0-4711-1\",\"kind\":\"pod\",\"id\":\"p7x1c9v2b6n8e4\",\"parentId\":null,\"type\":\"deleted\"," +
				"\"at\":\"2026-10-01T12:00:00.000Z\",\"status\":\"TERMINATED\",\"reason\":null,\"record\":null}\n\n",
		}},
	}
	a.serve(op, rt, func(ctx context.Context, c *call) error {
		q, err := c.eventQuery(kinds, operator)
		if err != nil {
			return err
		}
		return a.sendEvents(ctx, c, q)
	})
}

// eventQuery reads which events are asked for. Errors: forbidden.
func (c *call) eventQuery(kinds []fleet.EventKind, operator bool) (fleet.EventQuery, error) {
	q := fleet.EventQuery{Objects: c.args["id"], Operator: operator}
	if at, ok := fleet.ParseEventPlace(c.args.text("Last-Event-ID")); ok {
		q.After = &at
	}
	var err error
	q.Kinds, err = c.eventKinds(kinds, c.args["kind"], operator)
	return q, err
}

// eventKinds returns those kinds that are asked for; without any, all that the key may read. Errors: forbidden.
func (c *call) eventKinds(kinds []fleet.EventKind, asked []string, operator bool) (out []fleet.EventKind, err error) {
	for _, kind := range kinds {
		if len(asked) > 0 && !slices.Contains(asked, string(kind)) {
			continue
		}
		if operator || c.who.May(fleet.EventKinds()[kind], fleet.AccessRead) {
			out = append(out, kind)
		} else if len(asked) > 0 {
			return nil, fleet.Forbidden("this key lacks " + auth.Read(fleet.EventKinds()[kind]).String())
		}
	}
	if len(out) == 0 {
		return nil, fleet.Forbidden("this key may read nothing that has events")
	}
	return out, nil
}

// sendEvents answers with events until the reader is gone, the API closes, or the key may not read them any more.
func (a *API) sendEvents(ctx context.Context, c *call, q fleet.EventQuery) error {
	if !a.watches.take(c.who.Account) {
		return &fleet.Error{Code: fleet.CodeLimited, Msg: fmt.Sprintf("the account follows events more than %d times, or all accounts together do", maxWatches)}
	}
	defer a.watches.give(c.who.Account)
	reader, err := part[EventService](a).Events(ctx, c.who, q)
	if err != nil {
		return err
	}
	defer reader.Close()
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // else the server ends the request after its read limit
	var closing sync.WaitGroup
	defer closing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closing.Go(func() {
		select {
		case <-a.closed:
			cancel()
		case <-ctx.Done():
		}
	})
	s := &stream{w: c.w, rc: http.NewResponseController(c.w)}
	for {
		wait, stop := context.WithTimeout(ctx, a.pace.ping)
		events, err := reader.Next(wait)
		stop()
		switch {
		case ctx.Err() != nil || c.r.Method == http.MethodHead:
			return s.end(ctx, nil)
		case errors.Is(err, context.DeadlineExceeded):
			if err = a.stillMay(ctx, c, q); err == nil {
				err = s.write("id: " + reader.Place().String() + "\n\n")
			}
		default:
			err = a.writeEvents(ctx, c, s, events, q.Operator)
		}
		var gone *goneError
		if errors.As(err, &gone) {
			return nil
		}
		if err != nil {
			return s.end(ctx, err)
		}
	}
}

// stillMay refuses to go on when the caller is another now, or may not read all that is asked for any more.
func (a *API) stillMay(ctx context.Context, c *call, q fleet.EventQuery) error {
	who, err := a.again(ctx, c)
	for _, kind := range q.Kinds {
		if err == nil && !q.Operator {
			err = auth.Require(who, auth.Read(fleet.EventKinds()[kind]))
		}
	}
	return err
}

// goneError marks an error of a reader that is gone or too slow.
type goneError struct{ error }

// writeEvents writes events, each object's with the record that it has now.
func (a *API) writeEvents(ctx context.Context, c *call, s *stream, events []fleet.Event, operator bool) error {
	type object struct {
		kind   fleet.EventKind
		id     string
		parent string
	}
	records := map[object]any{}
	for i := range events {
		e := &events[i]
		out, name := eventRecord(e), ""
		if e.Kind == "" {
			name = "event: " + string(e.Type) + "\n"
		} else if e.Type != fleet.EventDeleted {
			of := object{e.Kind, e.Object, e.Parent}
			record, known := records[of]
			if !known {
				var err error
				if record, err = a.recordOf(ctx, c, e, operator); err != nil {
					return err
				}
				records[of] = record
			}
			out.Record = record
		}
		data, err := json.Marshal(out)
		if err != nil {
			return fmt.Errorf("encode event: %w", err)
		}
		if err := s.write("id: " + e.Place.String() + "\n" + name + "data: " + string(data) + "\n\n"); err != nil {
			return &goneError{err}
		}
	}
	return nil
}

// EventsBody is what a webhook is called with: events without the objects' records.
func EventsBody(events []fleet.Event) ([]byte, error) {
	out := struct {
		Events []v2.Event `json:"events"`
	}{make([]v2.Event, len(events))}
	for i := range events {
		out.Events[i] = eventRecord(&events[i])
	}
	return json.Marshal(out)
}

// eventRecord is an event without the object's record.
func eventRecord(e *fleet.Event) v2.Event {
	return v2.Event{
		EventID: e.Place.String(), Kind: string(e.Kind), ID: e.Object, Parent: v2.Text(e.Parent), Type: string(e.Type),
		At: v2.AtOrNull(e.At), Status: v2.Text(e.Status), Reason: v2.Text(e.Reason),
	}
}

// recordOf returns an event's object as GET shows it; nil where it is gone, or the key may not see it, or nothing shows one.
func (a *API) recordOf(ctx context.Context, c *call, e *fleet.Event, operator bool) (any, error) {
	var record any
	var err error
	if e.Kind == fleet.EventWorker {
		record, err = a.workerOf(ctx, c.who, e)
	} else if id := eventOperation(e.Kind, operator); id != "" {
		caller := &Caller{Who: c.who, api: a, r: c.r, w: &discard{header: http.Header{}}}
		record, err = caller.Call(ctx, id, url.Values{"id": {e.Object}}, nil)
	}
	if code := fleet.CodeOf(err); code == fleet.CodeNotFound || code == fleet.CodeForbidden {
		return nil, nil
	}
	return record, err
}

// eventOperation is the operation that shows the objects of events of a kind; empty: there is none.
func eventOperation(kind fleet.EventKind, operator bool) string {
	if operator && kind == fleet.EventAccount {
		return "getAccountById"
	}
	return map[fleet.EventKind]string{
		fleet.EventPod: "getPod", fleet.EventEndpoint: "getEndpoint", fleet.EventVolume: "getNetworkVolume", fleet.EventTemplate: "getTemplate",
		fleet.EventRegistry: "getRegistry", fleet.EventKey: "getKey", fleet.EventSSHKeys: "getSshKeys", fleet.EventAccount: "getAccount",
		fleet.EventBalance: "getAccount", fleet.EventLowBalance: "getAccount", fleet.EventHost: "getHost", fleet.EventBackend: "getBackend", fleet.EventCluster: "getInstantCluster",
	}[kind]
}

// workerOf returns the record of a worker; nil when it has ended.
func (a *API) workerOf(ctx context.Context, who fleet.Principal, e *fleet.Event) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, a.callTimeout)
	defer cancel()
	of, err := part[EndpointService](a).EndpointWorkers(ctx, who, fleet.EndpointID(e.Parent))
	if err != nil {
		return nil, err
	}
	for i := range of.Workers {
		if w := &of.Workers[i]; string(w.Pod.ID) == e.Object {
			return workerRecord(w, a.now()), nil
		}
	}
	return nil, nil
}
