package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gantry/agent/logs"
)

const deadline = 2 * time.Minute

var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "gantry-logger-test")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "gantry-logger")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// shim holds a logger as the runtime's shim does.
type shim struct {
	cmd      *exec.Cmd
	out, err *os.File // write ends
	took     time.Duration
	stderr   bytes.Buffer
	exit     chan error
}

func startShim(tb testing.TB, dir string, o logs.WriterOptions) *shim {
	tb.Helper()
	raw, err := logs.LoggerURI(program, dir, o)
	if err != nil {
		tb.Fatal(err)
	}
	uri, err := url.Parse(raw)
	if err != nil {
		tb.Fatal(err)
	}
	var args []string
	for k, vs := range uri.Query() {
		args = append(args, k, vs[0])
	}
	s := &shim{cmd: exec.Command(uri.Path, args...), exit: make(chan error, 1)}
	s.cmd.Env = []string{"CONTAINER_ID=c1", "CONTAINER_NAMESPACE=test"}
	s.cmd.Stderr = &s.stderr
	var readers []*os.File
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			tb.Fatal(err)
		}
		return r, w
	}
	outR, outW := pipe()
	errR, errW := pipe()
	readyR, readyW := pipe()
	s.out, s.err = outW, errW
	readers = append(readers, outR, errR, readyW)
	s.cmd.ExtraFiles = readers
	start := time.Now()
	if err := s.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	for _, f := range readers {
		_ = f.Close()
	}
	tb.Cleanup(func() {
		_ = s.out.Close()
		_ = s.err.Close()
		_ = s.cmd.Process.Kill()
		<-s.exit //nolint:errcheck // it was killed
	})
	if err := readyR.SetReadDeadline(time.Now().Add(deadline)); err != nil {
		tb.Fatal(err)
	}
	b, err := io.ReadAll(readyR)
	readyR.Close()
	s.took = time.Since(start)
	go func() {
		s.exit <- s.cmd.Wait()
		close(s.exit)
	}()
	if err != nil || !bytes.Equal(b, []byte{0}) {
		tb.Fatalf("ready: %v, %v", b, err)
	}
	return s
}

func (s *shim) wait(tb testing.TB) error {
	tb.Helper()
	select {
	case err := <-s.exit:
		return err
	case <-time.After(deadline):
		tb.Fatal("the logger did not end")
		return nil
	}
}

// end closes the pipes and sends SIGTERM, as the shim does when a task is
// deleted.
func (s *shim) end(tb testing.TB) {
	tb.Helper()
	s.out.Close()
	s.err.Close()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	if err := s.wait(tb); err != nil {
		tb.Fatalf("logger: %v: %s", err, &s.stderr)
	}
}

func read(tb testing.TB, dir string, o logs.Options) []logs.Line {
	tb.Helper()
	var lines []logs.Line
	if err := logs.Read(context.Background(), dir, o, func(l logs.Line) error { lines = append(lines, l); return nil }); err != nil {
		tb.Fatal(err)
	}
	return lines
}

func say(tb testing.TB, f *os.File, text string) {
	tb.Helper()
	if _, err := io.WriteString(f, text); err != nil {
		tb.Fatal(err)
	}
}

func waitFor(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%s: not seen", what)
		}
	}
}

func TestOutputOfAShortContainerIsKept(t *testing.T) {
	dir := t.TempDir()
	var took []time.Duration
	for i := range 30 {
		s := startShim(t, dir, logs.WriterOptions{})
		took = append(took, s.took)
		say(t, s.out, fmt.Sprintf("out %d\n", i))
		say(t, s.err, fmt.Sprintf("err %d", i))
		s.end(t)
	}
	slices.Sort(took)
	t.Logf("start to ready: median %v, worst %v", took[15], took[29])
	lines := read(t, dir, logs.Options{Tail: 100})
	if len(lines) != 60 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, l := range lines {
		name := strings.Fields(l.Text)
		if l.Seq != uint64(i+1) || name[1] != strconv.Itoa(i/2) || "std"+name[0] != string(l.Stream) {
			t.Fatalf("line %d: %+v", i, l)
		}
	}
}

func TestSignalsDoNotCutTheOutput(t *testing.T) {
	dir := t.TempDir()
	s := startShim(t, dir, logs.WriterOptions{})
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM} {
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		say(t, s.out, sig.String()+"\n")
	}
	big := strings.Repeat(strings.Repeat("z", 999)+"\n", 2000)
	say(t, s.out, big)
	s.end(t)
	lines := read(t, dir, logs.Options{Tail: logs.MaxTail})
	if len(lines) != 2004 {
		t.Fatalf("%d lines", len(lines))
	}
}

func TestEndsAfterSIGTERMWhenAPipeStaysOpen(t *testing.T) {
	dir := t.TempDir()
	s := startShim(t, dir, logs.WriterOptions{})
	say(t, s.out, "last words")
	start := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err := s.wait(t)
	if took := time.Since(start); took < drainFor {
		t.Fatalf("ended %v after SIGTERM", took)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("%v: %s", err, &s.stderr)
	}
	if lines := read(t, dir, logs.Options{Tail: 1}); len(lines) != 1 || lines[0].Text != "last words" {
		t.Fatalf("%+v", lines)
	}
}

func TestPromptIsShownBeforeItsNewline(t *testing.T) {
	dir := t.TempDir()
	s := startShim(t, dir, logs.WriterOptions{})
	say(t, s.out, "continue? ")
	waitFor(t, "the prompt", func() bool {
		l := read(t, dir, logs.Options{Tail: 1})
		return len(l) == 1 && l[0].Partial && l[0].Text == "continue? "
	})
	say(t, s.out, "yes\n")
	s.end(t)
	if l := read(t, dir, logs.Options{Tail: 1}); l[0].Partial || l[0].Text != "yes" {
		t.Fatalf("%+v", l)
	}
}

func TestKilledLoggerLeavesAReadableLog(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		s := startShim(t, dir, logs.WriterOptions{MaxBytes: 64 << 10, Keep: 100})
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := 0; ; n++ {
				if _, err := fmt.Fprintf(s.out, "%d.%d %s\n", i, n, strings.Repeat("k", n%300)); err != nil {
					return // the logger is dead
				}
			}
		})
		waitFor(t, "lines", func() bool {
			l := read(t, dir, logs.Options{Tail: 1})
			return len(l) == 1 && strings.HasPrefix(l[0].Text, fmt.Sprint(i, "."))
		})
		if err := s.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = s.wait(t)
		wg.Wait()
	}
	var last logs.Line
	for _, l := range read(t, dir, logs.Options{Since: time.Unix(1, 0)}) {
		if l.Seq <= last.Seq && l.Stream != logs.System || !l.Time.After(last.Time) && l.Stream != logs.System {
			t.Fatalf("%+v after %+v", l, last)
		}
		last = l
	}
}

func TestMissingFolderNeverHurtsTheContainer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "no", "such")
	s := startShim(t, dir, logs.WriterOptions{})
	say(t, s.out, strings.Repeat(strings.Repeat("x", 99)+"\n", 10000))
	s.out.Close()
	s.err.Close()
	if err := s.wait(t); err == nil || !strings.Contains(s.stderr.String(), "10000 lines lost") {
		t.Fatalf("%v: %s", err, &s.stderr)
	}
}

func TestFloodIsReadAtFullSpeedInLittleMemory(t *testing.T) {
	dir := t.TempDir()
	o := logs.WriterOptions{MaxBytes: 1 << 20, Keep: 3, Rate: 17 << 10, Burst: 1 << 20}
	s := startShim(t, dir, o)
	chunk := bytes.Repeat([]byte(strings.Repeat("f", 99)+"\n"), 640)
	// At the rate of its log this takes more than an hour.
	for range 1000 {
		if _, err := s.out.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	rss := memory(t, s.cmd.Process.Pid)
	s.end(t)
	t.Logf("peak memory %d KiB", rss)
	if rss > 24<<10 {
		t.Errorf("peak memory %d KiB", rss)
	}
	var size int64
	for _, name := range []string{"container.log", "container.log.1", "container.log.2", "container.log.3"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err == nil {
			size += st.Size()
		}
	}
	if size > 3*o.MaxBytes {
		t.Errorf("%d bytes on disk", size)
	}
	l := read(t, dir, logs.Options{Source: logs.FromSystem, Tail: 1})
	if len(l) != 1 || !strings.Contains(l[0].Text, "faster than its log may grow") {
		t.Errorf("%+v", l)
	}
}

func memory(tb testing.TB, pid int) (peakKiB int) {
	tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	if _, err := fmt.Sscan(rest, &peakKiB); err != nil {
		tb.Fatal(err)
	}
	return peakKiB
}

func TestHelpAndBadUse(t *testing.T) {
	out, err := exec.Command(program, "--help").Output()
	if err != nil || !strings.Contains(string(out), "not by\npeople") {
		t.Fatalf("%v: %s", err, out)
	}
	for _, args := range [][]string{nil, {"dir", "relative"}, {"dir", "/tmp", "shape", "1"}, {"dir", "/tmp"}} {
		out, err := exec.Command(program, args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "--help") {
			t.Errorf("%q: %v: %s", args, err, out)
		}
	}
}

func BenchmarkStartToReady(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		startShim(b, dir, logs.WriterOptions{}).end(b)
	}
}

// BenchmarkFloor starts a program that does nothing, for comparison.
func BenchmarkFloor(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
