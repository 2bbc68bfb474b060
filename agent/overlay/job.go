package overlay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"gantry/internal/sleep"
)

// job makes one thing as it should be, again and again until that has succeeded, and anew after each wake.
type job struct {
	code, what string // of its condition, as Reconciler.Conditions writes it
	do         func(ctx context.Context) error
	limit      time.Duration // of one try
	wake       chan struct{}
	changed    func()
	log        *slog.Logger

	mu  sync.Mutex // guards err
	err error
}

// keep works until ctx ends.
func (j *job) keep(ctx context.Context) {
	delay := time.Duration(0)
	for {
		again := make(<-chan time.Time)
		if delay > 0 {
			again = time.After(delay)
		}
		select {
		case <-j.wake:
		case <-again:
		case <-ctx.Done():
			return
		}
		if sleep.For(ctx, together) != nil {
			return
		}
		select {
		case <-j.wake:
		default:
		}
		limited, cancel := context.WithTimeout(ctx, j.limit)
		err := j.run(limited)
		cancel()
		if err == nil {
			delay = 0
		} else {
			delay = min(max(2*delay, againLeast), againMost)
		}
	}
}

// run does it once, and notes what came of it unless the agent ends.
func (j *job) run(ctx context.Context) error {
	err := j.do(ctx)
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return err
	}
	j.mu.Lock()
	before := j.err
	j.err = err
	j.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		j.log.Error("part of the host's private networks cannot be made; it is tried again", "part", j.code, "err", err)
	case err == nil && before != nil:
		j.log.Info("private network repaired", "part", j.code)
	}
	if (before == nil) != (err == nil) || err != nil && before.Error() != err.Error() {
		j.changed()
	}
	return err
}

// trouble is why it is not as it should be.
func (j *job) trouble() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}
