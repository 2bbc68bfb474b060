package sidecar

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/internal/ipc"
)

// TestMain is also the processes of the tests.
func TestMain(m *testing.M) {
	become(os.Args)
	goleak.VerifyTestMain(m)
}

// echo answers with what it was asked and the contents of the files.
type echo struct{}

func (echo) Close() {}

func (echo) Handle(ctx context.Context, verb string, ask []byte, files []*os.File) (any, error) {
	defer ipc.CloseAll(files)
	switch verb {
	case "refuse":
		return nil, errors.New("refused")
	case "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	out := string(ask)
	for _, f := range files {
		text, err := io.ReadAll(f)
		if err != nil {
			return nil, err
		}
		out += string(text)
	}
	return out, nil
}

// serving has a process's part serve in this process, until the test ends.
func serving(t *testing.T, path string) (end func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	program := Program{Name: "echo", Serve: func([]*os.File, func(error), *slog.Logger) (Handler, error) { return echo{}, nil }}
	go func() { done <- Serve(ctx, l, "build", program, nil, slog.New(slog.DiscardHandler)) }()
	end = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		done <- nil
	}
	t.Cleanup(end)
	return end
}

func connect(t *testing.T) (*Conn, func()) {
	t.Helper()
	dir := t.TempDir()
	end := serving(t, filepath.Join(dir, "echo.sock"))
	c, err := Config{Name: "echo", Dir: dir}.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, end
}

// TestQuestions: what is asked comes whole, with files, and so does the answer; an error of the process's ends nothing.
func TestQuestions(t *testing.T) {
	c, _ := connect(t)
	if c.pid != os.Getpid() {
		t.Errorf("the listener is %d", c.pid)
	}
	for _, n := range []int{1, 500 << 10} {
		text, got := strings.Repeat("x", n), ""
		if err := c.Call(t.Context(), "say", text, &got); err != nil || got != `"`+text+`"` {
			t.Errorf("%d bytes came back of %d: %v", len(got), n, err)
		}
	}
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("of a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var got string
	if err := c.Call(t.Context(), "say", 1, &got, f); err != nil || got != "1of a file" {
		t.Errorf("%q: %v", got, err)
	}
	if err := c.Call(t.Context(), "refuse", nil, nil); err == nil || err.Error() != "refused" || errors.Is(err, ipc.ErrDown) {
		t.Errorf("refused: %v", err)
	}
	if err := c.Call(t.Context(), "say", make([]byte, maxMessage*3/4), nil); err == nil {
		t.Error("a message of any length is sent")
	}
}

// TestTheNewestAgentCounts: what one of before asks for still is not done.
func TestTheNewestAgentCounts(t *testing.T) {
	dir := t.TempDir()
	serving(t, filepath.Join(dir, "echo.sock"))
	var agents [2]*Conn
	for i := range agents {
		c, err := Config{Name: "echo", Dir: dir}.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Call(t.Context(), verbHello, nil, nil); err != nil {
			t.Fatal(err)
		}
		agents[i] = c
	}
	if err := agents[0].Call(t.Context(), "say", 1, nil); err == nil {
		t.Error("the one of before is answered")
	}
	if err := agents[1].Call(t.Context(), "say", 1, nil); err != nil {
		t.Error(err)
	}
}

// TestNoAnswer: a question that is not answered in time ends the connection, and so does the end of the process.
func TestNoAnswer(t *testing.T) {
	c, end := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Call(ctx, "hang", nil, nil); !errors.Is(err, ipc.ErrDown) {
		t.Errorf("no answer: %v", err)
	}
	if err := c.Call(t.Context(), "say", 1, nil); !errors.Is(err, ipc.ErrDown) {
		t.Errorf("after that: %v", err)
	}
	end()
	select {
	case <-c.Down():
	case <-time.After(time.Minute):
		t.Error("the end of the process is not seen")
	}
}
