package scheduler

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

const (
	h100  = "NVIDIA H100 80GB HBM3"
	mi300 = "AMD Instinct MI300X OAM"
	cpu3  = "cpu3g"
	acme  = fleet.AccountID("acme")
	other = fleet.AccountID("other")
)

func begin() time.Time { return time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC) }

// failer is what testing.TB and rapid.T have in common.
type failer interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// world is a service on a real state machine, without Raft: what is proposed is applied at once.
type world struct {
	t     failer
	svc   *Service
	store *state.Store
	reach *edge

	mu    sync.Mutex // guards the fields below
	index uint64
	now   time.Time
	// before runs, once, between a decision and the command that it leads to.
	before func()
	logs   strings.Builder
}

// Propose applies the commands as one entry.
func (w *world) Propose(_ context.Context, cmds ...state.Command) ([]entry.Result, error) {
	w.mu.Lock()
	hook := w.before
	w.before = nil
	w.mu.Unlock()
	if hook != nil {
		hook()
	}
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
	return res[0], nil
}

func (w *world) Barrier(ctx context.Context) error { return ctx.Err() }
func (w *world) IsLeader() bool                    { return true }

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// Write collects what is logged.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs.Write(p)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.logs.String()
}

// edge stands where hosts are reached; it notes what comes to it.
type edge struct {
	mu       sync.Mutex // guards the fields below
	calls    []string
	storer   map[fleet.BackendID]fleet.HostID
	problems map[fleet.VolumeID]string // of volumes that were measured
}

var errEdge = errors.New("the edge of the test's world")

func (e *edge) note(what string, host fleet.HostID, pod fleet.PodID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, what+" "+string(host)+" "+string(pod))
}

func (e *edge) seen() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

func (e *edge) Live(fleet.HostID, fleet.PodID) *fleet.Live { return nil }

func (e *edge) Logs(_ context.Context, host fleet.HostID, pod fleet.PodID, _ fleet.LogQuery, _ fleet.LogSink) error {
	e.note("logs", host, pod)
	return nil
}

func (e *edge) OpenPort(_ context.Context, host fleet.HostID, pod fleet.PodID, _ int) (fleet.Stream, error) {
	e.note("port", host, pod)
	return nil, errEdge
}

func (e *edge) Exec(_ context.Context, host fleet.HostID, pod fleet.PodID, _ fleet.ExecRequest) (fleet.ExecSession, error) {
	e.note("exec", host, pod)
	return nil, errEdge
}

func (e *edge) ReadFiles(_ context.Context, host fleet.HostID, pod fleet.PodID, _ string) (io.ReadCloser, error) {
	e.note("read", host, pod)
	return nil, errEdge
}

func (e *edge) WriteFiles(_ context.Context, host fleet.HostID, pod fleet.PodID, _ string, _ io.Reader) error {
	e.note("write", host, pod)
	return errEdge
}

func (e *edge) Prefetch(host fleet.HostID, image string, models ...string) bool {
	e.note("prefetch "+strings.Join(append([]string{image}, models...), " "), host, "")
	return host != "host-c" // which is away
}

// setStorage plays what is heard of storage.
func (e *edge) setStorage(backend fleet.BackendID, host fleet.HostID, problems map[fleet.VolumeID]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.storer = map[fleet.BackendID]fleet.HostID{backend: host}
	e.problems = problems
}

func (e *edge) StorageHost(backend fleet.BackendID) fleet.HostID {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.storer[backend]
}

func (e *edge) SeenVolume(id fleet.VolumeID) (*int64, string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if problem, ok := e.problems[id]; ok {
		return ptr(int64(7_000_000_000)), problem
	}
	return nil, ""
}

// newWorld makes a cluster with the accounts acme and other, without hosts.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := openWorld(t, t.TempDir())
	t.Cleanup(w.close)
	return w
}

func openWorld(t failer, dir string) *world {
	t.Helper()
	seal := filepath.Join(dir, "seal.key")
	if err := pki.NewSealKeyFile(seal); err != nil {
		t.Fatal(err)
	}
	sealer, err := pki.LoadSealer(seal)
	if err != nil {
		t.Fatal(err)
	}
	store, err := state.Open(filepath.Join(dir, "state.db"), state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: store, reach: &edge{}, now: begin()}
	w.svc = New(Config{
		Store: store, Node: w, Dispatch: w.reach, Storage: w.reach, Sealer: sealer, Now: w.clock, S3URLs: map[string]string{"eu-1": "https://s3.test"},
		Log: slog.New(slog.NewTextHandler(w, nil)),
	})
	ca, err := pki.NewCA(fleet.NewID(), begin())
	if err != nil {
		t.Fatal(err)
	}
	boot, err := Bootstrap(sealer, ca, begin())
	if err != nil {
		t.Fatal(err)
	}
	w.must(
		boot,
		state.PutAccount{Account: fleet.Account{ID: acme, Name: "Acme", CreatedAt: begin()}},
		state.PutAccount{Account: fleet.Account{ID: other, Name: "Other", CreatedAt: begin()}},
	)
	return w
}

func (w *world) close() {
	if err := w.store.Close(); err != nil {
		w.t.Errorf("close the store: %v", err)
	}
}

// must applies commands that are accepted.
func (w *world) must(cmds ...state.Command) {
	w.t.Helper()
	for _, cmd := range cmds {
		res, err := w.Propose(context.Background(), cmd)
		if err != nil || res[0].Err != nil {
			w.t.Fatalf("%T: %v %v", cmd, err, res)
		}
	}
}

// hostOption changes the inventory of a new host.
type hostOption func(inv *fleet.Inventory)

func cuda(version string) hostOption { return func(inv *fleet.Inventory) { inv.CUDA = version } }

func publicPorts(from, to int) hostOption {
	return func(inv *fleet.Inventory) { inv.PublicIP, inv.PortFrom, inv.PortTo = "203.0.113.7", from, to }
}

func total(cores, memoryGB, diskGB int64) hostOption {
	return func(inv *fleet.Inventory) {
		inv.Total = fleet.Resources{MilliCPU: cores * 1000, MemoryMB: memoryGB * 1000, DiskGB: diskGB}
	}
}

// addHost joins and connects a host with a number of GPUs of a type, and a plenty of the rest.
func (w *world) addHost(id fleet.HostID, dc fleet.DataCenterID, gpu string, gpus int, opts ...hostOption) {
	w.t.Helper()
	w.addHostIn(fleet.CloudSecure, id, dc, gpu, gpus, opts...)
}

func (w *world) addHostIn(cloud fleet.Cloud, id fleet.HostID, dc fleet.DataCenterID, gpu string, gpus int, opts ...hostOption) {
	w.t.Helper()
	inv := fleet.Inventory{
		Total:   fleet.Resources{MilliCPU: 64_000, MemoryMB: 256_000, DiskGB: 2000},
		Volumes: []fleet.BackendKind{fleet.BackendNFS},
		Tunnel:  fleet.HostTunnel{PublicKey: tunnelKey(id)},
	}
	for i := range gpus {
		inv.GPUs = append(inv.GPUs, fleet.GPU{UUID: fmt.Sprintf("%s-gpu-%d", id, i), Type: gpu, MemoryMB: 80_000})
	}
	for _, o := range opts {
		o(&inv)
	}
	token := fleet.JoinToken{
		ID: fleet.TokenID("token-" + id), Hash: []byte("hash"), DataCenter: dc, Cloud: cloud, ExpiresAt: w.clock().Add(time.Hour),
	}
	host := fleet.Host{ID: id, Name: string(id), MachineID: "machine-" + string(id), JoinedAt: w.clock()}
	w.must(
		state.PutToken{Token: token, At: w.clock()},
		state.JoinHost{Token: token.ID, Hash: token.Hash, Host: host, At: w.clock()},
		state.ConnectHost{Host: id, MachineID: host.MachineID, BootID: "boot", Inventory: inv, At: w.clock()},
	)
}

// tunnelKey is a host's own key.
func tunnelKey(id fleet.HostID) string {
	key := sha256.Sum256([]byte(id))
	return base64.StdEncoding.EncodeToString(key[:])
}

// addBackend makes a backend of a kind that has no secrets.
func (w *world) addBackend(id fleet.BackendID, dc fleet.DataCenterID, tier fleet.VolumeType) {
	w.t.Helper()
	w.must(state.PutBackend{New: true, Backend: fleet.Backend{
		ID: id, DataCenter: dc, Type: tier, Kind: fleet.BackendNFS, NFS: &fleet.NFSBackend{Server: "nfs", Export: "/" + string(id)}, CreatedAt: begin(),
	}})
}

// addVolume makes a volume of 10 GB on the backend "nfs" of the data center dc-1.
func (w *world) addVolume(id fleet.VolumeID, account fleet.AccountID) {
	w.t.Helper()
	w.must(state.CreateVolume{Volume: fleet.Volume{
		ID: id, Account: account, Name: "data", SizeGB: 10, DataCenter: "dc-1", Type: fleet.VolumeStandard, Backend: "nfs",
		Dir: strings.ToLower(rand.Text()), CreatedAt: begin(),
	}})
}

func (w *world) pod(id fleet.PodID) fleet.Pod {
	w.t.Helper()
	var p fleet.Pod
	w.view(func(v *state.View) { p, _ = v.Pod(id) })
	return p
}

func (w *world) view(fn func(v *state.View)) {
	w.t.Helper()
	if err := w.store.View(func(v *state.View) error { fn(v); return nil }); err != nil {
		w.t.Fatal(err)
	}
}

// report lets the pod's host report an event.
func (w *world) report(id fleet.PodID, event fleet.Trigger) {
	w.t.Helper()
	p := w.pod(id)
	var host fleet.Host
	w.view(func(v *state.View) { host, _ = v.Host(p.Host) })
	w.must(state.ReportPods{Host: p.Host, Epoch: host.Epoch, At: w.clock(), Reports: []state.PodReport{{
		Pod: id, Incarnation: p.Incarnation, Event: event, At: w.clock(),
	}}})
}

func (w *world) create(req fleet.PodRequest) fleet.Pod {
	w.t.Helper()
	view, err := w.svc.CreatePod(context.Background(), member(acme), req)
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	return *view.Pod
}

// member is somebody of an account who may do everything.
func member(account fleet.AccountID) fleet.Principal {
	can, _ := fleet.Preset("all")
	return fleet.Principal{Key: "no-such-key", Account: account, Can: can}
}

func gpuPod(count int) fleet.PodRequest {
	return fleet.PodRequest{Name: "trainer", Image: "busybox:1", GPU: &fleet.GPURequest{Type: h100, Count: count}}
}

func cpuPod(vcpu int) fleet.PodRequest {
	return fleet.PodRequest{Name: "web", Image: "busybox:1", CPU: &fleet.CPURequest{Flavor: cpu3, VCPU: vcpu}}
}

// refused fails unless err is of the code and says text, in its message or a detail.
func refused(t failer, err error, code fleet.Code, text string) {
	t.Helper()
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Msg+" "+strings.Join(e.Details, " "), text) {
		t.Errorf("got %v (details %v), want code %s with %q", err, detailsOf(err), code, text)
	}
}

func detailsOf(err error) []string {
	var e *fleet.Error
	if errors.As(err, &e) {
		return e.Details
	}
	return nil
}

func ptr[T any](v T) *T { return &v }

func tcp(n int) fleet.Port  { return fleet.Port{Number: n, Protocol: "tcp"} }
func http(n int) fleet.Port { return fleet.Port{Number: n, Protocol: "http"} }
