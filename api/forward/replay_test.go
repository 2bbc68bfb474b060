package forward_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"gantry/api/forward"
)

// cutter is a leader that answers /warm, and is cut off from each connection that it was sent anything else on
// after that was carried out.
type cutter struct {
	net.Listener
	wg   sync.WaitGroup
	mu   sync.Mutex
	done []string // methods of what was carried out
}

func newCutter(t *testing.T) *cutter {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: ln}
	c.wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			c.wg.Go(func() { c.serve(conn) })
		}
	})
	return c
}

func (c *cutter) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path != "/warm" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.done = append(c.done, r.Method)
			return
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
			return
		}
	}
}

// The library sends some requests again by itself when a connection that was used before breaks: whether that may
// be is decided here alone.
func TestNothingIsSentTwiceOnAConnectionThatWasUsedBefore(t *testing.T) {
	tests := []struct{ method, header, body string }{
		{http.MethodPost, "", "x"},
		{http.MethodPost, "Idempotency-Key", "x"},
		{http.MethodPost, "Idempotency-Key", ""},
		{http.MethodPost, "X-Idempotency-Key", "x"},
		{http.MethodDelete, "X-Idempotency-Key", ""},
		{http.MethodOptions, "", ""},
		{http.MethodTrace, "", ""},
	}
	for _, tt := range tests {
		t.Run(strings.TrimSpace(tt.method+" "+tt.header+" "+tt.body), func(t *testing.T) {
			s := newSite(t)
			lead := newCutter(t)
			b := s.add("b", echo, func(c *forward.Config) {
				c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "tcp", address)
				}
			})
			t.Cleanup(func() { _ = lead.Close(); b.fwd.Close(); lead.wg.Wait() })
			s.set(&member{link: lead.Addr().String()})
			if got := s.ask(b, http.MethodGet, "/warm", nil); got.status != http.StatusOK {
				t.Fatalf("got %v", got)
			}
			var header []string
			if tt.header != "" {
				header = []string{tt.header, "k"}
			}
			var body io.Reader
			if tt.body != "" {
				body = strings.NewReader(tt.body)
			}
			s.ask(b, tt.method, "/pay", body, header...).refused(t, "outcome is not known", false)
			lead.mu.Lock()
			defer lead.mu.Unlock()
			if len(lead.done) != 1 {
				t.Errorf("carried out: %q", lead.done)
			}
		})
	}
}
