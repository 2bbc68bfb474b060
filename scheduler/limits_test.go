package scheduler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// limit sets a limit of an account.
func (w *world) limit(id fleet.AccountID, l fleet.Limit, value int64) {
	w.must(state.UpdateAccount{Account: id, Limits: map[string]*int64{l.String(): &value}})
}

// What an account may have of network volumes is far below what a data center has ids for.
func TestOneAccountCannotTakeAllVolumes(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "EU-RO-1", h100, 8, total(64, 512, 100000))
	w.addBackend("backend-a", "EU-RO-1", fleet.VolumeStandard)
	ctx := context.Background()
	create := func(who fleet.AccountID, n int) error {
		_, _, err := w.svc.CreateVolume(ctx, member(who), fleet.VolumeRequest{
			Name: fmt.Sprint("v", n), SizeGB: 10, DataCenter: "EU-RO-1", Type: fleet.VolumeStandard,
		})
		return err
	}
	n := 0
	for ; create(acme, n) == nil; n++ {
		if n > 1000 {
			t.Fatal("there is no end")
		}
	}
	if err := create(acme, n); n != 500 || fleet.CodeOf(err) != fleet.CodeQuota {
		t.Errorf("%d volumes, then %v", n, err)
	}
	if err := create(other, 0); err != nil {
		t.Errorf("another account: %v", err)
	}
}

// Stopped pods are bounded in number and in bytes, and a dry run and a start hear of it, too.
func TestStoppedPodsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "EU-RO-1", "", 0, total(64, 256, 10000))
	ctx := context.Background()
	w.limit(acme, fleet.LimitPods, 3)
	w.limit(acme, fleet.LimitSpecBytes, 2<<20)
	req := cpuPod(2)
	req.Env = map[string]string{}
	for i := range 31 {
		req.Env[fmt.Sprintf("V%d", i)] = strings.Repeat("x", 32000)
	}
	var last fleet.PodID
	stopped := func(req fleet.PodRequest) error {
		v, err := w.svc.CreatePod(ctx, member(acme), req)
		if err != nil {
			return err
		}
		last = v.Pod.ID
		if _, err := w.svc.ActPod(ctx, member(acme), last, fleet.ActionStop); err != nil {
			t.Fatal(err)
		}
		w.report(last, fleet.EventExited) //nolint:contextcheck // as all of the world's
		return nil
	}
	for n := range 2 {
		if err := stopped(req); err != nil {
			t.Fatal(n, err)
		}
	}
	w.pass(365 * 24 * time.Hour)
	if err := stopped(req); fleet.CodeOf(err) != fleet.CodeQuota || !strings.Contains(err.Error(), "specificationBytes") {
		t.Errorf("a third MB: %v", err)
	}
	if err := stopped(cpuPod(2)); err != nil {
		t.Error(err)
	}
	if err := stopped(cpuPod(2)); fleet.CodeOf(err) != fleet.CodeQuota {
		t.Errorf("a fourth pod: %v", err)
	}
	if _, err := w.svc.PlanPod(ctx, member(acme), cpuPod(2)); fleet.CodeOf(err) != fleet.CodeQuota {
		t.Errorf("a dry run: %v", err)
	}
	w.limit(acme, fleet.LimitRunning, 0)
	if _, err := w.svc.ActPod(ctx, member(acme), last, fleet.ActionStart); fleet.CodeOf(err) != fleet.CodeQuota {
		t.Errorf("a start: %v", err)
	}
}

// A prepaid account without credit enlarges nothing.
func TestPrepaidGrowsPersistent(t *testing.T) {
	w := newWorld(t)
	w.must(state.PutStoragePrices{Prices: fleet.StoragePrices{
		ContainerDisk: fleet.Dollar, PersistentRunning: fleet.Dollar, PersistentStopped: 2 * fleet.Dollar,
	}})
	w.addHost("host-a", "EU-RO-1", h100, 8, total(64, 512, 100000))
	ctx, yes := context.Background(), true
	w.must(state.AddCredit{Account: acme, Amount: 100 * fleet.Dollar, At: w.clock()}, state.UpdateAccount{Account: acme, Prepaid: &yes})
	req := gpuPod(1)
	req.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
	v, err := w.svc.CreatePod(ctx, member(acme), req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.svc.ActPod(ctx, member(acme), v.Pod.ID, fleet.ActionStop); err != nil {
		t.Fatal(err)
	}
	w.report(v.Pod.ID, fleet.EventExited)
	grow := func() error {
		_, err := w.svc.UpdatePod(ctx, member(acme), v.Pod.ID, fleet.PodUpdate{Persistent: &fleet.PersistentMount{SizeGB: 50000, Path: "/data"}})
		return err
	}
	w.must(state.AddCredit{Account: acme, Amount: -200 * fleet.Dollar, At: w.clock()})
	if err := grow(); fleet.CodeOf(err) != fleet.CodeNoCredit {
		t.Errorf("without credit: %v", err)
	}
	w.must(state.AddCredit{Account: acme, Amount: 1000 * fleet.Dollar, At: w.clock()})
	if err := grow(); err != nil {
		t.Errorf("with credit: %v", err)
	}
}
