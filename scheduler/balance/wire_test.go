package balance

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/routes"
)

// TestAReportOverTheLink is what was sent.
func TestAReportOverTheLink(t *testing.T) {
	want := Report{
		Member: "m1", Heard: 3, Process: 1 << 63, Of: map[fleet.EndpointID]Demand{
			"e1": {Waiting: 2, Serving: map[fleet.PodID]int{"p1": 4}, Wake: []fleet.PodID{"p2"}},
		}, Ended: map[fleet.EndpointID]Ended{"e1": {Completed: 5, Failed: 6}, "e2": {Failed: 7}},
	}
	if d := cmp.Diff(want, DecodeReport("m1", EncodeReport(want))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestWhatEndedIsToldWhileThereIsTheEndpoint, by one that serves nothing any more, too.
func TestWhatEndedIsToldWhileThereIsTheEndpoint(t *testing.T) {
	table := routes.NewTable()
	table.Take(&agentrpc.RoutesPart{Anew: true, Whole: true, Index: 1, Endpoints: []*agentrpc.RouteEndpoint{{Id: "e1"}, {Id: "e2"}}})
	said := make(chan Report)
	b := New(Config{
		Store: table, Member: "m1", Leads: func() bool { return false }, Log: slog.New(slog.DiscardHandler),
		Pace: Pace{Report: time.Millisecond, Quiet: time.Millisecond},
		Tell: func(ctx context.Context, r Report) (Word, error) {
			select {
			case said <- r:
			case <-ctx.Done():
			}
			return Word{}, nil
		},
	})
	for _, completed := range []bool{true, false, true} {
		b.Count("e1", completed)
	}
	b.Count("e2", false)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- b.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}()
	want := map[fleet.EndpointID]Ended{"e1": {Completed: 2, Failed: 1}, "e2": {Failed: 1}}
	for range 2 {
		if r := <-said; r.Process != b.process || !cmp.Equal(r.Ended, want) {
			t.Fatalf("%+v", r)
		}
	}
	table.Take(&agentrpc.RoutesPart{Whole: true, Index: 2, GoneEndpoints: []string{"e2"}})
	delete(want, "e2")
	for deadline := time.Now().Add(10 * time.Second); ; {
		if r := <-said; cmp.Equal(r.Ended, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a deleted endpoint is told of")
		}
	}
}
