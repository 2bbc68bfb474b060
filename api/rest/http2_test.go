package rest_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"gantry/api/rest"
)

// outlast waits until a limit has certainly passed.
func outlast(limit time.Duration) { <-time.After(limit + limit/2) }

// overHTTP2 serves h with limits over HTTP/2.
func overHTTP2(t *testing.T, limits rest.Limits, h http.HandlerFunc) (client *http.Client, base string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config, srv.EnableHTTP2 = rest.NewServer(h, limits, quiet()).Server, true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	client = srv.Client()
	client.Timeout = 20 * time.Second
	return client, srv.URL
}

// Over HTTP/2, too, streams may be silent for longer than the server's limits, in both directions and before they begin.
func TestSilentStreamsOverHTTP2(t *testing.T) {
	limits := rest.Limits{Read: 200 * time.Millisecond, Write: 200 * time.Millisecond}
	client, base := overHTTP2(t, limits, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		lines := bufio.NewScanner(r.Body)
		for range 3 {
			outlast(limits.Read)
			_ = rc.SetReadDeadline(time.Now().Add(time.Minute))
			if !lines.Scan() {
				t.Errorf("a body was cut: %v", lines.Err())
			}
			_ = rc.SetWriteDeadline(time.Now().Add(limits.Write))
			_, _ = io.WriteString(w, lines.Text()+"\n")
			_ = rc.Flush()
			_ = rc.SetReadDeadline(time.Now().Add(limits.Read))
		}
	})
	out, in := io.Pipe()
	go func() {
		for _, word := range []string{"one\n", "two\n", "three\n"} {
			_, _ = io.WriteString(in, word)
			outlast(limits.Read)
		}
		_ = in.Close()
	}()
	resp, err := client.Post(base, "text/plain", out)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); string(text) != "one\ntwo\nthree\n" || err != nil || resp.ProtoMajor != 2 {
		t.Errorf("%s %q: %v", resp.Proto, text, err)
	}
}

// A client that takes nothing of its answer, or sends nothing of its body, is cut off all the same.
func TestStuckClientsOverHTTP2(t *testing.T) {
	limits := rest.Limits{Read: 200 * time.Millisecond, Write: 200 * time.Millisecond}
	ended := make(chan error, 1)
	client, base := overHTTP2(t, limits, func(w http.ResponseWriter, r *http.Request) {
		var err error
		if r.Method == http.MethodPost {
			_, err = io.ReadAll(r.Body)
		} else {
			for piece := make([]byte, 64<<10); err == nil; {
				_, err = w.Write(piece)
			}
		}
		ended <- err
	})
	await := func(what string) error {
		t.Helper()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			t.Fatalf("%s stays", what)
			return nil
		}
	}
	resp, err := client.Get(base)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := await("a client that takes nothing"); err == nil {
		t.Error("an endless answer has ended")
	}
	out, in := io.Pipe()
	defer in.Close()
	go func() { _, _ = in.Write([]byte("half")) }()
	late, err := client.Post(base, "text/plain", out)
	if err == nil {
		_ = late.Body.Close()
	}
	if err := await("a client that sends nothing"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// An answer without a word of its own about deadlines arrives.
func TestPlainAnswerOverHTTP2(t *testing.T) {
	client, base := overHTTP2(t, rest.Limits{}, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(text)
	})
	for _, body := range []string{"", strings.Repeat("x", 1<<20)} {
		resp, err := client.Post(base, "text/plain", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(resp.Body); string(text) != body || err != nil {
			t.Errorf("%d bytes: %v", len(text), err)
		}
		_ = resp.Body.Close()
	}
}
