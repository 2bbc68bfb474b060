package scheduler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/events"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
)

// Config is what a Service is made from.
type Config struct {
	Store    *state.Store
	Node     dispatch.Proposer
	Dispatch Hosts
	Storage  Storage
	Jobs     jobs.Group
	Desks    Desks // nil: nothing is known of workers beside the state
	Sealer   *pki.Sealer
	Members  Members           // nil: there is but this scheduler, and nothing can be said of it
	Clock    Clock             // nil: nothing is known of the log's time
	Heard    Gateways          // nil: nothing is known of gateways but their records
	Version  string            // of the program, noted in snapshots
	ProxyURL string            // of the pods' http ports, see fleet.PodView; endpoints that balance have names below it, too
	S3URLs   map[string]string // of the S3 servers as users reach them, by data center in lower case
	Movable  bool              // whether drains may move a pod whose owner did not say
	Log      *slog.Logger
	Now      func() time.Time // nil: time.Now
	// SessionLife is how long a person's session lasts; 0: 8 hours.
	SessionLife time.Duration
}

// Hosts reaches the hosts through their sessions; see dispatch.Server.
type Hosts interface {
	// Live returns what the pod's host last said of it; nil when it is not heard.
	Live(host fleet.HostID, pod fleet.PodID) *fleet.Live
	Logs(ctx context.Context, host fleet.HostID, pod fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error
	OpenPort(ctx context.Context, host fleet.HostID, pod fleet.PodID, port int) (fleet.Stream, error)
	Exec(ctx context.Context, host fleet.HostID, pod fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error)
	ReadFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string) (io.ReadCloser, error)
	WriteFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string, tar io.Reader) error
	// Prefetch asks a host to get an image, and reports whether it could be asked.
	Prefetch(host fleet.HostID, image string, models ...string) bool
	HostNetworks
}

// Storage knows what hosts say of network volumes; see feed/storage.
type Storage interface {
	// StorageHost returns the connected host that looks after the volumes of a backend; empty: there is none.
	StorageHost(backend fleet.BackendID) fleet.HostID
	// SeenVolume returns the bytes that a network volume held when it was measured last, nil when that is not known, and
	// why what is to be done for it could not be done so far.
	SeenVolume(id fleet.VolumeID) (used *int64, problem string)
}

// Service serves accounts and operators. Its methods are safe for concurrent use; every call that
// changes something answers after the commit.
type Service struct {
	Config
	uses         keyUses
	reservations reservations
	opened       atomic.Pointer[openedCA]
	hub          *events.Hub
	capacities   capacities
	doors        doors
}

// New returns a service.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.SessionLife == 0 {
		c.SessionLife = sessionLife
	}
	return &Service{Config: c, hub: events.New(c.Store), doors: newDoors(c.Now)}
}

const (
	proposeTimeout = 10 * time.Second
	decideTimeout  = 5 * time.Second // of decisions on a view that is old when they are committed
	firstPause     = time.Millisecond
	longestPause   = 50 * time.Millisecond
	keyUseEvery    = time.Minute
)

// Run records, while this scheduler leads, when keys were last used, and always what the fleet's capacity is. It ends with ctx.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(keyUseEvery)
	defer tick.Stop()
	for {
		if err := s.noteCapacity(); err != nil {
			s.Log.Warn("look at the capacity", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := s.FlushKeyUse(ctx); err != nil && ctx.Err() == nil {
			s.Log.Warn("record the use of keys", "err", err)
		}
	}
}

// read runs fn on a view that is at least as new as every write acknowledged before the call, or before the request; see fleet.WithFresh.
func (s *Service) read(ctx context.Context, fn func(v *state.View) error) error {
	if !fleet.TakeFresh(ctx, fleet.ControlPlane) {
		if err := s.Node.Barrier(ctx); err != nil {
			return err
		}
	}
	return s.Store.View(fn)
}

// piece is how many records one view of a long list works on.
const piece = 128

// inPieces calls fn for each of a long list, in views of a few each, so that nothing waits for all of it: while a view is open, no
// command is applied. The list need not be of one moment.
func inPieces[T any](s *Service, list []T, fn func(*state.View, T)) error {
	for some := range slices.Chunk(list, piece) {
		err := s.Store.View(func(v *state.View) error {
			for _, one := range some {
				fn(v, one)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// propose commits one command and returns its value.
func propose[T any](ctx context.Context, s *Service, cmd state.Command) (T, error) {
	value, _, err := proposeOnce[T](ctx, s, cmd)
	return value, err
}

// proposeOnce commits one command and returns its value, and whether it is that of an earlier command
// under the same idempotency key.
func proposeOnce[T any](ctx context.Context, s *Service, cmd state.Command) (value T, replayed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	audit, cmds := fleet.AuditOf(ctx), []state.Command{cmd}
	if audit.Pending() {
		cmds = append(cmds, state.RecordAudit{Line: s.auditLine(audit.Line, cmd), With: true})
	}
	res, err := s.Node.Propose(ctx, cmds...)
	if err != nil {
		if !fleet.NothingDone(err) {
			fleet.Touch(ctx)
		}
		return value, false, err
	}
	if res[0].Err != nil {
		return value, false, res[0].Err
	}
	fleet.Touch(ctx)
	audit.Recorded()
	got := res[0].Value
	if replay, ok := got.(state.Replay); ok {
		got, replayed = replay.Value, true
	}
	value, ok := got.(T)
	if !ok && got != nil {
		return value, false, errors.New("a command gave a value of an unexpected type")
	}
	return value, replayed, nil
}

// untilFresh repeats a decision while it turns out to have been made on an old view, or to hang on
// proposals that are not answered yet; at most for decideTimeout, and until ctx ends.
func untilFresh[T any](ctx context.Context, decide func() (T, error)) (T, error) {
	limit := time.NewTimer(decideTimeout)
	defer limit.Stop()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		value, err := decide()
		var again <-chan time.Time
		var freed <-chan struct{}
		var full *contended
		switch {
		case errors.As(err, &full):
			freed = full.freed
		case fleet.CodeOf(err) == fleet.CodeStale:
			again = time.After(pause)
		default:
			return value, err
		}
		select {
		case <-freed:
		case <-again:
		case <-limit.C:
			return value, fleet.Unavailable("the fleet changes too quickly to decide", err)
		case <-ctx.Done():
			return value, fleet.Unavailable("the fleet changes too quickly to decide", ctx.Err())
		}
	}
}

// untilBound is untilFresh for decisions that reserve what they pick; the reservations are released when
// it returns.
func untilBound[T any](ctx context.Context, s *Service, decide func(mine *reserver) (T, error)) (T, error) {
	mine := &reserver{of: &s.reservations}
	defer mine.release()
	return untilFresh(ctx, func() (T, error) { return decide(mine) })
}

// missing is the answer for something referenced that is not there, or not the caller's.
func missing(path, what string) error {
	return &fleet.Error{Code: fleet.CodeNotFound, Msg: "resource not found", Details: []string{path + ": " + what}}
}
