package membership

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/entry"
	"gantry/scheduler/jobs"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// patience bounds every wait for something that should happen soon.
const patience = 2 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

// world is a control plane of real replicas in this process, over TLS on loopback.
type world struct {
	t      *testing.T
	ca     *pki.CA
	sealer *pki.Sealer
	lead   *machine // the first, which leads throughout
}

// machine is one scheduler.
type machine struct {
	id       string
	address  string
	ln       net.Listener
	certs    *pki.Store
	store    *state.Store
	node     *replica.Node
	jobs     *replica.Node
	keeper   *Keeper
	server   *Server
	reads    *Reads
	presence *Presence
	service  *grpc.Server
	close    func()
	clock    atomic.Int64 // how far it is off, in nanoseconds
}

// streams connects replicas over the link port.
type streams struct {
	net.Listener
	certs *pki.Store
	dial  func(ctx context.Context, store *pki.Store, address string) (net.Conn, error)
}

func (s streams) Dial(address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.dial(ctx, s.certs, address)
}

// hooked is a node whose proposals a test may spoil.
type hooked struct {
	*replica.Node
	spoil func(context.Context) error // nil, or its result, after the proposal
}

func (h *hooked) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	res, err := h.Node.Propose(ctx, cmds...)
	if h.spoil != nil && err == nil {
		err = h.spoil(ctx)
	}
	return res, err
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ca, err := pki.NewCA("cluster", time.Now().Add(-2*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "seal.key")
	if err := pki.NewSealKeyFile(key); err != nil {
		t.Fatal(err)
	}
	sealer, err := pki.LoadSealer(key)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, ca: ca, sealer: sealer}
	m := w.machine()
	m.id = fleet.NewID()
	if err := m.certs.Enroll(ca, pki.Identity{Role: pki.RoleScheduler, ID: m.id}, CertLife, time.Now()); err != nil {
		t.Fatal(err)
	}
	w.start(m)
	if err := errors.Join(m.node.Bootstrap(within(t)), m.jobs.Bootstrap(within(t))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it leads", func() bool { return m.node.IsLeader() && m.node.Barrier(within(t)) == nil })
	w.lead = m
	w.must(propose(within(t), m.node,
		state.Bootstrap{ClusterID: "cluster", CA: pki.EncodeCert(ca.Cert()), SealedCAKey: []byte("sealed"), At: time.Now(), Level: state.Level}))
	eventually(t, "the leader recorded itself", func() bool { return len(w.members()) == 1 })
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// machine returns one that has an address and no certificate.
func (w *world) machine() *machine {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	w.t.Cleanup(func() { _ = ln.Close() })
	certs, err := pki.OpenStore(w.t.TempDir())
	w.must(err)
	return &machine{ln: ln, address: ln.Addr().String(), certs: certs}
}

// start runs a machine until the test ends or it is closed.
func (w *world) start(m *machine) {
	w.t.Helper()
	log := slog.New(slog.DiscardHandler)
	dir := w.t.TempDir()
	w.must(replica.Create(dir))
	mux, err := agentrpc.NewMux(m.ln, m.certs, agentrpc.MuxConfig{Log: log})
	w.must(err)
	m.store, err = state.Open(filepath.Join(dir, replica.StateFile), state.Options{BootID: "boot"})
	w.must(err)
	m.node, err = replica.Open(replica.Config{
		Dir: dir, ID: m.id, Address: m.address, Store: m.store, Streams: streams{mux.Raft(), m.certs, agentrpc.DialRaft}, Log: log,
		HeartbeatTimeout: 500 * time.Millisecond,
		Fatal:            func(err error) { w.t.Error(err) },
	})
	w.must(err)
	closeJobs := w.startJobs(m, mux)
	conf := Config{
		Self:  Self{ID: fleet.MemberID(m.id), Address: m.address, Level: state.Level, Version: "v1"},
		Store: m.store, Node: &hooked{Node: m.node}, Jobs: m.jobs, Sealer: w.sealer, Certs: m.certs, Log: log,
		CA:    func(context.Context) (*pki.CA, error) { return w.ca, nil },
		Clock: func() time.Time { return time.Now().Add(time.Duration(m.clock.Load())) },
	}
	m.keeper, m.presence = NewKeeper(conf), NewPresence(conf)
	m.server, m.reads = NewServer(conf, m.keeper), NewReads(conf)
	service := grpc.NewServer(grpc.Creds(agentrpc.ServerCredentials()))
	agentrpc.RegisterPeerServer(service, m.server)
	m.service = service
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = service.Serve(mux.GRPC()) })
	wg.Go(func() { _ = m.node.WhileLeader(ctx, m.keeper.Run) })
	wg.Go(func() { _ = m.keeper.LeadJobs(ctx) })
	m.close = sync.OnceFunc(func() {
		cancel()
		m.reads.Close()
		service.Stop()
		if err := errors.Join(m.node.Close(), closeJobs(), mux.Close(), m.store.Close()); err != nil {
			w.t.Error(err)
		}
		wg.Wait()
	})
	w.t.Cleanup(m.close)
}

// startJobs runs a machine's part in the group of the jobs, and returns what ends it.
func (w *world) startJobs(m *machine, mux *agentrpc.Mux) (end func() error) {
	w.t.Helper()
	dir := w.t.TempDir()
	w.must(replica.Create(dir))
	state, err := jobs.Open(dir)
	w.must(err)
	m.jobs, err = replica.Open(replica.Config{
		Dir: dir, ID: m.id, Address: m.address, Machine: state, Streams: streams{mux.Jobs(), m.certs, agentrpc.DialJobs},
		Log: slog.New(slog.DiscardHandler), HeartbeatTimeout: 500 * time.Millisecond,
		Fatal: func(err error) { w.t.Error(err) },
	})
	w.must(err)
	return func() error { return errors.Join(m.jobs.Close(), state.Close()) }
}

// token makes a join token.
func (w *world) token(change func(*fleet.JoinToken)) pki.JoinToken {
	w.t.Helper()
	token := pki.NewJoinToken(w.ca.Digest())
	hash := pki.Hash(token.Secret)
	record := fleet.JoinToken{ID: token.ID, Hash: hash[:], ExpiresAt: time.Now().Add(time.Hour), Role: fleet.TokenScheduler}
	change(&record)
	w.must(propose(within(w.t), w.lead.node, state.PutToken{At: time.Now(), Token: record}))
	return token
}

// join trades a token for what a machine needs to run.
func (w *world) join(m *machine, token pki.JoinToken, level uint64, at ...string) error {
	w.t.Helper()
	csr, err := m.certs.Request()
	w.must(err)
	if at == nil {
		at = []string{w.lead.address}
	}
	j, err := Join(within(w.t), token, at, &agentrpc.JoinMemberRequest{Csr: csr, Address: m.address, Level: level, Version: "v1"})
	if err != nil {
		return err
	}
	m.id = string(j.Member)
	return m.certs.Install(j.Leaf, j.Trusted...)
}

// rejoin trades a machine's certificate for a new identity, with a store for the answer.
func (w *world) rejoin(m *machine) (*machine, error) {
	w.t.Helper()
	fresh := &machine{address: m.address}
	var err error
	fresh.certs, err = pki.OpenStore(w.t.TempDir())
	w.must(err)
	csr, err := fresh.certs.Request()
	w.must(err)
	j, err := Rejoin(within(w.t), m.certs, []string{w.lead.address}, &agentrpc.RejoinRequest{Csr: csr, Address: m.address, Level: state.Level, Version: "v1"})
	if err != nil {
		return nil, err
	}
	fresh.id = string(j.Member)
	return fresh, fresh.certs.Install(j.Leaf, j.Trusted...)
}

// member adds one that runs, and waits until Raft has it as it should be.
func (w *world) member(nonVoter bool) *machine {
	w.t.Helper()
	m := w.machine()
	w.must(w.join(m, w.token(func(k *fleet.JoinToken) { k.NonVoter = nonVoter }), state.Level))
	w.start(m)
	eventually(w.t, "the new one is in", func() bool {
		s, ok := w.server(m.id)
		return ok && s.Voter == !nonVoter
	})
	return m
}

func (w *world) server(id string) (replica.Server, bool) {
	for _, s := range w.lead.node.Servers() {
		if s.ID == id {
			return s, true
		}
	}
	return replica.Server{}, false
}

// members are those that the records have, and that were not removed.
func (w *world) members() map[string]fleet.Member {
	out := map[string]fleet.Member{}
	w.must(w.lead.store.View(func(v *state.View) error {
		for _, m := range present(v.Members()) {
			out[string(m.ID)] = m
		}
		return nil
	}))
	return out
}
