package fleet

import (
	"context"
	"sync/atomic"
)

// Plane is what has a log of its own.
type Plane int

// The planes.
const (
	ControlPlane Plane = iota
	JobPlane
	planes
)

// fresh has, by plane, whether the request's next read needs no barrier.
type fresh [planes]atomic.Bool

type freshKey struct{}

// WithFresh returns a context for one request of which a read may follow a barrier that another step of the request has passed: what
// was acknowledged before the request came is seen either way. Each barrier serves one more read, so a request that goes on for long
// passes others.
func WithFresh(ctx context.Context) context.Context {
	return context.WithValue(ctx, freshKey{}, &fresh{})
}

// MarkFresh notes that the request has passed a barrier of a plane, or committed something there. Without WithFresh it does nothing.
func MarkFresh(ctx context.Context, p Plane) {
	if f, ok := ctx.Value(freshKey{}).(*fresh); ok {
		f[p].Store(true)
	}
}

// TakeFresh reports whether the next read of a plane needs no barrier, once for each MarkFresh.
func TakeFresh(ctx context.Context, p Plane) bool {
	f, ok := ctx.Value(freshKey{}).(*fresh)
	return ok && f[p].Swap(false)
}
