package userns

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// watching is set in a process that takes all inotify instances that it gets, and says how many.
const watching = "USERNS_TEST_WATCHING"

// takeInstances takes at most limit instances, says how many, and keeps them until its input ends.
func takeInstances(limit int) {
	n := 0
	for ; n < limit; n++ {
		if _, err := unix.InotifyInit1(0); err != nil {
			break
		}
	}
	_, _ = fmt.Fprintln(os.Stdout, n)
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// instances starts such a process in a user namespace and returns how many it got. It ends with the test.
func instances(t *testing.T, h *Held, limit int) (n int) {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	must(t, err)
	defer self.Close()
	cmd := exec.Command("nsenter", "--user="+file(h.User), "-S0", "-G0", "/proc/self/fd/3")
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), fmt.Sprintf("%s=%d", watching, limit)), []*os.File{self}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		must(t, cmd.Wait())
	})
	if _, err := fmt.Fscan(out, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTablesOfTheKernelAreEachNamespacesOwn has one namespace take all that it may have of a table of the kernel's that is
// bounded by user: another one, and the host, have theirs.
func TestTablesOfTheKernelAreEachNamespacesOwn(t *testing.T) {
	const enough = 50
	greedy, modest := newHeld(t, base, 0), newHeld(t, base+Size, unix.CLONE_NEWNET)
	if n := instances(t, greedy, 10_000); n < enough || n == 10_000 {
		t.Fatalf("%d instances, which is no bound of one namespace", n)
	}
	if n := instances(t, modest, enough); n != enough {
		t.Errorf("another namespace got %d instances, want %d", n, enough)
	}
	var held []int
	for range 3 {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			t.Errorf("the host: %v", err)
			break
		}
		held = append(held, fd)
	}
	for _, fd := range held {
		must(t, unix.Close(fd))
	}
}

// TestMakingANamespaceChangesNothingOfTheCaller: neither who its threads are nor what they may, nor whether it can be dumped.
func TestMakingANamespaceChangesNothingOfTheCaller(t *testing.T) {
	dumpable := func() int {
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		must(t, err)
		return n
	}
	before := dumpable()
	for i := range uint32(3) {
		newHeld(t, base+i*Size, unix.CLONE_NEWNET)
	}
	if after := dumpable(); after != before {
		t.Errorf("dumpable is %d, was %d", after, before)
	}
	if unix.Geteuid() != 0 || unix.Getuid() != 0 {
		t.Errorf("the process is user %d, %d", unix.Getuid(), unix.Geteuid())
	}
	dir := t.TempDir()
	must(t, os.Chown(dir, 5, 5))
	must(t, os.WriteFile(dir+"/file", nil, 0o600)) // as root may
}
