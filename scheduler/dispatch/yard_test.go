package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/entry"
	"gantry/scheduler/feed"
	"gantry/scheduler/feed/networks"
	"gantry/scheduler/feed/s3"
	"gantry/scheduler/feed/storage"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/state"
	"gantry/test/simhosts/simhost"
)

const patience = 2 * time.Minute // for what must happen at all

// yard is a leading scheduler with hosts that are played over real connections; what is proposed is applied at once.
type yard struct {
	testing.TB
	ctx     context.Context
	ca      *pki.CA
	addr    string
	server  *Server
	storage *storage.Storage
	said    *safeBuffer
	resign  func() // ends leadership

	barriers atomic.Int64
	follows  atomic.Bool
	mu       sync.Mutex // guards the fields below
	store    *state.Store
	index    uint64
	noted    []state.VolumeReport // that were proposed
}

// safeBuffer is a log.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (y *yard) Propose(_ context.Context, cmds ...state.Command) ([]entry.Result, error) {
	data, err := state.Encode(cmds...)
	if err != nil {
		return nil, err
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.index++
	for _, cmd := range cmds {
		if r, ok := cmd.(state.ReportVolumes); ok {
			y.noted = append(y.noted, r.Volumes...)
		}
	}
	res, err := y.store.Apply([]entry.Entry{{Index: y.index, Term: 1, Data: data}})
	if err != nil {
		return nil, err
	}
	return res[0], nil
}

func (y *yard) Barrier(context.Context) error {
	y.barriers.Add(1)
	return nil
}
func (y *yard) IsLeader() bool { return !y.follows.Load() }

func (y *yard) do(cmds ...state.Command) {
	y.Helper()
	for _, cmd := range cmds {
		res, err := y.Propose(y.ctx, cmd)
		check(y, err)
		if res[0].Err != nil {
			y.Fatalf("%T: %v", cmd, res[0].Err)
		}
	}
}

// reports returns what was proposed of a volume.
func (y *yard) reports(id fleet.VolumeID) (out []state.VolumeReport) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, r := range y.noted {
		if r.Volume == id {
			out = append(out, r)
		}
	}
	return out
}

// volume returns the record of vol1.
func (y *yard) volume() (out fleet.Volume, there bool) {
	y.Helper()
	check(y, y.store.View(func(v *state.View) error { out, there = v.VolumeRecord("vol1"); return nil }))
	return out, there
}

// soon waits until something holds.
func (y *yard) soon(what string, ok func() bool) {
	y.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-y.ctx.Done():
			y.Fatalf("not in time: %s", what)
		}
	}
}

func newYard(t testing.TB) *yard {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t, goleak.IgnoreTopFunction("testing.(*B).run1")) })
	y := &yard{TB: t, said: &safeBuffer{}}
	var cancel context.CancelFunc
	limit := 3 * patience
	if _, bench := t.(*testing.B); bench {
		limit = 10 * patience
	}
	y.ctx, cancel = context.WithTimeout(context.Background(), limit)
	var err error
	y.store, err = state.Open(filepath.Join(t.TempDir(), "state.db"), state.Options{})
	check(t, err)
	y.ca, err = pki.NewCA("cluster-1", time.Now())
	check(t, err)
	now := time.Now()
	y.do(
		state.Bootstrap{ClusterID: "cluster-1", At: now},
		state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-1", Name: "dc-1", Region: "EUROPE", GlobalNetwork: true}},
		state.PutAccount{Account: fleet.Account{ID: "acme", Name: "Acme", CreatedAt: now}},
	)
	log := slog.New(slog.NewTextHandler(y.said, nil))
	backends := volumes.Backends{Log: log, Secrets: func(b *fleet.Backend) (fleet.BackendSecrets, error) {
		if len(b.Sealed) == 0 {
			return fleet.BackendSecrets{}, nil
		}
		return fleet.BackendSecrets{Key: "plain-key", AdminKey: "admin-key"}, nil
	}}
	y.storage = storage.New(y.store, backends, log)
	y.server = New(Config{
		Feeds: []feed.Feed{networks.New(y.store, log), y.storage},
		Store: y.store, Node: &spoiled{Proposer: y}, Log: log, CA: func(context.Context) (*pki.CA, error) { return y.ca, nil },
		Backends: backends,
		S3: s3.New(s3.Config{
			Store: y.store, Backends: backends, Log: log,
			Secret: func(k *fleet.S3Key) (fleet.Secret, error) { return fleet.Secret(k.Sealed), nil },
		}),
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	y.addr = ln.Addr().String()
	mux, err := agentrpc.NewMux(ln, y.certs(pki.RoleScheduler, "scheduler1"), agentrpc.MuxConfig{Log: log})
	check(t, err)
	g := y.server.GRPC()
	served, led, data := make(chan error, 1), make(chan error, 1), make(chan error, 1)
	lead, resign := context.WithCancel(y.ctx)
	y.resign = resign
	serving, end := context.WithCancel(y.ctx)
	go func() { served <- g.Serve(mux.GRPC()) }()
	go func() { data <- y.server.Data().Serve(serving, mux.Data()) }()
	go func() { led <- y.server.Lead(lead) }()
	y.soon("it leads", func() bool { y.server.mu.Lock(); defer y.server.mu.Unlock(); return y.server.lead != nil })
	t.Cleanup(func() {
		resign()
		check(t, <-led)
		end()
		check(t, <-data)
		g.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // it had not begun yet
			check(t, err)
		}
		check(t, mux.Close())
		cancel()
		check(t, y.store.Close())
	})
	return y
}

func (y *yard) certs(role pki.Role, id string) *pki.Store {
	y.Helper()
	s, err := pki.OpenStore(y.TempDir())
	check(y, err)
	check(y, s.Enroll(y.ca, pki.Identity{Role: role, ID: id}, time.Hour, time.Now()))
	return s
}

// guest is a host that the test plays.
type guest struct {
	*yard
	id     fleet.HostID
	tunnel *agentrpc.HostTunnel
	conn   *grpc.ClientConn
	client agentrpc.LinkClient
	stream agentrpc.Link_SessionClient
	leave  func()
	sets   chan *agentrpc.StorageSet
	orders chan *agentrpc.Assignment

	netMu    sync.Mutex // guards the fields below
	networks simhost.Networks
	kinds    []string         // kinds of messages of the session that were heard of networks and assignments
	heard    []*agentrpc.Down // those of networks
}

// join makes a host of dc-1 with roles.
func (y *yard) join(id fleet.HostID, roles ...fleet.HostRole) *guest {
	y.Helper()
	return y.joinAt("dc-1", id, roles...)
}

func (y *yard) joinAt(center fleet.DataCenterID, id fleet.HostID, roles ...fleet.HostRole) *guest {
	y.Helper()
	token := fleet.JoinToken{ID: fleet.TokenID("t-" + id), Hash: []byte("h"), DataCenter: center, Cloud: fleet.CloudSecure, ExpiresAt: time.Now().Add(time.Hour)}
	y.do(
		state.PutToken{Token: token, At: time.Now()},
		state.JoinHost{Token: token.ID, Hash: token.Hash, Host: fleet.Host{ID: id, Name: string(id), MachineID: "m-" + string(id)}, At: time.Now()},
		state.SetHostRoles{Host: id, Roles: roles},
	)
	conf, err := agentrpc.HostClientTLS(y.certs(pki.RoleHost, string(id)))
	check(y, err)
	conn, err := grpc.NewClient("passthrough:///"+y.addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	check(y, err)
	y.Cleanup(func() { check(y, conn.Close()) })
	return &guest{yard: y, id: id, conn: conn, client: agentrpc.NewLinkClient(conn), tunnel: tunnelOf(id)}
}

// connect begins a session; what it is told comes out of its channels.
func (g *guest) connect() *guest {
	g.Helper()
	ctx, cancel := context.WithCancel(g.ctx)
	var err error
	g.stream, err = g.client.Session(ctx)
	check(g, err)
	check(g, g.stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: &agentrpc.Hello{
		MachineId: "m-" + string(g.id), BootId: "b", Run: fleet.NewID(), Inventory: &agentrpc.Inventory{
			Total: &agentrpc.Resources{MilliCpu: 64_000, MemoryMb: 64_000, DiskGb: 1000}, Volumes: []string{"nfs", "cephfs", "nfs", "odd", "local"},
			Tunnel: g.tunnel,
		},
	}}}))
	msg, err := g.stream.Recv()
	check(g, err)
	if msg.GetWelcome() == nil {
		g.Fatalf("got %v", msg)
	}
	sets, orders, done := make(chan *agentrpc.StorageSet, 100), make(chan *agentrpc.Assignment, 100), make(chan struct{})
	g.sets, g.orders = sets, orders
	var beating sync.WaitGroup
	beating.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.server.session(g.id).lastSeen.Store(time.Now().UnixNano()) // Send is the test's
			case <-ctx.Done():
				return
			}
		}
	})
	stream := g.stream
	go func() {
		defer close(done)
		var parts agentrpc.Parts
		for {
			msg, err := stream.Recv()
			if err == nil {
				msg, err = parts.Add(msg)
			}
			if err != nil {
				return
			}
			if s := msg.GetStorage(); s != nil {
				sets <- s
			}
			g.hear(msg)
			for _, a := range slices.Concat(msg.GetFull().GetAssignments(), msg.GetDifference().GetPut()) {
				orders <- a
			}
		}
	}()
	g.leave = sync.OnceFunc(func() { cancel(); <-done; beating.Wait() })
	g.Cleanup(g.leave)
	return g
}

// set waits for a set of which ok says that it is the one.
func (g *guest) set(what string, ok func(string) bool) *agentrpc.StorageSet {
	g.Helper()
	for last := ""; ; {
		select {
		case s := <-g.sets:
			if last = words(s); ok(last) {
				return s
			}
		case <-g.ctx.Done():
			g.Fatalf("%s was not told of: %s; last was %q", g.id, what, last)
		}
	}
}

func (g *guest) is(text string) *agentrpc.StorageSet {
	g.Helper()
	return g.set(text, func(got string) bool { return got == text })
}

// words are a set in short.
func words(s *agentrpc.StorageSet) string {
	var out []string
	for _, r := range s.GetRoots() {
		out = append(out, r.GetBackend().GetId()+":")
		for _, v := range r.GetVolumes() {
			text := fmt.Sprintf("%s=%d", v.GetVolumeId(), v.GetSizeGb())
			if v.GetGone() {
				text += "-"
			}
			if v.GetMeasure() {
				text += "?"
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

func (g *guest) says(reports ...*agentrpc.StorageReport) {
	g.Helper()
	check(g, g.stream.Send(&agentrpc.Up{Kind: &agentrpc.Up_Storage{Storage: &agentrpc.StorageReports{Volumes: reports}}}))
}

func nfs(id fleet.BackendID) fleet.Backend {
	return fleet.Backend{
		ID: id, DataCenter: "dc-1", Type: fleet.VolumeStandard, Kind: fleet.BackendNFS, CreatedAt: time.Now(),
		NFS: &fleet.NFSBackend{Server: "nfs.example", Export: "/srv/" + string(id)},
	}
}

func ceph(id fleet.BackendID) fleet.Backend {
	return fleet.Backend{
		ID: id, DataCenter: "dc-1", Type: fleet.VolumeFast, Kind: fleet.BackendCeph, CreatedAt: time.Now(), Sealed: []byte("sealed"),
		Ceph: &fleet.CephBackend{Monitors: []string{"10.0.0.1:3300"}, FileSystem: "fs", Path: "/v", User: "pods", AdminUser: "quotas"},
	}
}

func (y *yard) addVolume(id fleet.VolumeID, b *fleet.Backend, gb int) {
	y.Helper()
	dir := strings.Map(func(r rune) rune { return 'a' + r%26 }, fmt.Sprintf("%026s", id))
	y.do(state.CreateVolume{Volume: fleet.Volume{
		ID: id, Account: "acme", Name: "data", SizeGB: gb, DataCenter: b.DataCenter, Type: b.Type, Backend: b.ID, Dir: dir, CreatedAt: time.Now(),
	}})
}

func made(id string, gb int64) *agentrpc.StorageReport {
	return &agentrpc.StorageReport{VolumeId: id, ProvisionedGb: gb}
}

// order waits for the next order for a pod.
func (g *guest) order(id string) *agentrpc.Assignment {
	g.Helper()
	for {
		select {
		case a := <-g.orders:
			if a.GetPodId() == id {
				return a
			}
		case <-g.ctx.Done():
			g.Fatalf("%s was not told of pod %s", g.id, id)
		}
	}
}

func ptr[T any](v T) *T { return &v }
