package volume

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/storage/helper"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "storage-helper":
		os.Exit(helper.Main(HelperFuncs()))
	case len(os.Args) == 4 && os.Args[1] == "file-system":
		os.Exit(serveFiles(os.Args[2], os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

const (
	dirA = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	dirB = "bbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain for", what)
		}
	}
}

// newHost returns a Host that runs, and of which nothing is left after the test.
func newHost(t testing.TB, run string, change func(*Config)) *Host {
	t.Helper()
	h, stop := startHost(t, run, change)
	t.Cleanup(func() {
		stop()
		cleanHost(t, run)
	})
	return h
}

// cleanHost is what an agent that was stopped for good does.
func cleanHost(t testing.TB, run string) {
	c := newCaller(t)
	h, err := New(Config{RunDir: run, Caller: c})
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := h.Clean(ctx); err != nil {
		t.Error(err)
	}
	all, err := mounts()
	must(t, err)
	for _, m := range all {
		if strings.HasPrefix(m.at, run+"/") {
			t.Errorf("still mounted: %s", m.at)
		}
	}
	if pids, err := daemons(ctx, daemonsIn{Folder: run}); err != nil || len(pids) > 0 {
		t.Errorf("still there: %v, %v", pids, err)
	}
	if left := entries(run); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func newCaller(t testing.TB) *helper.Caller {
	// The race detector waits for a second at the end of every process.
	c := &helper.Caller{Argv: []string{os.Args[0], "storage-helper"}, Env: []string{"GORACE=atexit_sleep_ms=0"}}
	t.Cleanup(c.Close)
	return c
}

// startHost is a Host whose process may be ended at any time by stop, and started again.
func startHost(t testing.TB, run string, change func(*Config)) (h *Host, stop func()) {
	t.Helper()
	conf := Config{RunDir: run, Caller: newCaller(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), CallTimeout: 3 * time.Second}
	if change != nil {
		change(&conf)
	}
	h, err := New(conf)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx)
	}()
	var once sync.Once
	return h, func() {
		once.Do(func() {
			cancel()
			conf.Caller.Close()
			<-done
		})
	}
}

// localBackend makes a backend in a folder, with two volumes.
func localBackend(t testing.TB, id, dir string) Backend {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, MarkerName), []byte(id+"\n"), 0o644))
	for i, name := range []string{dirA, dirB} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		must(t, os.Chown(filepath.Join(dir, name), 0x80000000+i<<16, 0x80000000+i<<16))
	}
	return Backend{ID: fleet.BackendID(id), Kind: fleet.BackendLocal, Path: dir}
}

func volumeOf(b Backend, dir string) Volume {
	return Volume{ID: "v-" + fleet.VolumeID(dir[:1]), Backend: b, Dir: dir, IDBase: 0x80000000, Ready: true}
}

func attached(t testing.TB, h *Host, id fleet.PodID, v Volume) string {
	t.Helper()
	dir, err := h.Attach(t.Context(), id, v)
	must(t, err)
	return dir
}

// write writes the file f of a folder.
func write(t testing.TB, dir, text string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte(text), 0o644))
}

// reads reads it.
func reads(t testing.TB, dir, want string) {
	t.Helper()
	if text, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(text) != want {
		t.Errorf("%q, %v, want %q", text, err, want)
	}
}

// options returns the mount's options as the kernel lists them.
func options(t testing.TB, at string) string {
	t.Helper()
	out, err := exec.Command("findmnt", "-n", "-o", "VFS-OPTIONS,PROPAGATION", "--mountpoint", at).CombinedOutput()
	must(t, err)
	return strings.Join(strings.Fields(string(out)), " ")
}

func TestTwoHostsShareAVolume(t *testing.T) {
	b := localBackend(t, "near", t.TempDir())
	one, two := newHost(t, t.TempDir(), nil), newHost(t, t.TempDir(), nil)
	a, a2, other := volumeOf(b, dirA), volumeOf(b, dirA), volumeOf(b, dirB)
	a2.ReadOnly = true
	dirs := []string{attached(t, one, "p1", a), attached(t, one, "p2", a), attached(t, two, "p3", a2), attached(t, two, "p4", other)}
	write(t, dirs[0], "from p1")
	for _, dir := range dirs[:3] {
		reads(t, dir, "from p1")
	}
	if _, err := os.Stat(filepath.Join(dirs[3], "f")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("another volume has the file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dirs[2], "g"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to what is read-only: %v", err)
	}
	if got := options(t, dirs[0]); !strings.HasPrefix(got, "rw,nosuid,nodev") || !strings.HasSuffix(got, "private") {
		t.Errorf("mounted %s", got)
	}
	must(t, unix.Mknod(filepath.Join(b.Path, dirA, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	if _, err := os.Open(filepath.Join(dirs[0], "null")); !errors.Is(err, unix.EACCES) {
		t.Errorf("a device works: %v", err)
	}
	if again := attached(t, one, "p1", a); again != dirs[0] {
		t.Errorf("again at %s", again)
	}
	for range 2 {
		must(t, one.Detach(t.Context(), "p1"))
	}
	if pods, err := one.Attached(); err != nil || !slices.Equal(pods, []fleet.PodID{"p2"}) {
		t.Errorf("attached: %v, %v", pods, err)
	}
	reads(t, dirs[1], "from p1")
	if !slices.Contains(one.Kinds(), fleet.BackendLocal) || !slices.Contains(one.Kinds(), fleet.BackendCeph) {
		t.Errorf("kinds %v", one.Kinds())
	}
}

// TestAttachTakesNothingElse: what is mounted for a pod is a directory of the backend, or nothing is.
func TestAttachTakesNothingElse(t *testing.T) {
	dir := t.TempDir()
	b := localBackend(t, "near", dir)
	h := newHost(t, t.TempDir(), nil)
	other, gone, link := b, b, strings.Repeat("c", 26)
	other.ID, gone.Path = "far", t.TempDir()
	must(t, os.Symlink("/etc", filepath.Join(dir, link)))
	must(t, os.WriteFile(filepath.Join(dir, strings.Repeat("d", 26)), nil, 0o600))
	unready := volumeOf(b, dirA)
	unready.Ready = false
	bad, sized := b, b
	bad.ID, sized.SizedByHost = "../x", true
	cases := map[string]struct {
		v        Volume
		sentence string
	}{
		"not made":      {unready, sentenceNotReady},
		"two dots":      {volumeOf(b, ".."), sentenceOrder},
		"a path":        {volumeOf(b, "../"+dirA[3:]), sentenceOrder},
		"a bad backend": {volumeOf(bad, dirA), sentenceOrder},
		"other marker":  {volumeOf(other, dirA), sentenceMarker},
		"no marker":     {volumeOf(gone, dirA), sentenceMarker},
		"no directory":  {volumeOf(b, strings.Repeat("e", 26)), sentenceDirectory},
		"no disk":       {volumeOf(sized, dirA), sentenceDisk},
		"a link":        {volumeOf(b, link), sentenceDirectory},
		"a file":        {volumeOf(b, strings.Repeat("d", 26)), sentenceDirectory},
	}
	for name, c := range cases {
		_, err := h.Attach(t.Context(), "p", c.v)
		said, ok := errors.AsType[*Error](err)
		if !ok || said.Sentence != c.sentence {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, id := range []fleet.PodID{"", "..", "a/b"} {
		if _, err := h.Attach(t.Context(), id, volumeOf(b, dirA)); err == nil {
			t.Errorf("pod %q passed", id)
		}
	}
	all, err := mounts()
	must(t, err)
	if got := mountedIn(all, h.attachedDir("near")); len(got) > 0 {
		t.Errorf("mounted: %v", got)
	}
	must(t, h.Detach(t.Context(), "p"))
}

func TestOpenGivesADetachedMount(t *testing.T) {
	b := localBackend(t, "near", t.TempDir())
	h := newHost(t, t.TempDir(), nil)
	f, err := h.Open(t.Context(), volumeOf(b, dirA))
	must(t, err)
	defer f.Close()
	at := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	write(t, at, "x")
	reads(t, filepath.Join(b.Path, dirA), "x")
	var st unix.Statfs_t
	must(t, unix.Fstatfs(int(f.Fd()), &st))
	if want := int64(unix.ST_NODEV | unix.ST_NOSUID | unix.ST_NOEXEC); st.Flags&want != want {
		t.Errorf("flags %x", st.Flags)
	}
	// The mount's own number is looked for: others mount and unmount on this machine meanwhile.
	var mount unix.Statx_t
	must(t, unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &mount))
	if mount.Mask&unix.STATX_MNT_ID == 0 {
		t.Fatal("the kernel names no mount")
	}
	mounted, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if strings.Contains("\n"+string(mounted), fmt.Sprintf("\n%d ", mount.Mnt_id)) {
		t.Errorf("it is mounted somewhere:\n%s", mounted)
	}
}

// serveFiles is a server that can be stopped: it shows a folder.
func serveFiles(dir, at string) int {
	root, err := fusefs.NewLoopbackRoot(dir)
	if err != nil {
		return 1
	}
	zero := time.Duration(0)
	server, err := fusefs.Mount(at, root, &fusefs.Options{
		AttrTimeout: &zero, EntryTimeout: &zero, MountOptions: fuse.MountOptions{Name: "files", DirectMountStrict: true, AllowOther: true},
	})
	if err != nil {
		return 1
	}
	_, _ = os.Stdout.WriteString("mounted\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = server.Unmount()
	return 0
}

// fileServer starts it as a process.
func fileServer(t testing.TB, dir string) (at string, server *os.Process) {
	t.Helper()
	at = t.TempDir()
	cmd := exec.Command(os.Args[0], "file-system", dir, at)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGCONT)
		must(t, in.Close())
		must(t, cmd.Wait())
		_ = unix.Unmount(at, unix.MNT_DETACH)
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "mounted\n" {
		t.Fatalf("the file system: %q, %v", line, err)
	}
	return at, cmd.Process
}

// TestDeadServer: calls end by their deadline with a sentence, other backends are not hindered, and all goes on when the
// server does.
func TestDeadServer(t *testing.T) {
	store := t.TempDir()
	localBackend(t, "far", store)
	at, server := fileServer(t, store)
	far := Backend{ID: "far", Kind: fleet.BackendLocal, Path: at}
	near := localBackend(t, "near", t.TempDir())
	h := newHost(t, t.TempDir(), func(c *Config) {
		c.CallTimeout, c.ProbeEvery, c.ProbeTimeout = 10*time.Second, 300*time.Millisecond, 10*time.Second
	})
	attached(t, h, "p1", volumeOf(far, dirA))
	attached(t, h, "p2", volumeOf(far, dirB))

	must(t, server.Signal(unix.SIGSTOP))
	var calls sync.WaitGroup
	var ended atomic.Int64
	for i := range 3 * helper.MostInGroup {
		calls.Go(func() {
			_, err := h.Attach(t.Context(), fleet.PodID(fmt.Sprint("q", i)), volumeOf(far, dirA))
			ended.Add(1)
			if said, ok := errors.AsType[*Error](err); !ok || said.Sentence != sentenceDead {
				t.Error(err)
			}
		})
	}
	for i := range 3 {
		attached(t, h, fleet.PodID(fmt.Sprint("n", i)), volumeOf(near, dirA))
	}
	if n := ended.Load(); n > 0 {
		t.Errorf("volumes of another backend waited until %d calls of the dead one had ended", n)
	}
	calls.Wait()
	waitFor(t, "the backend to count as dead", func() bool {
		list := h.Health()
		return len(list) == 2 && list[0].Backend == "far" && !list[0].Down.IsZero() && list[0].Text != "" && list[1].Down.IsZero()
	})
	<-h.Changed()
	begin := time.Now()
	if _, err := h.Attach(t.Context(), "late", volumeOf(far, dirA)); err == nil || time.Since(begin) > h.cfg.CallTimeout/2 {
		t.Errorf("refused after %v: %v", time.Since(begin), err) // it was not asked
	}
	must(t, h.Detach(t.Context(), "p2"))

	must(t, server.Signal(unix.SIGCONT))
	waitFor(t, "the backend to be back", func() bool { return h.Health()[0].Down.IsZero() })
	dir := attached(t, h, "p2", volumeOf(far, dirB))
	write(t, dir, "x")
	waitFor(t, "the stuck calls to end", func() bool { return h.cfg.Caller.Stuck("far") == 0 })
}

// TestAnotherWayToADeadBackendIsTriedAtOnce: a new key or server helps while what was asked by the old way is stuck.
func TestAnotherWayToADeadBackendIsTriedAtOnce(t *testing.T) {
	h := newHost(t, t.TempDir(), func(c *Config) { c.ProbeEvery = time.Hour })
	old := Backend{ID: "far", Kind: fleet.BackendCeph, Monitors: []string{"#"}, User: "u", Key: "old", Path: "/x"} // no monitor: a mount fails at once
	next := old
	next.Key = "new"
	h.mu.Lock()
	h.backends["far"] = &backend{name: "far", turn: make(chan struct{}, 1), spec: &old}
	h.mu.Unlock()
	h.note(h.backend("far"), helper.ErrStuck)
	for _, c := range []struct {
		b        Backend
		sentence string
	}{{old, sentenceDead}, {next, sentenceOther}} {
		_, err := h.Attach(t.Context(), "p", volumeOf(c.b, dirA))
		if said, ok := errors.AsType[*Error](err); !ok || said.Sentence != c.sentence {
			t.Errorf("with the %s key: %v, want %q", c.b.Key.Reveal(), err, c.sentence)
		}
	}
	must(t, h.Detach(t.Context(), "p"))
}

// BenchmarkAttach is what a pod's start takes longer when the backend is mounted, with the agent's own program. Pods do not
// start in the moment in which the one before has ended.
func BenchmarkAttach(b *testing.B) {
	program := filepath.Join(b.TempDir(), "gantry-agent")
	if out, err := exec.Command("go", "build", "-o", program, "gantry/cmd/gantry-agent").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	backend := localBackend(b, "near", b.TempDir())
	h := newHost(b, b.TempDir(), func(c *Config) {
		c.Caller = &helper.Caller{Argv: []string{program, "storage-helper"}}
		c.ProbeEvery = time.Hour
	})
	attached(b, h, "p", volumeOf(backend, dirA))
	for b.Loop() {
		b.StopTimer()
		must(b, h.Detach(b.Context(), "p"))
		for !readsStdin(program) { // until another process waits
			time.Sleep(time.Millisecond)
		}
		b.StartTimer()
		_, err := h.Attach(b.Context(), "p", volumeOf(backend, dirA))
		must(b, err)
	}
}

// readsStdin reports whether a process of a program waits for its input (proc_pid_syscall(5)).
func readsStdin(program string) bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		if text, _ := os.ReadFile(line); !strings.HasPrefix(string(text), program+"\x00") {
			continue
		}
		calls, _ := filepath.Glob(filepath.Join(filepath.Dir(line), "task", "*", "syscall"))
		for _, call := range calls {
			if text, _ := os.ReadFile(call); strings.HasPrefix(string(text), fmt.Sprint(unix.SYS_READ, " 0x0 ")) {
				return true
			}
		}
	}
	return false
}
