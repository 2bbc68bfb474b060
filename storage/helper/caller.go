package helper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"gantry/internal/ipc"
)

// Why a call got no answer.
var (
	// ErrStuck says that the deadline passed. The process was killed; it may not have ended yet.
	ErrStuck = errors.New("no answer by the deadline")
	// ErrTooManyStuck says that nothing was tried: as many processes of the group as may be have not ended yet.
	ErrTooManyStuck = errors.New("too many calls are stuck")
	// ErrClosed says that the Caller was closed.
	ErrClosed = errors.New("the helper is closed")
)

const (
	// MostInGroup is how many processes of one group there are at a time, with those that are stuck.
	MostInGroup = 4
	// defaultDeadline is that of a context without one.
	defaultDeadline = 30 * time.Second
	// killGrace is how long a killed process may take to end before it counts as stuck.
	killGrace = 300 * time.Millisecond
)

// Caller starts helper processes. Its methods may be called concurrently. Set the fields before the first call.
type Caller struct {
	// Argv is the program and its arguments, which lead to Main.
	Argv []string
	// Env is added to an environment of nothing but a PATH.
	Env []string
	// Log gets what is worth knowing; nil: nothing.
	Log *slog.Logger

	mu     sync.Mutex
	groups map[string]*group // guarded by mu, with all that is in it
	spare  *child            // waits for the next call; guarded by mu
	fills  bool              // a spare is being started; guarded by mu
	closed bool
}

// group counts the processes that must not crowd out others.
type group struct {
	running map[*call]bool // to whether it is stuck
	stuck   int
	waiting int
	changed chan struct{} // closed when something of the above changes
}

// Call does an operation in a process of its own, with in and out as JSON; out may be nil. It returns when the
// answer is there, or when ctx ends (30 s where it has no deadline), whatever the process does: then with ErrStuck or
// ctx's error. Group names what is counted together. Beyond MostInGroup calls wait for each other, and fail at once with
// ErrTooManyStuck while all of those are stuck. Errors of the operation are *ipc.Error.
func (c *Caller) Call(ctx context.Context, group, op string, in, out any) error {
	_, err := c.call(ctx, group, op, request{}, in, out)
	return err
}

// CallFD is Call for an operation that returns a file.
func (c *Caller) CallFD(ctx context.Context, group, op string, in any) (*os.File, error) {
	f, err := c.call(ctx, group, op, request{FD: true}, in, nil)
	if err != nil {
		if f != nil {
			_ = f.Close() // nothing was written to it
		}
		return nil, err
	}
	if f == nil {
		return nil, fmt.Errorf("%s: no file came back", op)
	}
	return f, nil
}

// Stuck returns how many processes of a group were killed and have not ended.
func (c *Caller) Stuck(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.groups[name]; g != nil {
		return g.stuck
	}
	return 0
}

// Close kills what runs. It does not wait for what is stuck; calls fail from now on.
func (c *Caller) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed = true; c.spare != nil {
		c.spare.end()
		c.spare = nil
	}
	for _, g := range c.groups {
		for p := range g.running {
			p.kill()
		}
		g.change()
	}
}

// takeSpare returns the process that waits, nil: there is none.
func (c *Caller) takeSpare() *child {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.spare
	c.spare = nil
	return out
}

// refill has a process wait for the next call, which so need not wait until one has started.
func (c *Caller) refill() {
	c.mu.Lock()
	needed := c.spare == nil && !c.fills && !c.closed
	c.fills = c.fills || needed
	c.mu.Unlock()
	if !needed {
		return
	}
	h, err := c.launch()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.fills = false; {
	case err != nil: // the next call finds out
	case c.closed:
		h.end()
	default:
		c.spare = h
	}
}

func (c *Caller) call(ctx context.Context, name, op string, r request, in, out any) (*os.File, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultDeadline)
		defer cancel()
	}
	p := &call{done: make(chan struct{})}
	if err := c.enter(ctx, name, p); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	m, err := r.encode(ctx, op, in)
	if err == nil {
		err = p.start(c)
	}
	if err != nil {
		c.leave(name, p)
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	go func() { // until the process has ended, which may be never
		p.exchange(c, m)
		c.leave(name, p)
		close(p.done)
		c.refill()
	}()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		select {
		case <-p.done:
		case <-time.After(killGrace):
			if c.giveUp(name, p) {
				return nil, fmt.Errorf("%s: %w", op, late(ctx))
			}
			<-p.done
		}
	}
	return p.result(ctx, op, out)
}

// late is why there is no answer when ctx has ended.
func late(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrStuck, ctx.Err())
	}
	return ctx.Err()
}

// encode returns what the process reads. Its own deadline is a little earlier, so that it can say what it waited for.
func (r request) encode(ctx context.Context, op string, in any) (m ipc.Message, err error) {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	r.Millis = max((left - min(left/8, 500*time.Millisecond)).Milliseconds(), 1)
	if r.In, err = json.Marshal(in); err != nil {
		return m, err
	}
	if len(r.In) > maxRequest-maxAround {
		return m, errors.New("the request is too long")
	}
	m = ipc.Message{ID: 1, Verb: op}
	m.Body, err = json.Marshal(r)
	return m, err
}

// result is what a process that has ended had to say.
func (p *call) result(ctx context.Context, op string, out any) (*os.File, error) {
	switch {
	case p.answered == nil:
	case ctx.Err() != nil:
		return p.file, fmt.Errorf("%s: %w", op, late(ctx))
	default:
		said, _, _ := strings.Cut(strings.TrimSpace(p.said), "\n")
		return p.file, fmt.Errorf("%s: the helper process ended without an answer: %s %s", op, p.state, said)
	}
	if p.answer.Err != nil {
		return p.file, fmt.Errorf("%s: %w", op, p.answer.Err)
	}
	if out == nil {
		return p.file, nil
	}
	if err := json.Unmarshal(p.answer.Body, out); err != nil {
		return p.file, fmt.Errorf("%s: read the answer: %w", op, err)
	}
	return p.file, nil
}

// enter waits for a place in the group.
func (c *Caller) enter(ctx context.Context, name string, p *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return late(ctx)
		}
		g := c.groups[name]
		if g == nil {
			g = &group{running: map[*call]bool{}, changed: make(chan struct{})}
			if c.groups == nil {
				c.groups = map[string]*group{}
			}
			c.groups[name] = g
		}
		switch {
		case c.closed:
			return ErrClosed
		case g.stuck >= MostInGroup:
			return ErrTooManyStuck
		case len(g.running) < MostInGroup:
			g.running[p] = false
			return nil
		}
		g.waiting++
		changed := g.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		c.mu.Lock()
		g.waiting--
	}
}

// leave gives the place back: the process has ended.
func (c *Caller) leave(name string, p *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[name]
	if g.running[p] {
		g.stuck--
		c.say("a stuck helper process has ended", name, g.stuck)
		if p.file != nil {
			_ = p.file.Close() // nobody waits for it
		}
	}
	delete(g.running, p)
	g.change()
	if len(g.running) == 0 && g.waiting == 0 {
		delete(c.groups, name)
	}
}

// giveUp counts a process as stuck, and reports false when it has ended in this moment.
func (c *Caller) giveUp(name string, p *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[name]
	if g == nil {
		return false
	}
	if _, runs := g.running[p]; !runs {
		return false
	}
	g.running[p] = true
	g.stuck++
	g.change()
	c.say("a helper process is stuck", name, g.stuck)
	return true
}

func (g *group) change() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func (c *Caller) say(text, name string, stuck int) {
	if c.Log != nil {
		c.Log.Warn(text, "group", name, "stuck", stuck) //nolint:sloglint // one of two texts
	}
}
