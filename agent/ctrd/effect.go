package ctrd

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"gantry/agent/pod"
	"gantry/fleet"
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

// A start that nobody wants any more gets startGrace to end by itself, and what is below its shim killGrace from then on.
const (
	startGrace = 2 * time.Second
	killGrace  = 3 * time.Second
	killPoll   = 50 * time.Millisecond
)

// startEffect runs a change that makes or starts a pod's process, as effect does, but when ctx ends because of pod.ErrUnwanted:
// then what works on it is killed, so that the pod's GPUs are free. An image may keep runc waiting for as long as it likes.
func (r *Runtime) startEffect(ctx context.Context, id fleet.PodID, change func(context.Context) error) error {
	ended, looked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looked)
		select {
		case <-ended:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), pod.ErrUnwanted) {
				r.breakOff(context.WithoutCancel(ctx), id, ended)
			}
		}
	}()
	err := effect(ctx, change)
	close(ended)
	<-looked
	return err
}

// breakOff kills what is below the pod's shim, and at last the shim, until ended is closed.
func (r *Runtime) breakOff(ctx context.Context, id fleet.PodID, ended chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, effectTimeout)
	defer cancel()
	wait := func(d time.Duration) (more bool) {
		select {
		case <-ended:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	begun := time.Now()
	for more := wait(startGrace); more; more = wait(killPoll) {
		shims, err := r.shims()
		if err != nil {
			r.cfg.Log.Warn("cancel a container start", "pod", id, "err", err)
			return
		}
		for _, s := range shims {
			if s.id != id || !s.ours || s.eraser {
				continue
			}
			r.cfg.Log.Info("cancelling a container start that is no longer wanted", "pod", id, "pid", s.pid)
			if time.Since(begun) > startGrace+killGrace {
				_ = r.endShim(ctx, s) // it is tried again
				continue
			}
			for _, pid := range r.below(s.pid) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
}
