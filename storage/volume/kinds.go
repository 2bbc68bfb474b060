package volume

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
)

// loadLimit bounds what loading a module may take. What the kernel has is asked once, so a machine that is busy with its start gets the time it needs.
const loadLimit = time.Minute

// kernelHas reports whether the kernel knows a file system, and loads its module where there is one.
func kernelHas(ctx context.Context, fs, module string) bool {
	if listed(fs) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	return exec.CommandContext(ctx, "modprobe", "--quiet", module).Run() == nil && listed(fs) //nolint:gosec // one of ours
}

// listed reports whether the kernel knows a file system now.
func listed(fs string) bool {
	text, err := os.ReadFile("/proc/filesystems")
	return err == nil && slices.Contains(strings.Fields(string(text)), fs)
}

// hasCephFuse reports whether the client of Ceph in user space can be used.
func hasCephFuse(ctx context.Context) bool {
	_, err := exec.LookPath("ceph-fuse")
	return err == nil && kernelHas(ctx, "fuse", "fuse")
}

// Kinds returns the kinds of backends that the host can mount.
func (h *Host) Kinds() []fleet.BackendKind {
	h.kindsOnce.Do(func() {
		ctx := context.Background() // each part of it has a deadline
		if kernelHas(ctx, "nfs4", "nfsv4") {
			h.kinds = append(h.kinds, fleet.BackendNFS)
		}
		if kernelHas(ctx, "ceph", "ceph") || hasCephFuse(ctx) {
			h.kinds = append(h.kinds, fleet.BackendCeph)
		}
		h.kinds = append(h.kinds, fleet.BackendLocal)
	})
	return slices.Clone(h.kinds)
}
