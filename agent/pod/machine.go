package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gantry/fleet"
	"gantry/internal/faultpoint"
	"gantry/internal/sleep"
)

// Deps is what every pod's machine on a host shares.
type Deps struct {
	Runtime Runtime
	Network Network
	Ledger  Ledger
	Reports Reporter
	Logs    SystemLog
	Dir     string        // folder of the pods' small files
	Data    string        // folder of the pods' persistent data; see MakeData
	Resolv  func() string // text of the resolv.conf of a pod that is made now
	Boot    string        // boot id of the host
	Slots   chan struct{} // bounds how many containers are made at once
	Heard   *atomic.Bool  // a scheduler was heard since the agent started
	Log     *slog.Logger
	GPUName func(uuid string) string
	// PublicIP is where the pods' published ports are reached now; empty: nothing is published.
	PublicIP func() string

	Disks Disks // where Data is kept; nil: in plain folders
	GPUs  GPUs  // nil: the host's GPUs are pretended ones, of which containers see nothing
	// IDBase returns the host's id of the root of the pod with that address; nil, or 0: pods have no user
	// namespaces.
	IDBase func(addr netip.Addr) uint32

	// Fabric are the RDMA devices of the host; nil: pods get none.
	Fabric Fabric

	// Volumes are the network volumes of the host; nil: it can mount none.
	Volumes Volumes

	// Models gets models of hubs; nil: the host keeps none.
	Models Models

	// Gate answers workers of serverless endpoints; nil: the host runs none.
	Gate Gate

	// Imported is closed when the images are on the host that its operator brought along; nil: there are none. No
	// image is pulled before.
	Imported <-chan struct{}

	claims *claims // of NewPods
}

const (
	lookTimeout   = 20 * time.Second
	effectTimeout = 2 * time.Minute
	startLimit    = time.Hour // for an incarnation to begin, tries of a pull included
	retryLeast    = 200 * time.Millisecond
	retryMost     = 15 * time.Second
)

// machine owns one pod. Its goroutine is the only one that changes anything of the pod.
type machine struct {
	Deps
	id   fleet.PodID
	wake chan struct{}

	mu     sync.Mutex // guards the fields below
	want   Assignment
	cancel context.CancelFunc // ends an effect that a new order makes pointless
	// abandon ends a start under way, of a container that the new order does not want.
	abandon context.CancelCauseFunc

	// Of the goroutine alone.
	steps    map[fleet.Step]time.Time
	stepsFor uint64
	told     uint64 // incarnation whose end was handed to the reporter
	toldRun  uint64 // incarnation reported as running
	termFor  uint64 // incarnation that was sent SIGTERM
	termAt   time.Time
	// markedFor is the incarnation whose begin this agent has marked in the log.
	markedFor uint64
	digest    string    // of the image; the runtime is asked once per incarnation and image
	digestOf  string    // the image that digest was looked for
	waits     bool      // it was reported that the image cannot be had
	trouble   string    // what last kept the incarnation from starting, for its owner; empty: nothing has
	since     time.Time // when the incarnation was first allowed to start; zero before
	volume    mounted
	models    []Model // of the order, once they are on the host
	modelsFor uint64  // incarnation that has them
	gone      bool    // nothing is left, and the ledger has forgotten it
	toldGone  bool    // that nothing is left was handed to the reporter
}

func newMachine(d Deps, want Assignment) *machine {
	d.Log = d.Log.With("pod", want.Pod, "account", want.Account)
	return &machine{Deps: d, id: want.Pod, want: want, wake: make(chan struct{}, 1)}
}

// set gives the machine a new order. An older generation than the present one is refused.
func (m *machine) set(want Assignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if want.Generation < m.want.Generation {
		m.Log.Warn("order refused: older generation", "have", m.want.Generation, "got", want.Generation)
		return
	}
	other := want.otherThan(m.want)
	changed := other || want.readOnly() != m.want.readOnly() || want.Frozen != m.want.Frozen
	m.want = want
	if changed && m.cancel != nil {
		m.cancel()
	}
	if other && m.abandon != nil {
		m.abandon(ErrUnwanted)
	}
	m.poke()
}

func (m *machine) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run repeats look, next, do until the pod is gone from the host or ctx ends. The container lives on
// when ctx ends.
func (m *machine) run(ctx context.Context) {
	delay := retryLeast
	for ctx.Err() == nil && !m.gone {
		want, err := m.step(ctx)
		if err == nil {
			delay = retryLeast
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errSuperseded) {
			continue
		}
		var e *Error
		fatal := errors.As(err, &e) && e.Class == Fatal
		if e != nil {
			m.trouble = e.Sentence
		}
		if !fatal && m.hopeless(want) {
			fatal, e = true, &Error{Class: Fatal, Sentence: cmp.Or(m.trouble, "the host could not start the container") + "; it was tried for an hour", Err: err}
		}
		if fatal {
			if err = m.fail(want, e); err == nil {
				continue
			}
		}
		m.Log.Warn("pod step will be tried again", "incarnation", want.Incarnation, "in", delay, "err", err)
		if e != nil {
			m.Reports.Activity(m.id, again(e.Sentence), 0, 0)
		}
		_, _ = sleep.Or(ctx, delay/2+rand.N(delay), m.wake)
		delay = min(2*delay, retryMost)
	}
}

// again says that something is done again, and why.
func again(trouble string) string { return trouble + fleet.TryingAgain }

// hopeless reports whether an incarnation that has not begun was tried for long enough.
func (m *machine) hopeless(want Assignment) bool {
	rec, _ := m.Ledger.Record(m.id)
	return want.Goal == fleet.GoalRun && rec.Begun < want.Incarnation && !rec.ended(want.Incarnation) &&
		!m.since.IsZero() && time.Since(m.since) >= startLimit
}

// step does one round. The returned assignment is the one that the round worked for.
func (m *machine) step(ctx context.Context) (Assignment, error) {
	// Asked before the order is read: once a scheduler was heard, the order has all that it sent, the
	// registry's credential with it.
	heard := m.Heard.Load()
	m.mu.Lock()
	want := m.want
	effect, cancel := context.WithCancel(ctx)
	m.cancel = cancel
	m.mu.Unlock()
	defer cancel()

	if m.stepsFor != want.Incarnation {
		m.stepsFor, m.digest, m.trouble, m.waits = want.Incarnation, "", "", false
		m.since, m.volume.troubled, m.volume.lost = time.Time{}, time.Time{}, 0
		m.steps = map[fleet.Step]time.Time{}
		// The start of a process that ran before this agent did is not this agent's to tell.
		if rec, _ := m.Ledger.Record(m.id); rec.Begun < want.Incarnation {
			m.mark(fleet.StepReceived)
		}
	}
	see, err := m.look(ctx, want, heard)
	if err != nil {
		return want, err
	}
	if see.Heard && m.since.IsZero() {
		m.since = time.Now()
	}
	if err := m.letGo(want, see); err != nil {
		return want, fmt.Errorf("write how the pod ended: %w", err)
	}
	s := next(want, see)
	if begins(s) && m.markedFor != want.Incarnation {
		m.Logs.Begin(m.id, want.Incarnation)
		m.markedFor = want.Incarnation
	}
	if want.Refused != "" && begins(s) {
		return want, &Error{Class: Fatal, Sentence: want.Refused}
	}
	if want.Endpoint != "" && m.Gate == nil && begins(s) {
		return want, &Error{Class: Fatal, Sentence: "the host runs no workers of serverless endpoints"}
	}
	if makes(s) {
		var waited bool
		if waited, err = m.waited(effect, s, want); waited {
			return want, err
		}
	}
	if err == nil {
		faultpoint.Before("step", string(s))
		err = m.do(effect, ctx, s, want, see)
		faultpoint.After("step", string(s))
	}
	if err != nil && ctx.Err() == nil && effect.Err() != nil {
		return want, errSuperseded
	}
	return want, err
}

// errSuperseded says that an effect was ended by a new order.
var errSuperseded = errors.New("superseded by a new order")

// idle waits for a new order or the end.
func (m *machine) idle(ctx context.Context) {
	select {
	case <-m.wake:
	case <-ctx.Done():
	}
}

// look finds what is on the host. Questions whose answer cannot matter are not asked.
func (m *machine) look(ctx context.Context, want Assignment, heard bool) (Seen, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	see := Seen{Boot: m.Boot, Heard: heard, Told: m.told >= want.Incarnation}
	see.Record, _ = m.Ledger.Record(m.id)
	var err error
	if see.Container, err = m.Runtime.Look(ctx, m.id); err != nil {
		return see, err
	}
	if see.Container.Task == TaskRunning {
		return see, nil
	}
	ready, published, err := m.Network.Ready(ctx, m.id, m.attachment(want, see.Record.Addr))
	if err != nil {
		return see, err
	}
	if !see.Container.Exists {
		if see.Attached, err = m.isAttached(); err != nil {
			return see, err
		}
	}
	see.Network, see.WrongPort = ready, ready && !published
	// An order of a restored control plane may name another image under the incarnation of before.
	if image := imageOf(want); !see.Container.Exists && m.digestOf != image {
		m.digest, m.digestOf = "", image
	}
	// An adopted order names no image; the scheduler's own comes before anything is started.
	if want.Goal == fleet.GoalRun && want.Image != "" && m.digest == "" && !see.Container.Exists {
		if m.digest, err = m.Runtime.Image(ctx, imageOf(want)); err != nil {
			return see, err
		}
	}
	see.Digest, see.Lacking = m.digest, len(want.Models) > 0 && !see.Container.Exists && m.modelsFor != want.Incarnation
	if see.Container.Exists {
		see.Digest = "present" // a container is made from an image that was there
	}
	return see, nil
}

// fail ends the incarnation because an effect can never succeed.
func (m *machine) fail(want Assignment, cause *Error) error {
	reason := Readable(cause.Sentence, MaxReason)
	m.Log.Info("pod failed", "incarnation", want.Incarnation, "err", cause)
	m.Logs.System(m.id, "error: "+reason)
	err := m.ended(Ended{
		Incarnation: want.Incarnation, Event: fleet.EventFailed, Reason: reason,
		At: time.Now(), LogFrom: m.steps[fleet.StepReceived],
	})
	if err != nil {
		return fmt.Errorf("write how the pod ended: %w", err)
	}
	return nil
}

// MaxReason is the length in bytes of the longest sentence for a pod's owner.
const MaxReason = 1000

// Readable returns text as valid UTF-8 of at most limit bytes. What containers, images and runtimes
// say goes through it before it is stored or sent: neither ledger nor link take anything else.
func Readable(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ToValidUTF8(text, "")
}
