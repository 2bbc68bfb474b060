package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"gantry/test/metricstable"
)

// TestMetricsAreWhatTheManualSays: the table of docs/metrics.md has every metric of gantry-s3, and no other.
func TestMetricsAreWhatTheManualSays(t *testing.T) {
	metricstable.Check(t, newMetrics(servingConfig{Region: "dc-1", Version: "1", TLS: true}).registry, "gantry_s3_")
}

func TestRequestsAreCounted(t *testing.T) {
	m := newMetrics(servingConfig{})
	h := m.counted(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/bucket", nil))
	if got := metricstable.Text(t, m.registry); !got[`gantry_s3_requests_total{code="503"} 1`] || !got[`gantry_s3_requests_open 0`] || !got[`gantry_s3_request_duration_seconds_count 1`] {
		t.Errorf("%v", got)
	}
}
