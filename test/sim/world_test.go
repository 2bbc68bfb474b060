package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/pki"
)

const (
	gpuType   = "NVIDIA H100 80GB HBM3"
	cpuFlavor = "cpu3c"
	callLimit = 15 * time.Second
)

// world is a cluster with all that happens in it, and what it must never do.
type world struct {
	t        testing.TB
	dir      string
	schedDir string     // of the first scheduler
	rng      *rand.Rand // of the driver alone
	wire     *wire
	rafts    *rafts
	jobRafts *rafts
	ca       *pki.CA
	size     int // of the control plane at first; 0: 1
	log      *slog.Logger
	lines    *logLines
	accounts []fleet.AccountID
	store    *server

	serverless    bool          // there are endpoints, with jobs
	gangs         bool          // there are clusters
	certLife      time.Duration // of host certificates; 0: the default
	snapshotEvery uint64        // 0: the default, which a run does not reach
	trailing      uint64

	// forgetful: a scheduler's clock was wrong by more than the day for which keys of creates are kept, so that one may be
	// forgotten at once, whenever it was used.
	forgetful atomic.Bool

	mu      sync.Mutex // guards the fields below; taken after a machine's lock
	users   *rand.Rand // of the users' calls
	members []*member  // also those that were removed
	lives   map[*member]*process
	last    picture // the newest state that any scheduler was seen with
	hosts   []*host
	byHost  map[fleet.HostID]*host
	gpus    map[*machine]int
	faults  []string // what was broken
	starts  map[start]string
	running map[fleet.PodID]*machine
	written map[fleet.PodID]note // what processes last wrote to their pod's data
	reread  int                  // processes that found what the one before wrote

	strays map[stray]uint64                // containers of when an older state was restored
	former picture                         // what the state was before it was replaced by an older one, for a while after that
	over   map[fleet.PodID]fleet.PodStatus // pods that were not active then, while nobody starts any

	evicts map[fleet.HostID]bool // hosts whose drains may stop what runs

	backlog backlog              // the newest that any scheduler was seen with
	tasks   map[string]*taskNote // what programs had of jobs, by id
	hooked  int                  // calls of webhooks
	frozen  int                  // how often a worker was frozen

	lastMember, restored int
}

type start struct {
	pod         fleet.PodID
	incarnation uint64
}

// newWorld makes a cluster with a scheduler that runs and no hosts. close must be called.
func newWorld(t testing.TB, seed uint64, change func(*world)) *world {
	w := &world{
		t: t, dir: folder(t), rng: rand.New(rand.NewPCG(seed, 0)), wire: newWire(seed),
		accounts: []fleet.AccountID{"account-a", "account-b"}, byHost: map[fleet.HostID]*host{}, gpus: map[*machine]int{},
		starts: map[start]string{}, running: map[fleet.PodID]*machine{}, written: map[fleet.PodID]note{}, lines: &logLines{began: time.Now()},
	}
	w.log = slog.New(w.lines)
	w.users, w.lives, w.rafts = rand.New(rand.NewPCG(seed, 3)), map[*member]*process{}, newRafts(w.wire)
	w.jobRafts, w.tasks = newRafts(w.wire), map[string]*taskNote{}
	w.store = newServer(w)
	w.schedDir = filepath.Join(w.dir, "scheduler-1")
	if change != nil {
		change(w)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.found(ctx, max(w.size, 1), w.accounts); err != nil {
		t.Fatal(err)
	}
	return w
}

// folder returns an empty folder that the test removes, in memory where that is possible: while a file is synced, virtual time stands, and
// no run loses power for real.
func folder(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "gantry-sim-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// close ends every process.
func (w *world) close() {
	for _, h := range w.allHosts() {
		h.kill(true)
	}
	for _, m := range w.members {
		m.kill(stateClean)
	}
	for _, h := range w.allHosts() {
		h.powerOff()
	}
}

func (w *world) allHosts() []*host {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.hosts)
}

func (w *world) addHost(h *host) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hosts = append(w.hosts, h)
	w.byHost[h.id] = h
	w.gpus[h.machine] = len(h.gpus)
}

// broke records that something happened that must never happen.
func (w *world) broke(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.log.Error("BROKEN", "what", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, text)
}

// check records an error that must not be.
func (w *world) check(err error) {
	if err != nil {
		w.broke("%v", err)
	}
}

// brokeKey is broke for what an idempotency key promises.
func (w *world) brokeKey(format string, args ...any) {
	if !w.forgetful.Load() {
		w.broke(format, args...)
	}
}

func (w *world) broken() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.faults)
}

// began implements watcher: I1, at most one process per pod and one start per incarnation; and the
// state holds the pod's resources on this host while it runs.
func (w *world) began(m *machine, spec pod.ContainerSpec) {
	rec, known := w.pod(spec.Pod)
	w.mu.Lock()
	other, twice := w.running[spec.Pod]
	before, again := w.starts[start{spec.Pod, spec.Incarnation}]
	w.running[spec.Pod] = m
	w.starts[start{spec.Pod, spec.Incarnation}] = m.name
	w.mu.Unlock()
	w.log.Info("process began", "at", m.name, "pod", spec.Pod, "incarnation", spec.Incarnation)
	if twice {
		w.broke("I1: pod %s starts on %s while it runs on %s", spec.Pod, m.name, other.name)
	}
	if again {
		w.broke("I1: incarnation %d of pod %s starts on %s after it was started on %s", spec.Incarnation, spec.Pod, m.name, before)
	}
	w.mu.Lock()
	was, over := w.over[spec.Pod]
	w.mu.Unlock()
	if over {
		w.broke("pod %s was %s before the restore and starts again on %s", spec.Pod, was, m.name)
	}
	w.apartGPUs(m, spec)
	here := known && rec.Held && w.machineOf(rec.Host) == m
	if (!here || rec.Incarnation < spec.Incarnation) && !w.orderedBefore(m, spec) && !here {
		w.broke("I1: pod %s starts on %s, which the state does not bind it to: %+v", spec.Pod, m.name, rec)
	}
	w.checkEnv(spec, rec)
	w.writes(m, spec)
}

// ended implements watcher.
func (w *world) ended(m *machine, spec pod.ContainerSpec) {
	w.log.Info("process ended", "at", m.name, "pod", spec.Pod, "incarnation", spec.Incarnation)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running[spec.Pod] == m {
		delete(w.running, spec.Pod)
	}
}

// ordered implements watcher: I12, no agent ends a process that the control plane wants running.
func (w *world) ordered(m *machine, spec pod.ContainerSpec, how string) {
	rec, known := w.pod(spec.Pod)
	w.mu.Lock()
	// It may have been told so by the state before a restore.
	if was, had := w.former.pods[spec.Pod]; had && (was.Goal != fleet.GoalRun || was.Incarnation > spec.Incarnation) {
		known = false
	}
	w.mu.Unlock()
	w.log.Info("process is ended", "at", m.name, "pod", spec.Pod, "incarnation", spec.Incarnation, "how", how)
	if known && rec.Goal == fleet.GoalRun && rec.Incarnation == spec.Incarnation && w.machineOf(rec.Host) == m {
		w.broke("I12: %s ends pod %s (%s), which should run", m.name, spec.Pod, how)
	}
}

// superseded implements watcher.
func (w *world) superseded(id fleet.PodID, incarnation uint64) bool {
	rec, known := w.pod(id)
	return !known || rec.Incarnation > incarnation
}

func (w *world) machineOf(id fleet.HostID) *machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.byHost[id]; h != nil {
		return h.machine
	}
	return nil
}

// principal is a user of an account.
func principal(account fleet.AccountID) fleet.Principal {
	can, _ := fleet.Preset("all")
	return fleet.Principal{Account: account, Can: can, Invoke: []string{fleet.InvokeAll}}
}

// create asks for a pod.
func (w *world) create(account fleet.AccountID, req fleet.PodRequest) (fleet.Pod, error) {
	return w.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
		return p.service.CreatePod(ctx, principal(account), req)
	})
}

// act asks for an action.
func (w *world) act(account fleet.AccountID, id fleet.PodID, action fleet.Trigger) (fleet.Pod, error) {
	return w.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
		return p.service.ActPod(ctx, principal(account), id, action)
	})
}

// view reads a pod as its owner sees it.
func (w *world) view(account fleet.AccountID, id fleet.PodID) (view fleet.PodView, err error) {
	_, err = w.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
		view, err = p.service.Pod(ctx, principal(account), id)
		return view, err
	})
	return view, err
}

func cpuPod(vcpu int, image string) fleet.PodRequest {
	return fleet.PodRequest{Name: "pod", Image: image, CPU: &fleet.CPURequest{Flavor: cpuFlavor, VCPU: vcpu}}
}

func gpuPod(count int, image string) fleet.PodRequest {
	return fleet.PodRequest{
		Name: "pod", Image: image, GPU: &fleet.GPURequest{Type: gpuType, Count: count}, Ports: []fleet.Port{{Number: 22, Protocol: "tcp"}},
	}
}

// logLines keeps the latest lines of all logs, to be printed when a run fails.
type logLines struct {
	began time.Time
	sub   string

	root *logLines // holds what follows; nil: this one

	mu    sync.Mutex
	lines []string
	seen  map[string]int // messages
	echo  func(string)
}

const keptLines = 4000

// Enabled implements slog.Handler.
func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	root := l.top()
	var b strings.Builder
	fmt.Fprintf(&b, "%10.3fs %-5s%s %s", time.Since(root.began).Seconds(), r.Level, l.sub, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	root.mu.Lock()
	defer root.mu.Unlock()
	if root.seen == nil {
		root.seen = map[string]int{}
	}
	root.seen[r.Message]++
	if root.echo != nil {
		root.echo(b.String())
		return nil
	}
	if len(root.lines) >= 2*keptLines {
		root.lines = append(root.lines[:0], root.lines[keptLines:]...)
	}
	root.lines = append(root.lines, b.String())
	return nil
}

func (l *logLines) top() *logLines {
	if l.root != nil {
		return l.root
	}
	return l
}

// WithAttrs implements slog.Handler.
func (l *logLines) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := &logLines{root: l.top(), sub: l.sub}
	for _, a := range attrs {
		out.sub += fmt.Sprintf(" %s=%v", a.Key, a.Value)
	}
	return out
}

// WithGroup implements slog.Handler.
func (l *logLines) WithGroup(string) slog.Handler { return l }

// count returns how often a message was logged.
func (l *logLines) count(message string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[message]
}

// tail returns the latest lines.
func (l *logLines) tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines[max(0, len(l.lines)-n):], "\n")
}

var errBound = errors.New("did not happen in time")

// until waits until ok holds, looking each 100 ms, for at most limit.
func until(limit time.Duration, ok func() bool) error {
	for end := time.Now().Add(limit); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			return errBound
		}
	}
	return nil
}
