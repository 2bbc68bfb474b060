package dataconn

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

const patience = 2 * time.Minute

// port is that of a scheduler, which takes a host's data connections.
type port struct {
	addr  string
	taken chan *agentrpc.DataConn
	hello chan uint64
	admit atomic.Bool
	close func()
}

type world struct {
	testing.TB
	ca *pki.CA
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	ca, err := pki.NewCA("cluster-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, ca}
}

func (w *world) certs(role pki.Role, id string) *pki.Store {
	w.Helper()
	s, err := pki.OpenStore(w.TempDir())
	if err == nil {
		err = s.Enroll(w.ca, pki.Identity{Role: role, ID: id}, time.Hour, time.Now())
	}
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) listen(id string) *port { return w.listenAs(pki.RoleScheduler, id) }

func (w *world) listenAs(role pki.Role, id string) *port {
	w.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	mux, err := agentrpc.NewMux(ln, w.certs(role, id), agentrpc.MuxConfig{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.Fatal(err)
	}
	p := &port{addr: ln.Addr().String(), taken: make(chan *agentrpc.DataConn, 16), hello: make(chan uint64, 64)}
	p.admit.Store(true)
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []*agentrpc.DataConn
	all.Go(func() {
		for {
			conn, err := mux.Data().Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				d, err := agentrpc.AcceptData(conn, nil, func(_ pki.Identity, h *agentrpc.DataHello) error {
					p.hello <- h.GetEpoch()
					if !p.admit.Load() {
						return errors.New("not yet")
					}
					return nil
				})
				if err == nil {
					mu.Lock()
					conns = append(conns, d)
					mu.Unlock()
					p.taken <- d
				}
			})
		}
	})
	p.close = sync.OnceFunc(func() {
		_ = mux.Close()
		all.Wait()
		for _, d := range conns {
			_ = d.Close()
		}
	})
	w.Cleanup(p.close)
	return p
}

func (p *port) next(t *testing.T) *agentrpc.DataConn {
	t.Helper()
	select {
	case d := <-p.taken:
		return d
	case <-time.After(patience):
		t.Fatal("no data connection came")
		return nil
	}
}

// TestADataConnectionToEachSchedulerWhileThereArePods: one to each, whatever addresses lead to it; with the epoch of the newest session;
// again when one breaks.
func TestADataConnectionToEachSchedulerWhileThereArePods(t *testing.T) {
	w := newWorld(t)
	one, alias, two := w.listen("s1"), w.listen("s1"), w.listen("s2")
	two.admit.Store(false)
	var pods atomic.Bool
	c := New(Config{
		Known: func() []string { return []string{one.addr, alias.addr, two.addr, "127.0.0.1:1"} }, Store: w.certs(pki.RoleHost, "h1"),
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		},
		Needed: pods.Load,
		Serve:  func(_ context.Context, d *agentrpc.DataConn) { <-d.Done() },
		Log:    slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	pods.Store(true)
	select {
	case <-one.hello:
		t.Fatal("it connected before there was a session")
	case <-time.After(look + look/2):
	}
	if err := c.Welcome(&agentrpc.Welcome{Epoch: 7}); err != nil {
		t.Fatal(err)
	}
	var first *agentrpc.DataConn
	select { // which address of the first is quicker is chance
	case first = <-one.taken:
	case first = <-alias.taken:
	case <-time.After(patience):
		t.Fatal("no data connection came")
	}
	if epoch := <-two.hello; epoch != 7 {
		t.Errorf("it named session %d", epoch)
	}
	two.admit.Store(true)
	second := two.next(t)
	if !first.Answers(patience) || !second.Answers(patience) {
		t.Error("one of them does not answer")
	}
	_ = second.Close()
	if !two.next(t).Answers(patience) {
		t.Error("the next one does not answer")
	}
}

// TestADataConnectionToEachGatewayThatASchedulerNames: while it is named, and only to the one that is meant.
func TestADataConnectionToEachGatewayThatASchedulerNames(t *testing.T) {
	w := newWorld(t)
	one, two, false2 := w.listenAs(pki.RoleGateway, "g1"), w.listenAs(pki.RoleGateway, "g2"), w.listen("g2")
	c := New(Config{
		Known: func() []string { return nil }, Store: w.certs(pki.RoleHost, "h1"),
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		},
		Needed: func() bool { return true },
		Serve:  func(_ context.Context, d *agentrpc.DataConn) { <-d.Done() },
		Log:    slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	defer func() { cancel(); <-done }()
	named := func(ports ...*agentrpc.GatewayAddress) *agentrpc.Gateways { return &agentrpc.Gateways{Gateways: ports} }
	g1, g2 := &agentrpc.GatewayAddress{Id: "g1", Address: one.addr}, &agentrpc.GatewayAddress{Id: "g2", Address: two.addr}
	err := c.Welcome(&agentrpc.Welcome{Epoch: 7, Gateways: named(g1, &agentrpc.GatewayAddress{Id: "g2", Address: false2.addr}, &agentrpc.GatewayAddress{Address: false2.addr})})
	if err != nil {
		t.Fatal(err)
	}
	first := one.next(t)
	if _, err := c.TakeGateways(ctx, &agentrpc.Down_Gateways{Gateways: named(g1, g2)}); err != nil {
		t.Fatal(err)
	}
	second := two.next(t)
	if _, err := c.TakeGateways(ctx, &agentrpc.Down_Gateways{Gateways: named(g2)}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-first.Done():
	case <-time.After(patience):
		t.Error("the connection with a gateway that was removed goes on")
	}
	if !second.Answers(patience) {
		t.Error("the other does not answer")
	}
	select {
	case <-false2.hello:
		t.Error("a scheduler was taken for a gateway, or an empty id for that of any")
	default:
	}
}
