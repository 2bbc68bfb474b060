package ctrd

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"gantry/fleet"
)

// Deaf reports whether the process, which is the container's first, is alone in the container and SIGTERM cannot reach
// it: it neither catches the signal nor waits for it, and the kernel then spares the first process of a namespace. It is
// false where that cannot be told.
func (r *Runtime) Deaf(id fleet.PodID, pid int) bool {
	return r.cfg.RuntimeClass == "" && pid > 1 && r.cgroups.alone(id, pid) && deaf(filepath.Join(procFolder, strconv.Itoa(pid)))
}

// alone reports whether a pod's groups have that process and no other.
func (c cgroupFS) alone(id fleet.PodID, pid int) bool {
	found := false
	for _, h := range c.hierarchies() {
		text, _ := os.ReadFile(filepath.Join(h, c.path(id), "cgroup.procs")) // not every hierarchy has it
		for word := range strings.FieldsSeq(string(text)) {
			if word != strconv.Itoa(pid) {
				return false
			}
			found = true
		}
	}
	return found
}

// deaf reads whether a process whose folder in /proc that is does nothing on SIGTERM. A thread that holds the signal back
// may be about to ask for it.
func deaf(proc string) bool {
	threads, err := os.ReadDir(filepath.Join(proc, "task"))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, t := range threads {
		text, err := os.ReadFile(filepath.Join(proc, "task", t.Name(), "status"))
		if err != nil {
			return false
		}
		for _, field := range []string{"SigCgt", "SigBlk"} {
			if has, known := hasSignal(text, field, syscall.SIGTERM); has || !known {
				return false
			}
		}
	}
	return true
}

// hasSignal reports whether a set of signals in a process's status has one.
func hasSignal(status []byte, field string, signal syscall.Signal) (has, known bool) {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte(field+":")); ok {
			set, err := strconv.ParseUint(string(bytes.TrimSpace(rest)), 16, 64)
			return set&(1<<(signal-1)) != 0, err == nil
		}
	}
	return false, false
}
