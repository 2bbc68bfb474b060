package tunnel_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	machineMark = "TUNNEL_TEST_MACHINE"
	agentMark   = "TUNNEL_TEST_AGENT"
)

// program is gantry-net, built once.
var program string

// TestMain runs the tests in a process with network and mount namespaces of its own, which stand for a machine with several hosts.
func TestMain(m *testing.M) {
	if os.Getenv(agentMark) != "" {
		os.Exit(agentMain())
	}
	if os.Getenv(machineMark) == "" {
		os.Exit(reexec())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "these tests need root: private mounts:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "gantry-tunnel-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program = filepath.Join(dir, "gantry-net")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "gantry/cmd/gantry-net")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build gantry-net: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func reexec() int {
	runtime.LockOSThread() // the child must outlive no thread but this one
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), machineMark+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "these tests need root:", err)
		return 1
	}
	return 0
}
