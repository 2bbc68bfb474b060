package main

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"gantry/internal/scrape"
)

// metrics is what Prometheus is told. The serving process counts and answers by itself: no client's request reaches a process
// with rights, be it as a number.
type metrics struct {
	registry    *prometheus.Registry
	requests    *scrape.Requests
	unreachable prometheus.Counter
	ends        prometheus.Gauge
}

func newMetrics(conf servingConfig) *metrics {
	m := &metrics{registry: scrape.NewRegistry()}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "gantry_s3_info", Help: "1, with the version of the program and the data center that it serves.",
	}, []string{"region", "version"})
	info.WithLabelValues(conf.Region, conf.Version).Set(1)
	m.unreachable = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "gantry_s3_agent_unreachable_total", Help: "Tries to reach this host's agent that failed, since the serving process began.",
	})
	m.registry.MustRegister(info, m.unreachable)
	if conf.TLS {
		m.ends = prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "gantry_s3_certificate_expiry_timestamp_seconds", Help: "When the certificate for clients ends; absent without TLS.",
		})
		m.registry.MustRegister(m.ends)
	}
	m.requests = scrape.NewRequests(m.registry, "gantry_s3")
	return m
}

// counted counts what h answers.
func (m *metrics) counted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.requests.Serve(h, w, r) })
}

// certificate notes which one is in use.
func (m *metrics) certificate(leaf *x509.Certificate) {
	if m.ends != nil && leaf != nil {
		m.ends.Set(float64(leaf.NotAfter.Unix()))
	}
}

// dialling counts what fails of dial.
func (m *metrics) dialling(dial func(context.Context) (*net.UnixConn, error)) func(context.Context) (*net.UnixConn, error) {
	return func(ctx context.Context) (*net.UnixConn, error) {
		c, err := dial(ctx)
		if err != nil {
			m.unreachable.Inc()
		}
		return c, err
	}
}

// serve answers scrapers until ctx ends, through a listener that the supervisor opens.
func (m *metrics) serve(ctx context.Context, conf servingConfig, super *control, log *slog.Logger) {
	if conf.Metrics == "" {
		return
	}
	var secure func() (scrape.Material, error)
	if conf.ScrapeTLS {
		secure = func() (out scrape.Material, err error) {
			_, err = super.ask(ctx, askShown, &out)
			return out, err
		}
	}
	scrape.Server{Addr: conf.Metrics, Registry: m.registry, Log: log, Secure: secure, Listen: func(context.Context) (net.Listener, error) {
		file, err := super.ask(ctx, askScrape, nil)
		if err != nil {
			return nil, err
		}
		if file == nil {
			return nil, errors.New("no listener came")
		}
		defer func() { _ = file.Close() }() // the listener is a copy
		return net.FileListener(file)
	}}.Run(ctx)
}
