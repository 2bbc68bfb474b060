package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/storage/disk"
	"gantry/storage/provision"
)

// restoreDisks mounts every disk of a root of this host, each as large as it is.
func restoreDisks(ctx context.Context, root provision.Root) error {
	return withDisks(ctx, root, func(pool *disk.Pool, names []string) error {
		var errs []error
		for _, name := range names {
			_, err := pool.Keep(ctx, name, 1)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// withDisks does something with the disks of a root's volumes that were not removed, alone on this host.
func withDisks(ctx context.Context, root provision.Root, do func(pool *disk.Pool, names []string) error) error {
	if err := provision.Check(ctx, root); err != nil {
		return err
	}
	marker, err := os.Open(filepath.Join(root.Dir, provision.Marker))
	if err != nil {
		return err
	}
	defer func() { _ = marker.Close() }() // only locked
	for {
		err = unix.Flock(int(marker.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // a descriptor
		if !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("another process works on the volumes: %w", err)
		}
	}
	if err != nil {
		return err
	}
	pool, err := disk.Open(disk.Config{Dir: root.Dir, Direct: true, Shared: true})
	if err != nil {
		return err
	}
	all, err := pool.Names()
	if err != nil {
		return err
	}
	var names []string
	for _, name := range all {
		if !strings.Contains(name, "-") { // of a removed one: it is deleted without being mounted here
			names = append(names, name)
		}
	}
	return do(pool, names)
}
