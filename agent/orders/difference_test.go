package orders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/podlog"
	"gantry/agent/reports"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// ordered are Orders with machines that tell of each pull they begin.
func ordered(t *testing.T) (*Orders, *pulls) {
	t.Helper()
	book, heard, log := ledgertest.Open(t, t.TempDir()), &atomic.Bool{}, slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	rt := &pulls{asked: make(chan *fleet.Credential, 10)}
	logs := podlog.New(t.TempDir(), func(fleet.PodID) bool { return true }, log)
	pods := pod.NewPods(ctx, pod.Deps{
		Runtime: rt, Network: noNetwork{}, Ledger: book, Reports: reports.New(func() {}, func(pod.Report) {}), Logs: logs, Dir: t.TempDir(), Data: t.TempDir(),
		Slots: make(chan struct{}, 10), Heard: heard, Log: log, GPUName: func(string) string { return "" },
	})
	t.Cleanup(func() { cancel(); pods.Wait(); _ = logs.Close() })
	return New(Config{
		Ledger: book, Pods: pods, Heard: heard, Log: log, Allocate: ledgertest.FirstFree, Followed: func(uint64) error { return nil },
	}), rt
}

func runs(id string, generation uint64) *agentrpc.Assignment {
	return &agentrpc.Assignment{
		PodId: id, Incarnation: 1, Generation: generation, Goal: "run", Image: "private", Registry: &agentrpc.Credential{Username: id},
	}
}

func wantPull(t *testing.T, rt *pulls, of string) {
	t.Helper()
	select {
	case c := <-rt.asked:
		if c == nil || c.Username != of {
			t.Errorf("pulled with %v, want that of %s", c, of)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("nothing was pulled for %s", of)
	}
}

// TestADifferenceIsCarriedOut where the host has what it is to, and asks for the full set where not.
func TestADifferenceIsCarriedOut(t *testing.T) {
	o, rt := ordered(t)
	difference := func(from, to uint64, put ...*agentrpc.Assignment) (*agentrpc.Up, error) {
		return o.TakeDifference(t.Context(), &agentrpc.Down_Difference{Difference: &agentrpc.Difference{From: from, To: to, Put: put}})
	}
	up, err := o.TakeFull(t.Context(), &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: 3, Assignments: []*agentrpc.Assignment{runs("a", 3)}}})
	if err != nil || up.GetApplied().GetGeneration() != 3 {
		t.Fatalf("%v, %v", up, err)
	}
	wantPull(t, rt, "a")
	for _, from := range []uint64{2, 4} {
		if up, err := difference(from, 9, runs("b", 9)); err != nil || up.GetResync() == nil {
			t.Errorf("a difference to %d, where the host has 3: %v, %v", from, up, err)
		}
	}
	if len(o.Ledger.Records()) != 1 || o.Ledger.Generation() != 3 {
		t.Errorf("it was taken all the same: %d pods of generation %d", len(o.Ledger.Records()), o.Ledger.Generation())
	}
	if up, err := difference(3, 5, runs("b", 5)); err != nil || up.GetApplied().GetGeneration() != 5 {
		t.Errorf("%v, %v", up, err)
	}
	wantPull(t, rt, "b")
	if err := o.Ledger.Close(); err != nil {
		t.Fatal(err)
	}
	if up, err := difference(5, 6, runs("c", 6)); err == nil {
		t.Errorf("what the ledger could not take is acknowledged: %v", up)
	}
	if up, err := o.TakeFull(t.Context(), &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: 7, Assignments: []*agentrpc.Assignment{runs("d", 7)}}}); err == nil {
		t.Errorf("what the ledger could not take is acknowledged: %v", up)
	}
}

// TestTheFirstWordLetsAllStart: pods that the ledger knew and the first word of a scheduler does not change, too.
func TestTheFirstWordLetsAllStart(t *testing.T) {
	o, rt := ordered(t)
	a := pod.Assignment{
		Pod: "a", Incarnation: 1, Goal: fleet.GoalRun, Generation: 3, Image: "private", Registry: &fleet.Credential{Username: "a"},
	}
	ledgertest.SetFull(t, o.Ledger, a)
	o.Pods.Set(a)
	select {
	case <-rt.asked:
		t.Error("it begins before a scheduler was heard")
	case <-time.After(50 * time.Millisecond): // most likely it would have by now
	}
	o.order(nil)
	wantPull(t, rt, "a")
	if !o.Heard.Load() {
		t.Error("nothing was heard")
	}
}

// TestALineageThatIsNotWrittenDownIsNotFollowed: with the next loss of the ledger it would be forgotten.
func TestALineageThatIsNotWrittenDownIsNotFollowed(t *testing.T) {
	s := follower(t)
	s.Followed = func(uint64) error { return errors.New("full disk") }
	if err := s.Follow(&agentrpc.Welcome{Lineage: 3}); err == nil || s.Ledger.Lineage() != 0 {
		t.Errorf("%v, the ledger has %d", err, s.Ledger.Lineage())
	}
}

func TestHowManyPlacesAnOrderMayHave(t *testing.T) {
	var places []*agentrpc.OverlayPlace
	for i := range uint32(maxPlaces + 1) {
		places = append(places, placeOf(4096+i, "10.64.0.2", fmt.Sprintf("podnet%d", i)))
	}
	if got, err := decodePlaces(places[:maxPlaces]); err != nil || len(got) != maxPlaces {
		t.Errorf("%d places: %v, %v", maxPlaces, got, err)
	}
	if got, err := decodePlaces(places); err == nil || got != nil {
		t.Errorf("%d places: %v", len(places), got)
	}
	for _, name := range []string{"lo", "eth0", "", "Net", "a23456789012345x"} {
		if got, err := decodePlaces([]*agentrpc.OverlayPlace{placeOf(4096, "10.64.0.2", name)}); err == nil {
			t.Errorf("a link named %q: %v", name, got)
		}
	}
}
