package pod

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gantry/fleet"
)

// fakeHost is a container runtime, network, ledger, log and scheduler in memory. Like real ones,
// runtime, network and ledger outlive the machines.
type fakeHost struct {
	removing func() // called when a container is to be removed; nil: nothing
	mu       sync.Mutex
	away     error // the runtime answers nothing but this
	images   map[string]bool
	tagged   string           // what the digests of all references end with; a tag that moved
	registry map[string]error // what a pull says; nil: it works
	boxes    map[fleet.PodID]*fakeBox
	nets     map[fleet.PodID]bool
	ports    map[fleet.PodID][]fleet.PortMapping // published
	bases    map[fleet.PodID]uint32              // of the networks' user namespaces
	auths    []fleet.Credential                  // of the pulls; the zero value for none
	specs    []ContainerSpec                     // of the containers that were made
	dir      string                              // the agent's data folder
	records  map[fleet.PodID]Record
	reports  []Report
	starts   map[uint64]int // by incarnation
	refuses  error          // what the ledger answers to Begin
	unended  error          // and to End
	lines    []string
	doing    string         // the newest activity
	did      []string       // all of them, each once in a row
	signals  []int          // that processes were sent
	ends     []Ended        // that the ledger was told
	asked    map[string]int // questions to runtime and network
	forgot   int            // pods that the reporter was told to forget
	slow     time.Duration  // that a network, a container and a process each take to be made
	untimed  bool           // the runtime does not say when a process began
	silent   bool           // registries send nothing of an image
	stubborn bool           // processes do not heed SIGTERM
	deaf     bool           // and the host can tell
	freezer1 bool           // what is frozen gets no signal, not even SIGKILL, before it is thawed
	hangs    bool           // processes are not made until the start is abandoned
	cut      error          // networks cannot be made
	gate     Gate
	models   Models
	changed  chan struct{}
}

type fakeBox struct {
	Container
	done   chan struct{}
	killed bool // with the freezer of cgroup v1, which holds a signal back
}

func newFakeHost(t *testing.T) *fakeHost {
	return &fakeHost{
		dir:    t.TempDir(),
		images: map[string]bool{}, registry: map[string]error{}, boxes: map[fleet.PodID]*fakeBox{}, nets: map[fleet.PodID]bool{},
		ports: map[fleet.PodID][]fleet.PortMapping{}, bases: map[fleet.PodID]uint32{},
		records: map[fleet.PodID]Record{}, starts: map[uint64]int{}, asked: map[string]int{}, changed: make(chan struct{}, 1),
	}
}

func (f *fakeHost) deps(boot string) Deps {
	heard := &atomic.Bool{}
	heard.Store(true)
	return Deps{
		Gate:    f.gate,
		Models:  f.models,
		Runtime: f, Network: fakeNet{f}, Ledger: fakeLedger{f}, Reports: f, Logs: fakeLogs{f},
		Dir: filepath.Join(f.dir, "pods"), Data: filepath.Join(f.dir, "persistent"), PublicIP: func() string { return "192.0.2.7" }, Boot: boot, Slots: make(chan struct{}, 4), Heard: heard,
		Log: slog.New(slog.DiscardHandler), GPUName: func(string) string { return "" },
		Resolv: func() string { return "nameserver 192.0.2.53\n" },
	}
}

var errAway = &Error{Class: Retry, Sentence: "the container runtime does not answer"}

func (f *fakeHost) Look(_ context.Context, id fleet.PodID) (Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked["look"]++
	if f.away != nil {
		return Container{}, f.away
	}
	if b := f.boxes[id]; b != nil {
		return b.Container, nil
	}
	return Container{}, nil
}

func (f *fakeHost) Image(_ context.Context, ref string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked["image"]++
	if f.images[ref] {
		return f.digestOf(ref), nil
	}
	return "", f.away
}

// digestOf is what a reference names now.
func (f *fakeHost) digestOf(ref string) string {
	if _, digest, ok := strings.Cut(ref, "@"); ok {
		return digest
	}
	return "sha256:" + ref + f.tagged
}

func (f *fakeHost) Pull(ctx context.Context, ref string, auth *fleet.Credential, progress func(done, total int64)) (string, error) {
	f.mu.Lock()
	silent := f.silent
	f.mu.Unlock()
	if progress(0, 0); !silent {
		progress(1, 2)
	}
	time.Sleep(2 * time.Second) // virtual
	if !silent {
		progress(2, 2)
	}
	time.Sleep(time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	if auth == nil {
		auth = &fleet.Credential{}
	}
	f.auths = append(f.auths, *auth)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err := f.registry[ref]; err != nil {
		return "", err
	}
	f.images[ref] = true
	return f.digestOf(ref), nil
}

func (f *fakeHost) Define(_ context.Context, s ContainerSpec) error {
	time.Sleep(f.slow)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return f.away
	}
	f.specs = append(f.specs, s)
	f.boxes[s.Pod] = &fakeBox{Container: Container{Exists: true, Incarnation: s.Incarnation}, done: make(chan struct{})}
	return nil
}

func (f *fakeHost) Task(ctx context.Context, id fleet.PodID) error {
	time.Sleep(f.slow)
	f.mu.Lock()
	hangs := f.hangs
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), ErrUnwanted) { // as it is when only time was up, or the agent ends, it goes on
			return ErrUnwanted
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return f.away
	}
	f.boxes[id].Task, f.boxes[id].PID = TaskCreated, 100
	return nil
}

func (f *fakeHost) Start(_ context.Context, id fleet.PodID) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return time.Time{}, f.away
	}
	b := f.boxes[id]
	b.Task, b.StartedAt, b.PID = TaskRunning, time.Now(), 100
	f.starts[b.Incarnation]++
	if f.untimed {
		b.StartedAt = time.Time{}
	}
	return b.StartedAt, nil
}

func (f *fakeHost) Wait(ctx context.Context, id fleet.PodID) error {
	f.mu.Lock()
	b := f.boxes[id]
	f.mu.Unlock()
	if b == nil {
		return nil
	}
	select {
	case <-b.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeHost) Signal(_ context.Context, id fleet.PodID, signal int) error {
	f.mu.Lock()
	heeded := !f.stubborn || signal == int(syscall.SIGKILL)
	if b := f.boxes[id]; b != nil && b.Frozen && f.freezer1 {
		heeded, b.killed = false, signal == int(syscall.SIGKILL)
	}
	f.signals = append(f.signals, signal)
	f.mu.Unlock()
	if heeded {
		f.exit(id, 128+signal)
	}
	return nil
}

func (f *fakeHost) Freeze(_ context.Context, id fleet.PodID, frozen bool) error {
	f.mu.Lock()
	b, err := f.boxes[id], f.away
	if b != nil && b.Task == TaskRunning && err == nil {
		b.Frozen = frozen
	}
	killed := b != nil && b.killed && !b.Frozen
	f.mu.Unlock()
	if killed {
		f.exit(id, 128+int(syscall.SIGKILL))
	}
	return err
}

func (f *fakeHost) Deaf(fleet.PodID, int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deaf
}

// exit ends a pod's process from inside.
func (f *fakeHost) exit(id fleet.PodID, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.boxes[id]; b != nil && b.Task == TaskRunning {
		b.Task, b.ExitCode, b.ExitedAt = TaskStopped, code, time.Now()
		close(b.done)
	}
}

func (f *fakeHost) Remove(_ context.Context, id fleet.PodID) error {
	if f.removing != nil {
		f.removing()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away != nil {
		return f.away
	}
	delete(f.boxes, id)
	return nil
}

func (f *fakeHost) Usage(context.Context, fleet.PodID) (Usage, error) {
	return Usage{}, errors.New("not asked in these tests")
}

func (f *fakeHost) Report(r Report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reports = append(f.reports, r)
}

func (f *fakeHost) Activity(_ fleet.PodID, words string, _, _ int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.doing = words
	f.did = slices.Compact(append(f.did, words))
}

func (f *fakeHost) Forget(fleet.PodID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgot++
}

func (f *fakeHost) events() []fleet.Trigger {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []fleet.Trigger
	for _, r := range f.reports {
		out = append(out, r.Event)
	}
	return out
}

func (f *fakeHost) last() Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.reports) == 0 {
		return Report{}
	}
	return f.reports[len(f.reports)-1]
}

// order writes an assignment down, as the ledger does before the machines hear of it.
func (f *fakeHost) order(a Assignment) Assignment {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.records[a.Pod]
	rec.Assignment, rec.Addr = a, netip.MustParseAddr("10.88.0.2")
	f.records[a.Pod] = rec
	return a
}

type fakeNet struct{ f *fakeHost }

func (n fakeNet) Ready(_ context.Context, id fleet.PodID, want Link) (ready, published bool, err error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	n.f.asked["network"]++
	return n.f.nets[id], slices.Equal(n.f.ports[id], want.Ports) && n.f.bases[id] == want.IDBase, nil
}

func (n fakeNet) Ensure(_ context.Context, id fleet.PodID, want Link) error {
	time.Sleep(n.f.slow)
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if n.f.cut != nil {
		return n.f.cut
	}
	n.f.nets[id], n.f.ports[id], n.f.bases[id] = true, want.Ports, want.IDBase
	return nil
}

func (n fakeNet) Release(_ context.Context, id fleet.PodID) error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	delete(n.f.nets, id)
	delete(n.f.ports, id)
	return nil
}

func (n fakeNet) Namespace(id fleet.PodID) string { return "/run/netns/" + string(id) }

type fakeLedger struct{ f *fakeHost }

func (l fakeLedger) Record(id fleet.PodID) (Record, bool) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	r, ok := l.f.records[id]
	return r, ok
}

func (l fakeLedger) Records() []Record {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	return slices.Collect(maps.Values(l.f.records))
}

func (l fakeLedger) Begin(order Assignment, boot string) error {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.f.refuses != nil {
		return l.f.refuses
	}
	r := l.f.records[order.Pod]
	r.Begun, r.BegunBoot, r.Held = order.Incarnation, boot, &Holding{order.GPUs, order.Mappings, order.Overlays}
	l.f.records[order.Pod] = r
	return nil
}

func (l fakeLedger) End(id fleet.PodID, e Ended) error {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.f.unended != nil {
		return l.f.unended
	}
	l.f.ends = append(l.f.ends, e)
	r := l.f.records[id]
	r.Ended = &e
	l.f.records[id] = r
	return nil
}

func (l fakeLedger) Forget(id fleet.PodID) error {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.f.records[id].Orphan {
		delete(l.f.records, id)
	}
	return nil
}

type fakeLogs struct{ f *fakeHost }

func (l fakeLogs) System(_ fleet.PodID, line string) {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	l.f.lines = append(l.f.lines, line)
}

func (l fakeLogs) Begin(id fleet.PodID, incarnation uint64) {
	l.System(id, "run "+strconv.FormatUint(incarnation, 10))
}
func (fakeLogs) Tail(fleet.PodID, int, time.Time) string { return "last words" }
func (fakeLogs) Dir(id fleet.PodID) string               { return "/logs/" + string(id) }
func (fakeLogs) Prepare(fleet.PodID) error               { return nil }
func (l fakeLogs) Remove(id fleet.PodID) error           { l.System(id, "log removed"); return nil }
func (l fakeLogs) Leave(id fleet.PodID)                  { l.System(id, "log left") }
