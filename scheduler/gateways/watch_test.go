package gateways

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/entry"
	"gantry/scheduler/routes"
	"gantry/scheduler/state"
)

const patience = 2 * time.Minute

// world is the state of a scheduler, and what a gateway is told of it.
type world struct {
	*testing.T
	store *state.Store
	index uint64
	now   time.Time
	table *routes.Table
	parts chan *agentrpc.RoutesPart
}

func (w *world) do(cmds ...state.Command) {
	w.Helper()
	w.index++
	data, err := state.Encode(cmds...)
	if err != nil {
		w.Fatal(err)
	}
	results, err := w.store.Apply([]entry.Entry{{Index: w.index, Term: 1, Data: data}})
	for i := range cmds {
		if err == nil {
			err = results[0][i].Err
		}
	}
	if err != nil {
		w.Fatal(err)
	}
}

// told waits until the gateway knows all that there is, and returns what it heard of the control plane meanwhile.
func (w *world) told() (control *agentrpc.RoutesControl) {
	w.Helper()
	limit := time.After(patience)
	for {
		select {
		case part := <-w.parts:
			if part.GetControl() != nil {
				control = part.GetControl()
			}
			w.table.Take(part)
			if part.GetWhole() && part.GetIndex() == w.index {
				return control
			}
		case <-limit:
			w.Fatal("it was not told in time")
		}
	}
}

type follower struct{ changes chan struct{} }

func (follower) IsLeader() bool                   { return false }
func (f follower) LeaderChanges() <-chan struct{} { return f.changes }

// TestAGatewayIsToldOfChanges: of hosts and of endpoints that balance as they come, change and go, of where schedulers are and of its own
// drain; until it is removed.
func TestAGatewayIsToldOfChanges(t *testing.T) {
	store, err := state.Open(filepath.Join(t.TempDir(), "state.db"), state.Options{BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	now := time.Now().UTC()
	ca, err := pki.NewCA("cluster", now)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, store: store, now: now, table: routes.NewTable(), parts: make(chan *agentrpc.RoutesPart)}
	hash := []byte("hash")
	token := func(id fleet.TokenID, role fleet.TokenRole) state.PutToken {
		return state.PutToken{At: now, Token: fleet.JoinToken{ID: id, Hash: hash, Role: role, DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour)}}
	}
	host := func(id fleet.HostID) {
		w.do(token("ht", fleet.TokenHost), state.JoinHost{Token: "ht", Hash: hash, At: now, Host: fleet.Host{ID: id, Name: string(id), MachineID: string(id), JoinedAt: now}})
	}
	endpoint := func(id fleet.EndpointID, kind fleet.EndpointType, rev uint64, wait int) {
		w.do(state.Put[fleet.Endpoint]{Record: fleet.Endpoint{
			ID: id, Account: "acme", Rev: rev, CreatedAt: now, Releases: []fleet.Release{{ID: "r", Version: 1, At: now}},
			Spec: fleet.EndpointSpec{Name: string(id), Type: kind, Image: "busybox", Workers: fleet.WorkerBounds{Max: 3, Idle: 10}, WaitSeconds: wait, MaxBodyMB: 30},
		}})
	}
	w.do(state.Bootstrap{ClusterID: "cluster", CA: pki.EncodeCert(ca.Cert()), SealedCAKey: []byte("sealed"), At: now},
		state.PutAccount{Account: fleet.Account{ID: "acme", Name: "Acme", CreatedAt: now}},
		state.PutMember{Member: fleet.Member{ID: "m1", Address: "192.0.2.1:8443", JoinedAt: now}})
	host("host-1")
	endpoint("lb-1", fleet.EndpointBalanced, 0, 120)
	endpoint("queue-1", fleet.EndpointQueue, 0, 0)
	w.do(token("gt", fleet.TokenGateway), state.JoinGateway{Token: "gt", Hash: hash, At: now, Gateway: fleet.Gateway{ID: "g1", Address: "192.0.2.9:1", JoinedAt: now}})

	f, leader := follower{make(chan struct{})}, make(chan string, 1)
	s := New(Config{Store: store, Node: f, Log: slog.New(slog.DiscardHandler), Leader: func() string {
		select {
		case now := <-leader:
			return now
		default:
			return "192.0.2.1:8443"
		}
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		one := &watch{Server: s, gateway: "g1", endpoints: map[fleet.EndpointID]*agentrpc.RouteEndpoint{}, send: func(p *agentrpc.RoutesPart) error {
			select {
			case w.parts <- p:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}
		ended <- one.run(ctx)
	}()
	control := w.told()
	if control.GetLeader() != "192.0.2.1:8443" || !slices.Equal(control.GetSchedulers(), []string{"192.0.2.1:8443"}) || len(control.GetCas()) != 1 || control.GetDraining() {
		t.Errorf("told of the control plane: %v", control)
	}
	knows := func(what string, hosts int, endpoints map[fleet.EndpointID]int) {
		t.Helper()
		_ = w.table.View(func(v routes.View) error {
			found := 0
			for _, id := range []fleet.HostID{"host-1", "host-2"} {
				if h, ok := v.Host(id); ok && h.State == fleet.HostJoining {
					found++
				}
			}
			if found != hosts {
				t.Errorf("%s: %d hosts", what, found)
			}
			for _, id := range []fleet.EndpointID{"lb-1", "lb-2", "queue-1"} {
				if e, _ := v.Endpoint(id); e.Spec.WaitSeconds != endpoints[id] {
					t.Errorf("%s: endpoint %s %+v", what, id, e)
				}
			}
			return nil
		})
	}
	knows("a view", 1, map[fleet.EndpointID]int{"lb-1": 120})
	host("host-2")
	endpoint("lb-2", fleet.EndpointBalanced, 0, 7)
	endpoint("lb-1", fleet.EndpointBalanced, 1, 60)
	if control = w.told(); control != nil {
		t.Errorf("told once more of the control plane: %v", control)
	}
	knows("changes", 2, map[fleet.EndpointID]int{"lb-1": 60, "lb-2": 7})
	w.do(state.Delete[fleet.Endpoint]{Account: "acme", ID: "lb-1"}, state.DrainGateway{ID: "g1", Draining: true, At: now})
	if control = w.told(); !control.GetDraining() {
		t.Errorf("told of its drain: %v", control)
	}
	knows("less", 2, map[fleet.EndpointID]int{"lb-2": 7})
	leader <- "192.0.2.2:8443"
	close(f.changes)
	if control = w.told(); control.GetLeader() != "192.0.2.2:8443" {
		t.Errorf("told of another leader: %v", control)
	}
	w.do(state.RemoveGateway{ID: "g1"})
	for {
		select {
		case <-w.parts:
			continue
		case err = <-ended:
		case <-time.After(patience):
			t.Fatal("the watch of a gateway that was removed goes on")
		}
		break
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("ended with %v", err)
	}
}

// TestAGatewayHasOneWatch: a new one takes the place of the old.
func TestAGatewayHasOneWatch(t *testing.T) {
	s := New(Config{})
	first, cancelFirst := context.WithCancelCause(t.Context())
	endFirst := s.begin("g1", cancelFirst)
	second, cancelSecond := context.WithCancelCause(t.Context())
	endSecond := s.begin("g1", cancelSecond)
	if !errors.Is(context.Cause(first), errAnotherWatch) || second.Err() != nil {
		t.Errorf("%v, %v", context.Cause(first), second.Err())
	}
	endFirst()
	if len(s.watches) != 1 || second.Err() != nil {
		t.Error("the end of the first ended the second")
	}
	if endSecond(); len(s.watches) != 0 {
		t.Error("a watch that ended is kept")
	}
}

// TestWhatGatewaysSaidCountsForSomeSeconds.
func TestWhatGatewaysSaidCountsForSomeSeconds(t *testing.T) {
	s := New(Config{})
	s.heard["g1"] = fleet.GatewayView{Heard: time.Now(), Open: 3}
	s.heard["g2"] = fleet.GatewayView{Heard: time.Now().Add(-2 * heardWithin), Open: 4}
	got := s.Views([]fleet.Gateway{{ID: "g1"}, {ID: "g2"}, {ID: "g3"}})
	if len(got) != 3 || !got[0].Connected || got[0].Open != 3 || got[1].Connected || got[1].Open != 4 || got[2].Connected {
		t.Errorf("%+v", got)
	}
}
