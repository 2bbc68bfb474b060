package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func newTestWriter(tb testing.TB, dir string, s Series, o WriterOptions) *Writer {
	tb.Helper()
	w, err := NewWriter(dir, s, o)
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.Open(context.Background()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { w.Close() })
	return w
}

func mustWrite(tb testing.TB, w *Writer, s Stream, text string) {
	tb.Helper()
	if err := w.WriteLine(s, text); err != nil {
		tb.Fatal(err)
	}
}

func readAll(tb testing.TB, dir string, o Options) []Line {
	tb.Helper()
	var lines []Line
	if err := Read(context.Background(), dir, o, func(l Line) error { lines = append(lines, l); return nil }); err != nil {
		tb.Fatal(err)
	}
	return lines
}

func texts(lines []Line) string {
	var s []string
	for _, l := range lines {
		s = append(s, l.Text)
	}
	return strings.Join(s, ",")
}

func diskUse(tb testing.TB, dir string) (total int64, files int) {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "container.log*"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".lock") {
			continue
		}
		st, err := os.Stat(n)
		if err != nil {
			tb.Fatal(err)
		}
		total += st.Size()
		files++
	}
	return total, files
}

func TestRotationKeepsTheNewestLinesWithinTheBound(t *testing.T) {
	dir := t.TempDir()
	o := WriterOptions{MaxBytes: 64 << 10, Keep: 3}
	w := newTestWriter(t, dir, ContainerSeries, o)
	const n = 5000
	for i := 1; i <= n; i++ {
		mustWrite(t, w, Stdout, fmt.Sprintf("line %d %s", i, strings.Repeat("x", i%100)))
		if i%100 == 0 {
			if total, files := diskUse(t, dir); total > 3*o.MaxBytes || files > 3 {
				t.Fatalf("%d bytes in %d files", total, files)
			}
		}
	}
	lines := readAll(t, dir, Options{Tail: MaxTail})
	for i, l := range lines {
		if want := uint64(n - len(lines) + 1 + i); l.Seq != want || !strings.HasPrefix(l.Text, fmt.Sprintf("line %d ", want)) {
			t.Fatalf("line %d: seq %d, text %.20q", i, l.Seq, l.Text)
		}
	}
	if len(lines) < 1000 {
		t.Fatalf("only %d lines left", len(lines))
	}
}

func TestSequenceAndTimeGoOnAfterRestart(t *testing.T) {
	dir := t.TempDir()
	for i := range 5 {
		w := newTestWriter(t, dir, ContainerSeries, WriterOptions{MaxBytes: 64 << 10})
		mustWrite(t, w, Stdout, fmt.Sprintf("a%d\nb%d", i, i))
		if i == 2 { // just rotated: the current file is empty
			if err := w.rotate(); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lines := readAll(t, dir, Options{Tail: 100})
	if got := texts(lines); got != "a0,b0,a1,b1,a2,b2,a3,b3,a4,b4" {
		t.Fatal(got)
	}
	for i, l := range lines {
		if l.Seq != uint64(i+1) || i > 0 && !l.Time.After(lines[i-1].Time) {
			t.Fatalf("line %d: %+v", i, l)
		}
	}
}

func TestTimeGrowsWhenTheClockIsSetBack(t *testing.T) {
	dir := t.TempDir()
	future := time.Now().Add(time.Hour).UnixNano()
	b := appendRecord(nil, record{nano: future, seq: 9, stream: Stdout, text: []byte("before")})
	if err := os.WriteFile(filepath.Join(dir, "container.log"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	w := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	mustWrite(t, w, Stdout, "after")
	lines := readAll(t, dir, Options{After: ID{time.Unix(0, future), 9}})
	if len(lines) != 1 || lines[0].Seq != 10 || lines[0].Time.UnixNano() != future+1 {
		t.Fatalf("%+v", lines)
	}
}

func TestTornEndIsClosedByTheNextWriter(t *testing.T) {
	whole := appendRecord(nil, record{nano: 1e18, seq: 7, stream: Stdout, text: []byte("whole")})
	torn := appendRecord(nil, record{nano: 1e18 + 1, seq: 8, stream: Stdout, text: []byte("torn")})
	for cut := 1; cut < len(torn); cut++ {
		dir := t.TempDir()
		data := append(bytes.Clone(whole), torn[:len(torn)-cut]...)
		if cut == 3 {
			data = append(data, make([]byte, 200<<10)...) // pages that never reached the disk
		}
		if err := os.WriteFile(filepath.Join(dir, "container.log"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := texts(readAll(t, dir, Options{Tail: 10})); got != "whole" {
			t.Fatalf("cut %d, before repair: %s", cut, got)
		}
		w := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
		mustWrite(t, w, Stdout, "next")
		lines := readAll(t, dir, Options{Source: FromContainer, Tail: 10})
		if last := lines[len(lines)-1]; last.Text != "next" || lines[0].Text != "whole" {
			t.Fatalf("cut %d: %+v", cut, lines)
		}
		for i, l := range lines {
			if l.Seq != uint64(7+i) {
				t.Fatalf("cut %d: %+v", cut, lines)
			}
		}
		w.Close()
	}
}

func TestOneWriterAtATime(t *testing.T) {
	dir := t.TempDir()
	first := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	second, err := NewWriter(dir, ContainerSeries, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := second.Open(ctx); !errors.Is(err, errLocked) {
		t.Fatalf("second writer: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Open(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.WriteLine(Stdout, "late"); err == nil {
		t.Fatal("a closed writer took a line")
	}
}

func TestWriteLineCutsAndSplits(t *testing.T) {
	dir := t.TempDir()
	w := newTestWriter(t, dir, SystemSeries, WriterOptions{})
	long := strings.Repeat("é", MaxText) // 2 x MaxText bytes
	mustWrite(t, w, System, "one\ntwo\n")
	mustWrite(t, w, System, "x"+long)
	lines := readAll(t, dir, Options{Source: FromSystem, Tail: 10})
	var whole strings.Builder
	for i, l := range lines[2:] {
		whole.WriteString(l.Text)
		if len(l.Text) > MaxText || strings.ContainsRune(l.Text, '\uFFFD') || l.Partial != (i < len(lines)-3) {
			t.Fatalf("record %d: %d bytes, partial %v", i, len(l.Text), l.Partial)
		}
	}
	if texts(lines[:2]) != "one,two" || whole.String() != "x"+long {
		t.Fatal("text changed")
	}
}

func TestMissingFolderIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "pod")
		w, err := NewWriter(dir, ContainerSeries, WriterOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if err := w.WriteLine(Stdout, "lost"); err == nil || strings.Contains(w.lostWhy, dir) {
			t.Fatalf("%v; %s", err, w.lostWhy)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := w.WriteLine(Stdout, "too early"); err == nil {
			t.Fatal("tried again at once")
		}
		time.Sleep(reopenEvery) // the bubble's clock
		if err := w.WriteLine(Stdout, "kept"); err != nil {
			t.Fatal(err)
		}
		if got := texts(readAll(t, dir, Options{Tail: 5})); got != "dropped 2 lines, 13 bytes: no such file or directory,kept" {
			t.Fatal(got)
		}
	})
}

func TestFullDiskLosesLinesAndSaysSo(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("this test mounts a small disk and needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 48<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	failed := 0
	for i := range 40 {
		if err := w.WriteLine(Stdout, fmt.Sprintf("%d %s", i, strings.Repeat("x", 1000))); err != nil {
			failed++
		}
	}
	if failed < 20 {
		t.Fatalf("only %d of 40 writes failed", failed)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	w.notedAt = time.Time{}
	mustWrite(t, w, Stdout, "room again")
	lines := readAll(t, dir, Options{Tail: 100})
	last := lines[len(lines)-2:]
	if want := fmt.Sprintf("dropped %d lines", failed); !strings.HasPrefix(last[0].Text, want) || !strings.HasSuffix(last[0].Text, ": no space left on device") || last[1].Text != "room again" {
		t.Fatalf("want %q: %q", want, texts(last))
	}
}

func TestFloodIsBoundedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		o := WriterOptions{MaxBytes: 1 << 20, Keep: 3, Rate: 1 << 20, Burst: 2 << 20}
		w := newTestWriter(t, dir, ContainerSeries, o)
		c := newCutter(w, Stdout)
		line := []byte(strings.Repeat("y", 99) + "\n")
		batch := bytes.Repeat(line, 650)
		sent, seconds := 0, 10
		for range seconds * 1000 { // 65 MB/s for ten seconds
			w.bucket.fill(time.Now())
			c.write(time.Now(), batch)
			w.flush()
			sent += 650
			time.Sleep(time.Millisecond) // the bubble's clock
		}
		w.note(time.Now(), true)
		w.flush()
		kept := int(w.seq)
		var notes, dropped, n int
		for _, l := range readAll(t, dir, Options{Source: FromSystem, Tail: MaxTail}) {
			if _, err := fmt.Sscanf(l.Text, "dropped %d lines", &n); err == nil {
				notes, dropped = notes+1, dropped+n
			}
		}
		if total, files := diskUse(t, dir); total > 3*o.MaxBytes || files > 3 {
			t.Fatalf("%d bytes in %d files", total, files)
		}
		if notes > seconds+2 || notes == 0 {
			t.Fatalf("%d notes in %d seconds", notes, seconds)
		}
		if limit := (int(o.Burst) + (seconds+1)*int(o.Rate)) / len(line); kept > limit {
			t.Fatalf("kept %d lines, limit %d", kept, limit)
		}
		if got := kept + int(w.lostEver) - int(w.seq); got < 0 || sent > int(w.lostEver)+kept || sent < int(w.lostEver)+kept-seconds-2 {
			t.Fatalf("sent %d, kept %d (with notes), lost %d", sent, kept, w.lostEver)
		}
	})
}

func TestCutterKeepsEveryByte(t *testing.T) {
	dir := t.TempDir()
	w := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	c := newCutter(w, Stdout)
	input := []byte("a\n\n" + strings.Repeat("ü", 20000) + "\nbin \x00\xff\xfe\r\n" + strings.Repeat("z", MaxText) + "\n" + strings.Repeat("z", MaxText+1) + "\nend without newline")
	for step := range 50 {
		size := 1 + step*step*13
		for p := input; len(p) > 0; {
			n := min(size, len(p))
			c.write(time.Now(), p[:n])
			p = p[n:]
		}
		c.end(time.Now(), false)
		w.flush()
		if got := joined(readAll(t, dir, Options{Tail: 12})); !bytes.HasSuffix(got, append(bytes.Clone(input), '\n')) {
			t.Fatalf("step %d: text changed", step)
		}
	}
}

// joined puts the text of records together as the container wrote it.
func joined(lines []Line) []byte {
	var b []byte
	for _, l := range lines {
		b = append(b, l.Text...)
		if !l.Partial {
			b = append(b, '\n')
		}
	}
	return b
}

func FuzzCutter(f *testing.F) {
	f.Add([]byte("one\ntwo\r\n\xff\x00"), 3)
	f.Add(bytes.Repeat([]byte("é"), MaxText), 4097)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, input []byte, size int) {
		input = bytes.TrimRight(input, "\n")
		if len(input) == 0 || len(input) > 1<<20 {
			return
		}
		size = max(size, 1)
		sub, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(sub)
		w := newTestWriter(t, sub, ContainerSeries, WriterOptions{})
		c := newCutter(w, Stdout)
		for p := input; len(p) > 0; {
			n := min(size, len(p))
			c.write(time.Now(), p[:n])
			p = p[n:]
		}
		c.end(time.Now(), false)
		w.flush()
		if got := joined(readAll(t, sub, Options{Tail: MaxTail})); !bytes.HasSuffix(append(bytes.Clone(input), '\n'), got) {
			t.Fatalf("%q became %q", input, got)
		}
	})
}

func TestURIAndArguments(t *testing.T) {
	uri, err := LoggerURI("/usr/lib/gantry/gantry-logger", "/var/lib/a b&c", WriterOptions{Keep: 5})
	if err != nil || uri != "binary:///usr/lib/gantry/gantry-logger?dir=%2Fvar%2Flib%2Fa+b%26c&keep=5" {
		t.Fatalf("%s, %v", uri, err)
	}
	dir, o, err := ParseArgs([]string{"keep", "5", "dir", "/var/lib/a b&c", "rate", "1000000", "max-bytes", "70000", "burst", "20000"})
	if err != nil || dir != "/var/lib/a b&c" || o != (WriterOptions{MaxBytes: 70000, Keep: 5, Rate: 1000000, Burst: 20000}) {
		t.Fatalf("%s %+v %v", dir, o, err)
	}
	if _, o, err = ParseArgs([]string{"dir", "/x", "owner", "4294967294"}); err != nil || o.Owner != 4294967294 {
		t.Fatalf("%+v %v", o, err)
	}
	for _, bad := range [][]string{
		{},
		{"dir"},
		{"dir", "rel"},
		{"keep", "3"},
		{"dir", "/x", "keep", "1"},
		{"dir", "/x", "keep", "x"},
		{"dir", "/x", "max-bytes", "1"},
		{"dir", "/x", "rate", "-1"},
		{"dir", "/x", "colour", "1"},
		{"dir", "/x", "keep", "9223372036854775807"},
		{"dir", "/x", "owner", "-1"},
		{"dir", "/x", "owner", "4294967295"},
		{"dir", "/x", "owner", "root"},
	} {
		if _, _, err := ParseArgs(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
	if _, err := LoggerURI("gantry-logger", "/x", WriterOptions{}); err == nil {
		t.Error("relative program accepted")
	}
}

func BenchmarkWriter(b *testing.B) {
	for _, size := range []int{80, 1000, 16000} {
		b.Run(fmt.Sprintf("line=%d", size), func(b *testing.B) {
			w := newTestWriter(b, b.TempDir(), ContainerSeries, WriterOptions{Rate: 1 << 40, Burst: 1 << 40})
			c := newCutter(w, Stdout)
			batch := bytes.Repeat(append(bytes.Repeat([]byte("x"), size-1), '\n'), batchBytes/size)
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			for b.Loop() {
				c.write(time.Now(), batch)
				w.flush()
			}
		})
	}
	b.Run("flood", func(b *testing.B) {
		w := newTestWriter(b, b.TempDir(), ContainerSeries, WriterOptions{})
		c := newCutter(w, Stdout)
		batch := bytes.Repeat(append(bytes.Repeat([]byte("x"), 79), '\n'), batchBytes/80)
		b.SetBytes(int64(len(batch)))
		b.ReportAllocs()
		for b.Loop() {
			now := time.Now()
			w.bucket.fill(now)
			c.write(now, batch)
			w.flush()
		}
	})
}
