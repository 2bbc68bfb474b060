package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"gantry/api/v2"
	"gantry/fleet"
)

// socket serves exec sessions with f, which has the connection and the first message.
func socket(t *testing.T, f func(context.Context, *websocket.Conn, v2.ExecRequest)) *Client {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/pods/p/exec" || r.Header.Get("Authorization") != "Bearer gk_secret" {
			t.Errorf("%s %v", r.URL.Path, r.Header)
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.CloseNow() }()
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		kind, text, err := conn.Read(ctx)
		var req v2.ExecRequest
		if err != nil || kind != websocket.MessageText || json.Unmarshal(text, &req) != nil {
			t.Errorf("first message: %v %q %v", kind, text, err)
		}
		f(ctx, conn, req)
	})
}

func say(ctx context.Context, conn *websocket.Conn, ch fleet.ExecChannel, text string) {
	_ = conn.Write(ctx, websocket.MessageBinary, append([]byte{byte(ch)}, text...))
}

func end(ctx context.Context, conn *websocket.Conn, text string) {
	say(ctx, conn, fleet.ExecExit, text)
	_ = conn.Close(websocket.StatusNormalClosure, "")
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestExecJoinsStreams(t *testing.T) {
	c := socket(t, func(ctx context.Context, conn *websocket.Conn, req v2.ExecRequest) {
		if diff := cmp.Diff(v2.ExecRequest{Command: []string{"cat"}, Stdin: true}, req); diff != "" {
			t.Error(diff)
		}
		total := 0
		for {
			_, message, err := conn.Read(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if fleet.ExecChannel(message[0]) == fleet.ExecStdinEnd {
				break
			}
			total += len(message) - 1
			say(ctx, conn, fleet.ExecStdout, string(message[1:]))
		}
		say(ctx, conn, fleet.ExecStderr, fmt.Sprint(total))
		end(ctx, conn, `{"code":7}`)
	})
	e, err := c.ExecPod(limit(t), "p", v2.ExecRequest{Command: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	text := strings.Repeat("0123456789", 20_000)
	result, err := e.Run(ExecStreams{Stdin: strings.NewReader(text), Stdout: &out, Stderr: &errOut})
	if err != nil || result.Code != 7 || out.String() != text || errOut.String() != "200000" {
		t.Errorf("%+v %v, %d bytes, %s", result, err, out.Len(), errOut.String())
	}
	if _, err := e.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestExecSendsSizes(t *testing.T) {
	c := socket(t, func(ctx context.Context, conn *websocket.Conn, req v2.ExecRequest) {
		_, message, err := conn.Read(ctx)
		if err != nil || fleet.ExecChannel(message[0]) != fleet.ExecResize {
			t.Errorf("%q %v", message, err)
		}
		say(ctx, conn, fleet.ExecStdout, fmt.Sprintf("%dx%d %s %s", req.Cols, req.Rows, req.Term, message[1:]))
		end(ctx, conn, `{"code":0}`)
	})
	e, err := c.ExecPod(limit(t), "p", v2.ExecRequest{Command: []string{"sh"}, TTY: true, Cols: 100, Rows: 30, Term: "xterm"})
	if err != nil {
		t.Fatal(err)
	}
	sizes := make(chan fleet.ExecSize, 1)
	sizes <- fleet.ExecSize{Cols: 120, Rows: 40}
	var out bytes.Buffer
	if _, err := e.Run(ExecStreams{Stdout: &out, Resize: sizes}); err != nil || out.String() != `100x30 xterm {"cols":120,"rows":40}` {
		t.Errorf("%v %s", err, out.String())
	}
}

func TestExecRefusedBeforeTheSession(t *testing.T) {
	long := strings.Repeat("x", 3000) // more than the WebSocket library reads of a refusal
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(409)
		_, _ = fmt.Fprintf(w, `{"status":409,"detail":"the pod does not run","errors":[%q]}`, long)
	})
	_, err := c.ExecPod(limit(t), "p", v2.ExecRequest{Command: []string{"sh"}})
	var p *Problem
	if !errors.As(err, &p) || p.Status != 409 || p.Detail != "the pod does not run" || len(p.Errors) != 1 || p.Errors[0] != long {
		t.Errorf("got %v", err)
	}
}

func TestExecThatBreaksOff(t *testing.T) {
	tests := []struct {
		name string
		f    func(context.Context, *websocket.Conn, v2.ExecRequest)
		want string
	}{
		{"connection lost", func(_ context.Context, conn *websocket.Conn, _ v2.ExecRequest) { _ = conn.CloseNow() }, "the connection was lost"},
		{"closed", func(_ context.Context, conn *websocket.Conn, _ v2.ExecRequest) {
			_ = conn.Close(websocket.StatusGoingAway, "shutting down")
		}, "status 1001: shutting down"},
		{"text", func(ctx context.Context, conn *websocket.Conn, _ v2.ExecRequest) {
			_ = conn.Write(ctx, websocket.MessageText, []byte("hello"))
			_, _, _ = conn.Read(ctx)
		}, "not what this API sends"},
		{"broken end", func(ctx context.Context, conn *websocket.Conn, _ v2.ExecRequest) { end(ctx, conn, "?") }, "not what this API sends"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := socket(t, tt.f).ExecPod(limit(t), "p", v2.ExecRequest{Command: []string{"sh"}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Run(ExecStreams{Stdout: io.Discard, Stderr: io.Discard}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestExecEndsWithItsContext ends a session whose process says nothing and whose input never comes.
func TestExecEndsWithItsContext(t *testing.T) {
	gone := make(chan struct{})
	began := make(chan struct{})
	c := socket(t, func(ctx context.Context, conn *websocket.Conn, _ v2.ExecRequest) {
		close(began)
		_, _, _ = conn.Read(ctx)
		close(gone)
	})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(limit(t))
	e, err := c.ExecPod(ctx, "p", v2.ExecRequest{Command: []string{"sleep"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-began
		cancel(why)
	}()
	in, feed := io.Pipe()
	if _, err := e.Run(ExecStreams{Stdin: in, StopStdin: func() { _ = feed.Close() }, Stdout: io.Discard}); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Error("the API still holds the session")
	}
}

func TestExecReportsItsStreams(t *testing.T) {
	broken := errors.New("broken")
	begun := make(chan struct{}, 2)
	quiet := func(ctx context.Context, conn *websocket.Conn, _ v2.ExecRequest) {
		begun <- struct{}{}
		say(ctx, conn, fleet.ExecStdout, "x")
		_, _, _ = conn.Read(ctx)
	}
	for name, s := range map[string]ExecStreams{
		"output": {Stdout: brokenWriter{broken}},
		"input":  {Stdin: brokenReader{broken}, Stdout: io.Discard},
	} {
		e, err := socket(t, quiet).ExecPod(limit(t), "p", v2.ExecRequest{Command: []string{"sh"}, Stdin: s.Stdin != nil})
		if err != nil {
			t.Fatal(err)
		}
		<-begun // it must not be over before the other end knows of it
		if _, err := e.Run(s); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type brokenWriter struct{ err error }

func (b brokenWriter) Write([]byte) (int, error) { return 0, b.err }

type brokenReader struct{ err error }

func (b brokenReader) Read([]byte) (int, error) { return 0, b.err }

func TestExecUnreachable(t *testing.T) {
	c, err := New("http://127.0.0.1:1", "", "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.ExecPod(limit(t), "p", v2.ExecRequest{Command: []string{"sh"}})
	if want := "cannot reach http://127.0.0.1:1: connection refused"; err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}
