package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// spoiled commits as told.
type spoiled struct {
	Proposer
	spoil atomic.Pointer[func(cmd state.Command) error] // its error takes the place of the commit
}

func (s *spoiled) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	if f := s.spoil.Load(); f != nil {
		for _, cmd := range cmds {
			if err := (*f)(cmd); err != nil {
				return nil, err
			}
		}
	}
	return s.Proposer.Propose(ctx, cmds...)
}

// spoil has proposals of the yard go through f first; f may wait.
func (y *yard) spoil(f func(cmd state.Command) error) {
	s, ok := y.server.Node.(*spoiled)
	if !ok {
		y.Fatal("the yard was made without spoiled")
	}
	s.spoil.Store(&f)
}

// What was not committed is not acknowledged: the session ends, and the host says it again.
func TestReportsThatWereNotCommittedAreNotAcknowledged(t *testing.T) {
	for name, spoil := range map[string]func(state.Command) error{
		"not committed":   func(state.Command) error { return fleet.Unavailable("outcome unknown", nil) },
		"another session": nil,
	} {
		t.Run(name, func(t *testing.T) {
			y := newYard(t)
			g := y.join("h1")
			g.ready()
			g.crowd(0, 1, 0)
			stream, _ := g.raw()
			if spoil == nil { // the state refuses what is of an older session
				g.ready()
			} else {
				y.spoil(func(cmd state.Command) error {
					if _, ok := cmd.(state.ReportPods); ok {
						return spoil(cmd)
					}
					return nil
				})
			}
			check(t, stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Reports{Reports: &agentrpc.Reports{
				Sequence: 1, Pods: []*agentrpc.PodReport{{PodId: "pod00000000000", Incarnation: 1, Event: "exited"}},
			}}}))
			for {
				msg, err := stream.Recv()
				if err != nil {
					return
				}
				if msg.GetReportsKept() != nil {
					t.Fatal("the host was told that its report is kept")
				}
			}
		})
	}
}

// A host keeps the set that it holds only where it is of this control plane and of the generation that is in force.
func TestAHostKeepsASetOfThisLineageOnly(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	g.ready()
	generation := g.host().Generation
	x := newSession(y.server, "h1", &agentrpc.Hello{}, nil)
	for name, c := range map[string]struct {
		hello *agentrpc.Hello
		keep  bool
	}{
		"the same":              {&agentrpc.Hello{HoldsSet: true, Generation: generation}, true},
		"it holds none":         {&agentrpc.Hello{Generation: generation}, false},
		"an older generation":   {&agentrpc.Hello{HoldsSet: true, Generation: generation - 1}, false},
		"of another lineage":    {&agentrpc.Hello{HoldsSet: true, Generation: generation, Lineage: 1}, false},
		"of a later generation": {&agentrpc.Hello{HoldsSet: true, Generation: generation + 1}, false},
	} {
		x.fullNext = true
		w, err := x.greeting(c.hello, g.host())
		check(t, err)
		if w.GetKeepSet() != c.keep || x.fullNext == c.keep {
			t.Errorf("%s: it keeps the set: %v", name, w.GetKeepSet())
		}
	}
}

// Only who has a host's certificate is a host: a scheduler of the cluster is none.
func TestOnlyAHostHasASessionAndTunnels(t *testing.T) {
	y := newYard(t)
	y.join("h1")
	conf, err := agentrpc.HostClientTLS(y.certs(pki.RoleScheduler, "h1"))
	check(t, err)
	conn, err := grpc.NewClient("passthrough:///"+y.addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	check(t, err)
	defer func() { check(t, conn.Close()) }()
	client := agentrpc.NewLinkClient(conn)
	stream, err := client.Session(y.ctx)
	check(t, err)
	_ = stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: &agentrpc.Hello{MachineId: "m-h1", BootId: "b"}}})
	if _, err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a session: %v", err)
	}
	tunnel, err := client.Tunnel(y.ctx)
	check(t, err)
	_ = tunnel.Send(&agentrpc.Frame{Id: "x"})
	if _, err := tunnel.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a tunnel: %v", err)
	}
	if _, err := agentrpc.NewJoinClient(conn).Renew(y.ctx, &agentrpc.RenewRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a certificate: %v", err)
	}
	var epoch uint64
	check(t, y.store.View(func(v *state.View) error { h, _ := v.Host("h1"); epoch = h.Epoch; return nil }))
	if epoch != 0 {
		t.Errorf("the host has epoch %d", epoch)
	}
}

// A tunnel that one host was asked for is no other's, though that one knows its id.
func TestATunnelOfAnotherHostIsRefused(t *testing.T) {
	y := newYard(t)
	other := y.join("h2")
	mine := &tunnel{host: "h1", arrived: make(chan *arrival, 1), lost: make(chan struct{})}
	y.server.mu.Lock()
	y.server.waiting["id"] = mine
	y.server.mu.Unlock()
	ctx, cancel := context.WithTimeout(y.ctx, patience)
	defer cancel()
	for range 2 {
		stream, err := other.client.Tunnel(ctx)
		check(t, err)
		check(t, stream.Send(&agentrpc.Frame{Id: "id", Data: []byte("not yours")}))
		if _, err := stream.Recv(); status.Code(err) != codes.NotFound {
			t.Errorf("got %v", err)
		}
	}
	y.server.mu.Lock()
	if y.server.waiting["id"] != mine || len(mine.arrived) != 0 {
		t.Error("the tunnel is not waited for any more")
	}
	y.server.waiting["id"] = &tunnel{host: "h2", arrived: make(chan *arrival, 2), lost: make(chan struct{})}
	y.server.mu.Unlock()
	for i := range 2 { // an id is good for one tunnel
		stream, err := other.client.Tunnel(ctx)
		check(t, err)
		check(t, stream.Send(&agentrpc.Frame{Id: "id"}))
		if i > 0 {
			_, err = stream.Recv()
			if status.Code(err) != codes.NotFound {
				t.Errorf("the second of an id: %v", err)
			}
			continue
		}
		y.soon("it came", func() bool { y.server.mu.Lock(); defer y.server.mu.Unlock(); return y.server.waiting["id"] == nil })
	}
}

// While a report of a host is being committed, and that takes long, the host hears of its scheduler.
func TestASlowCommitIsNoSilence(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	g.ready()
	g.crowd(0, 1, 0)
	stream, welcome := g.raw()
	limit := time.Duration(welcome.GetSilenceMs()) * time.Millisecond
	begun, held := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	y.spoil(func(cmd state.Command) error {
		if _, ok := cmd.(state.ReportPods); ok {
			close(begun)
			<-held
		}
		return nil
	})
	check(t, stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Reports{Reports: &agentrpc.Reports{
		Sequence: 1, Pods: []*agentrpc.PodReport{{PodId: "pod00000000000", Incarnation: 1, Event: "exited"}},
	}}}))
	select {
	case <-begun:
	case <-y.ctx.Done():
		t.Fatal("nothing was proposed")
	}
	// As many beats come as there are between two of the host's limits; then the commit goes on, and is acknowledged.
	for beats := 0; beats < 4; {
		msg, err := stream.Recv()
		check(t, err)
		switch {
		case msg.GetBeat() != nil:
			beats++
		case msg.GetReportsKept() != nil:
			t.Fatal("acknowledged before it was committed")
		}
	}
	release()
	for kept := false; !kept; {
		msg, err := stream.Recv()
		check(t, err)
		kept = msg.GetReportsKept().GetSequence() == 1
	}
	if limit <= 2*y.server.Heartbeat {
		t.Errorf("a host waits for %s, and beats come every %s", limit, y.server.Heartbeat)
	}
}
