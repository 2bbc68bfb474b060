package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gantry/internal/atomicfile"
)

// whole is a file that appears under its name when it is complete, and only then.
type whole struct {
	path  string
	force bool // what is there is replaced
	temp  *os.File
}

// newWhole begins a file of mode 0600.
func newWhole(path string, force bool) (*whole, error) {
	switch info, err := os.Lstat(path); {
	case err == nil && !force:
		return nil, usage("%s is there already: --force replaces it", printable(path))
	case err == nil && !info.Mode().IsRegular():
		return nil, usage("%s is no file", printable(path))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, usage("%v", err)
	}
	w := &whole{path: path, force: force}
	var err error
	if w.temp, err = os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*"); err != nil {
		return nil, usage("%v", w.named(err))
	}
	return w, nil
}

// Write implements io.Writer.
func (w *whole) Write(p []byte) (int, error) {
	n, err := w.temp.Write(p)
	return n, w.named(err)
}

// named returns an error about the file with the name that its user knows.
func (w *whole) named(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return &fs.PathError{Op: at.Op, Path: w.path, Err: at.Err}
	}
	return err
}

// same fails unless the disk has what was written, by its SHA-256.
func (w *whole) same(sum []byte) error {
	if err := w.temp.Sync(); err != nil {
		return w.named(err)
	}
	_ = unix.Fadvise(int(w.temp.Fd()), 0, 0, unix.FADV_DONTNEED) // so that the disk is read, not memory
	got := sha256.New()
	if _, err := io.Copy(got, io.NewSectionReader(w.temp, 0, math.MaxInt64)); err != nil {
		return w.named(err)
	}
	if !bytes.Equal(got.Sum(nil), sum) {
		return fmt.Errorf("%s does not read back as written: check the disk", printable(w.path))
	}
	return nil
}

// keep makes the file last and gives it its name.
func (w *whole) keep() error {
	if err := errors.Join(w.named(w.temp.Sync()), w.named(w.temp.Close())); err != nil {
		return err
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if w.force {
		flags = 0
	}
	err := unix.Renameat2(unix.AT_FDCWD, w.temp.Name(), unix.AT_FDCWD, w.path, flags)
	if errors.Is(err, unix.EINVAL) && !w.force { // the file system cannot; newWhole has looked
		err = unix.Rename(w.temp.Name(), w.path)
	}
	if err != nil {
		return fmt.Errorf("name %s: %w", w.path, err)
	}
	return atomicfile.SyncDir(filepath.Dir(w.path))
}

// drop removes what keep has not given its name.
func (w *whole) drop() {
	_ = w.temp.Close()
	_ = os.Remove(w.temp.Name())
}
