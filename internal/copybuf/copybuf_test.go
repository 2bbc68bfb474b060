package copybuf_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"testing/iotest"

	"gantry/internal/copybuf"
)

// bursts reads as much at a time as it is told.
type bursts struct {
	from  io.Reader
	sizes []int
}

func (b *bursts) Read(p []byte) (int, error) {
	n := len(p)
	if len(b.sizes) > 0 {
		n, b.sizes = min(n, b.sizes[0]), b.sizes[1:]
	}
	return b.from.Read(p[:n])
}

func TestCopy(t *testing.T) {
	sent := make([]byte, 3<<20)
	for i := range sent {
		sent[i] = byte(rand.Int())
	}
	sizes := make([]int, 200)
	for i := range sizes {
		sizes[i] = []int{1, 2 << 10, 5000, 128 << 10, 2<<10 - 1}[i%5]
	}
	var got bytes.Buffer
	n, err := copybuf.Copy(&got, &bursts{bytes.NewReader(sent), sizes})
	if err != nil || n != int64(len(sent)) || !bytes.Equal(got.Bytes(), sent) {
		t.Errorf("%d of %d bytes: %v", n, len(sent), err)
	}
	wrong := errors.New("broken")
	if n, err := copybuf.Copy(io.Discard, io.MultiReader(bytes.NewReader(sent[:10]), iotest.ErrReader(wrong))); n != 10 || !errors.Is(err, wrong) {
		t.Error(n, err)
	}
	closed, other := net.Pipe()
	_, _ = closed.Close(), other.Close()
	if _, err := copybuf.Copy(closed, bytes.NewReader(sent)); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// TestQuietStreamsAreSmall: streams that said much and say nothing now hold little.
func TestQuietStreamsAreSmall(t *testing.T) {
	const streams = 200
	burst := make([]byte, 300<<10)
	var ins []net.Conn
	before := held()
	for range streams {
		in, from := net.Pipe()
		ins = append(ins, in)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = copybuf.Copy(io.Discard, from)
		}()
		t.Cleanup(func() { _ = in.Close(); <-done })
		if _, err := in.Write(burst); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(burst[:1]); err != nil { // after it the stream is quiet
			t.Fatal(err)
		}
	}
	for _, in := range ins {
		if _, err := in.Write(burst[:1]); err != nil { // so its last word was copied
			t.Fatal(err)
		}
	}
	if each := (held() - before) / streams; each > 16<<10 {
		t.Errorf("a quiet stream holds %d bytes", each)
	}
}

func held() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // empties pools
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
