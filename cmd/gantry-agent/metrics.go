package main

import (
	"fmt"

	"gantry/agent"
)

// metricsFlags say where Prometheus may ask.
type metricsFlags struct {
	Metrics string `default:"127.0.0.1:9412" help:"Address of the host's loopback at which Prometheus reads metrics (/metrics) and others whether the agent goes round (/healthz); empty: none." placeholder:"HOST:PORT"`
}

func (f metricsFlags) validate() error {
	if f.Metrics == "" {
		return nil
	}
	if err := agent.CheckMetrics(f.Metrics); err != nil {
		return fmt.Errorf("--metrics %w", err)
	}
	return nil
}
