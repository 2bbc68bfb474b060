package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"gantry/storage/s3"
	"gantry/storage/s3/broker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSettings(t *testing.T) {
	good := runCmd{AgentDataDir: "/var/lib/gantry-agent", Region: "EU-RO-1", Listen: "127.0.0.1:0", Domain: []string{"s3.example"}, MaxPerAddress: 512}
	must(t, good.validate())
	if got := good.socket(); got != "/run/gantry-54b2/s3/agent.sock" {
		t.Errorf("the agent's socket is %s", got)
	}
	for what, change := range map[string]func(*runCmd){
		"one of --agent-socket": func(c *runCmd) { c.AgentSocket = "/x" },
		"--region":              func(c *runCmd) { c.Region = "a b" },
		"--listen":              func(c *runCmd) { c.Listen = "9000" },
		"go together":           func(c *runCmd) { c.TLSCert = "/x" },
		"--tls-cert":            func(c *runCmd) { c.TLSCert, c.TLSKey = "/none", "/none" },
		"--max-per-address":     func(c *runCmd) { c.MaxPerAddress = 5000 },
		"--console-origin":      func(c *runCmd) { c.ConsoleOrigin = []string{"https://api.test/console"} },
		"--domain":              func(c *runCmd) { c.Domain = []string{"a:9000"} },
		"no user":               func(c *runCmd) { c.User = "nobody-of-this-name" },
		"is root or owns":       func(c *runCmd) { c.User = "root" },
		"of network volumes":    func(c *runCmd) { c.User = "2147483648" },
	} {
		bad := good
		change(&bad)
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if who, err := (&runCmd{User: "4242"}).who(); err != nil || who != (identity{4242, 4242}) {
		t.Errorf("%v, %v", who, err)
	}
}

// fakeAgent is the agent's side.
type fakeAgent struct {
	mu    sync.Mutex
	dir   string
	err   error
	asked int
	opens int
}

func (a *fakeAgent) Access(context.Context, broker.Asked) (broker.Access, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	return broker.Access{Account: "acc1", Volumes: []broker.Volume{{ID: "vol1"}}}, a.err
}

func (a *fakeAgent) Open(context.Context, broker.Asked, string) (*os.File, broker.Opened, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.opens++; a.err != nil {
		return nil, broker.Opened{}, a.err
	}
	fd, err := unix.Open(a.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return os.NewFile(uintptr(fd), "folder"), broker.Opened{}, err
}

func (a *fakeAgent) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *fakeAgent) counts() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprint(a.asked, a.opens)
}

func newTestSource(t *testing.T) (*source, *fakeAgent, *time.Time) {
	t.Helper()
	a := &fakeAgent{dir: t.TempDir()}
	must(t, os.WriteFile(filepath.Join(a.dir, "file"), []byte("content"), 0o600))
	s := newSource(a, "EU-RO-1", slog.New(slog.DiscardHandler))
	now := time.Now()
	s.now = func() time.Time { return now }
	t.Cleanup(func() { s.replace("vol1", nil) })
	return s, a, &now
}

func TestKeysAreKeptForAMoment(t *testing.T) {
	s, a, now := newTestSource(t)
	want := func(counts string, werr bool) {
		t.Helper()
		got, err := s.Access(t.Context(), "user_1", "20260102")
		if (err != nil) != werr || !werr && len(got.Volumes) != 1 || a.counts() != counts {
			t.Errorf("%+v, %v after %s questions, not %s", got, err, a.counts(), counts)
		}
	}
	want("1 0", false)
	want("1 0", false)
	*now = now.Add(keepAccess)
	want("2 0", false)
	a.fail(errors.New("the agent is being replaced"))
	*now = now.Add(keepAccess)
	want("3 0", false)
	*now = now.Add(agentAway)
	want("4 0", true)
	a.fail(broker.ErrNoKey)
	want("5 0", true)
	if _, err := s.Access(t.Context(), "user_1", "20260102"); !errors.Is(err, s3.ErrNoKey) {
		t.Errorf("no key: %v", err)
	}
}

func TestFolders(t *testing.T) {
	s, a, now := newTestSource(t)
	open := func() *s3.Folder {
		t.Helper()
		f, err := s.Open(t.Context(), "user_1", "vol1")
		must(t, err)
		if text, err := f.Root.ReadFile("file"); err != nil || string(text) != "content" {
			t.Fatalf("%q, %v", text, err)
		}
		return f
	}
	here, err := os.Getwd()
	must(t, err)
	first := open()
	first.Release()
	first.Release() // once counts
	second := open()
	if got := a.counts(); got != "0 1" {
		t.Errorf("asked %s", got)
	}
	*now = now.Add(freshFolder)
	third := open() // its mount may be another by now
	if got := a.counts(); got != "0 2" || third.Root == second.Root {
		t.Errorf("asked %s", got)
	}
	if _, err := second.Root.Stat("file"); err != nil {
		t.Errorf("the old one is closed while it is used: %v", err)
	}
	second.Release()
	if _, err := second.Root.Stat("file"); err == nil {
		t.Error("the old one stays open")
	}
	third.Release()
	young := open()
	young.Broken() // it is as new as one can be
	young.Release()
	*now = now.Add(brokenFolder)
	young.Broken()
	open().Release()
	if got := a.counts(); got != "0 3" {
		t.Errorf("after a broken one asked %s", got)
	}
	a.fail(errors.New("the agent is being replaced"))
	*now = now.Add(freshFolder)
	open().Release()
	a.fail(&broker.Refused{Sentence: "the storage does not answer"})
	if _, err := s.Open(t.Context(), "user_1", "vol1"); err == nil {
		t.Error("a folder was opened that the agent refuses")
	}
	a.fail(nil)
	last := open()
	*now = now.Add(2 * idleFolder)
	s.dropIdle()
	if len(s.folders) != 1 {
		t.Error("a folder in use was dropped")
	}
	last.Release()
	*now = now.Add(2 * idleFolder)
	if s.dropIdle(); len(s.folders) != 0 {
		t.Error("an idle folder stays")
	}
	if now, err := os.Getwd(); err != nil || now != here {
		t.Errorf("the process is in %s now: %v", now, err)
	}
}
