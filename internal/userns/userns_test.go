package userns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

const base = 0x10000000

// covered is set in a process whose /proc or /sys has something mounted over a part.
const covered = "USERNS_TEST_COVERED"

// limited is set in a process whose user namespace may have none below it.
const limited = "USERNS_TEST_LIMITED"

func TestMain(m *testing.M) {
	if os.Getenv(limited) != "" {
		if _, err := New(base, 0); !errors.Is(err, unix.ENOSPC) {
			fmt.Fprintln(os.Stderr, "want ENOSPC:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if limit, err := strconv.Atoi(os.Getenv(watching)); err == nil {
		takeInstances(limit)
		os.Exit(0)
	}
	if dir := os.Getenv(covered); dir != "" {
		if err := Probe(dir); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "cannot be mounted") {
			fmt.Fprintln(os.Stderr, "want EPERM:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newHeld(t testing.TB, first uint32, flags uintptr) *Held {
	t.Helper()
	h, err := New(first, flags)
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	return h
}

// in runs a shell command as root of a user namespace, with what it owns when net is given.
func in(t testing.TB, command, user, net string) string {
	t.Helper()
	args := []string{"--user=" + user}
	if net != "" {
		args = append(args, "--net="+net)
	}
	out, err := exec.Command("nsenter", append(args, "-S0", "-G0", "sh", "-c", command)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

// file is a path by which other programs open the file while it is open here.
func file(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

func TestNewMapsTheIDs(t *testing.T) {
	h := newHeld(t, base+Size, 0)
	if h.Net != nil {
		t.Error("a network namespace was made")
	}
	got := in(t, "id -u; id -g; cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups", file(h.User), "")
	if want := "0 0 0 268500992 65536 0 268500992 65536 allow"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, first := range []uint32{0, 0xffff0000, 0xffffffff} {
		if _, err := New(first, 0); err == nil {
			t.Errorf("ids from %d passed", first)
		}
	}
	if _, err := New(base, unix.CLONE_NEWNS); err == nil {
		t.Error("a mount namespace passed")
	}
}

func TestNetworkBelongsToTheUserNamespace(t *testing.T) {
	h := newHeld(t, base, unix.CLONE_NEWNET)
	owner, err := OfNet(file(h.Net))
	must(t, err)
	defer owner.Close()
	if !same(t, owner, h.User) {
		t.Error("it is another user namespace's")
	}
	if got := in(t, "ip link set lo up && ip -br link", file(h.User), file(h.Net)); !strings.HasPrefix(got, "lo UNKNOWN") {
		t.Errorf("links: %s", got)
	}
	if own, err := OfNet("/proc/self/ns/net"); own != nil || err != nil {
		t.Errorf("the host's network: %v, %v", own, err)
	}
	for _, path := range []string{"/proc/self/ns/user", "/etc/hostname"} {
		if _, err := OfNet(path); err == nil {
			t.Errorf("%s passed for a network namespace", path)
		}
	}
	if _, err := OfNet("/no/file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestNetworkKeepsItsOwner: nothing but the network namespace's name holds the user namespace.
func TestNetworkKeepsItsOwner(t *testing.T) {
	h, err := New(base, unix.CLONE_NEWNET)
	must(t, err)
	path := filepath.Join(t.TempDir(), "net")
	must(t, Pin(h.Net, path))
	t.Cleanup(func() { must(t, Unpin(path)) })
	must(t, h.Close())
	owner, err := OfNet(path)
	must(t, err)
	defer owner.Close()
	if got := in(t, "cat /proc/self/uid_map", file(owner), path); got != "0 268435456 65536" {
		t.Errorf("ids %s", got)
	}
}

func TestPinAndUnpin(t *testing.T) {
	first, second := newHeld(t, base, 0), newHeld(t, base+Size, 0)
	path := filepath.Join(t.TempDir(), "user")
	must(t, Unpin(path)) // nothing is there
	must(t, os.WriteFile(path, nil, 0o600))
	for _, h := range []*Held{first, second, second} {
		must(t, Pin(h.User, path))
		f, err := os.Open(path)
		must(t, err)
		if !same(t, f, h.User) {
			t.Error("another namespace is there")
		}
		must(t, f.Close())
	}
	if got := in(t, "cat /proc/self/uid_map", path, ""); got != "0 268500992 65536" {
		t.Errorf("ids %s", got)
	}
	for range 2 {
		must(t, Unpin(path))
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left: %v", err)
		}
	}
	if err := Pin(first.User, filepath.Join(t.TempDir(), "no", "folder")); err == nil {
		t.Error("a pin without a folder passed")
	}
}

func same(t testing.TB, a, b *os.File) bool {
	t.Helper()
	x, err := a.Stat()
	must(t, err)
	y, err := b.Stat()
	must(t, err)
	return os.SameFile(x, y)
}

// TestNewAmongManyThreads makes many at once while threads come and go. No child is left, and no
// open file.
func TestNewAmongManyThreads(t *testing.T) {
	before := census(t)
	stop := make(chan struct{})
	var busy, makers sync.WaitGroup
	for range 8 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					runtime.LockOSThread() // ends with its thread
				}()
				<-ended
			}
		})
	}
	for i := range 8 {
		makers.Go(func() {
			for j := range 5 {
				h, err := New(base+uint32(8*j+i)*Size, unix.CLONE_NEWNET)
				if err != nil {
					t.Error(err)
					return
				}
				owner, err := OfNet(file(h.Net))
				if err != nil || !same(t, owner, h.User) {
					t.Errorf("owner: %v", err)
				} else if err := owner.Close(); err != nil {
					t.Error(err)
				}
				if err := h.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	makers.Wait()
	close(stop)
	busy.Wait()
	nothingLeft(t, before)
}

// nothingLeft waits until all is as it was before: a thread with namespaces of its own ends a moment after its goroutine.
func nothingLeft(t testing.TB, before string) {
	t.Helper()
	after := census(t)
	for end := time.Now().Add(time.Minute); after != before && time.Now().Before(end); after = census(t) {
		time.Sleep(time.Millisecond) // between two looks
	}
	if after != before {
		t.Errorf("left %s, was %s", after, before)
	}
}

// census counts open files and children, and names the namespaces of all threads.
func census(t testing.TB) string {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	tasks, err := filepath.Glob("/proc/self/task/*")
	must(t, err)
	children, where := "", map[string]bool{}
	for _, task := range tasks {
		text, err := os.ReadFile(filepath.Join(task, "children"))
		if err != nil {
			continue // the thread has ended
		}
		children += string(text)
		for _, kind := range []string{"user", "net", "mnt"} {
			if at, err := os.Readlink(filepath.Join(task, "ns", kind)); err == nil {
				where[at] = true
			}
		}
	}
	return fmt.Sprintf("files %d children %q namespaces %v", len(files), children, where)
}

func TestNewWhereTheHostAllowsNone(t *testing.T) {
	self, err := os.Open("/proc/self/exe")
	must(t, err)
	defer self.Close()
	const script = "echo 0 >/proc/sys/user/max_user_namespaces && exec /proc/self/fd/3"
	cmd := exec.Command("nsenter", "--user="+file(newHeld(t, base, 0).User), "-S0", "-G0", "sh", "-c", script)
	cmd.Env = append(os.Environ(), limited+"=1")
	cmd.ExtraFiles = []*os.File{self}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestProbe(t *testing.T) {
	before, dir := census(t), t.TempDir()
	must(t, Probe(dir))
	if err := Probe(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if after := mountinfo(t); strings.Contains(after, dir) {
		t.Errorf("still mounted below %s:\n%s", dir, after)
	}
	nothingLeft(t, before)
}

// TestProbeWhereThePartsOfTheKernelAreCovered: in a container, as a rule, no container has a user namespace.
func TestProbeWhereThePartsOfTheKernelAreCovered(t *testing.T) {
	for _, part := range []string{"/proc/sys/kernel", "/sys/kernel"} {
		cmd := exec.Command("unshare", "-m", "sh", "-c", `mount -t tmpfs none "$1" && exec "$0"`, os.Args[0], part)
		cmd.Env = append(os.Environ(), covered+"="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", part, err, out)
		}
	}
}

func BenchmarkProbe(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		must(b, Probe(dir))
	}
}

// TestProbeOnAFileSystemWithoutOwners: the file system counts, not only the kernel.
func TestProbeOnAFileSystemWithoutOwners(t *testing.T) {
	if err := Probe("/proc"); err == nil {
		t.Error("the kernel's own files passed")
	}
}

func mountinfo(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	return string(text)
}

func BenchmarkNew(b *testing.B) {
	for _, flags := range []uintptr{0, unix.CLONE_NEWNET} {
		b.Run("flags="+strconv.FormatUint(uint64(flags), 16), func(b *testing.B) {
			for b.Loop() {
				h, err := New(base, flags)
				must(b, err)
				must(b, h.Close())
			}
		})
	}
}
