package devtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Census lists what Gantry has in the kernel, of one pod or, when pod is empty, of everything.
func (s *Site) Census(pod string) ([]string, error) {
	var out []string
	add := func(kind, text string) {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && strings.Contains(line, pod) {
				out = append(out, kind+" "+line)
			}
		}
	}
	names, err := filepath.Glob("/run/netns/gantry-*")
	if err != nil {
		return nil, err
	}
	add("namespace", strings.Join(names, "\n"))
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && (strings.Contains(f[4], "gantry") || strings.Contains(f[4], "/run/netns")) {
			add("mount", f[4])
		}
	}
	for _, path := range []string{"/sys/fs/cgroup/memory/gantry", "/sys/fs/cgroup/pids/gantry", "/sys/fs/cgroup/gantry"} {
		dirs, _ := filepath.Glob(path + "/*/*")
		for _, dir := range dirs {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				add("cgroup", dir)
			}
		}
	}
	if pod == "" {
		links, err := net.Interfaces()
		if err != nil {
			return nil, err
		}
		for _, l := range links {
			if strings.HasPrefix(l.Name, "gn") || strings.HasPrefix(l.Name, "gd") {
				add("link", l.Name)
			}
		}
		tables, err := exec.Command("nft", "list", "tables").Output()
		if err != nil {
			return nil, err
		}
		add("rules", string(tables))
	}
	procs, err := processes(func(cmdline string) bool {
		ours := strings.Contains(cmdline, s.Dir) || strings.Contains(cmdline, "/run/gantry-") || strings.Contains(cmdline, s.Binary("gantry"))
		return ours && strings.Contains(cmdline, pod)
	})
	if err != nil {
		return nil, err
	}
	for _, pid := range procs {
		add("process", strconv.Itoa(pid)+" "+pod+" "+cmdline(pid))
	}
	return out, nil
}

// NothingLeft fails while anything of a pod is in the kernel.
func (s *Site) NothingLeft(pod string) error {
	left, err := s.Census(pod)
	if err != nil || len(left) == 0 {
		return err
	}
	return fmt.Errorf("left of pod %s: %s", pod, strings.Join(left, "; "))
}

func cmdline(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}

// processes returns the ids of the live processes whose command line matches.
func processes(match func(string) bool) ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []int
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if line := cmdline(pid); line != "" && match(line) {
			out = append(out, pid)
		}
	}
	return out, nil
}

// ProcessOf returns the one process on this machine whose command line ends in the marker.
func ProcessOf(marker string) (int, error) {
	found, err := processes(func(line string) bool { return strings.HasSuffix(line, marker) })
	if err != nil {
		return 0, err
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("%d processes end in %q, want 1", len(found), marker)
	}
	return found[0], nil
}
