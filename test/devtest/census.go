package devtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// thing is something that a machine holds until somebody takes it away. Its words are what tells whose it is.
type thing struct{ kind, words string }

// String is how a census shows it.
func (t thing) String() string { return t.kind + " " + t.words }

// Census lists what Gantry has on this machine, of one pod or, when pod is empty, of everything.
func (s *Site) Census(pod string) ([]string, error) {
	names := []string{s.Dir, "/run/gantry-", s.Binary("gantry")}
	return census(func(t thing) bool {
		if !strings.Contains(t.words, pod) {
			return false
		}
		switch t.kind {
		case "process":
			return slices.ContainsFunc(names, func(name string) bool { return strings.Contains(t.words, name) })
		case "link":
			prefixes := []string{"gn", "gd", "gb", "gi", "gv", "go", "gw"} // see netctl, and an island of gantry dev
			return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(t.words, p) })
		case "file": // of temporary folders others have some too
			return pod != ""
		case "mount", "loop device":
			return strings.Contains(t.words, "gantry") || strings.Contains(t.words, "/run/netns")
		}
		return strings.Contains(t.words, "gantry")
	})
}

// CensusOf lists what this machine has whose name, path or command line holds one of the marks: mounts and pinned
// namespaces, network namespaces, links, nftables tables with their sets and chains, control groups, loop devices, processes that are not
// defunct, files in /run, and temporary folders. See Runtime for what containerd holds.
func CensusOf(marks ...string) ([]string, error) {
	return census(func(t thing) bool {
		return slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(t.words, mark) })
	})
}

// census lists the things that count.
func census(counts func(thing) bool) ([]string, error) {
	var out []string
	var faults []error
	for _, list := range []func() ([]thing, error){
		netNamespaces, mounts, cgroups, links, rules, loops, processThings, folders,
	} {
		all, err := list()
		faults = append(faults, err)
		for _, t := range all {
			if counts(t) {
				out = append(out, t.String())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), errors.Join(faults...)
}

// NothingLeft fails while anything of a pod is on the machine.
func (s *Site) NothingLeft(pod string) error {
	left, err := s.Census(pod)
	if err != nil || len(left) == 0 {
		return err
	}
	return fmt.Errorf("left of pod %s: %s", pod, strings.Join(left, "; "))
}

func netNamespaces() ([]thing, error) { return files("namespace", "/run/netns/*") }

func files(kind string, patterns ...string) (out []thing, err error) {
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			out = append(out, thing{kind, name})
		}
	}
	return out, nil
}

// mounts are the mounts of this namespace, pinned namespaces and control groups' own among them.
func mounts() (out []thing, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 {
			out = append(out, thing{"mount", f[4]})
		}
	}
	return out, nil
}

// cgroups are the groups below one named gantry, of either version of control groups.
func cgroups() ([]thing, error) {
	return files("cgroup", "/sys/fs/cgroup/gantry*/*/", "/sys/fs/cgroup/*/gantry*/*/", "/sys/fs/cgroup/gantry*/*/*/", "/sys/fs/cgroup/*/gantry*/*/*/")
}

func links() (out []thing, err error) {
	all, err := net.Interfaces()
	for _, l := range all {
		out = append(out, thing{"link", l.Name})
	}
	return out, err
}

// rules are the tables of nftables, and what each holds.
func rules() (out []thing, err error) {
	text, err := exec.Command("nft", "list", "ruleset").Output()
	if err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	table := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(strings.TrimSpace(line), " {")
		switch word, _, _ := strings.Cut(line, " "); word {
		case "table":
			table = line
			out = append(out, thing{"rules", table})
		case "chain", "set", "map", "flowtable", "counter", "limit", "quota":
			out = append(out, thing{"rules", table + " " + line})
		}
	}
	return out, nil
}

// loops are the loop devices that are in use, by the file behind them.
func loops() (out []thing, err error) {
	names, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range names {
		if file, err := os.ReadFile(name); err == nil { // it may have been let go of
			device := strings.Split(name, "/")[3]
			out = append(out, thing{"loop device", device + " " + strings.TrimSpace(string(file))})
		}
	}
	return out, err
}

// processThings are the processes, with their control groups: a container's command line says nothing of its pod.
func processThings() (out []thing, err error) {
	pids, err := processes(func(string) bool { return true })
	for _, pid := range pids {
		groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) // it may have ended
		_, group, _ := strings.Cut(string(groups), ":/gantry")
		group, _, _ = strings.Cut(group, "\n")
		if group != "" {
			group = " /gantry" + group
		}
		out = append(out, thing{"process", strconv.Itoa(pid) + " " + cmdline(pid) + group})
	}
	return out, err
}

// folders are what is made in places that all programs share.
func folders() ([]thing, error) {
	return files("file", "/run/gantry*", "/run/gantry*/*", "/run/gantry*/*/*", "/run/containerd/runc/*/*", filepath.Join(os.TempDir(), "*"))
}

func cmdline(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}

// processes returns the ids of the live processes whose command line matches. Those of the kernel and those that
// only wait to be collected have none.
func processes(match func(string) bool) ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if line := cmdline(pid); line != "" && match(line) {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out, nil
}

// ProcessesOf returns the live processes on this machine whose command line ends in the marker.
func ProcessesOf(marker string) ([]int, error) {
	return processes(func(line string) bool { return strings.HasSuffix(line, marker) })
}

// ProcessesWith returns the live processes on this machine whose command line holds all the words.
func ProcessesWith(words ...string) ([]int, error) {
	return processes(func(line string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
}

// ProcessOf returns the one process on this machine whose command line ends in the marker.
func ProcessOf(marker string) (int, error) {
	found, err := ProcessesOf(marker)
	if err != nil {
		return 0, err
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d processes end in %q, want 1", len(found), marker)
	}
	return found[0], nil
}

// OpenFiles returns how many file descriptors a process has.
func OpenFiles(pid int) (int, error) {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if errors.Is(err, syscall.ESRCH) {
		err = fmt.Errorf("process %d: %w", pid, os.ErrNotExist)
	}
	return len(list), err
}
