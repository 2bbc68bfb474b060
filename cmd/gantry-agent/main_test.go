package main

import (
	"strings"
	"testing"
)

func TestConnectionsOfAPodHaveABound(t *testing.T) {
	for n, good := range map[int]bool{-1: false, 0: false, 1: true, 32_768: true, 1_000_000: true, 1_000_001: false} {
		err := (&runCmd{PodConnections: n}).validate()
		if said := err != nil && strings.Contains(err.Error(), "--pod-connections must be 1 to 1000000"); said == good {
			t.Errorf("%d: %v", n, err)
		}
	}
}
