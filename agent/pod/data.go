package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

// removed begins the names of folders whose removal has begun. No pod's id begins so.
const removed = ".removed-"

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
	if err := removeTree(ctx, trash); err != nil {
		return err
	}
	err := os.Rename(path, trash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return removeTree(ctx, trash)
}

// removeTree removes a folder. It moves the folders of each folder up to the top before it goes on,
// so that a tree of any depth takes two open folders and no recursion.
func removeTree(ctx context.Context, path string) error {
	top, err := openFolder(unix.AT_FDCWD, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	for next := 0; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := someNames(top)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return os.Remove(path)
		}
		for _, name := range names {
			if err := removeEntry(ctx, top, name, &next); err != nil {
				return err
			}
		}
	}
}

// removeEntry removes one entry of the top folder. When it is a folder, its own folders become
// entries of the top one, under the next free number.
func removeEntry(ctx context.Context, top *os.File, name string, next *int) error {
	err := unix.Unlinkat(int(top.Fd()), name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return &fs.PathError{Op: "unlink", Path: top.Name(), Err: err}
	}
	folder, err := openFolder(int(top.Fd()), name)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := someNames(folder)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			break
		}
		for _, n := range names {
			if err := unix.Unlinkat(int(folder.Fd()), n, 0); err == nil {
				continue
			} else if !errors.Is(err, unix.EISDIR) {
				return &fs.PathError{Op: "unlink", Path: top.Name(), Err: err}
			}
			if err := moveUp(folder, n, top, next); err != nil {
				return &fs.PathError{Op: "move", Path: top.Name(), Err: err}
			}
		}
	}
	if err := unix.Unlinkat(int(top.Fd()), name, unix.AT_REMOVEDIR); err != nil {
		return &fs.PathError{Op: "rmdir", Path: top.Name(), Err: err}
	}
	return nil
}

// moveUp moves a folder into top under a number that no entry has.
func moveUp(folder *os.File, name string, top *os.File, next *int) error {
	for {
		*next++
		err := unix.Renameat2(int(folder.Fd()), name, int(top.Fd()), strconv.Itoa(*next), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// openFolder opens a folder of the same file system that is no symbolic link.
func openFolder(at int, name string) (*os.File, error) {
	resolve := uint64(0)
	if at != unix.AT_FDCWD { // below the first folder, whose path is ours
		resolve = unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH
	}
	fd, err := unix.Openat2(at, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve,
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// someNames reads a number of the folder's entries, from the first on. Entries are removed between
// two calls, so each call begins anew.
func someNames(folder *os.File) ([]string, error) {
	const most = 1024
	if _, err := folder.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	names, err := folder.Readdirnames(most)
	if len(names) > 0 {
		return names, nil
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return nil, nil
}

// persistent returns the mount of the pod's persistent data, which it makes when there is none.
func (m *machine) persistent(_ context.Context, want Assignment) ([]Mount, error) {
	if want.Persistent == nil {
		return nil, nil
	}
	folder, err := MakeData(m.Data, m.id)
	if err != nil {
		return nil, err
	}
	return []Mount{{Source: folder, Target: want.Persistent.Path}}, nil
}
