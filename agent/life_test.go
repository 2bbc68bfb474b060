package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"gantry/agent/gpu"
	"gantry/agent/pod"
	"gantry/agent/session"
	"gantry/agent/storage"
	"gantry/agent/tunnels"
	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/netctl"
	"gantry/storage/volume"
)

// control is a scheduler that hands each session to the test.
type control struct {
	agentrpc.UnimplementedLinkServer
	sessions chan agentrpc.Link_SessionServer
}

// Session implements agentrpc.LinkServer.
func (c *control) Session(stream agentrpc.Link_SessionServer) error {
	select {
	case c.sessions <- stream:
	case <-stream.Context().Done():
	}
	<-stream.Context().Done()
	return nil
}

// opened are mounts whose folders gantry-s3 may have.
type opened struct {
	*volumestest.Mounts
	runs atomic.Int32
}

func (o *opened) Open(context.Context, volume.Volume) (*os.File, error) {
	return nil, errors.New("none")
}

func (o *opened) Run(ctx context.Context) {
	o.runs.Add(1)
	<-ctx.Done()
}

// sweeping is a way into containers of which only leftovers are asked.
type sweeping struct {
	tunnels.Inside
	swept atomic.Int32
}

func (s *sweeping) SweepExecs(context.Context) error {
	s.swept.Add(1)
	return nil
}

// cards are GPUs that may become others.
type cards struct {
	Accelerators
	found   atomic.Pointer[gpu.Found]
	changed chan struct{}
}

func (c *cards) Found() gpu.Found                                       { return *c.found.Load() }
func (c *cards) Changed() <-chan struct{}                               { return c.changed }
func (c *cards) Busy(context.Context, []string) (string, error)         { return "", nil }
func (c *cards) Devices(context.Context, []string) (pod.Devices, error) { return pod.Devices{}, nil }

// Use implements gpu.Meter.
func (c *cards) Use(_ context.Context, uuids []string) []fleet.GPUUse {
	return make([]fleet.GPUUse, len(uuids))
}

// said is a log.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// life is an agent that runs with all its rooms, and the scheduler that it follows.
type life struct {
	*testing.T
	conf    Config
	control *control
	mounts  *opened
	inside  *sweeping
	cards   *cards
	log     *said
}

func newLife(t *testing.T) *life {
	t.Helper()
	l := &life{
		T: t, control: &control{sessions: make(chan agentrpc.Link_SessionServer)}, mounts: &opened{Mounts: &volumestest.Mounts{Notify: make(chan struct{})}},
		inside: &sweeping{}, cards: &cards{changed: make(chan struct{})}, log: &said{},
	}
	l.cards.found.Store(&gpu.Found{})
	ca, err := pki.NewCA("cluster", time.Now())
	must(t, err)
	certs, err := pki.OpenStore(t.TempDir())
	must(t, err)
	must(t, certs.Enroll(ca, pki.Identity{Role: pki.RoleScheduler, ID: "scheduler1"}, time.Hour, time.Now()))
	tls, err := agentrpc.ServerTLS(certs)
	must(t, err)
	dir := t.TempDir()
	own, err := session.OpenStore(dir)
	must(t, err)
	must(t, own.Enroll(ca, pki.Identity{Role: pki.RoleHost, ID: "h1"}, time.Hour, time.Now()))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, metrics.Close())
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(tls)))
	agentrpc.RegisterLinkServer(srv, l.control)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // it had not begun yet
			must(t, err)
		}
	})
	ip := netip.MustParseAddr("203.0.113.7")
	l.conf = Config{
		Dir: dir, Schedulers: []string{ln.Addr().String()}, Dial: session.DialTCP, Instance: "0a1b", MachineID: "machine", Hardware: "board", BootID: "boot",
		Offer: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000, DiskGB: 10}, Version: "test", Containers: &slowRuntime{looked: map[fleet.PodID]bool{}},
		Network: netctl.NewFake(netctl.NewFakeKernel(), "0a1b"), Inside: l.inside, Volumes: l.mounts, S3Socket: filepath.Join(t.TempDir(), "s3", "agent.sock"),
		Metrics: metrics.Addr().String(), Accelerators: l.cards, Publish: Publish{From: 30_000, To: 30_009},
		FindPublish: func() (Publish, error) { return Publish{IP: ip, At: []netip.Addr{ip}, From: 30_000, To: 30_009}, nil },
		Conditions:  func() []fleet.Condition { return []fleet.Condition{{Code: "a_notice", Text: "of the operator"}} },
		PickSubnet:  func(context.Context) (netip.Prefix, error) { return netip.MustParsePrefix("10.88.0.0/20"), nil },
		Ready:       func() {}, Log: slog.New(slog.NewTextHandler(l.log, nil)),
	}
	return l
}

// run runs the agent until the returned function is called, which waits for its end.
func (l *life) run() (end func()) {
	ctx, cancel := context.WithCancel(l.Context())
	over := make(chan error, 1)
	go func() { over <- Run(ctx, l.conf) }()
	end = sync.OnceFunc(func() { cancel(); must(l.T, <-over) })
	l.Cleanup(end)
	return end
}

// session begins the next session, and returns what the host says in it.
func (l *life) session() (hello *agentrpc.Hello, stream agentrpc.Link_SessionServer) {
	l.Helper()
	select {
	case stream = <-l.control.sessions:
	case <-time.After(time.Minute):
		l.Fatalf("no session comes: %s", l.log.text())
	}
	msg, err := stream.Recv()
	must(l.T, err)
	if msg.GetHello().GetBrief() {
		must(l.T, stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Whole{Whole: &agentrpc.Whole{}}}))
		msg, err = stream.Recv()
		must(l.T, err)
	}
	must(l.T, stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Welcome{Welcome: &agentrpc.Welcome{HeartbeatMs: 100, ClusterId: "cluster", Lineage: 1}}}))
	return msg.GetHello(), stream
}

// hears reads what the host says until ok is true.
func (l *life) hears(stream agentrpc.Link_SessionServer, what string, ok func(*agentrpc.Up) bool) {
	l.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		msg, err := stream.Recv() // there are heartbeats at the least
		if err != nil || time.Now().After(deadline) {
			l.Fatalf("%s: %v, said %s", what, err, l.log.text())
		}
		if ok(msg) {
			return
		}
	}
}

// scraped asks the agent's metrics until ok is true.
func (l *life) scraped(what string, ok func(text string) bool) {
	l.Helper()
	deadline := time.Now().Add(time.Minute)
	for text := ""; !ok(text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.Fatalf("%s: %s", what, text)
		}
		if answer, err := http.Get("http://" + l.conf.Metrics + "/metrics"); err == nil {
			body, _ := io.ReadAll(answer.Body)
			text = string(body)
			_ = answer.Body.Close()
		}
	}
}

// TestTheLifeOfAnAgent: all its rooms work and take part in its sessions, and all of it ends when it is told to.
func TestTheLifeOfAnAgent(t *testing.T) {
	l := newLife(t)
	ready, watched := make(chan struct{}), make(chan bool, 2)
	l.conf.Ready = func() { close(ready) }
	l.conf.Watch = func(moves func() bool) func() {
		watched <- moves()
		return func() { close(watched) }
	}
	end := l.run()
	<-ready
	if !<-watched {
		t.Error("an agent that has just begun does not move")
	}
	hello, stream := l.session()
	inv := hello.GetInventory()
	if inv.GetPublicIp() == "" { // its address is found meanwhile
		l.hears(stream, "its public address", func(up *agentrpc.Up) bool {
			inv = cmp.Or(up.GetInventory(), inv)
			return inv.GetPublicIp() != ""
		})
	}
	if hello.GetMachineId() != "machine" || hello.GetHardware() != "board" || !strings.HasPrefix(hello.GetBootId(), "boot/") || hello.GetRun() == "" ||
		inv.GetTotal().GetDiskGb() != 10 || inv.GetRuntime() != "test" || inv.GetPublicIp() != "203.0.113.7" || !slices.Contains(inv.GetVolumes(), "nfs") {
		t.Errorf("the host says %v", hello)
	}
	if !slices.ContainsFunc(inv.GetConditions(), func(n *agentrpc.Condition) bool { return n.GetCode() == "a_notice" }) {
		t.Errorf("its conditions are %v", inv.GetConditions())
	}
	must(t, stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: 7}}}))
	l.hears(stream, "what it did", func(up *agentrpc.Up) bool { return up.GetApplied().GetGeneration() == 7 })
	must(t, stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Network{Network: &agentrpc.NetworkSet{}}}))
	must(t, stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: 7}}}))
	l.hears(stream, "what it did again", func(up *agentrpc.Up) bool {
		if up.GetResync() != nil {
			t.Error("without a gap it asks for all of it")
		}
		return up.GetApplied() != nil
	})
	must(t, stream.Send(&agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: &agentrpc.OverlayChange{OverlayId: "account-a", AccountId: "a", Vni: 4096, Cidr: "10.64.0.0/16", From: 3, To: 4}}}))
	l.hears(stream, "after a gap", func(up *agentrpc.Up) bool { return up.GetResync() != nil })
	l.cards.found.Store(&gpu.Found{GPUs: []fleet.GPU{{UUID: "GPU-1", Type: "T"}}})
	l.cards.changed <- struct{}{}
	l.hears(stream, "another inventory", func(up *agentrpc.Up) bool { return len(up.GetInventory().GetGpus()) == 1 })
	if c, err := net.Dial("unix", l.conf.S3Socket); err != nil {
		t.Errorf("gantry-s3 cannot ask: %v", err)
	} else {
		must(t, c.Close())
	}
	l.mounts.SetHealth(volume.Health{Backend: "ceph-a"})
	l.scraped("metrics", func(text string) bool {
		for _, line := range []string{
			"gantry_agent_session_connected 1", "gantry_agent_ledger_generation 7", `gantry_volume_backend_up{backend="ceph-a"} 1`, `gantry_host_gpu_info{gpu="GPU-1",type="T"} 1`,
		} {
			if !strings.Contains(text, line) {
				return false
			}
		}
		return !strings.Contains(text, "gantry_agent_ledger_write_duration_seconds_count 0") && !strings.Contains(text, "gantry_host_disk_bytes 0") &&
			strings.Contains(text, "gantry_agent_certificate_expiry_timestamp_seconds 1")
	})
	if l.inside.swept.Load() == 0 || l.mounts.runs.Load() != 1 {
		t.Errorf("leftovers were swept %d times, mounts looked after %d times", l.inside.swept.Load(), l.mounts.runs.Load())
	}
	end()
	if _, open := <-watched; open {
		t.Error("it is still asked whether it moves")
	}
	if _, err := os.Stat(l.conf.S3Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its socket is left: %v", err)
	}
	for _, words := range []string{"tunnels into pods were not closed", "close the pods' logs", "level=ERROR msg=\"repair"} {
		if strings.Contains(l.log.text(), words) {
			t.Errorf("said %s", l.log.text())
		}
	}
}

// held makes a volume, and looks at a pod, for as long as the test wants.
type held struct{ begun, release chan struct{} }

type heldShelf struct {
	storage.Provisioner
	held
}

type heldRuntime struct {
	quiet
	held
}

func (h heldShelf) Make(context.Context, storage.Root, storage.Volume) error {
	h.begun <- struct{}{}
	<-h.release
	return nil
}

func (h heldRuntime) Look(context.Context, fleet.PodID) (pod.Container, error) {
	h.begun <- struct{}{}
	<-h.release
	return pod.Container{}, errors.New("away")
}

// TestAnAgentEndsWithItsWork: what it is at when it is told to end, with pods or with volumes, is waited for. Nobody watches this one.
func TestAnAgentEndsWithItsWork(t *testing.T) {
	for name, m := range map[string]*agentrpc.Down{
		"a volume": {Kind: &agentrpc.Down_Storage{Storage: &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{{
			Backend: &agentrpc.VolumeBackend{Id: "b", Kind: "local", Path: "/srv"},
			Volumes: []*agentrpc.StorageVolume{{VolumeId: "v", Dir: strings.Repeat("a", 26), IdBase: fleet.VolumeIDsFirst, SizeGb: 1}},
		}}}}},
		"a pod": {Kind: &agentrpc.Down_Full{Full: &agentrpc.FullSet{Generation: 1, Assignments: []*agentrpc.Assignment{{PodId: "p1", Incarnation: 1, Goal: "run", Generation: 1}}}}},
	} {
		l := newLife(t)
		h := held{begun: make(chan struct{}), release: make(chan struct{})}
		l.conf.Provisioner, l.conf.Containers = heldShelf{held: h}, heldRuntime{held: h}
		end := l.run()
		_, stream := l.session()
		must(t, stream.Send(m))
		<-h.begun
		over := make(chan struct{})
		go func() { defer close(over); end() }()
		select {
		case <-over:
			t.Errorf("%s: it has ended in the midst of it", name)
		case <-time.After(50 * time.Millisecond): // what must not come
		}
		close(h.release)
		<-over
	}
}

// TestWhatKeepsAnAgentFromItsLife is its error, unless it was told to end.
func TestWhatKeepsAnAgentFromItsLife(t *testing.T) {
	l := newLife(t)
	none := errors.New("no subnet is free")
	ctx, cancel := context.WithCancel(t.Context())
	l.conf.PickSubnet = func(context.Context) (netip.Prefix, error) { return netip.Prefix{}, none }
	l.conf.Ready = func() { t.Error("it says that it is ready") }
	if err := Run(ctx, l.conf); !errors.Is(err, none) {
		t.Errorf("without a subnet: %v", err)
	}
	l.conf.PickSubnet = func(context.Context) (netip.Prefix, error) { cancel(); return netip.Prefix{}, none }
	if err := Run(ctx, l.conf); err != nil {
		t.Errorf("that is told to end: %v", err)
	}
	l.conf.Schedulers = []string{"nowhere"}
	if err := Run(t.Context(), l.conf); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("without an address: %v", err)
	}
	l.conf.Dir = t.TempDir()
	if err := Run(t.Context(), l.conf); err == nil || !strings.Contains(err.Error(), "has not joined") {
		t.Errorf("that has not joined: %v", err)
	}
}
