package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const callTimeout = 40 * time.Second

// mcp is a running @runpod/mcp-server, spoken to over its stdin and stdout (Model Context Protocol:
// JSON-RPC 2.0, a message a line).
type mcp struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
	calls int
	used  map[string]bool // tools that were called

	mu     sync.Mutex
	stderr strings.Builder
}

func (m *mcp) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stderr.Write(p)
}

// startMCP starts the server against an API with a key and shakes hands.
func startMCP(t *testing.T, api, key string) *mcp {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", ".bin", "clients"))
	if err != nil {
		t.Fatal(err)
	}
	entry := filepath.Join(dir, "node_modules", "@runpod", "mcp-server", "dist", "stdio.mjs")
	if _, err := os.Stat(entry); err != nil {
		t.Fatalf("the client is not installed (scripts/clients.sh): %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &mcp{cmd: exec.CommandContext(ctx, filepath.Join(dir, "node"), entry), used: map[string]bool{}}
	m.cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "RUNPOD_API_KEY=" + key, "RUNPOD_API_BASE_URL=" + api, "RUNPOD_SERVERLESS_API_URL=" + api + "/v2",
		"RUNPOD_PUBLIC_GRAPHQL_URL=" + api + "/graphql", "RUNPOD_AUTHED_GRAPHQL_URL=" + api + "/graphql",
	}
	m.cmd.Stderr = m
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.lines = bufio.NewScanner(out)
	m.lines.Buffer(nil, 16<<20)
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = m.stdin.Close()
		cancel()
		_ = m.cmd.Wait() // it was killed
		if t.Failed() {
			m.mu.Lock()
			defer m.mu.Unlock()
			t.Logf("the client's stderr:\n%s", &m.stderr)
		}
	})
	hello := map[string]any{"protocolVersion": "2024-11-05", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "test", "version": "1"}}
	if _, err := m.request("initialize", hello); err != nil {
		t.Fatal(err)
	}
	if err := m.send(map[string]any{"jsonrpc": "2.0", "method": "notifications/initialized"}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mcp) send(message map[string]any) error {
	data, err := json.Marshal(message)
	if err == nil {
		_, err = m.stdin.Write(append(data, '\n'))
	}
	return err
}

// request sends a request and waits for its answer. A server that says nothing is killed.
func (m *mcp) request(method string, params any) (json.RawMessage, error) {
	m.calls++
	id := m.calls
	if err := m.send(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params}); err != nil {
		return nil, err
	}
	watchdog := time.AfterFunc(callTimeout, func() { _ = m.cmd.Process.Kill() })
	defer watchdog.Stop()
	for m.lines.Scan() {
		var got struct {
			ID     *int            `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(m.lines.Bytes(), &got); err != nil {
			return nil, fmt.Errorf("%s: %w", m.lines.Bytes(), err)
		}
		if got.ID == nil || *got.ID != id {
			continue
		}
		if got.Error != nil {
			return nil, fmt.Errorf("%s: %s", method, got.Error)
		}
		return got.Result, nil
	}
	return nil, errors.Join(errors.New("the client ended"), m.lines.Err())
}

// result is what a tool answered: the API's body, or its problem.
type result struct {
	text   string
	failed bool
}

// tool calls a tool.
func (m *mcp) tool(t *testing.T, name string, args map[string]any) result {
	t.Helper()
	m.used[name] = true
	if args == nil {
		args = map[string]any{}
	}
	raw, err := m.request("tools/call", map[string]any{"name": name, "arguments": args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var got struct {
		Content []struct{ Type, Text string }
		IsError bool
	}
	if err := json.Unmarshal(raw, &got); err != nil || len(got.Content) == 0 {
		t.Fatalf("%s answered %s: %v", name, raw, err)
	}
	return result{text: got.Content[0].Text, failed: got.IsError}
}

// good calls a tool that must succeed and decodes its answer into out, which may be nil.
func (m *mcp) good(t *testing.T, out any, name string, args map[string]any) {
	t.Helper()
	got := m.tool(t, name, args)
	if got.failed {
		t.Fatalf("%s: %s", name, got.text)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal([]byte(got.text), out); err != nil {
		t.Fatalf("%s answered %q: %v", name, got.text, err)
	}
}

// refused calls a tool that must be answered with a problem of a status and a code.
func (m *mcp) refused(t *testing.T, status int, code, name string, args map[string]any) {
	t.Helper()
	got := m.tool(t, name, args)
	var p struct {
		Status int
		Code   string
	}
	if err := json.Unmarshal([]byte(got.text), &p); err != nil || !got.failed || p.Status != status || p.Code != code {
		t.Errorf("%s: want %d %s, got %s", name, status, code, got.text)
	}
}

// tools returns the names of the tools that the server offers.
func (m *mcp) tools(t *testing.T) []string {
	t.Helper()
	raw, err := m.request("tools/list", map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range got.Tools {
		names = append(names, tool.Name)
	}
	return names
}
