package orders

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/podlog"
	"gantry/agent/reports"
	"gantry/fleet"
)

// TestNothingStartsBeforeItsOrderIsWhole: the machines may start something only when all of them have
// what the scheduler sent, the credential that no ledger holds among it.
func TestNothingStartsBeforeItsOrderIsWhole(t *testing.T) {
	book := ledgertest.Open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	heard := &atomic.Bool{}
	rt := &pulls{asked: make(chan *fleet.Credential, 1)}
	a := pod.Assignment{Pod: "p1", Incarnation: 1, Goal: fleet.GoalRun, Generation: 1, Image: "private"}
	ledgertest.SetFull(t, book, a)
	logs := podlog.New(t.TempDir(), func(fleet.PodID) bool { return true }, slog.New(slog.DiscardHandler))
	pods := pod.NewPods(ctx, pod.Deps{
		Runtime: rt, Network: noNetwork{}, Ledger: book, Reports: reports.New(func() {}, func(pod.Report) {}), Logs: logs, Dir: t.TempDir(), Data: t.TempDir(),
		Slots: make(chan struct{}, 1), Heard: heard, Log: slog.New(slog.DiscardHandler), GPUName: func(string) string { return "" },
	})
	defer func() { cancel(); pods.Wait(); _ = logs.Close() }()
	pods.Set(a)
	stop := make(chan struct{})
	busy := make(chan struct{})
	go func() { // every machine looks again and again, all the time
		defer close(busy)
		for {
			select {
			case <-stop:
				return
			default:
				pods.Poke()
			}
		}
	}()
	defer func() { close(stop); <-busy }()
	a.Registry = &fleet.Credential{Username: "u", Password: "p"}
	changed, err := book.SetFull(1, []pod.Assignment{a}, ledgertest.FirstFree)
	if err != nil {
		t.Fatal(err)
	}
	New(Config{Pods: pods, Heard: heard}).order(changed)
	select {
	case c := <-rt.asked:
		if c == nil || c.Password != "p" {
			t.Errorf("pulled with %v", c)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing was pulled")
	}
}

// pulls is a runtime without images that tells with what it was asked for one.
type pulls struct {
	pod.Runtime
	asked chan *fleet.Credential
}

func (p *pulls) Look(context.Context, fleet.PodID) (pod.Container, error) {
	return pod.Container{}, nil
}
func (p *pulls) Image(context.Context, string) (string, error) { return "", nil }

func (p *pulls) Pull(ctx context.Context, _ string, auth *fleet.Credential, _ func(done, total int64)) (string, error) {
	select {
	case p.asked <- auth:
	default:
	}
	<-ctx.Done()
	return "", ctx.Err()
}

type noNetwork struct{ pod.Network }

func (noNetwork) Ready(context.Context, fleet.PodID, pod.Link) (ready, published bool, err error) {
	return false, false, nil
}

// What a pod has is told as long as it may run, whatever was ordered since.
