package kernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const childMark = "NETCTL_TEST_HOST"

// TestMain runs the tests in a process with network and mount namespaces of its
// own, which stand for the host: nothing of the machine is ever touched.
func TestMain(m *testing.M) {
	if os.Getenv(tenantMark) != "" {
		os.Exit(tenant(os.Args[1:]))
	}
	if os.Getenv(childMark) == "" {
		os.Exit(reexec())
	}
	// Namespaces that others name on the machine meanwhile would count as left behind.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Fprintln(os.Stderr, "these tests need root: private mounts:", err)
		os.Exit(1)
	}
	for unix.Unmount(netnsDir, unix.MNT_DETACH) == nil {
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		fmt.Fprintln(os.Stderr, "these tests need root: mount /run:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func reexec() int {
	runtime.LockOSThread() // the child must outlive no thread but this one
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), childMark+"=1")
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
