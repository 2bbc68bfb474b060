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
		{"none", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	} {
		registry := prometheus.NewRegistry()
		q := NewRequests(registry, "test")
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { q.Serve(tt.h, w, r) }))
		res, err := srv.Client().Get(srv.URL)
		if err == nil {
			_ = res.Body.Close()
		}
		srv.Close()
		if got := metricstable.Text(t, registry); !got[`test_requests_total{code="`+tt.code+`"} 1`] || !got["test_requests_open 0"] {
			t.Errorf("%s: %v", tt.code, got)
		}
	}
}
