package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Hidden commands: the serving process begins as confineCommand and becomes serveCommand.
const (
	confineCommand = "confine-serving"
	serveCommand   = "serve-confined"
)

// Descriptors that the serving process is born with.
const (
	listenFD  = 3
	controlFD = 4
)

// kept are the capabilities that the serving process has over files of the ids in its user namespace: it acts as their
// owner (SETUID, SETGID), also where a mode forbids (DAC_OVERRIDE), and sets their times (FOWNER).
var kept = []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_SETUID, unix.CAP_SETGID}

const (
	maxFiles   = 65536
	maxThreads = 8192
)

// confine leaves the host behind, then becomes the serving process. It runs in new namespaces, as root of them.
func confine() error {
	runtime.LockOSThread()
	self, err := unix.Open("/proc/self/exe", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the own program: %w", err)
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"limit what it may use", limit},
		{"leave the host's files", leaveFiles},
		{"leave keys", leaveKeys},
		{"give up rights", giveUp},
		{"have calls refused", filter},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("confine the serving process: %s: %w", step.what, err)
		}
	}
	return become(self)
}

func limit() error {
	for what, most := range map[int]uint64{unix.RLIMIT_CORE: 0, unix.RLIMIT_NOFILE: maxFiles, unix.RLIMIT_NPROC: maxThreads, unix.RLIMIT_MEMLOCK: 0, unix.RLIMIT_MSGQUEUE: 0} {
		var now unix.Rlimit
		if err := unix.Getrlimit(what, &now); err != nil {
			return err
		}
		most = min(most, now.Max)
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	return nil
}

// leaveFiles makes an empty file system the root, in which nothing can be made, and lets go of all others.
func leaveFiles() error {
	const at = "/proc" // a folder that is there; the mount over it is seen by nobody else
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("gantry-s3", at, "tmpfs", flags, "mode=0555,size=4k,nr_inodes=2"); err != nil {
		return fmt.Errorf("mount an empty file system: %w", err)
	}
	if err := unix.Chdir(at); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the host's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, "")
}

// giveUp leaves this thread the rights in kept once it has become another program, for good.
func giveUp() error {
	for c := uintptr(0); c < 64; c++ {
		if slices.Contains(kept, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break // the kernel has no more
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	for _, c := range kept {
		caps[0].Permitted |= 1 << c
	}
	caps[0].Effective = caps[0].Permitted
	if err := unix.Capset(&head, &caps[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}

// become runs the program in the serving process's form. Nothing of the host is open but what it was born with.
func become(self int) error {
	args, err := syscall.SlicePtrFromStrings([]string{"gantry-s3", serveCommand})
	if err != nil {
		return err
	}
	// There is no /proc from which the program could see how many processors it may use.
	env, err := syscall.SlicePtrFromStrings([]string{"GOMAXPROCS=" + strconv.Itoa(runtime.GOMAXPROCS(0))})
	if err != nil {
		return err
	}
	empty, err := syscall.BytePtrFromString("")
	if err != nil {
		return err
	}
	if err := unix.CloseRange(controlFD+1, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close files: %w", err)
	}
	_, _, errno := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(self), uintptr(unsafe.Pointer(empty)),
		uintptr(unsafe.Pointer(&args[0])), uintptr(unsafe.Pointer(&env[0])), unix.AT_EMPTY_PATH, 0)
	return os.NewSyscallError("execveat", errno)
}

// settled says what of the confinement is not as it should be. The serving process asks itself before it serves.
func settled() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the supervisor: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("close the own memory to others: %w", err)
	}
	if n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err != nil || n != 1 {
		return errors.New("the process could get new rights")
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	for _, c := range kept {
		caps[0].Permitted &^= 1 << c
	}
	if caps[0].Permitted != 0 || caps[1].Permitted != 0 {
		return errors.New("the process has rights that it must not have")
	}
	if entries, err := os.ReadDir("/"); err != nil || len(entries) > 0 {
		return errors.Join(errors.New("the process has files of the host"), err)
	}
	return nil
}
