package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gantry/fleet"
	"gantry/storage/disk/tree"
)

// removed begins the names of folders whose removal has begun. No pod's id begins so.
const removed = ".removed-"

// Disks keep the pods' persistent data on disks of a limited size; storage/disk says what each call does.
// They are safe for concurrent use.
type Disks interface {
	Keep(ctx context.Context, name string, gb int64) (dir string, err error)
	Remove(ctx context.Context, name string) error
	Rename(ctx context.Context, from, to string) error
	Names() ([]string, error)
}

// Data is the persistent data of a host's pods: what is below Dir, on Disks, whose folder is Dir, too. With nil
// Disks it is in plain folders, as the functions of this package that take a folder have it.
type Data struct {
	Dir   string
	Disks Disks
}

// Make returns the folder of a pod's persistent data, with room for gb·10^9 bytes, as MakeData does. Data that is
// there stays, on a disk that is made larger when it is too small. The caller has made sure that no container uses it.
func (d Data) Make(ctx context.Context, id fleet.PodID, gb int64) (string, error) {
	if d.Disks == nil {
		return MakeData(d.Dir, id)
	}
	if err := d.bringBack(ctx, id); err != nil {
		return "", fmt.Errorf("bring the pod's persistent data back: %w", err)
	}
	return d.Disks.Keep(ctx, string(id), gb)
}

// Pods returns the pods that have data, as DataOf does.
func (d Data) Pods() ([]fleet.PodID, error) {
	if d.Disks == nil {
		return DataOf(d.Dir)
	}
	names, err := d.Disks.Names()
	if err != nil {
		return nil, err
	}
	var out []fleet.PodID
	for _, name := range names {
		if mayBePod(name) {
			out = append(out, fleet.PodID(name))
		}
	}
	return out, nil
}

// Remove removes a pod's data, as RemoveData does.
func (d Data) Remove(ctx context.Context, id fleet.PodID) error {
	if d.Disks == nil {
		return RemoveData(ctx, d.Dir, id)
	}
	aside, err := d.Lost()
	if err == nil {
		err = d.Disks.Remove(ctx, string(id))
	}
	for _, l := range aside {
		if err == nil && l.Pod == id {
			err = d.RemoveLost(ctx, l)
		}
	}
	return err
}

// MakeData makes the folder of a pod's persistent data below dir, and returns its path. Data of the pod
// that was set aside comes back to it. It may be repeated. Nobody but root enters dir; the folder itself
// is one that every user of the container may read.
func MakeData(dir string, id fleet.PodID) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the folder of persistent data: %w", err)
	}
	path := filepath.Join(dir, string(id))
	if err := bringBack(dir, id); err != nil {
		return "", fmt.Errorf("bring the pod's persistent data back: %w", err)
	}
	err := os.Mkdir(path, 0o755) //nolint:gosec // read by the container's users; dir keeps all others out
	if errors.Is(err, fs.ErrExist) {
		return path, nil
	}
	if err == nil {
		err = os.Chmod(path, 0o755) //nolint:gosec // whatever the process's mask took away
	}
	if err != nil {
		return "", fmt.Errorf("make the folder of the pod's persistent data: %w", err)
	}
	return path, nil
}

// DataOf returns the pods that have persistent data below dir, in no order, those among them whose
// removal was interrupted. What was set aside, and what no pod can have, is not among it.
func DataOf(dir string) ([]fleet.PodID, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list persistent data: %w", err)
	}
	seen := map[fleet.PodID]bool{}
	var out []fleet.PodID
	for _, e := range entries {
		id := fleet.PodID(strings.TrimPrefix(e.Name(), removed))
		if !seen[id] && mayBePod(string(id)) {
			seen[id] = true
			out = append(out, id)
		}
	}
	return out, nil
}

// RemoveData removes a pod's persistent data, also what was set aside. It follows no symbolic link and
// enters no other file system: the folder's content is a tenant's. It may be repeated; when ctx ends
// first, a later call goes on with what is left. The caller has made sure that no container uses it.
func RemoveData(ctx context.Context, dir string, id fleet.PodID) error {
	aside, err := lostOf(dir, id)
	if err == nil {
		err = discard(ctx, dir, id, filepath.Join(dir, string(id)))
	}
	for _, l := range aside {
		if err == nil {
			err = discard(ctx, dir, id, l.Path)
		}
	}
	if err != nil {
		return fmt.Errorf("remove the pod's persistent data: %w", err)
	}
	return nil
}

// discard removes a folder of the pod's data and what an interrupted removal left. The folder has lost
// its name before the first of its files is gone, so that nobody takes what is left for the whole.
func discard(ctx context.Context, dir string, id fleet.PodID, path string) error {
	trash := filepath.Join(dir, removed+string(id))
	if err := tree.Remove(ctx, trash); err != nil {
		return err
	}
	err := os.Rename(path, trash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return tree.Remove(ctx, trash)
}

// persistent returns the mount of the pod's persistent data, which it makes when there is none, and makes
// larger when the order says so.
func (m *machine) persistent(ctx context.Context, want Assignment) ([]Mount, error) {
	if want.Persistent == nil {
		return nil, nil
	}
	folder, err := m.data().Make(ctx, m.id, int64(want.Persistent.SizeGB))
	if err != nil {
		return nil, &Error{Class: Retry, Sentence: "the host cannot prepare the persistent disk now", Err: err}
	}
	return []Mount{{Source: folder, Target: want.Persistent.Path}}, nil
}

func (m *machine) data() Data { return Data{m.Data, m.Disks} }
