package ctrd

import (
	"context"
	"time"
)

// effectTimeout bounds one change of the daemon's state, from its begin on.
const effectTimeout = time.Minute

// effect runs one change of the daemon's state. containerd passes the end of a request on to the
// shim and forgets what was left half-way, so a change that has begun does not end with ctx but with
// a deadline of its own. When ctx has ended before, nothing is begun and that is the error.
func effect(ctx context.Context, change func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), effectTimeout)
	defer cancel()
	return change(ctx)
}
