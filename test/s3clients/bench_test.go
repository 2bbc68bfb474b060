package s3clients

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// With -benchtime 20x, 1 GB and 10,000 small objects.
const (
	benchBig   = 50_000_000
	benchSmall = 4096
	benchMany  = 500
	benchers   = 8 // clients at a time
)

var keeping = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: benchers, DisableCompression: true}}

// transfer does one request and fails unless it goes well.
func (s *server) transfer(method, key string, content []byte) {
	var body io.Reader
	if content != nil {
		body = bytes.NewReader(content)
	}
	resp, err := s.do(keeping, method, key, body, int64(len(content)))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	// The client must not be what is measured: io.Discard takes 8 KiB at a time.
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, min(max(resp.ContentLength, 512), 1<<20)))
	if err != nil || resp.StatusCode != http.StatusOK || method == http.MethodGet && n == 0 {
		s.t.Errorf("%s %s: %s, %d bytes, %v", method, key, resp.Status, n, err)
	}
}

// each calls f for all numbers below n, some at a time.
func each(n int, f func(int)) {
	var all sync.WaitGroup
	for w := range benchers {
		all.Go(func() {
			for i := w; i < n; i += benchers {
				f(i)
			}
		})
	}
	all.Wait()
}

// copyFile is a plain file copy. With sync it ends when the copy is on the disk, as an object is that was put.
func copyFile(from, to string, sync bool) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // read-only
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err == nil && sync {
		err = out.Sync()
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

// benchBytes measures an operation on one big object.
func benchBytes(b *testing.B, name string, op func()) {
	b.Run(name, func(b *testing.B) {
		b.SetBytes(benchBig)
		for b.Loop() {
			op()
		}
	})
}

// benchObjects measures an operation on many small objects, each with a number of its own.
func benchObjects(b *testing.B, name string, op func(i int)) {
	b.Run(name, func(b *testing.B) {
		round := 0
		for b.Loop() {
			each(benchMany, func(i int) { op(round*benchMany + i) })
			round++
		}
		b.ReportMetric(float64(b.N*benchMany)/b.Elapsed().Seconds(), "objects/s")
	})
}

func BenchmarkBig(b *testing.B) {
	s := start(b)
	content := random(b, benchBig)
	source := filepath.Join(b.TempDir(), "source")
	must(b, os.WriteFile(source, content, 0o600))
	b.Cleanup(keeping.CloseIdleConnections)
	benchBytes(b, "s3=put", func() { s.transfer(http.MethodPut, "big", content) })
	benchBytes(b, "floor=copy-and-sync", func() { must(b, copyFile(source, filepath.Join(s.dir, "copy"), true)) })
	benchBytes(b, "floor=copy", func() { must(b, copyFile(source, filepath.Join(s.dir, "copy"), false)) })
	benchBytes(b, "s3=get", func() { s.transfer(http.MethodGet, "big", nil) })
	benchBytes(b, "floor=read", func() {
		f, err := os.Open(source)
		must(b, err)
		defer func() { _ = f.Close() }() // read-only
		_, err = io.Copy(struct{ io.Writer }{io.Discard}, f)
		must(b, err)
	})
}

func BenchmarkSmall(b *testing.B) {
	s := start(b)
	content := random(b, benchSmall)
	source := filepath.Join(b.TempDir(), "source")
	must(b, os.WriteFile(source, content, 0o600))
	b.Cleanup(keeping.CloseIdleConnections)
	must(b, os.Mkdir(filepath.Join(s.dir, "copies"), 0o755))
	benchObjects(b, "s3=put", func(i int) { s.transfer(http.MethodPut, fmt.Sprint("small/", i), content) })
	benchObjects(b, "floor=copy-and-sync", func(i int) {
		if err := copyFile(source, filepath.Join(s.dir, "copies", fmt.Sprint(i)), true); err != nil {
			b.Error(err)
		}
	})
	benchObjects(b, "floor=copy", func(i int) {
		if err := copyFile(source, filepath.Join(s.dir, "copies", fmt.Sprint(i)), false); err != nil {
			b.Error(err)
		}
	})
	benchObjects(b, "s3=get", func(i int) { s.transfer(http.MethodGet, fmt.Sprint("small/", i), nil) })
}
