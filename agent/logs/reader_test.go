package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const testDeadline = 2 * time.Minute

// story writes lines of both series at known times, one every millisecond in
// the past, and returns them in order.
func story(t *testing.T, dir string, n int) []Line {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	start := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	cw := newTestWriter(t, dir, ContainerSeries, WriterOptions{MaxBytes: 64 << 10, Keep: 100})
	sw := newTestWriter(t, dir, SystemSeries, WriterOptions{})
	var all []Line
	for i := range n {
		w, s, at := cw, Stdout, start.Add(time.Duration(i)*time.Millisecond)
		switch rng.IntN(10) {
		case 0:
			w, s = sw, System
		case 1:
			s = Stderr
		case 2:
			s = System // the logger's own note in the container's series
		}
		text := fmt.Sprintf("%d %s", i, strings.Repeat("t", rng.IntN(300)))
		w.put(at, s, false, []byte(text))
		all = append(all, Line{Time: at.UTC(), Seq: w.seq, Stream: s, Text: text})
	}
	cw.flush()
	sw.flush()
	return all
}

func TestReadAnswersEveryQuestion(t *testing.T) {
	dir := t.TempDir()
	all := story(t, dir, 3000)
	only := func(src Source) []Line {
		return slices.DeleteFunc(slices.Clone(all), func(l Line) bool { return l.Source() != src })
	}
	last := func(l []Line, n int) []Line { return l[max(0, len(l)-n):] }
	mid := all[1234]
	for name, c := range map[string]struct {
		o    Options
		want []Line
	}{
		"tail 0":                 {Options{}, nil},
		"tail 1":                 {Options{Tail: 1}, last(all, 1)},
		"tail 100":               {Options{Tail: DefaultTail}, last(all, 100)},
		"tail of more than all":  {Options{Tail: MaxTail}, all},
		"container":              {Options{Source: FromContainer, Tail: 700}, last(only(FromContainer), 700)},
		"system":                 {Options{Source: FromSystem, Tail: 150}, last(only(FromSystem), 150)},
		"system, all":            {Options{Source: FromSystem, Tail: MaxTail}, only(FromSystem)},
		"since":                  {Options{Since: mid.Time}, all[1234:]},
		"since between":          {Options{Since: mid.Time.Add(1), Tail: 3}, all[1235:]},
		"since before all":       {Options{Since: time.Unix(1, 0)}, all},
		"since year 1":           {Options{Since: time.Time{}.Add(1)}, all},
		"since the far future":   {Options{Since: time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)}, nil},
		"after":                  {Options{After: mid.ID()}, all[1235:]},
		"after, by time alone":   {Options{After: ID{Time: mid.Time}}, all[1235:]},
		"after beats since":      {Options{After: mid.ID(), Since: all[0].Time}, all[1235:]},
		"after the last":         {Options{After: all[2999].ID()}, nil},
		"after, source by query": {Options{After: mid.ID(), Source: FromSystem}, slices.DeleteFunc(slices.Clone(all[1235:]), func(l Line) bool { return l.Stream != System })},
	} {
		t.Run(name, func(t *testing.T) {
			got := readAll(t, dir, c.o)
			if !slices.Equal(got, c.want) {
				t.Fatalf("%d lines, want %d; first %+v", len(got), len(c.want), slices.Concat(got, []Line{{}})[0])
			}
		})
	}
}

func TestAfterAtOneTimeInBothSeries(t *testing.T) {
	dir := t.TempDir()
	cw := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	sw := newTestWriter(t, dir, SystemSeries, WriterOptions{})
	at := time.Now().Add(-time.Hour)
	sw.seq = 40
	for i := range 3 {
		cw.put(at.Add(time.Duration(i)), Stdout, false, []byte("c"))
		sw.put(at.Add(time.Duration(i)), System, false, []byte("s"))
	}
	cw.flush()
	sw.flush()
	all := readAll(t, dir, Options{Tail: 10})
	if texts(all) != "c,s,c,s,c,s" {
		t.Fatal(texts(all))
	}
	for i, l := range all {
		if got := readAll(t, dir, Options{After: l.ID()}); !slices.Equal(got, all[i+1:]) {
			t.Errorf("after %s: %s", l.ID(), texts(got))
		}
	}
}

func TestReadRefusesOptions(t *testing.T) {
	for _, o := range []Options{{Source: "stdout"}, {Tail: -1}, {Tail: MaxTail + 1}} {
		if err := Read(context.Background(), t.TempDir(), o, nil); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
	for _, follow := range []bool{false, true} {
		err := Read(context.Background(), filepath.Join(t.TempDir(), "no"), Options{Follow: follow}, nil)
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("missing folder: %v", err)
		}
	}
}

func TestGarbageIsSkipped(t *testing.T) {
	dir := t.TempDir()
	var b []byte
	rng := rand.New(rand.NewPCG(7, 7))
	noise := func(n int) {
		for range n {
			b = append(b, byte(rng.Uint32()))
		}
	}
	const n = 200
	for i := range n {
		b = appendRecord(append(b, '\n'), record{nano: 1e18 + int64(i), seq: uint64(i + 1), stream: Stdout, text: fmt.Append(nil, i)})
		noise(rng.IntN(3000))
		if i == 100 {
			b = append(b, make([]byte, 300<<10)...)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "container.log"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	for tail := range n + 1 {
		lines := readAll(t, dir, Options{Tail: tail})
		if len(lines) != tail || tail > 0 && lines[tail-1].Seq != n {
			t.Fatalf("tail %d: %d lines", tail, len(lines))
		}
	}
}

// follower collects lines in the background.
type follower struct {
	cancel context.CancelFunc
	done   chan error
	mu     sync.Mutex
	lines  []Line
}

func follow(t *testing.T, dir string, o Options, each func()) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{cancel: cancel, done: make(chan error, 1)}
	o.Follow = true
	go func() {
		f.done <- Read(ctx, dir, o, func(l Line) error {
			if each != nil {
				each()
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.lines = append(f.lines, l)
			return nil
		})
	}()
	t.Cleanup(func() { cancel() })
	return f
}

func (f *follower) got() []Line {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.lines)
}

func (f *follower) waitFor(t *testing.T, what string, ok func([]Line) bool) []Line {
	t.Helper()
	for deadline := time.Now().Add(testDeadline); ; time.Sleep(time.Millisecond) {
		if lines := f.got(); ok(lines) {
			return lines
		} else if time.Now().After(deadline) {
			t.Fatalf("%s: not seen; have %d lines", what, len(lines))
		}
	}
}

func (f *follower) stop(t *testing.T) {
	t.Helper()
	f.cancel()
	select {
	case err := <-f.done:
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("follower ended with %v", err)
		}
	case <-time.After(testDeadline):
		t.Fatal("follower did not end")
	}
}

func TestFollowersLoseAndRepeatNothingOverRotations(t *testing.T) {
	for name, source := range map[string]Source{"container": FromContainer, "both": FromBoth} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var readers []*follower
			for range 3 {
				readers = append(readers, follow(t, dir, Options{Source: source, Since: time.Unix(1, 0)}, nil))
			}
			const n = 30000
			w := newTestWriter(t, dir, ContainerSeries, WriterOptions{MaxBytes: 64 << 10, Keep: 100})
			for i := 1; i <= n; i++ {
				mustWrite(t, w, Stdout, fmt.Sprintf("%d %s", i, strings.Repeat("x", i%150)))
				if i == n/2 { // the container restarts
					w.Close()
					w = newTestWriter(t, dir, ContainerSeries, WriterOptions{MaxBytes: 64 << 10, Keep: 100})
				}
			}
			for _, f := range readers {
				lines := f.waitFor(t, "the last line", func(l []Line) bool { return len(l) > 0 && l[len(l)-1].Seq == n })
				f.stop(t)
				first := lines[0].Seq
				for i, l := range lines {
					if l.Seq != first+uint64(i) || !strings.HasPrefix(l.Text, fmt.Sprintf("%d ", l.Seq)) {
						t.Fatalf("place %d: %+v", i, l)
					}
				}
				if first != 1 {
					t.Fatalf("first line is %d", first)
				}
			}
		})
	}
}

func TestFollowerResumesByLastEventID(t *testing.T) {
	dir := t.TempDir()
	cw := newTestWriter(t, dir, ContainerSeries, WriterOptions{MaxBytes: 64 << 10, Keep: 100})
	sw := newTestWriter(t, dir, SystemSeries, WriterOptions{})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				_ = cw.WriteLine(Stdout, "the end")
				_ = sw.WriteLine(System, "the end")
				return
			case <-time.After(100 * time.Microsecond):
				_ = cw.WriteLine(Stdout, fmt.Sprint("c", i))
				if i%7 == 0 {
					_ = sw.WriteLine(System, fmt.Sprint("s", i))
				}
			}
		}
	})
	var all []Line
	o := Options{Since: time.Unix(1, 0)}
	for range 20 {
		f := follow(t, dir, o, nil)
		f.waitFor(t, "some lines", func(l []Line) bool { return len(l) > 50 })
		f.stop(t)
		all = append(all, f.got()...)
		id, err := ParseID(all[len(all)-1].ID().String())
		if err != nil {
			t.Fatal(err)
		}
		o = Options{After: id}
	}
	close(stop)
	wg.Wait()
	f := follow(t, dir, o, nil)
	f.waitFor(t, "both ends", func(l []Line) bool {
		return len(l) > 1 && l[len(l)-1].Text == "the end" && l[len(l)-2].Text == "the end"
	})
	f.stop(t)
	all = append(all, f.got()...)
	want := readAll(t, dir, Options{Since: time.Unix(1, 0)})
	if !slices.Equal(all, want) {
		t.Fatalf("%d lines by pieces, %d at once", len(all), len(want))
	}
}

func TestSlowFollowerIsToldWhatItMissed(t *testing.T) {
	dir := t.TempDir()
	w := newTestWriter(t, dir, ContainerSeries, WriterOptions{MaxBytes: 64 << 10, Keep: 2})
	hold, started := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f := follow(t, dir, Options{Since: time.Unix(1, 0)}, func() {
		once.Do(func() { close(started) })
		<-hold
	})
	mustWrite(t, w, Stdout, "first")
	select {
	case <-started:
	case <-time.After(testDeadline):
		t.Fatal("the first line did not come")
	}
	const n = 5000
	for range n {
		mustWrite(t, w, Stdout, strings.Repeat("x", 200))
	}
	close(hold)
	lines := f.waitFor(t, "the last line", func(l []Line) bool { return len(l) > 0 && l[len(l)-1].Seq == n+1 })
	f.stop(t)
	missing, seen := 0, 0
	for _, l := range lines {
		if l.Stream == System {
			if _, err := fmt.Sscanf(l.Text, "%d lines are missing here", &missing); err != nil {
				t.Fatal(l.Text)
			}
			continue
		}
		seen++
	}
	if missing == 0 || missing+seen != n+1 {
		t.Fatalf("saw %d, told of %d missing, wrote %d", seen, missing, n+1)
	}
}

func TestFollowerIsQuick(t *testing.T) {
	for name, poll := range map[string]bool{"inotify": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cw := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
			w, err := newWatch(context.Background(), dir)
			if err != nil || w.file == nil {
				t.Fatalf("no inotify: %v", err)
			}
			defer w.close()
			if poll {
				w.file.Close()
				w.file = nil
			}
			start := time.Now()
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() { _ = cw.WriteLine(Stdout, "x") })
			for len(readAll(t, dir, Options{Tail: 1})) == 0 {
				if w.wait(context.Background(), 0) || time.Since(start) > testDeadline {
					t.Fatal("not woken")
				}
			}
			t.Logf("woken %v after the start", time.Since(start))
		})
	}
	dir := t.TempDir()
	cw := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	f := follow(t, dir, Options{Since: time.Unix(1, 0)}, nil)
	var delays []time.Duration
	for i := range 50 {
		mustWrite(t, cw, Stdout, "x")
		start := time.Now()
		f.waitFor(t, "the line", func(l []Line) bool { return len(l) == i+1 })
		delays = append(delays, time.Since(start))
	}
	f.stop(t)
	slices.Sort(delays)
	if median := delays[25]; median > 50*time.Millisecond {
		t.Fatalf("median delay %v", median)
	}
}

func TestFollowerEndsWithTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w := newTestWriter(t, dir, SystemSeries, WriterOptions{})
	f := follow(t, dir, Options{Tail: 5}, nil)
	mustWrite(t, w, System, "remove container x")
	f.waitFor(t, "the line", func(l []Line) bool { return len(l) == 1 })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-f.done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(testDeadline):
		t.Fatal("follower did not end")
	}
}

func TestTornRecordAppearsWhenItIsWhole(t *testing.T) {
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "container.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f := follow(t, dir, Options{Source: FromContainer, Tail: 5}, nil)
	for i := range 20 {
		b := appendRecord(nil, record{nano: 1e18 + int64(i), seq: uint64(i + 1), stream: Stdout, text: []byte("some text")})
		for _, piece := range [][]byte{b[:i], b[i : len(b)-1], b[len(b)-1:]} {
			if _, err := file.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		f.waitFor(t, "the record", func(l []Line) bool { return len(l) == i+1 && l[i].Text == "some text" })
	}
	f.stop(t)
}

func TestTailOfAnIncarnation(t *testing.T) {
	dir := t.TempDir()
	w := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	mustWrite(t, w, Stdout, "old")
	since := time.Unix(0, w.last+1)
	mustWrite(t, w, Stderr, "a\nb\nc")
	mustWrite(t, w, System, "dropped 1 lines, 1 bytes: x")
	for n, want := range map[int]string{2: "b,c", 10: "a,b,c"} {
		lines, err := Tail(context.Background(), dir, n, since)
		if err != nil || texts(lines) != want {
			t.Errorf("%d: %s, %v", n, texts(lines), err)
		}
	}
}

func TestCallbackErrorEndsRead(t *testing.T) {
	dir := t.TempDir()
	w := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	mustWrite(t, w, Stdout, "a\nb")
	stop := errors.New("stop")
	n := 0
	err := Read(context.Background(), dir, Options{Tail: 5, Follow: true}, func(Line) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Fatalf("%v after %d lines", err, n)
	}
}

func BenchmarkReadTail(b *testing.B) {
	dir := b.TempDir()
	w := newTestWriter(b, dir, ContainerSeries, WriterOptions{Burst: 1 << 30})
	for w.seq < 250000 {
		w.put(time.Now(), Stdout, false, []byte(strings.Repeat("x", 70)))
	}
	w.flush()
	for _, n := range []int{100, MaxTail} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				readAll(b, dir, Options{Tail: n})
			}
		})
	}
	b.Run("since", func(b *testing.B) {
		for b.Loop() {
			if got := readAll(b, dir, Options{Since: time.Unix(1, 0)}); len(got) < 200000 {
				b.Fatal(len(got))
			}
		}
	})
}
