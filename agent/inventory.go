package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

const (
	mb             = 1_000_000
	reserveCores   = 1
	reserveMemory  = 2 << 30 // bytes
	diskShareInUse = 0.9     // of what is free when the agent starts may go to pods' disks
)

// inventory reads what the host offers to pods. overcommit multiplies processors, memory and disk,
// for development machines; at 1 the system's reserve of one core and 2 GiB is kept.
func inventory(dir string, overcommit int, gpus []fleet.GPU) (fleet.Inventory, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fleet.Inventory{}, fmt.Errorf("read memory: %w", err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return fleet.Inventory{}, fmt.Errorf("read free disk: %w", err)
	}
	cores := int64(runtime.NumCPU())
	memory := int64(info.Totalram) * int64(info.Unit)                   //nolint:gosec // below 2^63
	free := float64(disk.Bavail) * float64(disk.Bsize) * diskShareInUse //nolint:unconvert // differs by platform
	if overcommit <= 1 {
		overcommit = 1
		cores = max(cores-reserveCores, 1)
		memory = max(memory-reserveMemory, memory/2)
	}
	factor := int64(overcommit)
	return fleet.Inventory{
		Total: fleet.Resources{
			MilliCPU: cores * 1000 * factor,
			MemoryMB: memory / mb * factor,
			DiskGB:   int64(free) / fleet.GB * factor,
		},
		GPUs:   gpus,
		Kernel: kernelRelease(),
	}, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// machineID returns an identity of this agent's machine and data folder that survives reboots and is
// another one on another machine, and for another agent on the same machine.
func machineID(dir string) (string, error) {
	own := filepath.Join(dir, "machine-id")
	for _, path := range []string{"/etc/machine-id", own} {
		if b, err := os.ReadFile(path); err == nil && len(bytes.TrimSpace(b)) >= fleet.IDLength {
			sum := sha256.Sum256(append(bytes.TrimSpace(b), dir...))
			return hex.EncodeToString(sum[:16]), nil
		}
	}
	if err := os.WriteFile(own, []byte(fleet.NewID()+fleet.NewID()+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write machine id: %w", err)
	}
	return machineID(dir)
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
