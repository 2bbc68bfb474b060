package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/netctl"
)

// client is an agent's connection to the machine's container runtime. It does nothing more once its
// agent is dead.
type client struct {
	m    *machine
	dead atomic.Bool
}

var (
	errAway = &pod.Error{Class: pod.Retry, Sentence: "the container runtime does not answer"}
	errDead = errors.New("the agent was killed")
)

// do carries out an effect between two waits: an agent can die before it or before it learns of it.
func (c *client) do(ctx context.Context, effect func(m *machine) error) error {
	if err := c.wait(ctx); err != nil {
		return err
	}
	c.m.mu.Lock()
	err := func() error {
		switch {
		case c.dead.Load():
			return errDead
		case c.m.away != nil:
			return errAway
		}
		return effect(c.m)
	}()
	c.m.mu.Unlock()
	if err != nil {
		return err
	}
	return c.wait(ctx)
}

func (c *client) wait(ctx context.Context) error {
	c.m.mu.Lock()
	d := time.Duration(c.m.rng.Int64N(int64(20 * time.Millisecond)))
	if c.m.rng.IntN(50) == 0 {
		d *= 100
	}
	c.m.mu.Unlock()
	return sleep.For(ctx, d)
}

// Look implements pod.Runtime.
func (c *client) Look(ctx context.Context, id fleet.PodID) (out pod.Container, err error) {
	err = c.do(ctx, func(m *machine) error {
		if b := m.boxes[id]; b != nil {
			out = b.Container
		}
		return nil
	})
	return out, err
}

// Image implements pod.Runtime.
func (c *client) Image(ctx context.Context, ref string) (digest string, err error) {
	tag, pin, pinned := strings.Cut(ref, "@")
	err = c.do(ctx, func(m *machine) error {
		switch {
		case !pinned:
			digest = m.images[tag]
		case m.layers[pin] != "":
			digest = pin
		}
		return nil
	})
	return digest, err
}

// Pull implements pod.Runtime.
func (c *client) Pull(ctx context.Context, ref string, auth *fleet.Credential, progress func(done, total int64)) (string, error) {
	const parts = 5
	tag, digest := inRegistry(ref)
	how := behaviorOf(tag)
	c.m.mu.Lock()
	took := time.Duration(c.m.rng.Int64N(int64(4 * time.Second)))
	busy := c.m.rng.IntN(12) == 0
	if how.kind == "slow" {
		took += 20 * time.Second
	}
	if c.m.slow {
		took *= 10
	}
	c.m.mu.Unlock()
	for i := range int64(parts) {
		if err := c.do(ctx, func(*machine) error { return nil }); err != nil {
			return "", err
		}
		progress(i*100, parts*100)
		if err := sleep.For(ctx, took/parts); err != nil {
			return "", err
		}
	}
	switch {
	case how.kind == "missing":
		return "", &pod.Error{Class: pod.Fatal, Sentence: "the image does not exist"}
	case busy:
		return "", &pod.Error{Class: pod.Retry, Sentence: "the registry is busy"}
	}
	return digest, c.do(ctx, func(m *machine) error {
		if m.layers[digest] = tag; ref == tag {
			m.images[tag] = digest
		}
		return nil
	})
}

// Define implements pod.Runtime.
func (c *client) Define(ctx context.Context, spec pod.ContainerSpec) error {
	return c.do(ctx, func(m *machine) error {
		if b := m.boxes[spec.Pod]; b != nil {
			if b.Incarnation != spec.Incarnation {
				m.watch.broke("%s: pod %s is defined for incarnation %d over %d", m.name, spec.Pod, spec.Incarnation, b.Incarnation)
			}
			return nil
		}
		if m.layers[spec.Digest] == "" {
			return errors.New("no such image")
		}
		if m.layers[spec.Digest] != spec.Image {
			m.watch.broke("%s: pod %s is made from %q, which is not what was pulled for it", m.name, spec.Pod, spec.Digest)
		}
		m.boxes[spec.Pod] = &box{
			spec: spec, done: make(chan struct{}), Container: pod.Container{Exists: true, Incarnation: spec.Incarnation},
		}
		return nil
	})
}

var errNoBox = errors.New("no such container")

// Task implements pod.Runtime.
func (c *client) Task(ctx context.Context, id fleet.PodID) error {
	return c.do(ctx, func(m *machine) error { //nolint:contextcheck // a look at a map, under the machine's lock
		b := m.boxes[id]
		switch {
		case b == nil:
			return errNoBox
		case b.Task != pod.TaskNone:
			return nil
		case behaviorOf(b.spec.Image).kind == "broken":
			return &pod.Error{Class: pod.Fatal, Sentence: "the command does not exist in the image"}
		}
		if ok, err := netctl.NewFake(m.kernel, m.instance).Has(context.Background(), string(id)); !ok || err != nil {
			m.watch.broke("%s: pod %s gets a process without its network (%v)", m.name, id, err)
		}
		m.checkHostSide(b.spec)
		b.Task, b.done = pod.TaskCreated, make(chan struct{})
		return nil
	})
}

// Start implements pod.Runtime.
func (c *client) Start(ctx context.Context, id fleet.PodID) (at time.Time, err error) {
	err = c.do(ctx, func(m *machine) error { //nolint:contextcheck // what is started outlives the call
		b := m.boxes[id]
		switch {
		case b == nil || b.Task == pod.TaskNone:
			return errNoBox
		case b.Task == pod.TaskRunning:
			at = b.StartedAt
			return nil
		case b.Task == pod.TaskStopped:
			return errors.New("the process has ended")
		}
		m.pid++
		b.Task, b.StartedAt, b.PID = pod.TaskRunning, time.Now(), m.pid
		at = b.StartedAt
		m.watch.began(m, b.spec)
		switch how := behaviorOf(b.spec.Image); how.kind {
		case "done":
			m.later(b, how.after, 0, false)
		case "fail":
			m.later(b, how.after, 3, false)
		case "oom":
			m.later(b, how.after, 137, true)
		}
		if isWorker(b.spec) {
			m.work(b)
		}
		return nil
	})
	return at, err
}

// Wait implements pod.Runtime. When the runtime goes away it fails, as containerd's client does.
func (c *client) Wait(ctx context.Context, id fleet.PodID) error {
	c.m.mu.Lock()
	b, away, left := c.m.boxes[id], c.m.away != nil, c.m.left
	var done chan struct{}
	if b != nil && b.Task == pod.TaskRunning {
		done = b.done
	}
	c.m.mu.Unlock()
	switch {
	case away:
		return errAway
	case done == nil:
		return c.wait(ctx)
	}
	select {
	case <-done:
		return nil
	case <-left:
		return errAway
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Freeze implements pod.Runtime.
func (c *client) Freeze(ctx context.Context, id fleet.PodID, frozen bool) error {
	return c.do(ctx, func(m *machine) error {
		if b := m.boxes[id]; b != nil && b.Task == pod.TaskRunning {
			b.Frozen = frozen
			b.program.freeze(frozen)
			m.watch.froze(b.spec.Pod, frozen)
		}
		return nil
	})
}

// Deaf implements pod.Runtime: what does not heed SIGTERM here waits for it.
func (c *client) Deaf(fleet.PodID, int) bool { return false }

// Signal implements pod.Runtime.
func (c *client) Signal(ctx context.Context, id fleet.PodID, signal int) error {
	return c.do(ctx, func(m *machine) error {
		b := m.boxes[id]
		if b == nil || b.Task != pod.TaskRunning {
			return nil
		}
		m.watch.ordered(m, b.spec, fmt.Sprintf("signal %d", signal))
		switch kind := behaviorOf(b.spec.Image).kind; {
		case signal == int(syscall.SIGKILL):
			m.exit(b, 137, false)
		case b.program != nil:
			b.program.term()
		case kind == "polite":
			m.later(b, 2*time.Second, 0, false)
		case kind != "stubborn":
			m.later(b, 200*time.Millisecond, 143, false)
		}
		return nil
	})
}

// Remove implements pod.Runtime.
func (c *client) Remove(ctx context.Context, id fleet.PodID) error {
	return c.do(ctx, func(m *machine) error {
		b := m.boxes[id]
		if b == nil {
			return nil
		}
		if b.Task == pod.TaskRunning {
			m.watch.ordered(m, b.spec, "remove")
			m.exit(b, 137, false)
		}
		delete(m.boxes, id)
		return nil
	})
}

// Usage implements pod.Runtime.
func (c *client) Usage(ctx context.Context, id fleet.PodID) (use pod.Usage, err error) {
	err = c.do(ctx, func(m *machine) error {
		b := m.boxes[id]
		if b == nil || b.Task != pod.TaskRunning {
			return errNoBox
		}
		use = pod.Usage{CPU: time.Since(b.StartedAt) / 2, Memory: 100 << 20}
		return nil
	})
	return use, err
}

// Version implements agent.Containers.
func (c *client) Version(ctx context.Context) (string, error) {
	return "simulated 1.0", c.do(ctx, func(*machine) error { return nil })
}

// List implements agent.Containers.
func (c *client) List(ctx context.Context) (out []fleet.PodID, err error) {
	err = c.do(ctx, func(m *machine) error {
		for id := range m.boxes {
			out = append(out, id)
		}
		return nil
	})
	return out, err
}

// Images implements agent.Containers.
func (c *client) Images(ctx context.Context) (out []string, err error) {
	err = c.do(ctx, func(m *machine) error {
		for ref := range m.images {
			out = append(out, ref)
		}
		slices.Sort(out)
		out = out[:min(len(out), 200)]
		return nil
	})
	return out, err
}

// Import implements agent.Containers; no agent of the simulation has archives.
func (c *client) Import(context.Context, io.Reader) ([]string, error) {
	return nil, errors.New("no archives here")
}

// Clean implements agent.Containers.
func (c *client) Clean(ctx context.Context, _ bool) error {
	return c.do(ctx, func(m *machine) error {
		for id, b := range m.boxes {
			m.exit(b, 137, false)
			delete(m.boxes, id)
		}
		return nil
	})
}
