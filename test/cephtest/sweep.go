package cephtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/test/chaos/lab"
)

const tempPrefix = "gantry-ceph-" // of the folders; the process id follows

// sweep takes away what clusters of processes that are dead left.
func sweep(parent string) error {
	dirs, err := filepath.Glob(filepath.Join(parent, tempPrefix+"*-*"))
	faults := []error{err}
	for _, dir := range dirs {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), tempPrefix), "-")
		pid, err := strconv.Atoi(number)
		if err != nil || pid == os.Getpid() || unix.Kill(pid, 0) == nil && runsTest(pid) {
			continue
		}
		faults = append(faults, clear(dir))
	}
	return errors.Join(faults...)
}

// runsTest reports whether a process may be one that has a cluster: a Go program that is being tested or tests.
func runsTest(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && (strings.Contains(exe, ".test") || strings.Contains(exe, "go-build"))
}

// clear ends the processes that work in a folder, and takes away the mounts in it and the folder itself.
func clear(dir string) error {
	if err := lab.UnmountBelow(dir); err != nil {
		return err // nothing is deleted through a mount that would not go
	}
	deadline := time.Now().Add(endTime)
	for {
		pids := users(dir)
		if len(pids) == 0 {
			return os.RemoveAll(dir)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in %s do not end", pids, dir)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

// users returns the processes whose command line names something in the folder.
func users(dir string) []int {
	entries, _ := os.ReadDir("/proc") // it is there
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // empty of one that has ended
		if strings.Contains(string(line), dir+"/") {
			out = append(out, pid)
		}
	}
	return out
}
