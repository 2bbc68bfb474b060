// Command init is the first program of the guest of test/nfslab: it readies the machine, runs the tests of /plan one after the
// other, says on the second serial line how each ended, and turns the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

func main() {
	err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "@@ error", err) // also on the console, when the line is not there
	}
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	if err := mounts(); err != nil {
		return err
	}
	line, err := os.OpenFile("/dev/ttyS1", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup3(int(line.Fd()), 2, 0); err != nil {
		return fmt.Errorf("use the line for errors: %w", err)
	}
	if err := load(); err != nil {
		return err
	}
	if err := loopback(); err != nil {
		return err
	}
	text, err := os.ReadFile("/plan")
	if err != nil {
		return err
	}
	var plan [][]string // programs with their arguments
	if err := json.Unmarshal(text, &plan); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	fmt.Fprintln(line, "@@ up")
	for _, args := range plan {
		status, err := wait(args, line)
		if err != nil {
			return err
		}
		fmt.Fprintf(line, "\n@@ exit %d\n", status)
	}
	return nil
}

// mounts makes the usual file systems. The root becomes a mount that can be left with pivot_root, and is shared, as
// systemd has it.
func mounts() error {
	for _, m := range []struct{ what, at, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"cgroup2", "/sys/fs/cgroup", ""},
		{"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", "ptmxmode=0666"},
		{"tmpfs", "/dev/shm", ""},
		{"tmpfs", "/run", "mode=0755"},
		{"tmpfs", "/tmp", "mode=1777"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.what, m.at, m.what, 0, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	err := errors.Join(unix.Mount("/", "/root", "", unix.MS_BIND|unix.MS_REC, ""), unix.Chdir("/root"))
	if err == nil {
		err = unix.Mount("/root", "/", "", unix.MS_MOVE, "")
	}
	if err == nil {
		err = errors.Join(unix.Chroot("."), unix.Chdir("/"))
	}
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("make a root that can be left: %w", err)
	}
	return nil
}

// load loads the modules in the order of their names.
func load() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(files)
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("load %s: %w", file, err)
		}
	}
	return os.RemoveAll("/modules") // memory
}

func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}

// wait runs one program to its end, reaping everybody who is left to this process, and returns its exit status, or 128
// and the signal that killed it.
func wait(args []string, line *os.File) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer func() { _ = null.Close() }()
	child, err := os.StartProcess(args[0], args, &os.ProcAttr{
		Dir:   "/tmp",
		Env:   []string{"PATH=/usr/sbin", "HOME=/root", "TMPDIR=/tmp", "GANTRY_GUEST=1"},
		Files: []*os.File{null, line, line},
	})
	if err != nil {
		return 0, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for %s: %w", args[0], err)
		case pid == child.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == child.Pid:
			return 128 + int(status.Signal()), nil
		}
	}
}
