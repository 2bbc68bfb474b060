package ctrd

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gantry/agent/pod"
)

// maskedPaths are those that no container sees: what would let it read the kernel, and what tells of the host's disks,
// devices, users and locks, and so of other pods. What is not there is not masked.
func maskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
		// Disks, file systems and volumes, with what each has read and written.
		"/proc/diskstats", "/proc/fs", "/proc/mdstat", "/proc/partitions", "/proc/swaps",
		"/sys/block", "/sys/class/bdi", "/sys/class/block", "/sys/dev/block", "/sys/devices/virtual/bdi", "/sys/devices/virtual/block",
		// Locks by whoever holds them, keys by user, the kernel's memory by page and by control group.
		"/proc/key-users", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/locks", "/proc/pagetypeinfo",
		"/proc/slabinfo", "/proc/vmallocinfo", "/sys/kernel/debug", "/sys/kernel/slab", "/sys/kernel/tracing",
		// Serial numbers of the machine, and how it was booted.
		"/proc/cmdline", "/sys/class/dmi", "/sys/devices/virtual/dmi", "/sys/firmware", "/sys/hypervisor",
		"/sys/devices/virtual/powercap",
		// Remote disks, by the names of their volumes.
		"/sys/bus/rbd", "/sys/devices/rbd",
	}
}

func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// classes are those of devices that no container has: the host's disks, and network adapters but for its own.
func classes() []string {
	return []string{"block", "infiniband", "infiniband_mad", "infiniband_verbs", "nvme"}
}

// owns reports whether a device of a class is the container's own.
func owns(adapters []pod.Adapter, class, name string) bool {
	return slices.ContainsFunc(adapters, func(a pod.Adapter) bool {
		return class == "infiniband" && name == a.Device || class == "infiniband_verbs" && name == a.Verbs
	})
}

// hiddenDevices are the folders below sys, which is /sys, that tell of the host's disks and of adapters that are not the container's own:
// each has its serial numbers and counters in the place at which it is plugged in, too.
func hiddenDevices(sys string, own []pod.Adapter) []string {
	var out []string
	hide := func(path string) {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			out = append(out, "/sys"+strings.TrimPrefix(real, sys))
		}
	}
	for _, class := range classes() {
		dir := filepath.Join(sys, "class", class)
		mine := false
		for _, name := range entries(dir) {
			if owns(own, class, name) { // folders of its own lie over those of these classes
				mine = true
				continue
			}
			hide(filepath.Join(dir, name))
			if class == "block" {
				hide(filepath.Join(dir, name, "device")) // the drive itself
			}
		}
		if class != "block" && !mine && len(entries(dir)) > 0 {
			out = append(out, filepath.Join("/sys/class", class))
		}
	}
	slices.Sort(out)
	kept := out[:0]
	for _, p := range slices.Compact(out) {
		if len(kept) > 0 && strings.HasPrefix(p, kept[len(kept)-1]+"/") || strings.HasPrefix(p, "/sys/devices/virtual/block/") {
			continue
		}
		kept = append(kept, p)
	}
	return kept
}

// The driver has a folder for each GPU of the host below gpuFolder, named by where it is plugged in.
const (
	gpuFolder = "/proc/driver/nvidia/gpus"
	gpuMajor  = 195 // of the nodes of whole GPUs
)

// hiddenGPUs are the folders below dir, which is gpuFolder, of GPUs of which the container has no node.
func hiddenGPUs(dir string, nodes []pod.DeviceNode) []string {
	var out []string
	for _, name := range entries(dir) {
		minor, known := gpuMinor(filepath.Join(dir, name, "information"))
		given := slices.ContainsFunc(nodes, func(n pod.DeviceNode) bool { return n.Major == gpuMajor && n.Minor == minor })
		if !known || !given {
			out = append(out, filepath.Join(gpuFolder, name))
		}
	}
	return out
}

// gpuMinor reads which node a GPU has.
func gpuMinor(path string) (int64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("Device Minor:")); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 32)
			return n, err == nil
		}
	}
	return 0, false
}
