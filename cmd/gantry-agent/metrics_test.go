package main

import (
	"strings"
	"testing"
)

func TestMetricsFlagNamesItself(t *testing.T) {
	for _, good := range []string{"", "127.0.0.1:9412", "[::1]:1"} {
		if err := (metricsFlags{Metrics: good}).validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"0.0.0.0:9412", "10.0.0.1:9412", ":9412", "9412", "127.0.0.1:0"} {
		if err := (metricsFlags{Metrics: bad}).validate(); err == nil || !strings.HasPrefix(err.Error(), "--metrics must be ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
