package workers

import (
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// connKey is the key of a request's connection in its context.
type connKey struct{}

// bounded is a listener with maxConns connections at a time. More are answered 503 and closed.
type bounded struct {
	net.Listener
	open atomic.Int32
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	const full = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.open.Add(1) <= maxConns {
			return &conn{Conn: c, closed: sync.OnceFunc(func() { b.open.Add(-1) })}, nil
		}
		b.open.Add(-1)
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, _ = c.Write([]byte(full)) // a worker that does not read it sees the end
		_ = c.Close()
	}
}

// conn counts what was written to a worker.
type conn struct {
	net.Conn
	wrote  atomic.Int64
	closed func()
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.wrote.Add(int64(n))
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// answer writes a JSON answer, and says whether the worker can have seen any of it.
func (w *worker) answer(rw http.ResponseWriter, r *http.Request, body []byte) (seen bool) {
	if r.Context().Err() != nil {
		return false
	}
	c, _ := r.Context().Value(connKey{}).(*conn)
	before := c.wrote.Load()
	control := http.NewResponseController(rw)
	_ = control.SetWriteDeadline(time.Now().Add(w.gate.times.body))
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }()
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, err := rw.Write(body)
	if err == nil {
		err = control.Flush()
	}
	return err == nil || c.wrote.Load() > before
}
