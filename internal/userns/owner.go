package userns

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// asUser makes the calling thread a user of the host without taking its capabilities away. The kernel bounds what each user
// takes of some of its tables (inotify instances and watches, fanotify groups, queued signals, bytes of message queues, locked
// memory, namespaces), and counts what is in a user namespace for who made it as well (ucounts in the kernel's source,
// /proc/sys/user). Namespaces that root makes would have one bound together, which root's own processes share. A user
// that the caller's own user namespace does not have cannot own one there either, and is left to the kernel to refuse.
// The caller has locked the thread, which must end.
func asUser(id uint32) error {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("become the owner: %w", err)
	}
	const same = ^uintptr(0)
	_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(id), same) // of this thread alone
	if errno == unix.EINVAL {
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("become the owner: %w", errno)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	err = unix.Capget(&header, &caps[0])
	for i := range caps {
		caps[i].Effective = caps[i].Permitted // the kernel took them for another user's
	}
	err = errors.Join(err, unix.Capset(&header, &caps[0]))
	// The process is dumped as before, whoever its thread is.
	if dumpable == 1 {
		err = errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
	}
	if err != nil {
		return fmt.Errorf("become the owner: %w", err)
	}
	return nil
}
