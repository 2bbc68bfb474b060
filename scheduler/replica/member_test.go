package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// patience bounds every wait for something that should happen soon.
const patience = 2 * time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until ok holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

// loopback is a StreamLayer over TCP without any protection.
type loopback struct{ net.Listener }

func (loopback) Dial(address string, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", address, timeout)
}

// member is a node with its store, in a folder.
type member struct {
	*Node
	store *state.Store
	cfg   Config
	fatal chan error
}

// start starts a member over TCP on what is in dir; one in an empty folder is new.
func start(t testing.TB, dir, id, address string, change func(*Config)) *member {
	t.Helper()
	if list, err := os.ReadDir(dir); err == nil && len(list) == 0 {
		if err := Create(dir); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	m, err := tryStart(t, dir, id, l, change)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func tryStart(t testing.TB, dir, id string, l net.Listener, change func(*Config)) (*member, error) {
	t.Helper()
	store, err := state.Open(filepath.Join(dir, StateFile), state.Options{BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	m := &member{store: store, fatal: make(chan error, 1)}
	m.cfg = Config{
		Dir: dir, ID: id, Address: l.Addr().String(), Store: store, Streams: loopback{l},
		Log: slog.New(slog.NewTextHandler(logTo(t), nil)), Fatal: func(err error) { m.fatal <- err },
	}
	if change != nil {
		change(&m.cfg)
	}
	m.Node, err = Open(m.cfg)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	t.Cleanup(func() { m.stop(t) })
	return m, nil
}

// stop closes a member; closing it once more does nothing.
func (m *member) stop(t testing.TB) {
	t.Helper()
	if err := errors.Join(m.Close(), m.store.Close()); err != nil {
		t.Error(err)
	}
}

// testLog writes to the test's log as long as it runs.
type testLog struct {
	mu sync.Mutex
	t  testing.TB
}

func logTo(t testing.TB) io.Writer {
	l := &testLog{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.t = nil
	})
	return l
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

// one starts a cluster of one in a new folder and waits until it leads.
func one(t testing.TB, change func(*Config)) *member {
	t.Helper()
	m := start(t, t.TempDir(), "a", "127.0.0.1:0", change)
	if err := m.Bootstrap(within(t)); err != nil {
		t.Fatal(err)
	}
	m.ready(t)
	return m
}

// ready waits until the member leads and has applied everything.
func (m *member) ready(t testing.TB) {
	t.Helper()
	eventually(t, "it leads", func() bool { return m.IsLeader() && m.Barrier(within(t)) == nil })
}

func account(i int) state.PutAccount {
	return state.PutAccount{Account: fleet.Account{ID: fleet.AccountID(fmt.Sprintf("account-%06d", i))}}
}

// put proposes one account and fails the test unless it was recorded.
func (m *member) put(t testing.TB, i int) {
	t.Helper()
	res, err := m.Propose(within(t), account(i))
	if err != nil || len(res) != 1 || res[0].Err != nil {
		t.Fatalf("got %v, %v", res, err)
	}
}

func (m *member) accounts() int {
	n := 0
	_ = m.store.View(func(v *state.View) error { n = len(v.Accounts()); return nil })
	return n
}

func (m *member) hash(t testing.TB) string {
	t.Helper()
	h, err := m.store.Hash()
	if err != nil {
		t.Fatal(err)
	}
	return string(h)
}
