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

// clear ends the processes that work in a folder, and takes away the mounts in it and the folder itself. A client that is still
// there may mount after a look.
func clear(dir string) error {
	deadline := time.Now().Add(endTime)
	for {
		pids := users(dir)
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
		if err := unmountBelow(dir); err != nil {
			return err // nothing is deleted through a mount that would not go
		}
		if len(pids) == 0 {
			return os.RemoveAll(dir)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in %s do not end", pids, dir)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

// unmountBelow takes the mounts away, and ends their connections to clients in user space. Those do not end with the client: the
// program mount that it starts to empty the kernel's cache has the connection too, and waits for an answer of it.
func unmountBelow(dir string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") && strings.Contains(line, " - fuse") {
			_ = unix.Unmount(f[4], unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW) // what is busy is ended all the same
		}
	}
	return lab.UnmountBelow(dir)
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
