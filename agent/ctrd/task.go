package ctrd

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/faultpoint"
)

// Task makes the container's process. It waits before the image's command until Start.
func (r *Runtime) Task(ctx context.Context, id fleet.PodID) error {
	ctx = r.in(ctx)
	p, err := r.prepared(ctx, id)
	if err != nil || p == nil {
		return err
	}
	req := &tasks.CreateTaskRequest{ContainerID: string(id), Stdout: p.logger, Stderr: p.logger}
	for _, m := range p.rootfs {
		req.Rootfs = append(req.Rootfs, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	err = r.startEffect(ctx, id, func(ctx context.Context) error {
		faultpoint.Hit("task.create.before")
		made, err := r.client.TaskService().Create(ctx, req)
		faultpoint.Hit("task.create.after")
		if err == nil {
			r.learnBundlesOf(int(made.Pid))
		}
		return native(err)
	})
	if errdefs.IsAlreadyExists(err) {
		_, err = r.process(ctx, id)
	}
	if err != nil {
		r.unblock(ctx, id, err)
		return createFault(err)
	}
	return nil
}

// bundleInTheWay is how a daemon words it that it has a bundle of that name already.
var bundleInTheWay = regexp.MustCompile(`mkdir (/\S+): file exists`)

// unblock removes a bundle that a daemon which died had left, and because of which this one makes no
// task, for the next try.
func (r *Runtime) unblock(ctx context.Context, id fleet.PodID, cause error) {
	m := bundleInTheWay.FindStringSubmatch(cause.Error())
	if m == nil || !isBundle(m[1], r.cfg.Namespace, id) {
		return
	}
	dir := filepath.Dir(m[1])
	r.bundles.Store(&dir)
	if _, err := r.process(ctx, id); !errdefs.IsNotFound(err) {
		return
	}
	if err := r.endForgotten(ctx, id); err != nil {
		r.cfg.Log.Warn("remove an orphaned bundle", "pod", id, "err", err)
	}
}

// prepared takes what Define left. When there is nothing, another process defined the container or a
// try has gone before: then it asks the daemon, removes what a torn try may have left, and returns
// nil for a container that has its task.
func (r *Runtime) prepared(ctx context.Context, id fleet.PodID) (*prepared, error) {
	const op = "find the container"
	r.mu.Lock()
	p := r.ready[string(id)]
	delete(r.ready, string(id))
	r.mu.Unlock()
	if p != nil {
		return p, nil
	}
	c, err := r.client.ContainerService().Get(ctx, string(id))
	if err != nil {
		return nil, fault(op, err)
	}
	if _, err = r.process(ctx, id); err == nil {
		return nil, nil
	}
	if !errdefs.IsNotFound(err) {
		return nil, fault(op, err)
	}
	if err := r.endForgotten(ctx, id); err != nil {
		return nil, err
	}
	if !isMounted(r.rootDir(id)) { // by an earlier version of this program, or before a reboot
		if err := effect(ctx, func(ctx context.Context) error { return r.erase(ctx, id) }); err != nil {
			return nil, fault("remove the container", err)
		}
		return nil, &pod.Error{Class: pod.Retry, Sentence: "the container's file system is not there any more; it is made again"}
	}
	return &prepared{rootfs: r.rootMount(id), logger: c.Labels[labelLogger]}, nil
}

// forget drops what Define left for Task, and reports whether there was something: then no task was
// ever asked for.
func (r *Runtime) forget(id fleet.PodID) (fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, fresh = r.ready[string(id)]
	delete(r.ready, string(id))
	return fresh
}

// Start lets the process run and returns when it began. For one that runs already that is when Start
// was first called; for one that has ended, zero.
func (r *Runtime) Start(ctx context.Context, id fleet.PodID) (at time.Time, err error) {
	ctx = r.in(ctx)
	if at, err = r.start(ctx, id, startPatience); err == nil {
		return at, nil
	}
	if away(err) {
		return time.Time{}, fault("start the process", err)
	}
	p, perr := r.process(ctx, id)
	switch {
	case perr != nil:
	case p.Status == tasktypes.Status_RUNNING:
		return at, nil
	case p.Status == tasktypes.Status_STOPPED && (errdefs.IsFailedPrecondition(err) || strings.Contains(err.Error(), startOfStopped)):
		return time.Time{}, nil
	case p.Status == tasktypes.Status_CREATED && r.restartable(id):
		if at, err = r.start(ctx, id, 0); err == nil {
			return at, nil
		}
	}
	return time.Time{}, createFault(err)
}

// start has the daemon start the process, and says when that was done. What waits for a process that
// runs already is let go on after patience.
func (r *Runtime) start(ctx context.Context, id fleet.PodID, patience time.Duration) (at time.Time, err error) {
	err = r.startEffect(ctx, id, func(ctx context.Context) error {
		// The label is written while runc works. Look reads it when the process cannot be asked any more.
		labelled := make(chan error, 1)
		go func() { labelled <- r.label(ctx, id); faultpoint.Hit("start.labelled") }()
		waits, cancel := context.WithCancel(ctx)
		helped := make(chan struct{})
		go func() { defer close(helped); r.letStart(waits, id, patience) }()
		_, err := r.client.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: string(id)})
		cancel()
		<-helped
		faultpoint.Hit("start.started")
		at = time.Now()
		if lerr := <-labelled; lerr != nil && err == nil {
			r.cfg.Log.Warn("record the time of a start", "pod", id, "err", lerr)
		}
		return native(err)
	})
	return at, err
}

// startOfStopped is what a shim says when the process was killed before it was started.
const startOfStopped = "cannot start a stopped process"

// label writes down that the process was told to start.
func (r *Runtime) label(ctx context.Context, id fleet.PodID) error {
	stamp := time.Now().UTC().Format(time.RFC3339Nano) + " " + r.boot
	_, err := r.client.ContainerService().Update(ctx,
		containers.Container{ID: string(id), Labels: map[string]string{labelStarted: stamp}}, "labels."+labelStarted)
	return err
}

// Wait returns nil when the process has ended or was never there. A daemon that goes away meanwhile
// is an error of class Retry, as is a process that the daemon cannot reach.
func (r *Runtime) Wait(ctx context.Context, id fleet.PodID) error {
	_, err := r.client.TaskService().Wait(r.in(ctx), &tasks.WaitRequest{ContainerID: string(id)})
	if err = native(err); err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	return fault("wait for the process", err)
}

// Freeze has all processes of the container stand still (the kernel's cgroup freezer), or go on. One that does already, or has ended, is
// success. Where runc runs containers, the freezer is told directly: runc is a process that takes longer than a job may wait for a thaw.
func (r *Runtime) Freeze(ctx context.Context, id fleet.PodID, still bool) error {
	ctx = r.in(ctx)
	op, want := "thaw the processes", tasktypes.Status_RUNNING
	if still {
		op, want = "freeze the processes", tasktypes.Status_PAUSED
	}
	// What the shim froze, for an agent of before, it must thaw: it refuses commands until then.
	if r.cfg.RuntimeClass == "" && (still || !r.frozenByShim(ctx, id)) {
		if err := r.cgroups.freeze(ctx, id, still); err == nil {
			return nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fault(op, err)
		}
	}
	err := effect(ctx, func(ctx context.Context) (err error) {
		if still {
			_, err = r.client.TaskService().Pause(ctx, &tasks.PauseTaskRequest{ContainerID: string(id)})
		} else {
			_, err = r.client.TaskService().Resume(ctx, &tasks.ResumeTaskRequest{ContainerID: string(id)})
		}
		return native(err)
	})
	if err == nil {
		return nil
	}
	p, perr := r.process(ctx, id)
	if errdefs.IsNotFound(perr) || perr == nil && (p.Status == want || p.Status == tasktypes.Status_STOPPED) {
		return nil
	}
	return fault(op, err)
}

// frozenByShim reports whether the shim takes the container for frozen.
func (r *Runtime) frozenByShim(ctx context.Context, id fleet.PodID) bool {
	p, err := r.process(ctx, id)
	return err == nil && p.Status == tasktypes.Status_PAUSED
}

// Signal sends a signal by its Linux number to the process; a process that is gone is success.
func (r *Runtime) Signal(ctx context.Context, id fleet.PodID, signal int) error {
	return r.kill(r.in(ctx), id, signal, false)
}

func (r *Runtime) kill(ctx context.Context, id fleet.PodID, signal int, all bool) error {
	if signal <= 0 || signal > 64 {
		return &pod.Error{Class: pod.Fatal, Sentence: "the signal does not exist"}
	}
	err := effect(ctx, func(ctx context.Context) error {
		_, err := r.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: string(id), Signal: uint32(signal), All: all})
		return native(err)
	})
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	if p, perr := r.process(ctx, id); errdefs.IsNotFound(perr) || perr == nil && p.Status == tasktypes.Status_STOPPED {
		return nil
	}
	return fault("signal the process", err)
}
