package logs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

func pipes(t *testing.T) (outR, outW, errR, errW *os.File) {
	t.Helper()
	var err error
	if outR, outW, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	if errR, errW, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range []*os.File{outR, outW, errR, errW} {
			f.Close()
		}
	})
	return outR, outW, errR, errW
}

func TestCollectKeepsBothStreamsInOrder(t *testing.T) {
	dir := t.TempDir()
	w := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	outR, outW, errR, errW := pipes(t)
	const n = 20000
	var wg sync.WaitGroup
	for name, f := range map[string]*os.File{"stdout": outW, "stderr": errW} {
		wg.Go(func() {
			defer f.Close()
			for i := range n {
				fmt.Fprintf(f, "%s %d %s\n", name, i, strings.Repeat("v", i%90))
			}
		})
	}
	if err := Collect(context.Background(), w, outR, errR); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	next := map[Stream]int{}
	for _, l := range readAll(t, dir, Options{Since: time.Unix(1, 0)}) {
		if want := fmt.Sprintf("%s %d ", l.Stream, next[l.Stream]); !strings.HasPrefix(l.Text, want) {
			t.Fatalf("%q, want %q", l.Text, want)
		}
		next[l.Stream]++
	}
	if next[Stdout] != n || next[Stderr] != n {
		t.Fatalf("%v", next)
	}
}

func TestCollectEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	w := newTestWriter(t, dir, ContainerSeries, WriterOptions{})
	outR, outW, errR, _ := pipes(t)
	if _, err := outW.WriteString("one\nand a half"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Collect(ctx, w, outR, errR) }()
	for end := time.Now().Add(testDeadline); len(readAll(t, dir, Options{Tail: 1})) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the first line did not come")
		}
	}
	cause := errors.New("enough")
	cancel(cause)
	select {
	case err := <-ended:
		if !errors.Is(err, cause) {
			t.Fatal(err)
		}
	case <-time.After(testDeadline):
		t.Fatal("collect did not end")
	}
	if got := texts(readAll(t, dir, Options{Tail: 5})); got != "one,and a half" {
		t.Fatal(got)
	}
}

func TestCollectRefusesBlockingFiles(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := newTestWriter(t, t.TempDir(), ContainerSeries, WriterOptions{})
	if err := Collect(context.Background(), w, file, file); err == nil {
		t.Fatal("a file without deadlines was taken")
	}
}
