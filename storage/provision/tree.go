package provision

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"gantry/storage/disk/tree"
)

// removeTree deletes what is at a name in a folder, and reports whether all of it is gone. It follows no link and enters no
// other file system. It moves the folders of each folder up to the top before it goes on, so that a tree of any depth takes
// two open folders, and what is left after an interruption is a tree as any other. Servers know no rename that leaves what
// is there: the names at the top are random.
func removeTree(b *budget, at *os.File, name string) (gone bool, err error) {
	if is, err := unlinked(b, at, name); is || err != nil || b.over() {
		return is, err
	}
	top, err := openFolder(at, name)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = top.Close() }() // only its names change
	done, err := emptied(b, top, func(entry string) (bool, error) {
		folder, err := openFolder(top, entry)
		if errors.Is(err, fs.ErrNotExist) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		defer func() { _ = folder.Close() }() // only its names change
		done, err := emptied(b, folder, func(sub string) (bool, error) {
			err := unix.Renameat(int(folder.Fd()), sub, int(top.Fd()), rand.Text()) //nolint:gosec // descriptors
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return false, &fs.PathError{Op: "move", Path: name, Err: err}
			}
			return true, nil
		})
		if !done || err != nil {
			return false, err
		}
		return rmdir(b, top, entry)
	})
	if !done || err != nil {
		return false, err
	}
	return rmdir(b, at, name)
}

// emptied deletes the files of a folder and has something else done with its folders. It reports whether the folder is empty.
func emptied(b *budget, folder *os.File, sub func(name string) (bool, error)) (bool, error) {
	const mostLooks = 3 // at names that stay: a server may show those of files that are gone
	for looks := 0; ; {
		names, err := tree.SomeNames(folder)
		if len(names) == 0 || err != nil {
			return err == nil, err
		}
		before := b.spent
		for _, name := range names {
			gone, err := unlinked(b, folder, name)
			if err == nil && !gone && !b.over() {
				gone, err = sub(name)
			}
			if !gone || err != nil {
				return false, err
			}
		}
		if looks++; b.spent > before {
			looks = 0
		}
		if looks == mostLooks {
			return false, fmt.Errorf("%s does not become empty", folder.Name())
		}
	}
}

// unlinked deletes a file and reports false when it is a folder, or there is nothing left to spend.
func unlinked(b *budget, at *os.File, name string) (bool, error) {
	if !b.spend() {
		return false, nil
	}
	err := unix.Unlinkat(int(at.Fd()), name, 0) //nolint:gosec // a descriptor
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT):
		b.spent-- // it was not there
		return true, nil
	case errors.Is(err, unix.EISDIR):
		return false, nil
	}
	return false, &fs.PathError{Op: "unlink", Path: at.Name(), Err: err}
}

func rmdir(b *budget, at *os.File, name string) (bool, error) {
	if !b.spend() {
		return false, nil
	}
	err := unix.Unlinkat(int(at.Fd()), name, unix.AT_REMOVEDIR) //nolint:gosec // a descriptor
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, &fs.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return true, nil
}
