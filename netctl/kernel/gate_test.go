package kernel

import (
	"context"
	"fmt"
	"net"
	"testing"

	"gantry/fleet"
)

// TestAWorkersGate: it is reached in the namespace of the pod alone, also of a pod with a user namespace, and its port is no other's.
func TestAWorkersGate(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	cfg.Pods[0].IDBase = 0x10020000
	must(t, c.Set(ctx, cfg))
	alpha, beta := ns("0a1b", "alpha"), ns("0a1b", "beta")
	l, err := ListenIn(alpha, fleet.WorkerGate)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go answer(l)
	_, port, err := net.SplitHostPort(fleet.WorkerGate)
	must(t, err)
	reaches(t, alpha, fleet.WorkerGate, "127.0.0.1")
	for _, from := range []string{"", beta, outsideName} {
		refused(t, from, fleet.WorkerGate)
		refused(t, from, fmt.Sprintf("%s:%s", cfg.Pods[0].Addr, port))
	}
	if _, err := ListenIn(ns("0a1b", "gone"), fleet.WorkerGate); err == nil {
		t.Error("it listens in a namespace that is not there")
	}
	threadsAtHome(t)
}
