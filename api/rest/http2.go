package rest

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// lastWrite is what is left at least to send the end of an answer.
const lastWrite = 5 * time.Second

// evenly gives the deadlines of requests over HTTP/2 the meaning that they have over HTTP/1: they end a read or a write that
// is under way, and not a stream on which nothing has to be said for now. HTTP/2's own end the stream as soon as they pass.
func evenly(limits Limits, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			next.ServeHTTP(w, r)
			return
		}
		rc, now := http.NewResponseController(w), time.Now()
		s := &stream2{
			ResponseWriter: w, rc: rc,
			reading: deadline{set: rc.SetReadDeadline, at: now.Add(limits.Read)}, writing: deadline{set: rc.SetWriteDeadline, at: now.Add(limits.Write)},
		}
		_, _ = rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{})
		defer s.writing.leave()
		if r.Body != nil && r.Body != http.NoBody {
			out := *r
			out.Body = &body2{r.Body, s}
			r = &out
		}
		next.ServeHTTP(s, r)
	})
}

// deadline is one that counts between begin and end alone.
type deadline struct {
	set func(time.Time) error

	mu    sync.Mutex
	at    time.Time // zero: none
	calls int       // under way
}

func (d *deadline) move(at time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = at
	if d.calls > 0 {
		return d.set(at)
	}
	return nil
}

func (d *deadline) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	_ = d.set(d.at) // a stream that has ended says so itself
}

func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls--; d.calls == 0 {
		_ = d.set(time.Time{})
	}
}

// leave bounds what the server does after the handler.
func (d *deadline) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if least := time.Now().Add(lastWrite); !d.at.IsZero() && d.at.Before(least) {
		d.at = least
	}
	_ = d.set(d.at)
}

// stream2 is an answer over HTTP/2.
type stream2 struct {
	http.ResponseWriter
	rc               *http.ResponseController
	reading, writing deadline
}

// Write implements io.Writer.
func (s *stream2) Write(p []byte) (int, error) {
	s.writing.begin()
	defer s.writing.end()
	return s.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController calls, as are the next two.
func (s *stream2) FlushError() error {
	s.writing.begin()
	defer s.writing.end()
	return s.rc.Flush()
}

// SetReadDeadline bounds reads of the body.
func (s *stream2) SetReadDeadline(at time.Time) error { return s.reading.move(at) }

// SetWriteDeadline bounds writes of the answer.
func (s *stream2) SetWriteDeadline(at time.Time) error { return s.writing.move(at) }

// Unwrap lets http.ResponseController reach the rest.
func (s *stream2) Unwrap() http.ResponseWriter { return s.ResponseWriter }

type body2 struct {
	io.ReadCloser
	s *stream2
}

// Read implements io.Reader.
func (b *body2) Read(p []byte) (int, error) {
	b.s.reading.begin()
	defer b.s.reading.end()
	return b.ReadCloser.Read(p)
}
