package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"gantry/agent"
	"gantry/agent/pod"
	"gantry/agent/session"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/netctl"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/entry"
	"gantry/scheduler/membership"
	"gantry/scheduler/state"
)

const patience = 2 * time.Minute // for what must happen at all

// world is a control plane of one or more schedulers that share one state, and the agents of its hosts.
type world struct {
	testing.TB
	ctx     context.Context
	ca      *pki.CA
	store   *state.Store
	log     *slog.Logger
	dial    session.Dialer
	relayed bool // schedulers that do not lead have sessions of hosts
	// listen makes the port of a scheduler.
	listen func(addr string) (net.Listener, error)

	mu     sync.Mutex // guards the fields below
	index  uint64
	leader *scheduler
	lost   int // how often a host became unreachable
	all    []*scheduler
}

// scheduler is one process of the control plane.
type scheduler struct {
	world    *world
	addr     string
	dispatch *dispatch.Server
	lead     context.CancelFunc // ends leadership; nil: it does not lead
	led      chan struct{}
	sessions atomic.Int64 // that were begun
	endData  func()       // as its death would
	stop     func()       // the same, of all that it serves
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newWorld makes a state with a data center and no schedulers.
func newWorld(t testing.TB) *world {
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{TB: t, ctx: ctx, relayed: true, log: slog.New(slog.NewTextHandler(t.Output(), nil)), dial: session.DialTCP}
	w.listen = func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }
	t.Cleanup(cancel)
	now := time.Now()
	var err error
	w.ca, err = pki.NewCA("cluster1", now)
	must(t, err)
	w.store, err = state.Open(filepath.Join(t.TempDir(), "state"), state.Options{})
	must(t, err)
	t.Cleanup(func() { _ = w.store.Close() })
	w.propose(state.Bootstrap{ClusterID: "cluster1", CA: pki.EncodeCert(w.ca.Cert()), SealedCAKey: []byte("k"), At: now, Level: state.Level})
	w.propose(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-1", Name: "dc-1"}})
	return w
}

func (w *world) propose(cmds ...state.Command) {
	w.Helper()
	res, err := w.apply(cmds...)
	must(w, err)
	for _, r := range res {
		must(w, r.Err)
	}
}

func (w *world) apply(cmds ...state.Command) ([]entry.Result, error) {
	data, err := state.Encode(cmds...)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.index++
	res, err := w.store.Apply([]entry.Entry{{Index: w.index, Term: 1, Data: data}})
	if err != nil {
		return nil, err
	}
	for i, cmd := range cmds {
		if m, ok := cmd.(state.SetHostState); ok && res[0][i].Err == nil && m.State == fleet.HostUnreachable {
			w.lost++
		}
	}
	return res[0], nil
}

func (w *world) transitions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Propose implements dispatch.Proposer.
func (s *scheduler) Propose(_ context.Context, cmds ...state.Command) ([]entry.Result, error) {
	if !s.IsLeader() {
		return nil, fleet.Unavailable("not the leader", nil)
	}
	for _, c := range cmds {
		if _, ok := c.(state.ConnectHost); ok {
			s.sessions.Add(1)
		}
	}
	return s.world.apply(cmds...)
}

// Barrier implements dispatch.Proposer.
func (s *scheduler) Barrier(ctx context.Context) error { return ctx.Err() }

// IsLeader implements dispatch.Proposer.
func (s *scheduler) IsLeader() bool {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	return s.world.leader == s
}

func (w *world) leaderAddr() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leader == nil {
		return ""
	}
	return w.leader.addr
}

func (w *world) addrs() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, s := range w.all {
		out = append(out, s.addr)
	}
	return out
}

// newScheduler starts a scheduler that does not lead.
func (w *world) newScheduler(listen string, conf dispatch.Config) *scheduler {
	w.Helper()
	s := &scheduler{world: w}
	certs, err := pki.OpenStore(w.TempDir())
	must(w, err)
	must(w, certs.Enroll(w.ca, pki.Identity{Role: pki.RoleScheduler, ID: fleet.NewID()}, time.Hour, time.Now()))
	ln, err := w.listen(listen)
	must(w, err)
	s.addr = ln.Addr().String()
	if w.relayed {
		conf.Address, conf.Dial = s.addr, membership.Dialer(certs)
	}
	mux, err := agentrpc.NewMux(ln, certs, agentrpc.MuxConfig{Log: w.log})
	must(w, err)
	conf.Store, conf.Node, conf.Log = w.store, s, w.log.With("at", s.addr)
	conf.CA = func(context.Context) (*pki.CA, error) { return w.ca, nil }
	conf.Schedulers = w.addrs
	if conf.Leader == nil {
		conf.Leader = w.leaderAddr
	}
	s.dispatch = dispatch.New(conf)
	g := s.dispatch.GRPC()
	served, data := make(chan error, 1), make(chan error, 1)
	serving, end := context.WithCancel(w.ctx)
	s.endData = end
	relayed := make(chan error, 1)
	go func() { served <- g.Serve(mux.GRPC()) }()
	go func() { relayed <- s.dispatch.Relay(serving) }()
	go func() { data <- s.dispatch.Data().Serve(serving, mux.Data()) }()
	w.mu.Lock()
	w.all = append(w.all, s)
	w.mu.Unlock()
	s.stop = func() {
		end()
		g.Stop()
	}
	w.Cleanup(func() {
		s.resign()
		s.stop()
		must(w, <-data)
		must(w, <-relayed)
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			w.Error(err)
		}
		must(w, mux.Close())
	})
	return s
}

// begin makes the scheduler the leader; no other one may lead.
func (s *scheduler) begin() {
	ctx, cancel := context.WithCancel(s.world.ctx)
	s.lead, s.led = cancel, make(chan struct{})
	s.world.mu.Lock()
	s.world.leader = s
	s.world.mu.Unlock()
	go func() {
		defer close(s.led)
		if err := s.dispatch.Lead(ctx); err != nil {
			s.world.Error(err)
		}
	}()
}

func (s *scheduler) resign() {
	if s.lead == nil {
		return
	}
	s.world.mu.Lock()
	if s.world.leader == s {
		s.world.leader = nil
	}
	s.world.mu.Unlock()
	s.lead()
	<-s.led
	s.lead = nil
}

// host is a data folder whose agent may run.
type host struct {
	world   *world
	dir     string
	id      fleet.HostID
	machine string
	conf    func(*agent.Config)
	stop    context.CancelFunc
	done    chan struct{}
}

func (w *world) token() string { return w.tokenOf(w.ca) }

func (w *world) tokenOf(ca *pki.CA) string {
	token := pki.NewJoinToken(ca.Digest())
	hash := pki.Hash(token.Secret)
	now := time.Now()
	w.propose(state.PutToken{Token: fleet.JoinToken{
		ID: token.ID, Hash: hash[:], DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour),
	}, At: now})
	return token.Text()
}

// newHost joins a host through any of the addresses.
func (w *world) newHost(addrs ...string) *host {
	w.Helper()
	h := &host{world: w, dir: w.TempDir(), machine: "machine-" + fleet.NewID()}
	id, err := session.JoinCluster(w.ctx, session.JoinConfig{
		Dir: h.dir, Schedulers: addrs, Name: "host", Token: w.token(), MachineID: h.machine, Hardware: "board-1", Dial: w.dial,
	})
	must(w, err)
	h.id = fleet.HostID(id)
	w.Cleanup(h.kill)
	return h
}

// config is that of the host's agent, which is named these schedulers.
func (h *host) config(addrs ...string) agent.Config {
	conf := agent.Config{
		Dir: h.dir, Schedulers: addrs, Dial: h.world.dial, Instance: "0a1b", Offer: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000, DiskGB: 10},
		MachineID: h.machine, Hardware: "board-1", BootID: "boot", Version: "test", Containers: none{}, Network: netctl.NewFake(netctl.NewFakeKernel(), "0a1b"),
		PickSubnet: func(context.Context) (netip.Prefix, error) { return netip.MustParsePrefix("10.88.0.0/20"), nil },
		Ready:      func() {}, Log: h.world.log.With("dir", filepath.Base(h.dir)),
	}
	if h.conf != nil {
		h.conf(&conf)
	}
	return conf
}

// start starts the agent, which is named these schedulers.
func (h *host) start(addrs ...string) {
	ctx, cancel := context.WithCancel(h.world.ctx)
	conf := h.config(addrs...)
	h.stop, h.done = cancel, make(chan struct{})
	go func() {
		defer close(h.done)
		if err := agent.Run(ctx, conf); err != nil {
			h.world.Error(err)
		}
	}()
}

func (h *host) kill() {
	if h.stop != nil {
		h.stop()
		<-h.done
		h.stop = nil
	}
}

// copied returns a copy of the host's disk, whose agent does not run.
func (h *host) copied() *host {
	h.world.Helper()
	c := &host{world: h.world, dir: h.world.TempDir(), id: h.id, machine: h.machine}
	must(h.world, exec.Command("cp", "-a", h.dir+"/.", c.dir).Run())
	h.world.Cleanup(c.kill)
	return c
}

func (h *host) record() (out fleet.Host) {
	must(h.world, h.world.store.View(func(v *state.View) error {
		out, _ = v.Host(h.id)
		return nil
	}))
	return out
}

// soon waits for something that must come true.
func (w *world) soon(what string, ok func() bool) {
	w.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			w.Fatalf("it did not happen in time: %s", what)
		}
	}
}

func (h *host) is(s fleet.HostState) func() bool { return func() bool { return h.record().State == s } }

// none is a container runtime that has no containers.
type none struct{ pod.Runtime }

func (none) Version(context.Context) (string, error)             { return "none", nil }
func (none) List(context.Context) ([]fleet.PodID, error)         { return nil, nil }
func (none) Images(context.Context) ([]string, error)            { return nil, nil }
func (none) Import(context.Context, io.Reader) ([]string, error) { return nil, nil }
func (none) Clean(context.Context, bool) error                   { return nil }
