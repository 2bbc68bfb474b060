package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"gantry/api/v2"
)

// EventQuery selects events.
type EventQuery struct {
	Kinds, IDs []string // empty: all
	After      string   // id of an event: begin behind it
	Operator   bool     // those of the fleet instead of the account's
}

// Event is one event as it was sent.
type Event struct {
	v2.Event
	Raw json.RawMessage
}

// Events reads events until ctx ends or on returns an error, which it returns. A connection that drops is made again, behind the
// last event that arrived; lost is told, and may be nil. Both are called from one goroutine. The first event is of type ready
// or reset; a reset says that events are missing.
func (c *Client) Events(ctx context.Context, q EventQuery, on func(Event) error, lost func(error)) error {
	path, query := "/v2/events", url.Values{}
	if q.Operator {
		path = "/admin/v1/events"
	}
	for name, words := range map[string][]string{"kind": q.Kinds, "id": q.IDs} {
		if len(words) > 0 {
			query.Set(name, strings.Join(words, ","))
		}
	}
	r := &streamReader{client: c, last: q.After, open: func(ctx context.Context, last string) (*http.Response, error) {
		return c.openStream(ctx, path, query, last)
	}, take: func(ev event) error {
		out := Event{Raw: ev.data}
		if err := json.Unmarshal(ev.data, &out.Event); err != nil {
			return fmt.Errorf("read events: not what this API sends: %w", err)
		}
		if err := on(out); err != nil {
			return &sinkError{err}
		}
		return nil
	}}
	return r.follow(ctx, true, lost)
}
