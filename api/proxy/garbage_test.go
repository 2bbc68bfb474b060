package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gantry/api/proxy"
	"gantry/api/rest"
)

// liar is a pod's server that answers a request on each connection with the bytes that it was told, and closes.
func liar(t *testing.T, answer *atomic.Value) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.WriteString(c, answer.Load().(string)) // the proxy may have read enough
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String()
}

// TestPodsThatAnswerGarbage: what is no answer of HTTP is told as 502, what ends too early ends the client's answer too early as well, and
// nothing of it reaches the next request.
func TestPodsThatAnswerGarbage(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
	s := newSite(t, http.NotFoundHandler(), rest.Limits{}, nil)
	var answer atomic.Value
	s.plane.Serve(s.pod, 8080, liar(t, &answer))
	for name, c := range map[string]struct {
		sent   string
		status int
		broken bool // the body ends before its end
	}{
		"nothing":                     {"", 502, false},
		"noise":                       {"\x00\x01\xff\xfe garbage \r\n\r\n", 502, false},
		"another protocol":            {"SSH-2.0-OpenSSH_9.2p1\r\n", 502, false},
		"a head without end":          {"HTTP/1.1 200 OK\r\nContent-Le", 502, false},
		"a large head":                {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", 502, false},
		"many headers":                {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 100_000) + "\r\n", 502, false},
		"news without end":            {strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n", 50_000), 502, false},
		"a word for a status":         {"HTTP/1.1 fine OK\r\n\r\n", 502, false},
		"a status of four digits":     {"HTTP/1.1 2000 OK\r\n\r\n", 502, false},
		"two lengths":                 {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nfine!", 502, false},
		"a length below zero":         {"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\nfine", 502, false},
		"an odd encoding":             {"HTTP/1.1 200 OK\r\nTransfer-Encoding: zip\r\n\r\nfine", 502, false},
		"a protocol nobody asked for": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n", 502, false},
		"a body that is too short":    {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfine", 200, true},
		"a chunk that is too short":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nfine", 200, true},
		"a chunk without a size":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nfine\r\n0\r\n\r\n", 200, true},
		"an answer too many":          {ok + "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\npoisons", 200, false},
	} {
		answer.Store(c.sent)
		resp, err := s.client.Get("http://" + s.host(8080) + "/")
		if err != nil {
			if !c.broken {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || (err != nil) != c.broken || strings.Contains(string(body), "poisons") {
			t.Errorf("%s: %d, %d bytes, %v", name, resp.StatusCode, len(body), err)
		}
		answer.Store(ok)
		if resp, text := s.get(t, s.host(8080)); resp.status != http.StatusOK || text != "fine" {
			t.Errorf("the request after %s: %d %q", name, resp.status, text)
		}
	}
}

// TestAReaderThatStandsStillIsCut: a client that asks for much and takes nothing of it is cut off, and holds up nobody meanwhile.
func TestAReaderThatStandsStillIsCut(t *testing.T) {
	ended := make(chan struct{})
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			_, _ = io.WriteString(w, "app")
			return
		}
		defer close(ended)
		block := make([]byte, 64<<10)
		for {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}), rest.Limits{}, func(c *proxy.Config) { c.ClientIdle = time.Second })
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprintf(c, "GET /endless HTTP/1.1\r\nHost: %s\r\n\r\n", s.host(8080)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil { // the answer has begun
		t.Fatal(err)
	}
	if resp, text := s.get(t, s.host(8080)); resp.status != http.StatusOK || text != "app" {
		t.Errorf("beside a reader that stands still: %d %q", resp.status, text)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("a reader that stands still keeps its answer")
	}
}
