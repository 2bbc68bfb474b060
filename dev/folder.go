package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// folder is the data folder, locked.
type folder struct {
	dir  string
	lock *os.File
}

// openFolder checks that the folder is empty or one of ours, and locks it.
func openFolder(dir string) (*folder, error) {
	if err := ours(dir); err != nil {
		return nil, err
	}
	// Opened close-on-exec: a child must not hold the lock when dev is gone.
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer func() { _ = lock.Close() }()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another gantry dev runs on %s%s", dir, holder(lock))
		}
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	f := &folder{dir: dir, lock: lock}
	if err := f.prepare(); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// ours refuses a folder with things in it that dev did not put there: what is left of an interrupted start is wiped,
// and that must never hit anything else.
func ours(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "lock", "dev-state.json":
			return nil
		}
	}
	if len(entries) > 0 {
		return fmt.Errorf("data folder %s is not empty and was not made by gantry dev; name another with --data-dir", dir)
	}
	return nil
}

func holder(lock *os.File) string {
	buf := make([]byte, 32)
	n, _ := lock.ReadAt(buf, 0)
	if pid := strings.TrimSpace(string(buf[:n])); pid != "" {
		return " (pid " + pid + ")"
	}
	return ""
}

func (f *folder) prepare() error {
	if err := f.lock.Truncate(0); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(f.lock, "%d\n", os.Getpid()); err != nil {
		return err
	}
	for _, name := range []string{"run", "log"} {
		if err := os.MkdirAll(f.path(name), 0o700); err != nil {
			return err
		}
	}
	// Whoever reads these finds what runs now, or nothing.
	return errors.Join(removeIfThere(f.path("dev.json")), removeIfThere(f.path("run", "join-token")))
}

func (f *folder) path(parts ...string) string {
	return filepath.Join(append([]string{f.dir}, parts...)...)
}

func (f *folder) state() (state, error) {
	var s state
	err := readJSON(f.path("dev-state.json"), &s)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	return s, nil
}

func (f *folder) setState(s state) error { return writeJSON(f.path("dev-state.json"), s) }

func (f *folder) keys() (keys, error) {
	var k keys
	if err := readJSON(f.path("keys.json"), &k); err != nil {
		return k, err
	}
	if k.AdminKey == "" || k.APIKey == "" {
		return k, fmt.Errorf("%s: a key is missing", f.path("keys.json"))
	}
	return k, nil
}

// close gives the folder back. The lock file stays: removing it would let two devs lock two files of one name.
func (f *folder) close() error {
	return errors.Join(f.lock.Truncate(0), f.lock.Close())
}
