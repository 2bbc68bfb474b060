package ctrd

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"gantry/agent/logs"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/faultpoint"
)

// Labels of a container.
const (
	labelPod         = "gantry.pod"
	labelAccount     = "gantry.account"
	labelIncarnation = "gantry.incarnation"
	labelKept        = "gantry.kept"    // pod.ContainerSpec.Kept
	labelLogger      = "gantry.logger"  // logging URI of the task
	labelStarted     = "gantry.started" // when Start was called, and under which boot id
	// labelRoot keeps the collector off a snapshot that no container names yet.
	labelRoot = "containerd.io/gc.root"
)

// prepared is what Task needs of a container that was just defined.
type prepared struct {
	rootfs []mount.Mount
	logger string
}

// Look returns what exists of the pod. A process that was started under the present boot and that
// containerd no longer knows is TaskStopped with Lost set, exit code 255 and no time of exit; so is,
// with daemons since 1.7, one that ended while the daemon was away, since they drop its exit status.
// PID is 0 unless a process is there. A shim that was there before this Runtime and that has no
// container any more is a container of incarnation 0, as is a root without a container: Remove ends it.
func (r *Runtime) Look(ctx context.Context, id fleet.PodID) (pod.Container, error) {
	ctx = r.in(ctx)
	c, err := r.client.ContainerService().Get(ctx, string(id))
	if errdefs.IsNotFound(err) {
		if r.hasRoot(id) {
			return pod.Container{Exists: true}, nil
		}
		forgotten, err := r.inherited(id)
		return pod.Container{Exists: forgotten}, fault("tell what exists of the pod", err)
	}
	if err != nil {
		return pod.Container{}, fault("tell what exists of the pod", err)
	}
	out := pod.Container{Exists: true}
	if out.Incarnation, err = strconv.ParseUint(c.Labels[labelIncarnation], 10, 64); err != nil || c.Labels[labelPod] != string(id) {
		return pod.Container{}, &pod.Error{Class: pod.Retry, Sentence: "a container that is not ours has the pod's name", Err: err}
	}
	out.Kept = c.Labels[labelKept]
	begun, boot := started(c.Labels)
	p, err := r.process(ctx, id)
	switch {
	case errdefs.IsNotFound(err):
		if !begun.IsZero() && boot == r.boot {
			out.Task, out.Lost, out.ExitCode = pod.TaskStopped, true, lostExitCode
		}
		out.StartedAt = begun
		return out, nil
	case err != nil:
		return pod.Container{}, fault("tell the state of the process", err)
	}
	switch p.Status {
	case tasktypes.Status_CREATED:
		out.Task, out.PID = pod.TaskCreated, int(p.Pid)
	case tasktypes.Status_RUNNING, tasktypes.Status_PAUSED, tasktypes.Status_PAUSING:
		out.Task, out.PID, out.StartedAt, out.Frozen = pod.TaskRunning, int(p.Pid), begun, p.Status == tasktypes.Status_PAUSED
		if r.cfg.RuntimeClass == "" {
			if frozen, err := r.cgroups.frozen(id); err == nil {
				out.Frozen = frozen // the shim is not told
			}
		}
	case tasktypes.Status_STOPPED:
		out.Task, out.StartedAt = pod.TaskStopped, begun
		out.ExitCode, out.ExitedAt = int(p.ExitStatus), p.ExitedAt.AsTime()
		if out.OOMKilled = out.ExitCode != 0 && r.cgroups.oomKills(id) > 0; out.OOMKilled {
			out.MemoryPeak = r.cgroups.memoryPeak(id)
		}
	default:
		return pod.Container{}, &pod.Error{Class: pod.Retry, Sentence: "the container runtime of the host does not know the state of the process"}
	}
	return out, nil
}

// lostExitCode is what a lost process is said to have ended with.
const lostExitCode = 255

// process returns what containerd knows of the pod's process.
func (r *Runtime) process(ctx context.Context, id fleet.PodID) (*tasktypes.Process, error) {
	resp, err := r.client.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: string(id)})
	if err != nil {
		return nil, native(err)
	}
	return resp.Process, nil
}

func started(labels map[string]string) (at time.Time, boot string) {
	stamp, boot, _ := strings.Cut(labels[labelStarted], " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return time.Time{}, ""
	}
	return at, boot
}

// Define makes the container's root and record from the manifest that the spec's digest names; its
// reference is for people. What an earlier container changed of its files is gone. The record comes
// last: where it is, all else is too, until the host is rebooted. A container of another incarnation
// must be removed before. With an IDBase, the network namespace must be one of that user namespace.
func (r *Runtime) Define(ctx context.Context, s pod.ContainerSpec) error {
	ctx = r.in(ctx)
	if err := errors.Join(checkID(s.Pod), checkPaths(s)); err != nil {
		return fatal("the container's description is not valid", err)
	}
	img, err := r.describe(ctx, digest.Digest(s.Digest))
	if errdefs.IsNotFound(err) {
		return r.noImage(s)
	}
	if err != nil {
		return fault("read the image", err)
	}
	user, err := r.userOf(ctx, img)
	if err != nil {
		return err
	}
	p, err := r.plan(s, img)
	if err != nil {
		return err
	}
	defer p.close()
	output := r.cfg.Logs
	output.Owner = p.spec.IDBase
	uri, err := logs.LoggerURI(r.cfg.LoggerPath, s.LogDir, output)
	if err != nil {
		return fatal("the folder of the pod's log is not valid", err)
	}
	spec, err := buildSpec(p.spec, img, user, r.hostOf(p))
	if err != nil {
		return err
	}
	return fault("create the container", effect(ctx, func(ctx context.Context) error {
		if err := r.makeRoot(ctx, p); err != nil {
			return err
		}
		faultpoint.Hit("define.root")
		spec.Linux.Resources.BlockIO = r.throttle(p)
		created, err := r.record(ctx, p.spec, spec, uri)
		faultpoint.Hit("define.record")
		if err == nil && created {
			r.mu.Lock()
			r.ready[string(s.Pod)] = &prepared{rootfs: r.rootMount(s.Pod), logger: uri}
			r.mu.Unlock()
		}
		return err
	}))
}

// hostOf returns what the host gives a container's spec.
func (r *Runtime) hostOf(p *root) host {
	h := host{
		limits: r.limits(), cgroup: r.cgroups.path(p.spec.Pod), swapMax: r.cgroups.limitsSwap(), hugepages: r.cgroups.hugepages(),
		hidden: append(hiddenDevices("/sys", p.spec.Devices.Adapters), hiddenGPUs(gpuFolder, p.spec.Devices.Nodes)...),
	}
	if p.users != nil {
		h.users = r.usersPath(p.spec.Pod)
	}
	return h
}

func (r *Runtime) noImage(s pod.ContainerSpec) error {
	return &pod.Error{Class: pod.Retry, Sentence: "image " + shown(s.Image) + " is not on the host any more"}
}

// record creates the container's record, and reports whether it was not there before.
func (r *Runtime) record(ctx context.Context, s pod.ContainerSpec, spec *specs.Spec, uri string) (created bool, err error) {
	const op = "create the container"
	body, err := typeurl.MarshalAny(spec)
	if err != nil {
		return false, fault(op, err)
	}
	runtime := containers.RuntimeInfo{Name: r.cfg.runtime()}
	if runtime.Name == runtimeName {
		// The shim gives the pipes of commands to that id; those of the container are its logger's (see logs.WriterOptions).
		runtime.Options, err = typeurl.MarshalAny(&options.Options{
			BinaryName: r.cfg.RuncBinary, Root: r.cfg.RuncRoot, IoUid: s.IDBase, IoGid: s.IDBase,
		})
		if err != nil {
			return false, fault(op, err)
		}
	}
	incarnation := strconv.FormatUint(s.Incarnation, 10)
	c := containers.Container{
		ID: string(s.Pod), Image: s.Image, Spec: body,
		Labels: map[string]string{
			labelPod: string(s.Pod), labelAccount: string(s.Account), labelIncarnation: incarnation, labelLogger: uri,
			labelKept: s.Kept,
		},
		Runtime:     runtime,
		Snapshotter: r.cfg.Snapshotter, SnapshotKey: string(s.Pod),
	}
	_, err = r.client.ContainerService().Create(ctx, c)
	if !errdefs.IsAlreadyExists(err) {
		return err == nil, fault(op, err)
	}
	have, err := r.client.ContainerService().Get(ctx, c.ID)
	if err != nil {
		return false, fault(op, err)
	}
	if have.Labels[labelPod] != c.ID || have.Labels[labelIncarnation] != incarnation {
		return false, &pod.Error{Class: pod.Retry, Sentence: "an earlier container of the pod is still there"}
	}
	return false, nil
}

// List returns every pod that has a container, a shim, a root or a disk here.
func (r *Runtime) List(ctx context.Context) ([]fleet.PodID, error) {
	list, err := r.client.ContainerService().List(r.in(ctx), `labels."`+labelPod+`"`)
	if err != nil {
		return nil, fault("list containers", err)
	}
	shims, err := r.shims()
	if err != nil {
		return nil, fault("list containers", err)
	}
	out := make([]fleet.PodID, 0, len(list))
	for _, c := range list {
		out = append(out, fleet.PodID(c.ID))
	}
	for _, s := range shims {
		if s.ours && !s.eraser {
			out = append(out, s.id)
		}
	}
	rooted, err := r.rooted()
	if err != nil {
		return nil, fault("list containers", err)
	}
	out = append(out, rooted...)
	slices.Sort(out)
	return slices.Compact(out), nil
}
