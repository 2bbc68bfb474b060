package link

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

const childMark = "LINK_TEST_HOST"

// TestMain runs the tests in a process with network and mount namespaces of its own: packets are lost there
// and nowhere else.
func TestMain(m *testing.M) {
	if os.Getenv(childMark) == "" {
		os.Exit(reexec())
	}
	if what := os.Getenv(callersEnv); what != "" {
		if err := holdConnections(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "")
	if err == nil {
		err = command("ip", "link", "set", "lo", "up")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "these tests need root:", err)
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

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}
