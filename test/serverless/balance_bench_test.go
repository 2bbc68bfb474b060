package serverless

import (
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
)

// BenchmarkRequestBesideTheBarePort compares a request to a balanced endpoint with one to its worker's own port, in turns, over connections
// that stay open. The data connection of a host is not part of it.
func BenchmarkRequestBesideTheBarePort(b *testing.B) {
	s := newSquare(b, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") },
		func(e *fleet.EndpointSpec) { e.Workers.Min, e.Workers.Max = 1, 1 })
	one := s.ready(1)[0]
	bare, err := http.NewRequestWithContext(b.Context(), http.MethodGet, one.http.URL+"/x", nil)
	s.must(err)
	balanced := s.request(http.MethodGet, "/x", nil)
	ask := func(client *http.Client, r *http.Request) time.Duration {
		began := time.Now()
		resp, err := client.Do(r)
		s.must(err)
		_, err = io.Copy(io.Discard, resp.Body)
		s.must(err)
		s.must(resp.Body.Close())
		return time.Since(began)
	}
	direct, through := []time.Duration{}, []time.Duration{}
	for b.Loop() {
		direct = append(direct, ask(one.http.Client(), bare))
		through = append(through, ask(s.front.Client(), balanced))
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2]) / float64(time.Millisecond)
	}
	b.ReportMetric(median(direct), "direct-p50-ms")
	b.ReportMetric(median(through), "balanced-p50-ms")
	b.ReportMetric(median(through)-median(direct), "added-p50-ms")
}
