package ctrd

import (
	"context"
	"sync"
	"time"

	"gantry/agent/pod"
)

// Prefetch gets an image before a pod asks for it, as Pull does, without a credential: what needs one cannot be got so.
// It makes way for pods: one blob is read at a time, and none is begun while a pod waits for another image. A pod that
// asks for the same image joins, and it goes on at full speed. An image that is here, whatever its tag names by now, is
// enough.
func (r *Runtime) Prefetch(ctx context.Context, ref string) error {
	name, err := normalize(ref)
	if err != nil {
		return err
	}
	if have, err := r.Image(ctx, name); err != nil {
		return err
	} else if have != "" {
		return fault("keep the image", r.setLabel(r.in(ctx), name, labelPrefetched, stamp(time.Now())))
	}
	p, err := r.join(name, nil, false) //nolint:contextcheck // the download outlives the one who asked first
	if err != nil {
		return err
	}
	defer r.leave(p)
	select {
	case <-p.done:
		return pullFault(ref, p.err)
	case <-ctx.Done():
		return &pod.Error{Class: pod.Retry, Sentence: "getting image " + shown(ref) + " was interrupted", Err: context.Cause(ctx)}
	}
}

// turns lets pulls that pods wait for go first. Its zero value is ready.
type turns struct {
	mu   sync.Mutex
	pods int           // pulls that pods wait for
	idle chan struct{} // closed when there is none any more; nil while there is none
}

// take notes that a pod waits for a pull, until the returned function is called.
func (t *turns) take() (free func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pods++; t.pods == 1 {
		t.idle = make(chan struct{})
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.pods--; t.pods == 0 {
			close(t.idle)
			t.idle = nil
		}
	}
}

// wait returns when no pod waits for a pull, or one waits for that which front belongs to.
func (t *turns) wait(ctx context.Context, front <-chan struct{}) error {
	for {
		t.mu.Lock()
		idle := t.idle
		t.mu.Unlock()
		if idle == nil {
			return nil
		}
		select {
		case <-idle:
		case <-front:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// forPod reports whether a pod waits for the pull, or did.
func (p *pull) forPod() bool {
	select {
	case <-p.front:
		return true
	default:
		return false
	}
}

// turn waits until the pull may obtain one more blob; over ends that. It is asked before the blob is claimed: nobody
// waits for a blob that is not being read.
func (p *pull) turn(ctx context.Context, t *turns) (over func(), err error) {
	select {
	case <-p.front:
		return func() {}, nil
	default:
	}
	select {
	case <-p.front:
		return func() {}, nil
	case p.narrow <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	over = func() { <-p.narrow }
	if err := t.wait(ctx, p.front); err != nil {
		over()
		return nil, err
	}
	return over, nil
}
