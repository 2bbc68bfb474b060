package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sweep takes away what labs of processes that are dead left.
func sweep() error {
	var faults []error
	for _, root := range []string{os.TempDir(), "/run"} {
		dirs, err := filepath.Glob(filepath.Join(root, tempPrefix+"*"))
		faults = append(faults, err)
		for _, dir := range dirs {
			name := filepath.Base(dir)
			pid, err := strconv.Atoi(strings.TrimPrefix(name, tempPrefix))
			if err != nil || pid != os.Getpid() && labRuns(pid) {
				continue
			}
			faults = append(faults, clear(filepath.Join(os.TempDir(), name), filepath.Join("/run", name)))
		}
	}
	return errors.Join(faults...)
}

// labRuns reports whether a process may be one that has a lab: a Go test.
func labRuns(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && strings.Contains(exe, ".test")
}

// clear ends the processes that work in some folders, and takes away what their pods have in the kernel,
// the mounts in the folders and the folders themselves.
func clear(dirs ...string) error {
	named := slices.Concat(dirs, boots(dirs))
	deadline := time.Now().Add(endTime)
	for {
		pids := users(named)
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v do not end", pids)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	var faults []error
	for _, dir := range dirs {
		faults = append(faults, clearKernel(dir), UnmountBelow(dir))
	}
	if err := errors.Join(faults...); err != nil {
		return err // nothing is deleted through a mount that would not go
	}
	for _, dir := range dirs {
		faults = append(faults, os.RemoveAll(dir))
	}
	return errors.Join(faults...)
}

// users returns the processes whose command line names one of the folders, and everything below the shims among them.
func users(dirs []string) []int {
	parents, named := map[int]int{}, map[int]bool{}
	entries, _ := os.ReadDir("/proc") // it is there
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// The second field is a name in parentheses and may hold anything.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		named[pid] = slices.ContainsFunc(dirs, func(dir string) bool { return strings.Contains(string(line), dir+"/") })
	}
	var out []int
	for pid := range parents {
		for at, depth := pid, 0; at > 1 && depth < 64; at, depth = parents[at], depth+1 {
			if named[at] {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// Instance is how an agent with a data folder names its kernel objects.
func Instance(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	return hex.EncodeToString(sum[:2])
}

// boots returns what the agents in some folders have of this boot.
func boots(dirs []string) (out []string) {
	for _, dir := range dirs {
		agents, _ := filepath.Glob(filepath.Join(dir, "agent-*")) // the pattern is fine
		for _, agent := range agents {
			out = append(out, "/run/gantry-"+Instance(agent))
		}
	}
	return out
}

// clearKernel takes away the namespaces and control groups of the pods of killed agents.
func clearKernel(dir string) error {
	agents, err := filepath.Glob(filepath.Join(dir, "agent-*"))
	if err != nil {
		return err
	}
	var faults []error
	for _, agent := range agents {
		prefix := "gantry-" + Instance(agent)
		spaces, _ := filepath.Glob("/run/netns/" + prefix + "-*") // the pattern is fine
		for _, ns := range spaces {
			if err := unix.Unmount(ns, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				faults = append(faults, err)
			}
			faults = append(faults, os.Remove(ns))
		}
		boot := "/run/" + prefix // what the agent has of this boot
		if err := UnmountBelow(boot); err != nil {
			faults = append(faults, err)
		} else {
			faults = append(faults, os.RemoveAll(boot))
		}
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/gantry/" + prefix)
		own, _ := filepath.Glob("/sys/fs/cgroup/gantry/" + prefix)
		for _, group := range append(groups, own...) {
			pods, _ := filepath.Glob(group + "/*")
			for _, path := range append(pods, group, filepath.Dir(group)) {
				if info, err := os.Stat(path); err == nil && info.IsDir() {
					_ = unix.Rmdir(path) // another's, or in use by one that is dying
				}
			}
		}
	}
	return errors.Join(faults...)
}

// UnmountBelow undoes the mounts in a folder, the innermost first; what is not mounted any more is no error.
func UnmountBelow(dir string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var at []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			at = append(at, f[4])
		}
	}
	slices.Reverse(at)
	var faults []error
	for _, path := range at {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			faults = append(faults, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return errors.Join(faults...)
}
