package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestEventsGoOnBehindTheLast loses the connection behind an event, and later behind a sign of life, which names a place too.
func TestEventsGoOnBehindTheLast(t *testing.T) {
	var after []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		after = append(after, r.Header.Get("Last-Event-ID"))
		if r.URL.RequestURI() != "/admin/v1/events?id=a%2Cb&kind=host" {
			t.Error(r.URL.RequestURI())
		}
		w.Header().Set("Content-Type", "text/event-stream")
		n := len(after)
		_, _ = fmt.Fprintf(w, "id: 0-%d-1\ndata: {\"eventId\":\"0-%d-1\",\"kind\":\"host\",\"type\":\"changed\",\"record\":{\"id\":\"h\"}}\n\n", n, n)
		if n == 2 {
			_, _ = io.WriteString(w, "id: 0-77-1\n\n")
		}
	})
	stop := errors.New("enough")
	var got []string
	err := c.Events(context.Background(), EventQuery{Kinds: []string{"host"}, IDs: []string{"a", "b"}, Operator: true, After: "0-0-5"}, func(e Event) error {
		got = append(got, e.EventID)
		if !strings.Contains(string(e.Raw), `"record":{"id":"h"}`) {
			t.Error(string(e.Raw))
		}
		if len(got) == 3 {
			return stop
		}
		return nil
	}, nil)
	if !errors.Is(err, stop) || fmt.Sprint(got) != "[0-1-1 0-2-1 0-3-1]" || fmt.Sprint(after) != "[0-0-5 0-1-1 0-77-1]" {
		t.Errorf("%v: events %v, asked behind %v", err, got, after)
	}
}
