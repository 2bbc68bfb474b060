package pki

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

const (
	keyMode  fs.FileMode = 0o600
	certMode fs.FileMode = 0o644
	// maxFile bounds what is read from a key or certificate file, in bytes.
	maxFile = 64 << 10
)

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
