package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"gantry/api/relay"
)

var (
	errLeads    = errors.New("this member leads by now")
	errNoLeader = errors.New("no leader is known")
	errNotDone  = errors.New("the member that was asked does not lead")
	errDeposed  = errors.New("another member was elected")
	errClosed   = errors.New("this scheduler stops")
)

// dialError says that there is no connection: nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

type roundTripper func(*http.Request) (*http.Response, error)

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// The pause between attempts doubles from the first to the last.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// roundTrip sends a request to whoever leads, again and again while nothing has happened and the time to wait
// is not over.
func (f *Forwarder) roundTrip(r *http.Request) (*http.Response, error) {
	c, _ := r.Context().Value(callKey{}).(*call)
	limit := time.NewTimer(f.cfg.Wait)
	defer limit.Stop()
	pause := firstPause
	last := errNoLeader
	for {
		changes := f.cfg.Leaders.Changes()
		address := f.cfg.Leaders.Leader()
		switch {
		case f.cfg.Leaders.Leads():
			return nil, errLeads
		case address != "":
			resp, err := f.once(r, c, address)
			if err == nil || !c.again(err) {
				return resp, err
			}
			last = err
		}
		wait := time.NewTimer(pause)
		pause = min(2*pause, lastPause)
		select {
		case <-changes:
		case <-wait.C:
		case <-limit.C:
			wait.Stop()
			return nil, last
		case <-r.Context().Done():
			wait.Stop()
			return nil, context.Cause(r.Context())
		}
		wait.Stop()
	}
}

// again reports whether a request that failed may be sent again.
func (c *call) again(err error) bool {
	if c.in.Context().Err() != nil || errors.Is(err, errClosed) {
		return false
	}
	if !c.kept && c.read.begun.Load() {
		return false // a part of the body is gone
	}
	return !c.sent.Load() || c.kept && (c.in.Method == http.MethodGet || c.in.Method == http.MethodHead)
}

// once sends the request to the member at an address.
func (f *Forwarder) once(r *http.Request, c *call, address string) (*http.Response, error) {
	ctx, release := f.terms.join(r.Context(), address)
	// Not called when the answer has a body: it is read under ctx. Then it is called at the end of the body.
	out := c.request(r, ctx, address)
	resp, err := f.transport.RoundTrip(out)
	if err == nil && ctx.Err() != nil { // it came while the attempt was given up: its body would break off
		_ = resp.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		release()
		if cause := context.Cause(ctx); cause != nil && r.Context().Err() == nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, err
	}
	if resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get(HeaderNothingDone) == "1" {
		c.sent.Store(false)
		if c.kept || !c.read.begun.Load() {
			_, _ = io.CopyN(io.Discard, resp.Body, relay.BufferSize) // so that the connection can be used again
			_ = resp.Body.Close()
			release()
			return nil, errNotDone
		}
	}
	if both, ok := resp.Body.(io.ReadWriteCloser); ok {
		stop := context.AfterFunc(ctx, func() { _ = both.Close() }) // the transport looks after it no more
		resp.Body = &upgraded{both, func() { stop(); release() }}
	} else {
		resp.Body = &answer{resp.Body, ctx, release}
	}
	return resp, nil
}

// request returns what is sent in one attempt, and has noted in c when it may have arrived. It always has a body
// that the transport cannot rewind: the transport would send some requests again by itself, among them those with
// an Idempotency-Key, whether or not whoever is asked heeds it.
func (c *call) request(r *http.Request, ctx context.Context, address string) *http.Request {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if conn, ok := info.Conn.(*watched); ok {
			conn.sent.Store(&c.sent)
		}
	}})
	out := r.Clone(ctx)
	out.URL.Host = address
	if c.kept {
		out.Body, out.ContentLength = io.NopCloser(newReader(c.body)), int64(len(c.body))
		out.Header.Del("Expect") // the body is here
		if len(c.body) == 0 {
			out.TransferEncoding = []string{"identity"} // rather than chunks, of which there are none
		}
	}
	return out
}

func newReader(b []byte) io.Reader { return bytes.NewReader(b) }

// watched is a connection that tells when something is sent.
type watched struct {
	net.Conn
	sent atomic.Pointer[atomic.Bool] // of the call that has the connection
}

// Write implements io.Writer.
func (w *watched) Write(p []byte) (int, error) {
	if sent := w.sent.Load(); sent != nil {
		sent.Store(true)
	}
	return w.Conn.Write(p)
}

func (f *Forwarder) dial(ctx context.Context, _, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Dialling)
	defer cancel()
	conn, err := f.cfg.Dial(ctx, address)
	if err != nil {
		return nil, &dialError{err}
	}
	return &watched{Conn: conn}, nil
}

// answer is the body of an answer; upgraded that of a connection that is one no more.
type answer struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // of the attempt
	release func()
}

// Read implements io.Reader. A leader that is given up may end its answer as the connection closes, in the middle:
// that is no end.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) && a.ctx.Err() != nil {
		err = context.Cause(a.ctx)
	}
	return n, err
}

func (a *answer) Close() error {
	defer a.release()
	return a.ReadCloser.Close()
}

type upgraded struct {
	io.ReadWriteCloser
	release func()
}

func (u *upgraded) Close() error {
	defer u.release()
	return u.ReadWriteCloser.Close()
}

// readOnce is a body that is passed on as it comes, and knows whether any of it was read.
type readOnce struct {
	relay.Body
	begun atomic.Bool
}

func (b *readOnce) Read(p []byte) (int, error) {
	b.begun.Store(true)
	return b.Body.Read(p)
}

// Close leaves the client's body to its server: the transport closes what it is given with each attempt.
func (b *readOnce) Close() error { return nil }

// terms are the times of the leaders that requests were sent to. When another member leads, what the one before
// has not answered in a while is given up: it may hang, and nothing that it says counts any more.
type terms struct {
	grace time.Duration

	mu      sync.Mutex // guards the fields below
	address string
	term    context.Context //nolint:containedctx // of the member at address
	end     context.CancelFunc
}

// join returns a context that ends with ctx, with the term of address, or when released.
func (t *terms) join(ctx context.Context, address string) (context.Context, func()) {
	term := t.turn(address)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(term, func() { cancel(errDeposed) })
	return ctx, func() { stop(); cancel(nil) }
}

// turn says who leads now and returns that member's term.
func (t *terms) turn(address string) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.address != address || t.term == nil {
		if t.end != nil {
			time.AfterFunc(t.grace, t.end)
		}
		t.address = address
		t.term, t.end = context.WithCancel(context.Background()) //nolint:gosec // ended by the next turn
	}
	return t.term
}

// follow ends terms as leaders change, until the forwarder is closed.
func (f *Forwarder) follow() {
	for {
		changes := f.cfg.Leaders.Changes()
		switch address := f.cfg.Leaders.Leader(); {
		case f.cfg.Leaders.Leads():
			f.terms.turn("this member")
		case address != "":
			f.terms.turn(address)
		}
		select {
		case <-changes:
		case <-f.life.Done():
			return
		}
	}
}
