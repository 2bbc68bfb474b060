package confine

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused are calls of the kernel that no confined process has a need for: they are where the kernel has most to attack.
var refused = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_FSMOUNT, unix.SYS_FSCONFIG,
	unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_SETNS,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_QUOTACTL,
}

const (
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	x32        = 0x40000000 // from here on the numbers are those of another interface, on amd64
)

// CallWith is a call that is refused when any of the bits are in the argument, counted from 0.
type CallWith struct{ Call, Argument, Bits uint32 }

var refusedWith = []CallWith{
	{unix.SYS_CLONE, 0, namespaces},
	{unix.SYS_UNSHARE, 0, ^uint32(unix.CLONE_FS)},
}

// Filter has the kernel refuse those calls to this thread, and to the program that it becomes. A kernel that cannot is no error: the
// namespaces and the missing rights do not depend on it.
func Filter(a As) error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil
	}
	program := filterProgram(arch, a)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // some dozens
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
	runtime.KeepAlive(program)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

// filterProgram is the filter for the kernel's struct seccomp_data: number, architecture, instruction, six arguments.
func filterProgram(arch uint32, a As) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		least  = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		anyBit = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		answer = unix.BPF_RET | unix.BPF_K
		no     = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	)
	out := []unix.SockFilter{
		{Code: load, K: 4},
		{Code: equal, K: arch, Jt: 1},
		{Code: answer, K: no},
		{Code: load, K: 0},
		{Code: least, K: x32, Jf: 1},
		{Code: answer, K: no},
		// Its arguments cannot be seen; the runtime makes do with clone.
		{Code: equal, K: unix.SYS_CLONE3, Jf: 1},
		{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
	}
	for _, call := range slices.Concat(refused, a.Calls) {
		out = append(out, unix.SockFilter{Code: equal, K: call, Jf: 1}, unix.SockFilter{Code: answer, K: no})
	}
	for _, r := range slices.Concat(refusedWith, a.With) {
		out = append(
			out, unix.SockFilter{Code: equal, K: r.Call, Jf: 4}, unix.SockFilter{Code: load, K: 16 + 8*r.Argument},
			unix.SockFilter{Code: anyBit, K: r.Bits, Jf: 1}, unix.SockFilter{Code: answer, K: no}, unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		)
	}
	return append(out, unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW})
}

// leaveKeys lets go of the keys in the session of who started the host's process.
func leaveKeys() error {
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EDQUOT) {
		// A kernel without keys, or a container that may not have any, which has none to lose. At the quota of keys there is no new session.
		return nil
	}
	return err
}
