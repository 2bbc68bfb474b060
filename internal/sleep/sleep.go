// Package sleep waits for a time that a context, or news, may cut short.
package sleep

import (
	"context"
	"time"
)

// For waits for d. It returns context.Cause(ctx) when ctx ends before.
func For(ctx context.Context, d time.Duration) error {
	_, err := Or(ctx, d, nil)
	return err
}

// Or is For that ends early, and says so, when something comes from woken.
func Or(ctx context.Context, d time.Duration, woken <-chan struct{}) (early bool, err error) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false, nil
	case <-woken:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}
