package ctrd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

// agent is one life of an agent on the bench's daemon.
func (b *bench) agent() *Runtime {
	b.Helper()
	r, err := New(b.r.cfg)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// calls are the calls of a pod's life, in order.
func calls(r *Runtime, s pod.ContainerSpec) []func(context.Context) error {
	return []func(context.Context) error{
		func(ctx context.Context) error { return r.Define(ctx, s) },
		func(ctx context.Context) error { return r.Task(ctx, s.Pod) },
		func(ctx context.Context) error { _, err := r.Start(ctx, s.Pod); return err },
		func(ctx context.Context) error { return r.Remove(ctx, s.Pod) },
	}
}

// held lists what the host still holds of a pod.
func (b *bench) held(id fleet.PodID) []string {
	b.Helper()
	var out []string
	for _, line := range b.d.Leftovers() {
		if strings.Contains(line, string(id)) {
			out = append(out, line)
		}
	}
	for _, pid := range b.members(id) {
		out = append(out, fmt.Sprintf("member %d", pid))
	}
	ctx := b.r.in(b.ctx)
	if _, err := b.r.client.ContainerService().Get(ctx, string(id)); !errdefs.IsNotFound(err) {
		out = append(out, fmt.Sprint("container ", err))
	}
	list, err := b.r.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		out = append(out, err.Error())
	}
	for _, p := range list.GetTasks() {
		if p.ID == string(id) {
			out = append(out, "task")
		}
	}
	if _, err := b.r.snapshots().Stat(ctx, string(id)); !errdefs.IsNotFound(err) {
		out = append(out, fmt.Sprint("snapshot ", err))
	}
	paths := []string{filepath.Join(b.d.RuncRoot(), b.r.cfg.Namespace, string(id)), b.r.shimSocket(id)}
	for _, top := range []string{"state", "root"} {
		bundle := filepath.Join(b.d.Dir, top, bundleOwner, b.r.cfg.Namespace, string(id))
		paths = append(paths, bundle)
	}
	for _, h := range b.r.cgroups.hierarchies() {
		paths = append(paths, filepath.Join(h, b.r.cgroups.path(id)))
	}
	for _, p := range paths {
		if _, err := os.Lstat(p); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// members are the processes in the pod's control groups.
func (b *bench) members(id fleet.PodID) []int {
	var out []int
	for _, h := range b.r.cgroups.hierarchies() {
		text, _ := os.ReadFile(filepath.Join(h, b.r.cgroups.path(id), "cgroup.procs"))
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil && alive(pid) != nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

// goOn does once what a new agent does for a pod that it finds, until it runs or has ended.
func goOn(ctx context.Context, r *Runtime, s pod.ContainerSpec) error {
	for {
		c, err := r.Look(ctx, s.Pod)
		switch {
		case err != nil:
			return fmt.Errorf("look: %w", err)
		case c.Exists && c.Incarnation < s.Incarnation:
			err = r.Remove(ctx, s.Pod)
		case !c.Exists:
			err = r.Define(ctx, s)
		case c.Task == pod.TaskNone:
			err = r.Task(ctx, s.Pod)
		case c.Task == pod.TaskCreated:
			_, err = r.Start(ctx, s.Pod)
		default:
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %+v: %w", c, err)
		}
	}
}

// takeOver does what a new agent may do with a torn pod, and leaves nothing.
func (b *bench) takeOver(r *Runtime, s pod.ContainerSpec, way int) error {
	members := b.members(s.Pod)
	c, err := r.Look(b.ctx, s.Pod)
	if err != nil {
		return fmt.Errorf("look: %w", err)
	}
	if left := b.members(s.Pod); !c.Exists && len(members) > 0 && len(left) > 0 {
		b.Errorf("pod %s is forgotten while its processes %v run", s.Pod, left)
	}
	switch way {
	case 0:
		return r.Clean(b.ctx, false)
	case 1:
		// A call that a torn one holds up ends by its deadline, and is made again.
		if err := ctrdtest.Eventually(2*effectTimeout, func() error { return goOn(b.ctx, r, s) }); err != nil {
			b.Errorf("go on: %v", err)
		}
	}
	return r.Remove(b.ctx, s.Pod)
}

// leftAfter returns what stays of a pod. The daemon may finish what a dead agent asked for after the
// next one looked; that one looks again, and finds it, but for the snapshot of a torn Define.
func (b *bench) leftAfter(r *Runtime, id fleet.PodID, defining bool) (left []string) {
	b.Helper()
	_ = ctrdtest.Eventually(20*time.Second, func() error {
		if left = b.held(id); len(left) == 0 {
			return nil
		}
		c, err := r.Look(b.ctx, id)
		switch {
		case err == nil && c.Exists:
			err = r.Remove(b.ctx, id)
		case err == nil && defining:
			err = r.Clean(b.ctx, false)
		}
		return errors.Join(errors.New("left"), err)
	})
	return left
}

// TestTornCallsLeaveNothing ends calls in flight, as a caller that gives up, as an agent that is
// killed and as a daemon that is, and lets another agent go on. GANTRY_TEST_ROUNDS sets how often, 60 times by default.
func TestTornCallsLeaveNothing(t *testing.T) {
	b := setup(t)
	b.ctx = t.Context()
	ref := b.local(nil)
	names := [...]string{"define", "task", "start", "remove"}
	rounds := 60
	if n, err := strconv.Atoi(os.Getenv("GANTRY_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	for round := range rounds {
		step, killed, way := round%4, rand.IntN(2) == 0, rand.IntN(3)
		delay := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
		crash := round%20 >= 16 // the daemon goes instead of the agent
		title := fmt.Sprintf("round %d: %s torn after %v, agent killed %v, daemon killed %v, then way %d", round, names[step], delay, killed, crash, way)
		s := b.spec(ref, "sleep 600")
		first := b.agent()
		steps := calls(first, s)
		for _, call := range steps[:step] {
			if err := call(b.ctx); err != nil {
				t.Fatalf("%s: %v", title, err)
			}
		}
		ctx, cancel := context.WithCancel(b.ctx)
		daemon := b.d.PID()
		timer := time.AfterFunc(delay, func() {
			switch {
			case crash:
				_ = syscall.Kill(daemon, syscall.SIGKILL)
			case killed:
				_ = first.client.Close()
			}
			cancel()
		})
		torn := steps[step](ctx)
		timer.Stop()
		cancel()
		if crash {
			b.d.Restart()
		}
		first.stop()
		_ = first.client.Close()
		second := b.agent()
		err := ctrdtest.Eventually(time.Minute, func() error { return b.takeOver(second, s, way) })
		if err != nil {
			t.Errorf("%s (%v): %v", title, torn, err)
		}
		if left := b.leftAfter(second, s.Pod, step == 0); len(left) > 0 {
			t.Errorf("%s (%v): left: %s", title, torn, strings.Join(left, "; "))
		}
		_ = second.Close()
	}
}
