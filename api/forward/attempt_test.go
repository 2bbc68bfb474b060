package forward

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// led says that another member leads.
type led struct{ changes chan struct{} }

func (led) Leads() bool                { return false }
func (led) Leader() string             { return "leader:1" }
func (l led) Changes() <-chan struct{} { return l.changes }

// TestAnAnswerThatIsGivenUpIsNone has the leader answer just as it is given up. Nothing of its body could be passed on, so
// that its status and headers are none either: the client is told that the outcome is not known.
func TestAnAnswerThatIsGivenUpIsNone(t *testing.T) {
	for name, giveUp := range map[string]func(f *Forwarder){
		"closed": func(f *Forwarder) { f.stop() }, "deposed": func(f *Forwarder) { f.terms.end() },
	} {
		t.Run(name, func(t *testing.T) {
			f := New(Config{Member: "b", Leaders: led{make(chan struct{})}, Log: slog.New(slog.DiscardHandler)})
			defer f.Close()
			body := &closes{ReadCloser: http.NoBody}
			f.transport.RegisterProtocol("http", roundTripper(func(r *http.Request) (*http.Response, error) {
				r.Context().Value(callKey{}).(*call).sent.Store(true)
				giveUp(f)
				<-r.Context().Done()
				return &http.Response{StatusCode: http.StatusOK, Body: body, Header: http.Header{}, Request: r}, nil
			}))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			w := httptest.NewRecorder()
			f.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
			if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "outcome is not known") {
				t.Errorf("answered %d %s", w.Code, w.Body)
			}
			if !body.closed {
				t.Error("the answer's body was left open")
			}
		})
	}
}

// closes is a body that knows whether it was closed.
type closes struct {
	io.ReadCloser
	closed bool
}

func (c *closes) Close() error {
	c.closed = true
	return nil
}
