// Package relay is what the faces share that hand requests on as they come, to a pod or to the leader: no limit on
// the time that a body or an answer takes as long as something moves, and buffers to copy through. It stores nothing
// and starts no goroutine.
package relay

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"gantry/internal/copybuf"
)

// BufferSize is how many bytes of a body are held at a time.
const BufferSize = 32 << 10

// Body lets a client take any time to send a body as long as something arrives. It is for one reader.
type Body struct {
	io.ReadCloser
	Control *http.ResponseController // of the request's connection
	Idle    time.Duration            // that may pass without a byte
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	_ = b.Control.SetReadDeadline(time.Now().Add(b.Idle))
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.Control.SetReadDeadline(time.Time{}) // from here on the server only looks whether the client left
	}
	return n, err
}

// Writer lets a client take any time to take an answer as long as something leaves. It is for one writer.
type Writer struct {
	http.ResponseWriter
	Control *http.ResponseController
	Idle    time.Duration // that may pass without a byte
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	_ = w.Control.SetWriteDeadline(time.Now().Add(w.Idle))
	return w.ResponseWriter.Write(p)
}

// FlushError sends what is buffered; the header of an answer leaves by it before there is a body. A call of gRPC that failed at once is
// answered by a header alone, which has to end the stream (Trailers-Only, "gRPC over HTTP2"), and so leaves with the answer's end.
func (w *Writer) FlushError() error {
	if w.Header().Get("Grpc-Status") != "" {
		return nil
	}
	_ = w.Control.SetWriteDeadline(time.Now().Add(w.Idle))
	return w.Control.Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker. What is copied from or to the connection, such as a WebSocket, holds little memory while it is quiet.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := w.Control.Hijack()
	if err != nil {
		return nil, nil, err
	}
	return hijacked{c}, rw, nil
}

// hijacked is a connection that says how it is copied from and to.
type hijacked struct{ net.Conn }

// WriteTo implements io.WriterTo.
func (c hijacked) WriteTo(to io.Writer) (int64, error) { return copybuf.Copy(to, c.Conn) }

// ReadFrom implements io.ReaderFrom.
func (c hijacked) ReadFrom(from io.Reader) (int64, error) { return copybuf.Copy(c.Conn, from) }

// CloseWrite says that nothing more comes, where the connection can say so alone.
func (c hijacked) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// FlushAfter is how long a part of an answer of known length may wait for more on its way, so that a short answer is one write. What has no
// length, such as a stream of events, never waits.
const FlushAfter = time.Millisecond

// Buffers lends the buffers that bodies are copied through; see httputil.BufferPool. The zero value is ready, and
// safe for concurrent use.
type Buffers struct{ pool sync.Pool }

// Get lends a buffer.
func (b *Buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, BufferSize)
}

// Put takes a buffer back.
func (b *Buffers) Put(p []byte) { b.pool.Put(&p) }
