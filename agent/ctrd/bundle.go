package ctrd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"

	"gantry/fleet"
)

// bundleOwner is the folder, below the daemon's state and root, that holds all bundles.
const bundleOwner = "io.containerd.runtime.v2.task"

// isBundle reports whether a path is that of the pod's bundle, in whichever folder of the daemon.
func isBundle(path, namespace string, id fleet.PodID) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path &&
		strings.HasSuffix(path, "/"+filepath.Join(bundleOwner, namespace, string(id)))
}

// hidden is where the daemon moves a bundle, or its working folder, before it removes it.
func hidden(path string) string { return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)) }

// leftBundle reports whether something is left of the pod's bundle at path.
func leftBundle(path, namespace string, id fleet.PodID) bool {
	if !isBundle(path, namespace, id) {
		return false
	}
	_, err1 := os.Lstat(path)
	_, err2 := os.Lstat(hidden(path))
	return err1 == nil || err2 == nil
}

// mountedBundles finds the pod's bundles on which a file system is mounted.
func mountedBundles(namespace string, id fleet.PodID) []string {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	var out []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if b, ok := strings.CutSuffix(f[4], "/rootfs"); ok && isBundle(b, namespace, id) {
			out = append(out, b)
		}
	}
	return out
}

// dropBundle removes a bundle that the daemon forgot, as the daemon would, with its working folder.
// Without, the daemon would make no task of that name again. Any other path is left alone.
func dropBundle(path, namespace string, id fleet.PodID) error {
	if !isBundle(path, namespace, id) {
		return nil
	}
	for _, p := range []string{path, hidden(path)} {
		work, werr := os.Readlink(filepath.Join(p, "work"))
		rootfs := filepath.Join(p, "rootfs")
		// Its shim, or the daemon, may be doing the same.
		if err := mount.UnmountRecursive(rootfs, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unmount a forgotten bundle: %w", err)
		}
		// Only an empty folder proves that nothing is mounted there any more.
		if err := os.Remove(rootfs); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a forgotten bundle: %w", err)
		}
		if err := os.RemoveAll(p); err != nil {
			return fmt.Errorf("remove a forgotten bundle: %w", err)
		}
		if werr == nil && isBundle(work, namespace, id) {
			if err := errors.Join(os.RemoveAll(work), os.RemoveAll(hidden(work))); err != nil {
				return fmt.Errorf("remove a forgotten bundle: %w", err)
			}
		}
	}
	return nil
}
