package ctrd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/typeurl/v2"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"gantry/agent/containerfs"
	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

// execBench is a running pod in which commands are run.
type execBench struct {
	*bench
	s pod.ContainerSpec
}

func setupExec(t *testing.T, change func(*v1.Config)) *execBench {
	t.Helper()
	b := setup(t)
	x := &execBench{bench: b, s: b.spec(b.local(change), "sleep 600")}
	b.start(x.s)
	t.Cleanup(func() {
		b.remove(x.s.Pod)
		if left := b.r.leftExecs(); len(left) > 0 {
			t.Errorf("pipes are left: %v", left)
		}
		if _, err := os.Stat(b.r.execRoot()); err == nil {
			t.Errorf("the folder of the pipes is left")
		}
	})
	return x
}

func (x *execBench) exec(s containerfs.ExecSpec) containerfs.Process {
	x.Helper()
	p, err := x.r.Exec(x.ctx, x.s.Pod, x.s.Incarnation, s)
	if err != nil {
		x.Fatalf("exec %q: %v", s.Command, err)
	}
	return p
}

// run runs a command to its end.
func (x *execBench) run(s containerfs.ExecSpec, input string) (stdout, stderr string, code int) {
	x.Helper()
	p := x.exec(s)
	var wg sync.WaitGroup
	var out, diag bytes.Buffer
	wg.Go(func() { _, _ = io.Copy(&out, p.Stdout()) })
	if p.Stderr() != nil {
		wg.Go(func() { _, _ = io.Copy(&diag, p.Stderr()) })
	}
	if s.Stdin {
		if _, err := io.WriteString(p.Stdin(), input); err != nil {
			x.Errorf("write: %v", err)
		}
		x.must(p.Stdin().Close())
	}
	code, err := p.Wait(x.ctx)
	wg.Wait()
	x.must(err)
	x.must(p.Close())
	x.nothingRuns()
	return out.String(), diag.String(), code
}

// execs lists the processes that the runtime knows beside the container's own.
func (x *execBench) execs() (out []string) {
	x.Helper()
	resp, err := x.r.client.TaskService().ListPids(x.r.in(x.ctx), &tasks.ListPidsRequest{ContainerID: string(x.s.Pod)})
	if err != nil {
		x.Fatal(native(err))
	}
	for _, p := range resp.Processes {
		if p.Info == nil {
			continue
		}
		var d options.ProcessDetails
		if err := typeurl.UnmarshalTo(p.Info, &d); err != nil {
			x.Fatal(err)
		}
		out = append(out, d.ExecID)
	}
	return out
}

func (x *execBench) nothingRuns() {
	x.Helper()
	err := ctrdtest.Eventually(time.Minute, func() error {
		if left := x.execs(); len(left) > 0 {
			return fmt.Errorf("processes are left: %v", left)
		}
		return nil
	})
	if err != nil {
		x.Error(err)
	}
}

// readUntil reads until want has come.
func readUntil(t testing.TB, r io.Reader, want string) string {
	t.Helper()
	var got strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(got.String(), want) {
		n, err := r.Read(buf)
		got.Write(buf[:n])
		if err != nil {
			t.Fatalf("got %q and then %v, want %q", got.String(), err, want)
		}
	}
	return got.String()
}

func TestExecStreamsAndExitCodes(t *testing.T) {
	x := setupExec(t, nil)
	for _, tc := range []struct {
		script, input, stdout, stderr string
		code                          int
	}{
		{"echo out; echo err >&2; exit 3", "", "out\n", "err\n", 3},
		{"cat", "hello\n", "hello\n", "", 0},
		{"cat; echo end", strings.Repeat("0123456789abcde\n", 20_000), strings.Repeat("0123456789abcde\n", 20_000) + "end\n", "", 0},
		{"kill -9 $$", "", "", "", 137},
		{"exit 0", "nobody reads this", "", "", 0},
	} {
		out, diag, code := x.run(containerfs.ExecSpec{Command: []string{"sh", "-c", tc.script}, Stdin: tc.input != ""}, tc.input)
		if out != tc.stdout || diag != tc.stderr || code != tc.code {
			t.Errorf("%s: %d bytes on stdout, %q on stderr, code %d", tc.script, len(out), diag, code)
		}
	}
}

func TestExecHasTheContainersSettings(t *testing.T) {
	x := setupExec(t, func(c *v1.Config) {
		c.User, c.WorkingDir = "worker", "/www"
		c.Env = append(c.Env, "MINE=yes", "TERM=old")
	})
	const show = "id -u; id -G; echo $MINE $TERM; ls; grep -E '^(Cap(Prm|Eff|Bnd|Inh|Amb)|NoNewPrivs|Seccomp):' /proc/%s/status; grep files /proc/%s/limits"
	own, _, code := x.run(containerfs.ExecSpec{Command: []string{"sh", "-c", fmt.Sprintf(show, "self", "self")}}, "")
	container, _, _ := x.run(containerfs.ExecSpec{Command: []string{"sh", "-c", fmt.Sprintf(show, "1", "1")}}, "")
	if code != 0 || own != container {
		t.Errorf("code %d, the process has\n%s\nand the container\n%s", code, own, container)
	}
	for _, want := range []string{"1000\n", "1001 2000", "yes old", "index.html", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(own, want) {
			t.Errorf("%q is missing in\n%s", want, own)
		}
	}
	out, _, _ := x.run(containerfs.ExecSpec{Command: []string{"sh", "-c", "echo $TERM"}, TTY: true, Term: "vt100"}, "")
	if strings.TrimSpace(out) != "vt100" {
		t.Errorf("TERM is %q", out)
	}
}

func TestExecTerminal(t *testing.T) {
	x := setupExec(t, nil)
	p := x.exec(containerfs.ExecSpec{Command: []string{"sh"}, TTY: true, Stdin: true, Cols: 101, Rows: 37})
	if p.Stderr() != nil {
		t.Error("a terminal has two outputs")
	}
	say := func(line string) {
		if _, err := io.WriteString(p.Stdin(), line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	say("busybox stty size")
	readUntil(t, p.Stdout(), "37 101")
	say("echo o''ut >&2")
	readUntil(t, p.Stdout(), "out")
	x.must(p.Resize(x.ctx, 203, 55))
	say("busybox stty size")
	readUntil(t, p.Stdout(), "55 203")
	for _, bad := range [][2]int{{0, 5}, {5, 0}, {1 << 16, 5}, {-1, 5}} {
		if err := p.Resize(x.ctx, bad[0], bad[1]); fleet.CodeOf(err) != fleet.CodeInvalid {
			t.Errorf("size %v: %v", bad, err)
		}
	}
	say("exit 9")
	if code, err := p.Wait(x.ctx); err != nil || code != 9 {
		t.Errorf("code %d, %v", code, err)
	}
	x.must(p.Close())
	x.nothingRuns()
	if out, _, _ := x.run(containerfs.ExecSpec{Command: []string{"busybox", "stty", "size"}, TTY: true}, ""); strings.TrimSpace(out) != "24 80" {
		t.Errorf("a terminal without a size has %q", out)
	}
}

func TestExecThatCannotStart(t *testing.T) {
	x := setupExec(t, nil)
	for command, want := range map[string]int{"nosuch": 127, "/bin/nosuch": 127, "/etc/passwd": 126, "/etc": 126} {
		for _, tty := range []bool{false, true} {
			_, err := x.r.Exec(x.ctx, x.s.Pod, 1, containerfs.ExecSpec{Command: []string{command}, TTY: tty, Stdin: true})
			var e *containerfs.NotStartedError
			if !errors.As(err, &e) || e.Code != want || strings.Contains(e.Sentence, command) {
				t.Errorf("%s: %v", command, err)
			}
		}
	}
	for name, tc := range map[string]struct {
		incarnation uint64
		spec        containerfs.ExecSpec
		code        fleet.Code
	}{
		"another incarnation": {2, containerfs.ExecSpec{Command: []string{"true"}}, fleet.CodeNotAllowed},
		"no command":          {1, containerfs.ExecSpec{}, fleet.CodeInvalid},
		"empty command":       {1, containerfs.ExecSpec{Command: []string{""}}, fleet.CodeInvalid},
		"zero byte":           {1, containerfs.ExecSpec{Command: []string{"echo", "a\x00b"}}, fleet.CodeInvalid},
		"size":                {1, containerfs.ExecSpec{Command: []string{"true"}, TTY: true, Cols: 70_000}, fleet.CodeInvalid},
	} {
		if _, err := x.r.Exec(x.ctx, x.s.Pod, tc.incarnation, tc.spec); fleet.CodeOf(err) != tc.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := x.r.Exec(x.ctx, "nosuchpod", 1, containerfs.ExecSpec{Command: []string{"true"}}); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("no container: %v", err)
	}
	s := x.spec(x.s.Image, "true")
	x.start(s)
	x.finish(s.Pod)
	if _, err := x.r.Exec(x.ctx, s.Pod, 1, containerfs.ExecSpec{Command: []string{"true"}}); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("an ended container: %v", err)
	}
	x.remove(s.Pod)
}

func TestExecEndsWithClose(t *testing.T) {
	x := setupExec(t, nil)
	for name, s := range map[string]containerfs.ExecSpec{
		"sleeps":           {Command: []string{"sleep", "500"}},
		"has a child":      {Command: []string{"sh", "-c", "echo up; sleep 500; true"}},
		"reads":            {Command: []string{"cat"}, Stdin: true},
		"reads nothing":    {Command: []string{"sleep", "500"}, Stdin: true},
		"writes":           {Command: []string{"cat", "/dev/zero"}},
		"terminal":         {Command: []string{"sh"}, TTY: true, Stdin: true},
		"terminal, writes": {Command: []string{"cat", "/dev/zero"}, TTY: true},
		"ignores signals":  {Command: []string{"sh", "-c", "trap '' HUP TERM; echo up; while true; do sleep 1; done"}, TTY: true},
	} {
		p := x.exec(s)
		if strings.Contains(strings.Join(s.Command, " "), "echo up") {
			readUntil(t, p.Stdout(), "up")
		}
		began := time.Now()
		if err := p.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: the end took %s", name, took)
		}
		if code, err := p.Wait(x.ctx); err != nil || code != 137 && code != 129 {
			t.Errorf("%s: code %d, %v", name, code, err)
		}
		err := ctrdtest.Eventually(time.Minute, func() error {
			// The group of the process is gone, too: only the container's own process is left.
			if n := len(x.pids()); n != 1 {
				return fmt.Errorf("%d processes are left", n)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// pids lists the processes in the container.
func (x *execBench) pids() []uint32 {
	x.Helper()
	resp, err := x.r.client.TaskService().ListPids(x.r.in(x.ctx), &tasks.ListPidsRequest{ContainerID: string(x.s.Pod)})
	if err != nil {
		x.Fatal(native(err))
	}
	var out []uint32
	for _, p := range resp.Processes {
		out = append(out, p.Pid)
	}
	return out
}

// TestExecOutputIsNotHoarded lets a process write much more than is read.
func TestExecOutputIsNotHoarded(t *testing.T) {
	x := setupExec(t, nil)
	const total = 100 << 20
	p := x.exec(containerfs.ExecSpec{Command: []string{"sh", "-c", "head -c " + strconv.Itoa(total) + " /dev/zero; echo done >&2"}})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	// The writer is stuck when its counter stands still: nothing reads what it wants to write.
	const looks = 10 // in a row that must see the same
	var last int64
	same := 0
	err := ctrdtest.Eventually(time.Minute, func() error {
		now := x.written()
		if now == last && now > 0 {
			same++
		} else {
			last, same = now, 0
		}
		if same == looks {
			return nil
		}
		return fmt.Errorf("%d bytes were written", now)
	})
	if err != nil || last > 16<<20 {
		t.Errorf("the process has written %d bytes, %v", last, err)
	}
	if grown := int64(heap()) - int64(before); grown > 8<<20 {
		t.Errorf("%d bytes are held", grown)
	}
	n, err := io.Copy(io.Discard, p.Stdout())
	if err != nil || n != total-1<<20 {
		t.Errorf("%d bytes came, %v", n, err)
	}
	if text := readUntil(t, p.Stderr(), "done"); text != "done\n" {
		t.Errorf("got %q", text)
	}
	x.must(p.Close())
}

// written returns how much the container's processes have written.
func (x *execBench) written() (sum int64) {
	for _, pid := range x.pids() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "wchar: "); ok {
				n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
				sum += n
			}
		}
	}
	return sum
}

func TestExecOutputEndsAlthoughAChildHoldsIt(t *testing.T) {
	x := setupExec(t, nil)
	p := x.exec(containerfs.ExecSpec{Command: []string{"sh", "-c", "sleep 300 & echo up"}})
	out, err := io.ReadAll(p.Stdout())
	if err != nil || string(out) != "up\n" {
		t.Errorf("%q, %v", out, err)
	}
	if code, err := p.Wait(x.ctx); code != 0 || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
	x.must(p.Close())
}

func TestExecEndsWithItsContainer(t *testing.T) {
	x := setupExec(t, nil)
	s := x.spec(x.s.Image, "sleep 600")
	x.start(s)
	p, err := x.r.Exec(x.ctx, s.Pod, 1, containerfs.ExecSpec{Command: []string{"cat"}, Stdin: true})
	x.must(err)
	x.must(x.r.Signal(x.ctx, s.Pod, 9))
	if code, err := p.Wait(x.ctx); err != nil || code != 137 {
		t.Errorf("code %d, %v", code, err)
	}
	if _, err := io.Copy(io.Discard, p.Stdout()); err != nil {
		t.Error(err)
	}
	x.remove(s.Pod)
	x.must(p.Close())
}

func TestExecSurvivesARestartOfTheDaemon(t *testing.T) {
	x := setupExec(t, nil)
	p := x.exec(containerfs.ExecSpec{Command: []string{"sh", "-c", "cat; exit 5"}, Stdin: true})
	if _, err := io.WriteString(p.Stdin(), "before\n"); err != nil {
		t.Fatal(err)
	}
	readUntil(t, p.Stdout(), "before")
	x.d.Restart()
	if _, err := io.WriteString(p.Stdin(), "after\n"); err != nil {
		t.Fatal(err)
	}
	readUntil(t, p.Stdout(), "after")
	x.must(ctrdtest.Eventually(time.Minute, func() error { _, err := x.r.Version(x.ctx); return err }))
	x.must(p.Stdin().Close())
	if code, err := p.Wait(x.ctx); err != nil || code != 5 {
		t.Errorf("code %d, %v", code, err)
	}
	x.must(p.Close())
}

// TestExecsOfADeadAgentAreEnded leaves processes as an agent does that was killed.
func TestExecsOfADeadAgentAreEnded(t *testing.T) {
	x := setupExec(t, nil)
	dead, err := New(x.r.cfg)
	x.must(err)
	for _, s := range []containerfs.ExecSpec{
		{Command: []string{"sleep", "500"}, Stdin: true},
		{Command: []string{"cat", "/dev/zero"}},
		{Command: []string{"sh", "-c", "trap '' HUP; sleep 500"}, TTY: true, Stdin: true},
		{Command: []string{"true"}},
	} {
		p, err := dead.Exec(x.ctx, x.s.Pod, 1, s)
		x.must(err)
		// The kernel closes what a dead process has open.
		e := p.(*execution)
		for _, o := range []*output{e.stdout, e.stderr} {
			if o != nil {
				x.must(o.file.Close())
			}
		}
		if e.stdin != nil {
			x.must(e.stdin.File.Close())
		}
	}
	dead.stop()
	x.must(dead.client.Close())
	if left := x.r.leftExecs(); len(left) != 4 {
		t.Fatalf("left: %v", left)
	}
	alive := x.exec(containerfs.ExecSpec{Command: []string{"sleep", "500"}})
	x.must(x.r.SweepExecs(x.ctx))
	if left := x.r.leftExecs(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if now := x.execs(); len(now) != 1 || now[0] != alive.(*execution).id {
		t.Errorf("processes: %v", now)
	}
	x.must(alive.Close())
	x.nothingRuns()
	x.must(x.r.SweepExecs(x.ctx))
}

func TestExecsThatCouldNotBeEndedAreSweptLater(t *testing.T) {
	x := setupExec(t, nil)
	p := x.exec(containerfs.ExecSpec{Command: []string{"sleep", "500"}})
	x.d.Kill()
	if err := p.Close(); err == nil {
		t.Error("a process was ended without a daemon")
	}
	x.d.Start()
	x.must(ctrdtest.Eventually(time.Minute, func() error { return x.r.SweepExecs(x.ctx) }))
	x.nothingRuns()
}

func TestRootIsThatOfTheIncarnation(t *testing.T) {
	x := setupExec(t, nil)
	if _, err := x.r.Root(x.ctx, x.s.Pod, 2); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("another incarnation: %v", err)
	}
	if _, err := x.r.Root(x.ctx, "nosuchpod", 1); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("no container: %v", err)
	}
	s := x.spec(x.s.Image, "sleep 600")
	x.start(s)
	root, err := x.r.Root(x.ctx, s.Pod, 1)
	x.must(err)
	select {
	case <-root.Ended():
		t.Error("it ended at once")
	default:
	}
	x.must(x.r.Signal(x.ctx, s.Pod, 9))
	select {
	case <-root.Ended():
	case <-time.After(time.Minute):
		t.Error("the end was not told")
	}
	x.finish(s.Pod)
	if _, err := x.r.Root(x.ctx, s.Pod, 1); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("an ended container: %v", err)
	}
	x.remove(s.Pod) // although the root is still open
	x.must(root.Close())
}
