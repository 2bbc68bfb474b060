package scrape

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"gantry/test/metricstable"
)

// TestRequestsAreCountedOnce: by the first status that is an answer, whatever way it is begun.
func TestRequestsAreCountedOnce(t *testing.T) {
	for _, tt := range []struct {
		code string
		h    http.HandlerFunc
	}{
		{"200", func(http.ResponseWriter, *http.Request) {}},
		{"206", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write([]byte("x"))
		}},
		{"101", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}},
		{"other", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) }}, // a pod's page may answer with any number
		{"none", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		registry := prometheus.NewRegistry()
		q := NewRequests(registry, "test")
		counted := make(chan struct{}, 2) // the client may ask again
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { counted <- struct{}{} }()
			q.Serve(tt.h, w, r)
		}))
		res, err := srv.Client().Get(srv.URL)
		if err == nil {
			_ = res.Body.Close()
		}
		<-counted // the server's end does not wait for a connection that was taken over
		srv.Close()
		if got := metricstable.Text(t, registry); !got[`test_requests_total{code="`+tt.code+`"} 1`] || !got["test_requests_open 0"] {
			t.Errorf("%s: %v", tt.code, got)
		}
	}
}

// TestAStreamBeginsWhenItIsFlushed: what counts is when the client had its beginning, not its end.
func TestAStreamBeginsWhenItIsFlushed(t *testing.T) {
	registry := prometheus.NewRegistry()
	q, ended := NewRequests(registry, "test"), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q.Serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-ended
		}), w, r)
	}))
	defer srv.Close()
	res, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if got := metricstable.Text(t, registry); !got["test_request_duration_seconds_count 1"] || !got["test_requests_open 1"] || !got[`test_requests_total{code="200"} 1`] {
		t.Errorf("%v", got)
	}
	close(ended)
}
