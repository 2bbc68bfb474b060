package ctrd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// viewFolder begins the names of the folders at which this namespace's images are looked into. No
// namespace has its last letter.
func (r *Runtime) viewFolder() string { return "gantry-view-" + r.cfg.Namespace + "@" }

// withView mounts an image read-only for as long as f runs. The folder's name tells a later agent
// whose it is, if this one dies meanwhile.
func (r *Runtime) withView(mounts []mount.Mount, f func(root string) error) (err error) {
	root, err := os.MkdirTemp("", r.viewFolder())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dropView(root)) }()
	readonly := make([]mount.Mount, len(mounts))
	for i, m := range mounts {
		m.Options = append([]string{"ro", "nodev", "nosuid", "noexec"}, m.Options...)
		readonly[i] = m
	}
	if err := mount.All(readonly, root); err != nil {
		return fmt.Errorf("mount the image: %w", err)
	}
	return f(root)
}

// readList reads one of userFiles of a view; nil: there is none. An error that is no *pod.Error says that it could not be
// read this time.
func readList(root, name string) ([]byte, error) {
	fd, err := openList(root, name)
	if err != nil || fd < 0 {
		return nil, err
	}
	defer unix.Close(fd)
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only
	return io.ReadAll(io.LimitReader(f, maxUserFile))
}

// dropView takes a view away, also one that somebody still looks into.
func dropView(root string) error {
	for {
		err := unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == unix.EINTR || err == nil {
			continue
		}
		if err != unix.EINVAL && err != unix.ENOENT { // nothing is mounted there
			return fmt.Errorf("unmount the image: %w", err)
		}
		break
	}
	return os.Remove(root)
}

// sweepViews removes the views that a dead agent left.
func (r *Runtime) sweepViews() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), r.viewFolder()+"*"))
	for _, root := range left {
		if err := dropView(root); err != nil {
			r.cfg.Log.Warn("an image was not unmounted", "err", err)
		}
	}
}
