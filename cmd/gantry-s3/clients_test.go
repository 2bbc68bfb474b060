package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gantry/internal/share"
)

// clients is the server of clients, whose requests for /hold are answered when the test ends.
func clients(t *testing.T, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	end, done := make(chan struct{}), make(chan error, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			_ = http.NewResponseController(w).Flush()
			<-end
		}
	})
	go func() { done <- serveHTTP(ctx, l, h, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		close(end)
		cancel()
		must(t, <-done)
	})
}

// status sends the head of a request and reads the status of the answer; 0: there was none.
func status(c net.Conn, head string) int {
	if _, err := io.WriteString(c, head); err != nil {
		return 0
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil) //nolint:bodyclose // its end may not come before that of the test
	if err != nil {
		return 0
	}
	return resp.StatusCode
}

const (
	getHead  = "GET / HTTP/1.1\r\nHost: s3\r\n\r\n"
	holdHead = "GET /hold HTTP/1.1\r\nHost: s3\r\n\r\n"
)

// TestOneClientLeavesSeatsForOthers: an address has its share of connections, and idle ones give way to a client with fewer.
func TestOneClientLeavesSeatsForOthers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	clients(t, share.Listen(l, share.Seats{All: 5, Each: 3}))
	from := func(n byte) net.Conn {
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}).Dial("tcp", l.Addr().String())
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		must(t, c.SetDeadline(time.Now().Add(time.Minute)))
		return c
	}
	for range 3 {
		if got := status(from(2), holdHead); got != http.StatusOK {
			t.Fatal(got)
		}
	}
	if got := status(from(2), getHead); got != 0 {
		t.Errorf("a fourth connection of an address: %d", got)
	}
	for range 2 {
		if got := status(from(3), getHead); got != http.StatusOK {
			t.Errorf("another address: %d", got)
		}
	}
	if got := status(from(4), getHead); got != http.StatusOK {
		t.Errorf("a third address, beside two idle connections of another: %d", got)
	}
	if got := status(from(5), "GET / HTTP/1.1\r\nHost: s3\r\nX-A: "+strings.Repeat("a", 2*maxHeader)+"\r\n\r\n"); got != http.StatusRequestHeaderFieldsTooLarge && got != 0 {
		t.Errorf("a head of twice the bytes: %d", got)
	}
}

// pipes is a listener in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.done:
	default:
		close(p.done)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// TestSlowClientsEnd: who says nothing, half a head, or nothing after an answer is cut off.
func TestSlowClientsEnd(t *testing.T) {
	for name, head := range map[string]string{"nothing": "", "half a head": "GET / HTTP/1.1\r\nHost:", "idle": getHead} {
		synctest.Test(t, func(t *testing.T) {
			l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
			clients(t, share.Listen(l, share.Seats{All: 2, Each: 2}))
			near, far := net.Pipe()
			defer func() { _ = near.Close() }()
			l.conns <- far
			must(t, near.SetDeadline(time.Now().Add(2*idleClient))) // in virtual time
			_, err := io.WriteString(near, head)
			must(t, err)
			if _, err := io.Copy(io.Discard, near); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: the connection stays open", name)
			}
		})
	}
}
