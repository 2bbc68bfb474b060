package main

import "gantry/internal/scrape"

// metricsFlags say where Prometheus may ask.
type metricsFlags struct {
	Metrics string `default:"127.0.0.1:9412" help:"Address at which Prometheus reads metrics (/metrics) and health checks ask (/healthz), of loopback unless --metrics-tls-cert is given; empty: none." placeholder:"HOST:PORT"`

	Scrape scrape.Flags `embed:""`
}

func (f metricsFlags) validate() error { return f.Scrape.Validate(f.Metrics) }
