package fleet_test

import (
	"context"
	"testing"

	"gantry/fleet"
)

// TestABarrierServesOneMoreRead of its own plane, and only in a request that says so.
func TestABarrierServesOneMoreRead(t *testing.T) {
	ctx := fleet.WithFresh(context.Background())
	if fleet.TakeFresh(ctx, fleet.ControlPlane) {
		t.Error("fresh before a barrier")
	}
	fleet.MarkFresh(ctx, fleet.ControlPlane)
	if fleet.TakeFresh(ctx, fleet.JobPlane) || !fleet.TakeFresh(ctx, fleet.ControlPlane) || fleet.TakeFresh(ctx, fleet.ControlPlane) {
		t.Error("a barrier serves the next read of its plane, once")
	}
	plain := context.Background()
	if fleet.MarkFresh(plain, fleet.JobPlane); fleet.TakeFresh(plain, fleet.JobPlane) {
		t.Error("fresh in a request that did not say so")
	}
}
