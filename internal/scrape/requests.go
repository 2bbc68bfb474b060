package scrape

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests counts HTTP requests. It is safe for concurrent use.
type Requests struct {
	total *prometheus.CounterVec
	began prometheus.Histogram
	open  prometheus.Gauge
}

// NewRequests registers PREFIX_requests_total, PREFIX_request_duration_seconds and PREFIX_requests_open. Several may share
// a prefix when r adds another label to each.
func NewRequests(r prometheus.Registerer, prefix string) *Requests {
	q := &Requests{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_requests_total", Help: "Requests that were answered, by status code; other: one that no standard has; none: the client was gone first.",
		}, []string{"code"}),
		began: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "_request_duration_seconds", Help: "How long it took until an answer began.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{Name: prefix + "_requests_open", Help: "Requests that are under way, streams among them."}),
	}
	r.MustRegister(q.total, q.began, q.open)
	for _, code := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable} {
		q.total.WithLabelValues(strconv.Itoa(code)) // so that the first of a kind is a change
	}
	return q
}

// Serve has h answer a request and counts it. It returns the status, 0 where the answer was never begun.
func (q *Requests) Serve(h http.Handler, w http.ResponseWriter, r *http.Request) (status int) {
	q.open.Inc()
	out := &answer{ResponseWriter: w, q: q, since: time.Now()}
	ended := false
	defer func() {
		q.open.Dec()
		if ended {
			out.begin(http.StatusOK) // what the server makes of an answer that is empty
		}
		if status = out.status; status == 0 {
			q.total.WithLabelValues("none").Inc()
		}
	}()
	h.ServeHTTP(out, r)
	ended = true
	return status
}

// answer knows the status of an answer.
type answer struct {
	http.ResponseWriter
	q      *Requests
	since  time.Time
	status int
}

// begin notes how an answer begins, once. What only announces an answer is none.
func (a *answer) begin(status int) {
	if a.status != 0 || status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return
	}
	a.status = status
	code := "other" // a pod's page may answer with any number, and there are to be few series
	if http.StatusText(status) != "" {
		code = strconv.Itoa(status)
	}
	a.q.total.WithLabelValues(code).Inc()
	a.q.began.Observe(time.Since(a.since).Seconds())
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	a.begin(status)
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.begin(http.StatusOK)
	return a.ResponseWriter.Write(p)
}

// ReadFrom keeps the kernel's way of sending files, which only the connection itself knows.
func (a *answer) ReadFrom(r io.Reader) (int64, error) {
	a.begin(http.StatusOK)
	return io.Copy(a.ResponseWriter, r)
}

// FlushError is what http.ResponseController calls; it begins an answer that has not begun.
func (a *answer) FlushError() error {
	a.begin(http.StatusOK)
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker, for what writes its answer to the connection itself.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil {
		a.begin(http.StatusSwitchingProtocols)
	}
	return conn, rw, err
}

// Unwrap lets http.ResponseController reach the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
