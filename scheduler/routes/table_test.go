package routes

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
)

func pod(id, host string) *agentrpc.RoutePod {
	return &agentrpc.RoutePod{Id: id, AccountId: "acc", HostId: host, Status: string(fleet.StatusRunning), Goal: string(fleet.GoalRun), HttpPorts: []int32{80}}
}

// TestWhatAGatewayIsToldOfAPod comes out of a Table as it is in the state, as far as it is needed, and nothing else of it does.
func TestWhatAGatewayIsToldOfAPod(t *testing.T) {
	code := 3
	p := fleet.Pod{
		ID: "p1", Account: "acc", Host: "h1", Status: fleet.StatusExited, Goal: fleet.GoalRun, Incarnation: 4, Release: 2, ExitCode: &code,
		Owner: fleet.EndpointID("e1").Owner(), Frozen: time.Unix(1, 0), Reason: "secret", LogTail: "secret", Image: "secret",
		Spec: fleet.PodSpec{
			Ports: []fleet.Port{{Number: 80, Protocol: "http"}, {Number: 22, Protocol: "tcp"}}, HTTP: []fleet.HTTPSetting{{Port: 80, Keyed: true, Most: 7}},
			Env: map[string]string{"PORT": "80", "PORT_HEALTH": "81", "HEALTH_CHECK_PATH": "/up", "PASSWORD": "secret"},
		},
	}
	want := fleet.Pod{
		ID: "p1", Account: "acc", Host: "h1", Status: fleet.StatusExited, Goal: fleet.GoalRun, Incarnation: 4, Release: 2, ExitCode: &code,
		Owner: p.Owner, Frozen: p.Frozen, Spec: fleet.PodSpec{
			Ports: p.Spec.Ports[:1], HTTP: p.Spec.HTTP, Env: map[string]string{"PORT": "80", "PORT_HEALTH": "81", "HEALTH_CHECK_PATH": "/up"},
		},
	}
	if d := cmp.Diff(&want, decodePod(EncodePod(&p, true))); d != "" {
		t.Errorf("a worker (-want +got):\n%s", d)
	}
	want.Owner, want.Spec.Env = fleet.Owner{}, nil
	if d := cmp.Diff(&want, decodePod(EncodePod(&p, false))); d != "" {
		t.Errorf("another pod (-want +got):\n%s", d)
	}
	p.Status = fleet.StatusTerminated
	if got := EncodePod(&p, true); got != nil {
		t.Errorf("a terminated one: %v", got)
	}
	e := fleet.Endpoint{ID: "e1", Account: "acc", Releases: []fleet.Release{{Version: 1}, {Version: 9}}, Spec: fleet.EndpointSpec{
		Type: fleet.EndpointBalanced, Workers: fleet.WorkerBounds{Max: 3}, WaitSeconds: 120, TimeoutMS: 330_000, MaxBodyMB: 30, Name: "secret",
	}}
	got := decodeEndpoint(EncodeEndpoint(&e))
	e.Releases, e.Spec.Name = e.Releases[1:], ""
	if d := cmp.Diff(e, got); d != "" {
		t.Errorf("an endpoint (-want +got):\n%s", d)
	}
}

// TestATableHasWhatItWasTold: a view counts once it is whole, changes at once, and those who wait are woken.
func TestATableHasWhatItWasTold(t *testing.T) {
	table := NewTable()
	has := func(what string, index uint64, pods string, workers int) {
		t.Helper()
		_ = table.View(func(v View) error {
			got := ""
			for _, id := range []fleet.PodID{"p1", "p2", "p3"} {
				if _, ok := v.Pod(id); ok {
					got += string(id)
				}
			}
			if v.Index() != index || got != pods || len(v.WorkersOf("e1")) != workers {
				t.Errorf("%s: index %d, pods %q, %d workers", what, v.Index(), got, len(v.WorkersOf("e1")))
			}
			return nil
		})
	}
	worker := pod("p2", "h1")
	worker.EndpointId = "e1"
	table.Take(&agentrpc.RoutesPart{Anew: true, Pods: []*agentrpc.RoutePod{pod("p1", "h1")}})
	has("half a view", 0, "", 0)
	woken := make(chan error, 1)
	go func() { woken <- table.Wait(t.Context(), 0) }()
	table.Take(&agentrpc.RoutesPart{Pods: []*agentrpc.RoutePod{worker}, Endpoints: []*agentrpc.RouteEndpoint{{Id: "e1", AccountId: "acc"}}, Whole: true, Index: 5})
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
	has("a view", 5, "p1p2", 1)
	if _, _, all := table.Events(0); all {
		t.Error("what was before the view is known")
	}
	table.Take(&agentrpc.RoutesPart{Pods: []*agentrpc.RoutePod{pod("p3", "h2")}, GonePods: []string{"p2"}, Whole: true, Index: 7})
	has("changes", 7, "p1p3", 0)
	events, upTo, all := table.Events(5)
	if d := cmp.Diff([]state.Event{{Index: 7, Kind: state.KindPod, ID: "p3"}, {Index: 7, Kind: state.KindPod, ID: "p2"}}, events); d != "" || upTo != 7 || !all {
		t.Errorf("events up to %d, %v (-want +got):\n%s", upTo, all, d)
	}
	if events, _, all := table.Events(7); len(events) != 0 || !all {
		t.Errorf("no events: %v, %v", events, all)
	}
	// Another scheduler begins to tell, which lags: half of its view does not count, and what is gone there is gone.
	go func() { woken <- table.Wait(t.Context(), 7) }()
	table.Take(&agentrpc.RoutesPart{Anew: true, Pods: []*agentrpc.RoutePod{pod("p3", "h2")}})
	has("half of a new view", 7, "p1p3", 0)
	table.Take(&agentrpc.RoutesPart{Whole: true, Index: 6})
	has("a new view", 6, "p3", 0)
	if err := <-woken; err != nil {
		t.Fatal(err)
	}
	if _, upTo, all := table.Events(7); all || upTo != 6 {
		t.Errorf("events after what this scheduler has: up to %d, %v", upTo, all)
	}
	for i := range uint64(2 * keptEvents) {
		table.Take(&agentrpc.RoutesPart{Hosts: []*agentrpc.RouteHost{{Id: fmt.Sprint(i)}}, Whole: true, Index: 7 + i})
	}
	if events, _, all := table.Events(6); all || len(events) > 0 || len(table.events) > keptEvents {
		t.Errorf("%d events are kept", len(table.events))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := table.Wait(ctx, 6+2*keptEvents); err == nil {
		t.Error("a wait did not end")
	}
}

func TestWhichPodsAreExposed(t *testing.T) {
	table := NewTable()
	worker, stopped, starting := pod("p2", "h1"), pod("p3", "h1"), pod("p4", "h1")
	worker.EndpointId, stopped.Goal, starting.Status = "e1", string(fleet.GoalStop), string(fleet.StatusProvisioning)
	table.Take(&agentrpc.RoutesPart{
		Anew: true, Whole: true, Index: 1, Pods: []*agentrpc.RoutePod{pod("p1", "h1"), worker, stopped, starting},
		Endpoints: []*agentrpc.RouteEndpoint{{Id: "e1", AccountId: "acc"}},
	})
	_ = table.View(func(v View) error {
		for _, c := range []struct {
			id   fleet.PodID
			port int
			code fleet.Code
		}{{"p1", 80, ""}, {"p1", 81, fleet.CodeNotFound}, {"p2", 80, fleet.CodeNotFound}, {"p3", 80, fleet.CodeNotAllowed}, {"p4", 80, fleet.CodeNotAllowed}, {"p9", 80, fleet.CodeNotFound}} {
			if _, err := Exposed(v, c.id, c.port); err != nil != (c.code != "") || err != nil && fleet.CodeOf(err) != c.code {
				t.Errorf("port %d of %s: %v", c.port, c.id, err)
			}
		}
		return nil
	})
	connected := func(h fleet.HostID) bool { return h == "h2" }
	if Flows(table, connected, "p1") || Flows(table, connected, "p9") || Serves(table, connected, "e1") || !Serves(table, connected, "e2") {
		t.Error("what flows here")
	}
	table.Take(&agentrpc.RoutesPart{Whole: true, Index: 2, Pods: []*agentrpc.RoutePod{pod("p1", "h2")}, GonePods: []string{"p2"}})
	if !Flows(table, connected, "p1") || !Serves(table, connected, "e1") {
		t.Error("what flows here now")
	}
}
