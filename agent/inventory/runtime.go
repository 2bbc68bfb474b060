package inventory

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
)

const (
	runtimeTimeout = 5 * time.Second        // of the first look at the container runtime
	runtimeAgain   = 500 * time.Millisecond // of later ones: a lost session must not wait for it
)

// Asked is the container runtime as Runtime asks it.
type Asked interface {
	// Version tells daemon and runtime in words.
	Version(ctx context.Context) (string, error)
	// Images returns references that are on the host, at most 200.
	Images(ctx context.Context) ([]string, error)
}

// Runtime keeps what the container runtime said last.
type Runtime struct {
	runtime  Asked
	answered func(err error) // is told of each answer
	log      *slog.Logger

	asked bool // of the sessions' goroutine alone

	mu      sync.Mutex // guards the fields below
	version string
	proven  string // the last version that it told
	unfit   string // why no pod should run with it; empty: nothing is known
	images  []string
}

// NewRuntime makes a Runtime. answered is told whether the container runtime answered.
func NewRuntime(rt Asked, answered func(err error), log *slog.Logger) *Runtime {
	return &Runtime{runtime: rt, answered: answered, log: log}
}

// tell adds what the runtime said to an inventory.
func (r *Runtime) tell(inv *fleet.Inventory, userns bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	inv.Runtime, inv.Images = r.version, r.images
	inv.Conditions = append(inv.Conditions, isolationConditions(r.proven, inv.RuntimeClass, userns)...)
	if r.unfit != "" {
		inv.Conditions = append(inv.Conditions, fleet.Condition{Code: "runtime_unfit", Text: r.unfit, Severe: true})
	}
}

// Ask asks the container runtime for what the hello tells of it. When it is slow, what it said before
// stands.
func (r *Runtime) Ask() {
	limit := runtimeTimeout
	if r.asked {
		limit = runtimeAgain
	}
	r.asked = true
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	version, err := r.runtime.Version(ctx)
	r.answered(err)
	images, ierr := r.runtime.Images(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.judge(version, err)
	switch {
	case err == nil:
		r.version = version
	case r.version == "" || !errors.Is(err, context.DeadlineExceeded):
		r.version = "not reachable"
	}
	if ierr != nil {
		r.log.Debug("list images", "err", ierr)
		return
	}
	r.images = images
}

// judge keeps what isolation is judged by: the last version that the runtime told, also while it is away. The caller
// holds mu.
func (r *Runtime) judge(version string, err error) {
	var e *pod.Error
	switch {
	case err == nil:
		r.proven, r.unfit = version, ""
	case errors.As(err, &e) && e.Class == pod.Fatal:
		r.unfit = e.Sentence
	}
}

// Look asks what images are there, and reports whether that or the version is another than before. While the container runtime does not answer, what it said before stands.
func (r *Runtime) Look(ctx context.Context) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	now, err := r.runtime.Images(ctx)
	r.answered(err)
	version := ""
	if err == nil {
		version, err = r.runtime.Version(ctx) // it may have been upgraded
	}
	if err != nil {
		r.log.Debug("ask the container runtime", "err", err)
		return false
	}
	r.mu.Lock()
	same := slices.Equal(now, r.images) && version == r.version
	r.images, r.version = now, version
	r.judge(version, nil)
	r.mu.Unlock()
	return !same
}
