package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	clusterPath  = "/admin/v1/cluster"
	tokensPath   = clusterPath + "/tokens"
	transferPath = clusterPath + "/transfer"
	memberPath   = clusterPath + "/members/"

	patience = 2 * time.Minute // for anything that has to happen
	pollFor  = 20 * time.Millisecond
)

// build makes the daemon once for each level and its build tags.
var build = func() func(t *testing.T, level string, tags ...string) string {
	type made struct {
		path string
		err  error
	}
	var mu sync.Mutex
	all := map[string]made{}
	return func(t *testing.T, level string, tags ...string) string {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		name := strings.Join(append([]string{"gantry-scheduler", level}, tags...), "-")
		m, ok := all[name]
		if !ok {
			m.path = filepath.Join(binaries, name)
			// As make build does it, so that every package is compiled once for both.
			cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", strings.Join(tags, ","), "-ldflags", "-X main.level="+level+" -X main.version=v"+level, "-o", m.path, ".")
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				m.err = fmt.Errorf("%w\n%s", err, out)
			}
			all[name] = m
		}
		if m.err != nil {
			t.Fatal(m.err)
		}
		return m.path
	}
}()

var binaries string

var browser = &http.Client{Timeout: patience}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gantry-scheduler-test-")
	if err != nil {
		panic(err)
	}
	binaries = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// machine is a place where a scheduler runs.
type machine struct {
	t      *testing.T
	binary string
	dir    string
	api    string
	link   string
	cmd    *exec.Cmd
	log    *syncBuffer
	exited chan error
}

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	return address
}

func newMachine(t *testing.T, binary string) *machine {
	t.Helper()
	m := &machine{t: t, binary: binary, dir: filepath.Join(t.TempDir(), "data"), api: freePort(t), link: freePort(t)}
	t.Cleanup(func() {
		m.kill()
		if t.Failed() && m.log != nil {
			t.Logf("%s (%s):\n%s", m.link, m.dir, m.log)
		}
	})
	return m
}

// does runs one of the commands that end.
func (m *machine) does(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.binary, args...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m *machine) must(args ...string) {
	m.t.Helper()
	if out, err := m.does(args...); err != nil {
		m.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// start runs the daemon.
func (m *machine) start(more ...string) {
	m.t.Helper()
	m.runs(append([]string{
		"run", "--data-dir", m.dir, "--listen", m.api, "--link-listen", m.link, "--rate-failures", "0",
		"--rate-minute", "0", "--rate-hour", "0", "--rate-day", "0", "--raft-timeout", "500ms",
	}, more...)...)
}

// runs runs the program until it is told to end.
func (m *machine) runs(args ...string) {
	m.t.Helper()
	m.log = &syncBuffer{}
	m.cmd = exec.Command(m.binary, args...)
	m.cmd.Stdout, m.cmd.Stderr = m.log, m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	cmd, exited := m.cmd, make(chan error, 1)
	m.exited = exited
	go func() { exited <- cmd.Wait() }()
}

// ended waits for the daemon to end by itself.
func (m *machine) ended() error {
	m.t.Helper()
	select {
	case err := <-m.exited:
		m.exited <- err
		return err
	case <-time.After(patience):
		m.t.Fatal("the daemon does not end")
		return nil
	}
}

func (m *machine) kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	if err := <-m.exited; err == nil {
		m.t.Log("a scheduler had ended before it was killed")
	}
	m.cmd = nil
}

func (m *machine) stop() {
	m.t.Helper()
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		m.t.Fatal(err)
	}
	if err := m.ended(); err != nil {
		m.t.Errorf("a stop ended with %v", err)
	}
	m.cmd = nil
}

// world is a cluster under test.
type world struct {
	t    *testing.T
	keys keysFile
	all  []*machine
}

// newWorld makes a cluster of one.
func newWorld(t *testing.T, binary string) *world {
	t.Helper()
	w := &world{t: t}
	m := newMachine(t, binary)
	keys := filepath.Join(t.TempDir(), "keys.json")
	m.must("init", "--data-dir", m.dir, "--keys-file", keys, "--address", m.link)
	w.keys = readKeys(t, keys)
	m.start()
	w.all = append(w.all, m)
	w.awaitVoters(1)
	return w
}

// readKeys reads what init wrote for the operator.
func readKeys(t *testing.T, file string) (keys keysFile) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &keys)
	}
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// ask makes one request at a machine.
func (w *world) ask(m *machine, key, method, path string, body any) (int, []byte, error) {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		in = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+m.api+path, in)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := browser.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, out, err
}

// admin makes a request of the operator at any machine until it is decided.
func (w *world) admin(method, path string, body, into any) {
	w.t.Helper()
	var last string
	w.eventually(method+" "+path, func() bool {
		for _, m := range w.running() {
			status, out, err := w.ask(m, w.keys.AdminKey, method, path, body)
			last = fmt.Sprint(status, string(out), err)
			if err != nil || status == http.StatusServiceUnavailable {
				continue
			}
			if status >= 300 {
				w.t.Fatalf("%s %s: %s", method, path, last)
			}
			if into != nil {
				if err := json.Unmarshal(out, into); err != nil {
					w.t.Fatal(err)
				}
			}
			return true
		}
		return false
	}, func() string { return last })
}

func (w *world) running() []*machine {
	var out []*machine
	for _, m := range w.all {
		if m.cmd != nil {
			out = append(out, m)
		}
	}
	return out
}

func (w *world) eventually(what string, ok func() bool, why ...func() string) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			for _, f := range why {
				w.t.Log(f())
			}
			w.t.Fatalf("never: %s", what)
		}
		time.Sleep(pollFor)
	}
}

// health returns the status and the conditions of a machine.
func (w *world) health(m *machine) (int, map[string]string) {
	status, out, err := w.ask(m, "", http.MethodGet, "/healthz?verbose=true", nil)
	var report struct {
		Conditions []struct {
			Name string
			OK   bool
			Text string
		}
	}
	if err != nil || json.Unmarshal(out, &report) != nil {
		return 0, nil
	}
	texts := map[string]string{}
	for _, c := range report.Conditions {
		texts[c.Name] = c.Text
	}
	return status, texts
}

// leader waits for the machine that leads.
func (w *world) leader() *machine {
	w.t.Helper()
	var found *machine
	w.eventually("somebody leads", func() bool {
		for _, m := range w.running() {
			if _, c := w.health(m); c["leader"] == "this scheduler leads" {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

type clusterView struct {
	ID      string `json:"id"`
	Lineage uint64 `json:"lineage"`
	Level   uint64 `json:"level"`
	Members []struct {
		ID      string `json:"id"`
		Name    string `json:"name"`
		Address string `json:"address"`
		Voter   bool   `json:"voter"`
		Leader  bool   `json:"leader"`
		Problem string `json:"problem"`
		Removed string `json:"removedAt"`
	} `json:"members"`
}

func (w *world) view() (c clusterView) {
	w.t.Helper()
	w.admin(http.MethodGet, clusterPath, nil, &c)
	return c
}

// awaitVoters waits until so many members vote, and there are no others.
func (w *world) awaitVoters(n int) clusterView {
	w.t.Helper()
	var c clusterView
	w.eventually(fmt.Sprintf("%d voters", n), func() bool {
		c = w.view()
		voters, present := 0, 0
		for _, m := range c.Members {
			if m.Voter {
				voters++
			}
			if m.Removed == "" {
				present++
			}
		}
		return voters == n && present == n
	}, func() string { return fmt.Sprintf("%+v", c) })
	return c
}

func (w *world) id(m *machine) string {
	w.t.Helper()
	id, ok := nodeID(m.dir)
	if !ok {
		w.t.Fatal("no id in", m.dir)
	}
	return id
}

// join makes another member, which runs.
func (w *world) join(binary string, token map[string]any) *machine {
	w.t.Helper()
	m, out, err := w.tryJoin(binary, token)
	if err != nil {
		w.t.Fatalf("join: %v\n%s", err, out)
	}
	m.start()
	w.all = append(w.all, m)
	return m
}

func (w *world) tryJoin(binary string, token map[string]any) (*machine, string, error) {
	w.t.Helper()
	m := newMachine(w.t, binary)
	out, err := w.joins(m, token)
	return m, out, err
}

// joins runs join on a machine with a new token.
func (w *world) joins(m *machine, token map[string]any) (string, error) {
	w.t.Helper()
	return m.does(w.joinArgs(m, token)...)
}

// joinArgs makes a token, and returns the arguments with which a machine joins.
func (w *world) joinArgs(m *machine, token map[string]any) []string {
	w.t.Helper()
	var made struct {
		Token string `json:"token"`
	}
	w.admin(http.MethodPost, tokensPath, token, &made)
	file := filepath.Join(w.t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(made.Token), 0o600); err != nil {
		w.t.Fatal(err)
	}
	args := []string{"join", "--data-dir", m.dir, "--token-file", file, "--address", m.link}
	for _, other := range w.running() {
		args = append(args, "--scheduler", other.link)
	}
	return args
}

// account makes an account at a machine; its answer acknowledges it.
func (w *world) account(m *machine, name string) error {
	status, out, err := w.ask(m, w.keys.AdminKey, http.MethodPost, "/admin/v1/accounts", map[string]any{"name": name})
	if err == nil && status != http.StatusCreated {
		err = errors.New(string(out))
	}
	return err
}

// accounts lists the names of accounts as a machine answers.
func (w *world) accounts(m *machine) string {
	w.t.Helper()
	var names string
	w.eventually("accounts are listed", func() bool {
		status, out, err := w.ask(m, w.keys.AdminKey, http.MethodGet, "/admin/v1/accounts", nil)
		names = string(out)
		return err == nil && status == http.StatusOK
	}, func() string { return names })
	return names
}
