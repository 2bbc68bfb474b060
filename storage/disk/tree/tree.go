// Package tree removes folders whose content is hostile.
package tree

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Remove removes a folder and what it holds. It follows no symbolic link and enters no other file system. When ctx ends
// first, a later call goes on with what is left. A folder that is not there is removed. It moves the folders of each folder
// up to the top before it goes on, so that a tree of any depth takes two open folders and no recursion.
func Remove(ctx context.Context, path string) error {
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
		names, err := SomeNames(top)
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
		names, err := SomeNames(folder)
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

// SomeNames reads a number of the folder's entries, at most 1,024, from the first on; none when there are none.
// Entries are removed between two calls, so each call begins anew.
func SomeNames(folder *os.File) ([]string, error) {
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
