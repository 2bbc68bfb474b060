// Package atomicfile replaces a file as a whole: after a crash or a power cut at any point the path has the old content
// or the new one, never a part of it. What its functions have written is on the disk when they return.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file at path. A crash may leave a file .NAME.*.tmp beside it.
func Write(path string, data []byte, mode fs.FileMode) error {
	return put(file{path: path, data: data, mode: mode, uid: -1, gid: -1, name: os.Rename})
}

// WriteOwned is Write for a file that another user and group own.
func WriteOwned(path string, data []byte, mode fs.FileMode, uid, gid int) error {
	return put(file{path: path, data: data, mode: mode, uid: uid, gid: gid, name: os.Rename})
}

// Create is Write for a path that must not exist yet: if it does, the error is fs.ErrExist. Unlike O_EXCL on the path itself it
// leaves no half-written file after a crash, which would make every later try fail.
func Create(path string, data []byte, mode fs.FileMode) error {
	return put(file{path: path, data: data, mode: mode, uid: -1, gid: -1, name: os.Link})
}

// SyncDir waits until the names in a folder are on the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type file struct {
	path     string
	data     []byte
	mode     fs.FileMode
	uid, gid int // -1: unchanged
	name     func(temp, path string) error
	step     func() // called before each change of the disk; nil except in tests
}

func put(f file) error {
	temp, err := os.CreateTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { _, err := temp.Write(f.data); return err },
		func() error {
			if f.uid == -1 && f.gid == -1 {
				return nil // services are denied the call itself (SystemCallFilter of their units)
			}
			return temp.Chown(f.uid, f.gid)
		},
		func() error { return temp.Chmod(f.mode) },
		temp.Sync,
		func() error { return errors.Join(temp.Close(), f.name(temp.Name(), f.path)) },
		func() error { return SyncDir(filepath.Dir(f.path)) },
	} {
		if f.step != nil {
			f.step()
		}
		if err == nil {
			err = do()
		}
	}
	if err != nil {
		_ = temp.Close() // it may be closed
	}
	if e := os.Remove(temp.Name()); !errors.Is(e, fs.ErrNotExist) { // it is there after an error and after os.Link
		err = errors.Join(err, e)
	}
	return err
}
