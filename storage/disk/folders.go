package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/internal/atomicfile"
)

// half begins the names of disks that are being made. No disk's name begins so.
const half = ".new-"

// folders is the mechanism None: plain folders.
type folders struct{ dir string }

func (f *folders) name() string { return None }

func (f *folders) offered() error { return nil }

func (f *folders) has(name string) (bool, error) { return isFolder(filepath.Join(f.dir, name)) }

func (f *folders) make(_ context.Context, name string, _ int64) (string, error) {
	if err := room(f.dir); err != nil {
		return "", err
	}
	path := filepath.Join(f.dir, name)
	return path, newFolder(path)
}

func (f *folders) keep(_ context.Context, name string, _ int64) (string, error) {
	return filepath.Join(f.dir, name), nil
}

func (f *folders) remove(ctx context.Context, name string) error {
	if err := discard(ctx, f.dir, half+name); err != nil {
		return err
	}
	return discard(ctx, f.dir, name)
}

func (f *folders) rename(_ context.Context, from, to string) error { return move(f.dir, from, to) }

func (f *folders) usage(string) (Usage, error) { return Usage{}, nil }

// names returns every folder, also those of the other mechanisms, and those that are half made or half removed.
func (f *folders) names() ([]string, error) { return namesIn(f.dir) }

func (f *folders) release(context.Context, string) error { return nil }

// newFolder makes a folder that every user of a container may read: the pool's folder keeps all others out.
func newFolder(path string) error {
	err := os.Mkdir(path, 0o755) //nolint:gosec // as said
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = os.Chmod(path, 0o755) //nolint:gosec // whatever the process's mask took away
	}
	return err
}

// isFolder reports whether there is a folder, and not a link, of that path.
func isFolder(path string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.IsDir() {
		return false, fmt.Errorf("%s is no folder", path)
	}
	return true, nil
}

// namesIn returns the names of disks that entries of a folder stand for.
func namesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		name := strings.TrimPrefix(strings.TrimPrefix(e.Name(), trash), half)
		if valid(name, 0) == nil {
			out = append(out, name)
		}
	}
	return out, nil
}

// move renames an entry of a folder to a name that nothing has, else the error is fs.ErrExist.
func move(dir, from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, from), unix.AT_FDCWD, filepath.Join(dir, to), unix.RENAME_NOREPLACE)
	if err != nil {
		return busy(&os.LinkError{Op: "rename", Old: from, New: to, Err: err})
	}
	return atomicfile.SyncDir(dir)
}
