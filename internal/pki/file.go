package pki

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	keyMode  fs.FileMode = 0o600
	certMode fs.FileMode = 0o644
	// maxFile bounds what is read from a key or certificate file, in bytes.
	maxFile = 64 << 10
)

// WriteFile replaces the file at path as a whole: after a crash at any point it holds the old data or the
// new, which are on disk when it returns.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	temp, err := writeTemp(path, data, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncDir(filepath.Dir(path))
}

// createFile is WriteFile for a path that must not exist yet. The link, unlike O_EXCL on the path itself, leaves no half-written file
// behind a crash that would then block every later try.
func createFile(path string, data []byte, mode fs.FileMode) error {
	temp, err := writeTemp(path, data, mode)
	if err != nil {
		return err
	}
	if err := errors.Join(os.Link(temp, path), os.Remove(temp)); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func writeTemp(path string, data []byte, mode fs.FileMode) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	return f.Name(), errors.Join(err, f.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ReadSecretFile reads a file that only its owner may read. It looks at the open file, not at the path, so what was checked is what is
// read; O_NONBLOCK keeps a FIFO at the path from hanging the open.
func ReadSecretFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if perm := info.Mode().Perm(); perm&^keyMode != 0 {
		return nil, fmt.Errorf("%s has mode %#o; it holds a secret and must have mode 0600", path, perm)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && foreign(int(st.Uid), os.Geteuid()) {
		return nil, fmt.Errorf("%s belongs to another user", path)
	}
	return readLimited(f)
}

// foreign reports whether a user may not take a file of that owner for his own secret. Root may take any, and everybody root's.
func foreign(owner, user int) bool { return user != 0 && owner != 0 && owner != user }

func readPublicFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readLimited(f)
}

func readLimited(f *os.File) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", f.Name(), maxFile)
	}
	return data, nil
}
