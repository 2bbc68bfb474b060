package scheduler

import (
	"context"
	"testing"
	"time"
)

func TestADayOfCapacityIsKept(t *testing.T) {
	w, ctx := newWorld(t), context.Background()
	w.addHost("host-a", "dc-1", h100, 8)
	note := func() int {
		t.Helper()
		if err := w.svc.noteCapacity(); err != nil {
			t.Fatal(err)
		}
		seen, err := w.svc.CapacityHistory(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(seen)
	}
	if a, b := note(), note(); a != 1 || b != 1 {
		t.Errorf("%d, then %d at the same moment", a, b)
	}
	w.create(gpuPod(3))
	for range maxCapacities {
		w.now = w.now.Add(capacityEvery)
		note()
	}
	seen, _ := w.svc.CapacityHistory(ctx)
	if len(seen) != maxCapacities || seen[len(seen)-1].At.Sub(seen[0].At) != 24*time.Hour-capacityEvery {
		t.Fatalf("%d are kept", len(seen))
	}
	if g := seen[0].GPUs; len(g) != 1 || g[0].Total != 8 || g[0].Free != 5 {
		t.Errorf("the first is %+v", g)
	}
}
