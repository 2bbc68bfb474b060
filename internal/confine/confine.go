// Package confine turns a process that root started into one that has no rights on the host: it keeps some descriptors, becomes
// another user or keeps a few capabilities over its own user namespace, and sees an empty file system.
package confine

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

const (
	maxFiles   = 65536
	maxThreads = 8192
)

// As says what the process becomes.
type As struct {
	// Args are those of the same program as it goes on, its name first.
	Args []string
	// Files is how many descriptors it keeps, from 0 on.
	Files uint
	// UID and GID are whom it becomes; 0: it stays who it is in its user namespace.
	UID, GID int
	// Capabilities are kept. With a UID they are none.
	Capabilities []uintptr
	// Calls of the kernel are refused beside those that no such process needs.
	Calls []uint32
	// With are calls that are refused with some bits of an argument.
	With []CallWith
}

// Become leaves the host behind and goes on as the same program with other arguments. It returns only with an error. The process
// must have a mount namespace of its own.
func Become(a As) error {
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
		{"leave the host's files", func() error { return leaveFiles(a.Args[0]) }},
		{"leave keys", leaveKeys},
		{"give up rights", func() error { return giveUp(a) }},
		{"have calls refused", func() error { return Filter(a) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("confine the process: %s: %w", step.what, err)
		}
	}
	return become(self, a)
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
func leaveFiles(name string) error {
	const at = "/proc" // a folder that is there; the mount over it is seen by nobody else
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount(name, at, "tmpfs", flags, "mode=0555,size=4k,nr_inodes=2"); err != nil {
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

// giveUp leaves this thread the rights that are kept once it has become another program, for good.
func giveUp(a As) error {
	for c := uintptr(0); c < 64; c++ {
		if slices.Contains(a.Capabilities, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break // the kernel has no more
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := changeUser(a.UID, a.GID); err != nil {
		return err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	for _, c := range a.Capabilities {
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

// changeUser changes this thread's user alone: the other threads end when it becomes another program.
func changeUser(uid, gid int) error {
	if uid == 0 {
		return nil
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return fmt.Errorf("setgroups: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
		return fmt.Errorf("setresgid: %w", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return fmt.Errorf("setresuid: %w", errno)
	}
	return nil
}

// become runs the program again. Nothing of the host is open but what it keeps.
func become(self int, a As) error {
	args, err := syscall.SlicePtrFromStrings(a.Args)
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
	if err := unix.CloseRange(a.Files, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close files: %w", err)
	}
	_, _, errno := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(self), uintptr(unsafe.Pointer(empty)),
		uintptr(unsafe.Pointer(&args[0])), uintptr(unsafe.Pointer(&env[0])), unix.AT_EMPTY_PATH, 0)
	return os.NewSyscallError("execveat", errno)
}

// Settled says what of the confinement is not as it should be. The process asks itself before it does its work.
func Settled(capabilities []uintptr) error {
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
	for _, c := range capabilities {
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
