package volume

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// box is a shell in a user and mount namespace of its own, as containers are.
type box struct {
	t   testing.TB
	pid int
	at  string
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Reader
}

// newBox has what is attached at dir as x/vol below box.at.
func newBox(t testing.TB, dir string) *box {
	t.Helper()
	cmd := exec.Command("unshare", "-U", "-r", "-m", "sh")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = t.Output()
	must(t, cmd.Start())
	t.Cleanup(func() {
		must(t, in.Close())
		_ = cmd.Wait() // of its last command
	})
	b := &box{t: t, pid: cmd.Process.Pid, at: t.TempDir(), in: in, out: bufio.NewReader(out)}
	b.do("mount -t tmpfs none " + b.at + " && cd " + b.at + " && mkdir -p x/vol y/vol && mount --bind " + dir + " x/vol && mount -t tmpfs none y/vol")
	return b
}

// rootVolume is a volume that root of such a namespace may write to.
func rootVolume(t testing.TB) Volume {
	t.Helper()
	b := localBackend(t, "near", t.TempDir())
	must(t, os.Chown(b.Path+"/"+dirA, 0, 0))
	return volumeOf(b, dirA)
}

// run runs a command and reports whether it succeeded.
func (b *box) run(command string) bool {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := io.WriteString(b.in, "{ "+command+"\n} >/dev/null; echo $?\n")
	must(b.t, err)
	line, err := b.out.ReadString('\n')
	must(b.t, err)
	return line == "0\n"
}

func (b *box) do(command string) {
	b.t.Helper()
	if !b.run(command) {
		b.t.Fatalf("in the container: %s", command)
	}
}

// stacked is how often the volume is mounted.
func (b *box) stacked() int {
	b.t.Helper()
	f, err := os.Open("/proc/" + itoa(b.pid) + "/mountinfo")
	must(b.t, err)
	defer f.Close()
	all, err := readMounts(f)
	must(b.t, err)
	n := 0
	for _, m := range all {
		if strings.HasSuffix(m.root, "/"+dirA) && strings.HasSuffix(m.at, "/vol") {
			n++
		}
	}
	return n
}

func (b *box) writable(want bool) {
	b.t.Helper()
	if got := b.run("{ echo x >x/vol/f; } 2>/dev/null"); got != want {
		b.t.Errorf("writable %v, want %v", got, want)
	}
}

func TestReadOnlyInAContainer(t *testing.T) {
	h := newHost(t, t.TempDir(), nil)
	v := rootVolume(t)
	b := newBox(t, attached(t, h, "p", v))
	set := func(readOnly bool) {
		t.Helper()
		v.ReadOnly = readOnly
		must(t, h.SetReadOnly(t.Context(), "p", b.pid, v))
		b.writable(!readOnly)
	}
	for _, readOnly := range []bool{true, true, false, false} {
		set(readOnly)
	}
	// A program that has a file open goes on writing to it, and to nothing else.
	b.do("exec 5>x/vol/open")
	for range 3 {
		set(true)
		b.do("echo y >&5")
		set(false)
		if n := b.stacked(); n != 1 {
			t.Errorf("mounted %d times", n)
		}
	}
	b.do("exec 5>&-")
	set(true)
	if n := b.stacked(); n != 1 {
		t.Errorf("mounted %d times", n)
	}
}

// TestReadOnlyFromTheStart: the kernel does not let go of a read-only mount that a user namespace began with.
func TestReadOnlyFromTheStart(t *testing.T) {
	h := newHost(t, t.TempDir(), nil)
	v := rootVolume(t)
	v.ReadOnly = true
	b := newBox(t, attached(t, h, "p", v))
	b.writable(false)
	for range 3 {
		v.ReadOnly = false
		must(t, h.SetReadOnly(t.Context(), "p", b.pid, v))
		b.writable(true)
		b.do("exec 5>x/vol/open")
		v.ReadOnly = true
		must(t, h.SetReadOnly(t.Context(), "p", b.pid, v))
		b.writable(false)
		b.do("exec 5>&-")
	}
	if n := b.stacked(); n > 3 {
		t.Errorf("mounted %d times", n)
	}
	if err := h.SetReadOnly(t.Context(), "p", os.Getpid(), v); err == nil {
		t.Error("a process of the host passed for a container")
	}
	if err := h.SetReadOnly(t.Context(), "p2", b.pid, v); err == nil {
		t.Error("a pod without a volume passed")
	}
}

// TestReadOnlyOfAHostileContainer: programs that put other things where the volume is get neither those
// changed nor their own volume left writable.
func TestReadOnlyOfAHostileContainer(t *testing.T) {
	h := newHost(t, t.TempDir(), nil)
	v := rootVolume(t)
	dir := attached(t, h, "p", v)
	b := newBox(t, dir)
	root := "/proc/" + itoa(b.pid) + "/root" + b.at + "/"
	stop, flipped := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { flipped <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			// What the container does, only faster: a folder in the place of the other, and a link.
			_ = unix.Renameat2(unix.AT_FDCWD, root+"x", unix.AT_FDCWD, root+"y", unix.RENAME_EXCHANGE)
			_ = os.Rename(root+"x", root+"z")
			_ = os.Symlink("y", root+"x")
			_ = os.Remove(root + "x")
			_ = os.Rename(root+"z", root+"x")
			n++
		}
	}()
	failed := 0
	for i := range 20 {
		v.ReadOnly = i%2 == 0
		if err := h.SetReadOnly(t.Context(), "p", b.pid, v); err != nil {
			failed++
		}
	}
	close(stop)
	t.Logf("%d flips, %d calls failed", <-flipped, failed)
	f, err := os.Open("/proc/" + itoa(b.pid) + "/mountinfo")
	must(t, err)
	defer f.Close()
	all, err := readMounts(f)
	must(t, err)
	for _, m := range all {
		volume := strings.HasSuffix(m.root, "/"+dirA)
		if m.fsType == "tmpfs" && strings.HasPrefix(m.at, b.at) && !volume && m.readOnly {
			t.Errorf("%s became read-only", m.at)
		}
	}
	v.ReadOnly = true
	must(t, h.SetReadOnly(t.Context(), "p", b.pid, v))
	if b.run("(echo x >x/vol/g || echo x >y/vol/g) 2>/dev/null") {
		if _, err := os.Stat(dir + "/g"); err == nil {
			t.Error("the volume is writable")
		}
	}
}
func itoa(n int) string { return strconv.Itoa(n) }
