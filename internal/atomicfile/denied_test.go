package atomicfile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestFilesAreWrittenWithoutTheRightToGiveThemAway: the units of gantry's services deny the calls that change an owner.
func TestFilesAreWrittenWithoutTheRightToGiveThemAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if path := os.Getenv("GANTRY_ATOMICFILE_DENIED"); path != "" {
		if err := errors.Join(denyChown(), Write(path, newer, 0o640), Create(path+".new", newer, 0o640)); err != nil {
			t.Fatal(err)
		}
		if err := WriteOwned(path, older, 0o640, 1, 1); !errors.Is(err, unix.EPERM) {
			t.Fatalf("a file was given away: %v", err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "GANTRY_ATOMICFILE_DENIED="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if is, err := os.Stat(path); err != nil || is.Mode() != 0o640 || is.Size() != int64(len(newer)) {
		t.Errorf("%v, %v", is, err)
	}
}

// denyChown has fchown and its kin fail with EPERM in the whole process, as a unit's filter does.
func denyChown() error {
	jump := func(call uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jt: skip}
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		jump(unix.SYS_FCHOWN, 4), jump(unix.SYS_FCHOWNAT, 3), jump(unix.SYS_CHOWN, 2), jump(unix.SYS_LCHOWN, 1),
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]} //nolint:gosec // seven
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}
