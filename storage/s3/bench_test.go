package s3

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

const (
	benchBytes = 1 << 30
	benchSmall = 10_000
)

// zeroes reads as many bytes that are always the same.
type zeroes struct{ left int64 }

func (z *zeroes) Read(b []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), z.left))
	clear(b[:n])
	z.left -= int64(n)
	return n, nil
}

func (z *zeroes) Close() error { return nil }

// must sends a request with a body of any length.
func (f *fixture) must(c call, body io.ReadCloser, length int64) {
	f.t.Helper()
	r := f.signed(c)
	if length >= 0 {
		r.Body, r.ContentLength = body, length
	}
	got, err := testClient.Transport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	// The client must not be what is measured: io.Discard takes 8 KiB at a time.
	if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, got.Body, make([]byte, min(max(got.ContentLength, 512), 1<<20))); err != nil || got.StatusCode != http.StatusOK {
		f.t.Fatalf("status %d, %d bytes, %v", got.StatusCode, n, err)
	}
}

// BenchmarkPlainWrite is the floor of a PUT: the same bytes written to a file and synced.
func BenchmarkPlainWrite(b *testing.B) {
	name := filepath.Join(b.TempDir(), "a")
	b.SetBytes(benchBytes)
	for b.Loop() {
		f, err := os.Create(name)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{&zeroes{left: benchBytes}}, make([]byte, 1<<20)); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		_ = f.Close()
	}
}

func BenchmarkPut(b *testing.B) {
	f := newFixture(b)
	b.SetBytes(benchBytes)
	for b.Loop() {
		f.must(call{method: "PUT", path: "/vol1/a", payload: unsignedPayload}, &zeroes{left: benchBytes}, benchBytes)
	}
}

// BenchmarkPutHashed has the body's SHA-256 checked beside its MD5.
func BenchmarkPutHashed(b *testing.B) {
	f := newFixture(b)
	sum := sha256.New()
	if _, err := io.Copy(sum, &zeroes{left: benchBytes}); err != nil {
		b.Fatal(err)
	}
	payload := hex.EncodeToString(sum.Sum(nil))
	b.SetBytes(benchBytes)
	for b.Loop() {
		f.must(call{method: "PUT", path: "/vol1/a", payload: payload}, &zeroes{left: benchBytes}, benchBytes)
	}
}

func benchFile(b *testing.B, f *fixture) {
	b.Helper()
	file, err := os.Create(f.file("a"))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(file, &zeroes{left: benchBytes}); err != nil {
		b.Fatal(err)
	}
	if err := file.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPlainRead is the floor of a GET: the same file read.
func BenchmarkPlainRead(b *testing.B) {
	f := newFixture(b)
	benchFile(b, f)
	b.SetBytes(benchBytes)
	for b.Loop() {
		file, err := os.Open(f.file("a"))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{file}, make([]byte, 1<<20)); err != nil {
			b.Fatal(err)
		}
		_ = file.Close()
	}
}

func BenchmarkGet(b *testing.B) {
	f := newFixture(b)
	benchFile(b, f)
	b.SetBytes(benchBytes)
	for b.Loop() {
		f.must(call{method: "GET", path: "/vol1/a"}, nil, -1)
	}
}

// small does something 10,000 times, 16 at a time.
func small(b *testing.B, do func(i int)) {
	b.Helper()
	for b.Loop() {
		var all sync.WaitGroup
		for w := range 16 {
			all.Go(func() {
				for i := w; i < benchSmall; i += 16 {
					do(i)
				}
			})
		}
		all.Wait()
	}
	b.ReportMetric(benchSmall*float64(b.N)/b.Elapsed().Seconds(), "files/s")
}

// BenchmarkPlainSmallWrites is the floor of small PUTs: files of 1 KiB, synced and renamed.
func BenchmarkPlainSmallWrites(b *testing.B) {
	dir := b.TempDir()
	small(b, func(i int) {
		name := filepath.Join(dir, fmt.Sprint(i))
		f, err := os.Create(name + ".new")
		if err != nil {
			b.Error(err)
			return
		}
		_, _ = f.Write(make([]byte, 1024))
		_ = f.Sync()
		_ = f.Close()
		_ = os.Rename(name+".new", name)
	})
}

func BenchmarkSmallPuts(b *testing.B) {
	f := newFixture(b)
	small(b, func(i int) {
		f.must(call{method: "PUT", path: fmt.Sprintf("/vol1/d/%d", i), body: make([]byte, 1024)}, nil, -1)
	})
}

// BenchmarkPlainSmallReads is the floor of small GETs.
func BenchmarkPlainSmallReads(b *testing.B) {
	f := newFixture(b)
	smallFiles(b, f)
	small(b, func(i int) {
		if _, err := os.ReadFile(f.file(fmt.Sprintf("d/%d", i))); err != nil {
			b.Error(err)
		}
	})
}

func BenchmarkSmallGets(b *testing.B) {
	f := newFixture(b)
	smallFiles(b, f)
	small(b, func(i int) { f.must(call{method: "GET", path: fmt.Sprintf("/vol1/d/%d", i)}, nil, -1) })
}

func smallFiles(b *testing.B, f *fixture) {
	b.Helper()
	for i := range benchSmall {
		f.write(fmt.Sprintf("d/%d", i), string(make([]byte, 1024)))
	}
}

// BenchmarkListPage is a page of 1,000 in a folder of 100,000 whose names are known.
func BenchmarkListPage(b *testing.B) {
	f := newFixtureIn(b, memory(b), Limits{})
	many(b, f, 100_000)
	for b.Loop() {
		f.must(call{method: "GET", path: "/vol1", query: "list-type=2&start-after=many/0050000"}, nil, -1)
	}
}
