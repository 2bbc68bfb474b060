package ctrd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/faultpoint"
)

// removeTimeout bounds a removal whose caller set no closer deadline.
const removeTimeout = 90 * time.Second

// Remove kills what still runs of the pod and deletes task, container, root and disk, whichever of
// them are left, and what a call that was torn has left outside of the daemon's lists. It returns
// nil when nothing is left. The container's record goes after all that could run.
func (r *Runtime) Remove(ctx context.Context, id fleet.PodID) error {
	ctx, cancel := context.WithTimeout(r.in(ctx), removeTimeout)
	defer cancel()
	if err := checkID(id); err != nil {
		return fatal("the pod has no valid id", err)
	}
	fresh := r.forget(id)
	_, err := r.client.ContainerService().Get(ctx, string(id))
	known := err == nil
	if err != nil && !errdefs.IsNotFound(err) {
		return fault("remove the container", err)
	}
	if !known {
		if known, err = r.adopt(ctx, id); err != nil {
			return err
		}
	}
	ended := fresh && known
	if known && !fresh {
		if ended, err = r.endTask(ctx, id); err != nil {
			return err
		}
	}
	if !ended {
		if err := r.endForgotten(ctx, id); err != nil {
			return err
		}
	}
	faultpoint.Hit("remove.task")
	if err := r.cgroups.clear(ctx, id); err != nil {
		return stuck(err)
	}
	faultpoint.Hit("remove.groups")
	return fault("remove the container", effect(ctx, func(ctx context.Context) error { return r.erase(ctx, id) }))
}

func stuck(err error) error {
	return &pod.Error{Class: pod.Retry, Sentence: "processes of the pod do not end", Err: err}
}

// erase deletes the container's root and record.
func (r *Runtime) erase(ctx context.Context, id fleet.PodID) error {
	if err := r.dropFiles(ctx, id); err != nil {
		return fault("remove the container's file system", err)
	}
	if err := r.client.ContainerService().Delete(ctx, string(id)); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	faultpoint.Hit("remove.record")
	return r.dropView(ctx, id)
}

// endForgotten ends what runs of a pod that has no task in the daemon's list.
func (r *Runtime) endForgotten(ctx context.Context, id fleet.PodID) error {
	if err := effect(ctx, func(ctx context.Context) error { return r.endStray(ctx, id) }); err != nil {
		return stuck(err)
	}
	return nil
}

// adopt gives a task that lost its container a record, since containerd reaches tasks only through
// one. It reports whether there is such a task.
func (r *Runtime) adopt(ctx context.Context, id fleet.PodID) (bool, error) {
	const op = "remove a task without container"
	list, err := r.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return false, fault(op, native(err))
	}
	if !slices.ContainsFunc(list.Tasks, func(p *tasktypes.Process) bool { return p.ID == string(id) }) {
		return false, nil
	}
	body, err := typeurl.MarshalAny(&specs.Spec{Version: specVersion})
	if err != nil {
		return false, fault(op, err)
	}
	_, err = r.client.ContainerService().Create(ctx, containers.Container{
		ID: string(id), Labels: map[string]string{labelPod: string(id), labelIncarnation: "0"},
		Runtime: containers.RuntimeInfo{Name: r.cfg.runtime()}, Spec: body,
	})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return false, fault(op, err)
	}
	return true, nil
}

// endTask kills the pod's processes, waits for their end and deletes the task. It reports whether
// the daemon had one.
func (r *Runtime) endTask(ctx context.Context, id fleet.PodID) (ended bool, err error) {
	const op = "remove the process"
	p, err := r.process(ctx, id)
	listed := err == nil
	if err != nil && !errdefs.IsNotFound(err) {
		return false, fault(op, err)
	}
	if listed && p.Status != tasktypes.Status_STOPPED {
		if err := r.kill(ctx, id, int(syscall.SIGKILL), true); err != nil {
			return false, err
		}
		if err := r.Wait(ctx, id); err != nil && away(errors.Unwrap(err)) {
			return false, err
		}
	}
	// A deletion that was torn leaves a task that daemons since 2.0 do not show and delete all the same.
	err = effect(ctx, func(ctx context.Context) error {
		_, err := r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: string(id)})
		return native(err)
	})
	if errdefs.IsNotFound(err) || !listed && err != nil && !away(err) {
		return false, nil
	}
	return err == nil, fault(op, err)
}

// shimSockets is where shims of every daemon listen.
const shimSockets = "/run/containerd/s"

// shimSocket is the path at which the pod's shim listens.
func (r *Runtime) shimSocket(id fleet.PodID) string {
	name := sha256.Sum256([]byte(filepath.Join(r.cfg.Socket, r.cfg.Namespace, string(id))))
	return filepath.Join(shimSockets, hex.EncodeToString(name[:]))
}

// dropShimSocket removes the socket of a shim that was killed, since containerd leaves it, and
// reports whether a living shim listens there instead.
func (r *Runtime) dropShimSocket(id fleet.PodID) (listening bool) {
	path := r.shimSocket(id)
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return true
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path)
	}
	return false
}

// Clean removes every container, task, unpacked container file system and lease of the namespace, and
// whatever else runs or is left on the host under its name, in the daemon's lists or not;
// with everything also images, their content, and the namespace itself.
func (r *Runtime) Clean(ctx context.Context, everything bool) error {
	ctx = r.in(ctx)
	if err := r.cleanContainers(ctx); err != nil {
		return err
	}
	if err := r.cleanStrays(ctx); err != nil {
		return stuck(err)
	}
	steps := []func(context.Context) error{r.cleanLeases}
	if everything {
		steps = append(steps, r.cleanImages, r.cleanContent)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return fault("clean up", err)
		}
	}
	if err := r.cleanSnapshots(ctx, everything); err != nil {
		return fault("clean up", err)
	}
	r.mu.Lock()
	clear(r.contents)
	r.mu.Unlock()
	if everything {
		if err := r.client.NamespaceService().Delete(ctx, r.cfg.Namespace); err != nil && !errdefs.IsNotFound(err) {
			return fault("clean up", fmt.Errorf("delete namespace: %w", err))
		}
	}
	r.cgroups.removeParents()
	r.dropFolders()
	return nil
}

func (r *Runtime) cleanContainers(ctx context.Context) error {
	ids := map[string]bool{}
	list, err := r.client.ContainerService().List(ctx)
	if err != nil {
		return fault("list containers", err)
	}
	for _, c := range list {
		ids[c.ID] = true
	}
	running, err := r.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return fault("list tasks", native(err))
	}
	for _, p := range running.Tasks {
		ids[p.ID] = true
	}
	var errs []error
	for id := range ids {
		errs = append(errs, r.Remove(ctx, fleet.PodID(id)))
	}
	return errors.Join(errs...)
}

// cleanStrays ends and removes what carries the namespace's name and is no container's: shims, runc's
// state, control groups, temporary mounts. What belongs to a shim of another daemon, which has
// a namespace of the same name, is left.
func (r *Runtime) cleanStrays(ctx context.Context) error {
	shims, err := r.shims()
	if err != nil {
		return err
	}
	ids := r.cgroups.pods()
	rooted, err := r.rooted()
	if err != nil {
		return err
	}
	for _, id := range rooted {
		ids = append(ids, string(id))
	}
	for _, s := range shims {
		ids = append(ids, string(s.id))
	}
	entries, _ := os.ReadDir(r.runcState())
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		err := r.endStray(ctx, fleet.PodID(id))
		if err == nil {
			err = r.dropRoot(ctx, fleet.PodID(id))
		}
		if err != nil {
			return fmt.Errorf("clean up after pod %s: %w", id, err)
		}
	}
	_ = os.Remove(r.runcState()) // holds another daemon's containers when it is not empty
	r.sweepViews()
	return r.SweepExecs(ctx)
}

func (r *Runtime) cleanLeases(ctx context.Context) error {
	ls := r.client.LeasesService()
	list, err := ls.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range list {
		if err := ls.Delete(ctx, l, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (r *Runtime) cleanImages(ctx context.Context) error {
	list, err := r.client.ImageService().List(ctx)
	if err != nil {
		return err
	}
	for _, i := range list {
		if err := r.client.ImageService().Delete(ctx, i.Name, images.SynchronousDelete()); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (r *Runtime) cleanContent(ctx context.Context) error {
	store := r.client.ContentStore()
	running, err := store.ListStatuses(ctx)
	if err != nil {
		return err
	}
	for _, s := range running {
		if err := store.Abort(ctx, s.Ref); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	var blobs []content.Info
	if err := store.Walk(ctx, func(i content.Info) error { blobs = append(blobs, i); return nil }); err != nil {
		return err
	}
	for _, b := range blobs {
		if err := store.Delete(ctx, b.Digest); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// cleanSnapshots removes snapshots, children before their parents; those of images only on request.
func (r *Runtime) cleanSnapshots(ctx context.Context, committed bool) error {
	for {
		var all []snapshots.Info
		parents := map[string]bool{}
		err := r.snapshots().Walk(ctx, func(_ context.Context, i snapshots.Info) error {
			if committed || i.Kind != snapshots.KindCommitted {
				all = append(all, i)
				parents[i.Parent] = true
			}
			return nil
		})
		if err != nil || len(all) == 0 {
			return err
		}
		removed := 0
		for _, i := range all {
			if parents[i.Name] {
				continue
			}
			err := r.snapshots().Remove(ctx, i.Name)
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			removed++
		}
		if removed == 0 {
			return errors.New("snapshots are each other's parents")
		}
	}
}
