package fleet

import (
	"context"
	"sync/atomic"
)

// Attempt remembers of one request whether something was done for it, or may have been. Later failures of the same
// request then cannot be answered with "nothing was done", whatever they say of themselves.
type Attempt struct{ touched atomic.Bool }

type attemptKey struct{}

// WithAttempt returns ctx carrying a new attempt.
func WithAttempt(ctx context.Context) (context.Context, *Attempt) {
	a := &Attempt{}
	return context.WithValue(ctx, attemptKey{}, a), a
}

// Touch marks the attempt that ctx carries, if there is one.
func Touch(ctx context.Context) {
	if a, ok := ctx.Value(attemptKey{}).(*Attempt); ok {
		a.touched.Store(true)
	}
}

// Untouched reports whether err ended the attempt before anything was done for it.
func (a *Attempt) Untouched(err error) bool { return NothingDone(err) && !a.touched.Load() }
