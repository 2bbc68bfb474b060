package dev

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const patience = 30 * time.Second

// bench is a folder with fake programs and everything that one dev uses.
type bench struct {
	t      *testing.T
	dir    string
	events string
	cfg    Config
	out    *safeBuffer
}

// safeBuffer is a buffer that a test reads while dev writes.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newBench(t *testing.T) *bench {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := func(name string) string {
		at := filepath.Join(dir, "bin", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(self, at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	b := &bench{t: t, dir: dir, events: filepath.Join(dir, "events"), out: &safeBuffer{}}
	t.Setenv(eventsVar, b.events)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each child under the race detector ends a second late
	b.cfg = Config{
		DataDir: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", SimulateGPUs: []string{"NVIDIA B200:2"},
		Binaries: Binaries{
			Scheduler: path("gantry-scheduler"), Agent: path("gantry-agent"), Logger: path("gantry-logger"), Net: path("gantry-net"), Containerd: path("containerd"),
		},
		StateHome: filepath.Join(dir, "state"), Out: b.out, Log: slog.New(slog.NewTextHandler(b.out, nil)), Version: "test",
		tune: tuning{backoffMin: 10 * time.Millisecond, backoffMax: 100 * time.Millisecond, ready: patience, grace: 5 * time.Second, shims: 100 * time.Millisecond, runRoot: dir},
	}
	path("devmain")
	path("crasher")
	path("stubborn")
	return b
}

// run runs dev until stop is called, which returns what Run returned.
func (b *bench) run() (stop func() error) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, b.cfg) }()
	var once sync.Once
	var result error
	stop = func() error {
		once.Do(func() {
			cancel()
			result = <-ended
		})
		return result
	}
	b.t.Cleanup(func() { _ = stop() })
	b.wait("dev.json", func() bool {
		select {
		case err := <-ended:
			ended <- err
			b.t.Fatalf("dev ended: %v\n%s", err, b.out)
		default:
		}
		_, err := ReadFile(b.cfg.DataDir)
		return err == nil
	})
	return stop
}

func (b *bench) wait(what string, holds func() bool) {
	b.t.Helper()
	if err := waitFor(context.Background(), patience, holds); err != nil {
		b.t.Fatalf("%s: %v\n%s", what, err, b.out)
	}
}

func (b *bench) file() File {
	b.t.Helper()
	f, err := ReadFile(b.cfg.DataDir)
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

func (b *bench) noted() []string {
	text, err := os.ReadFile(b.events)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(strings.ReplaceAll(string(text), " ", "_"), "\n", " "))
}

func (b *bench) behave(behaviour string) {
	if err := os.WriteFile(b.events+"."+behaviour, nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func pidOf(f File, role string) int {
	for _, p := range f.Processes {
		if p.Role == role {
			return p.PID
		}
	}
	return 0
}

// nothingLeft fails when a process names the bench's folder, or its short folder for sockets is there.
func (b *bench) nothingLeft() {
	b.t.Helper()
	for _, pid := range processes() {
		if words := commandLine(pid); pid != os.Getpid() && strings.Contains(strings.Join(words, " "), b.dir) {
			b.t.Errorf("process %d is left: %q", pid, words)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(b.dir, "gantry-*")); len(left) > 0 {
		b.t.Errorf("left: %q", left)
	}
	if _, err := ReadFile(b.cfg.DataDir); !errors.Is(err, fs.ErrNotExist) {
		b.t.Errorf("dev.json is left: %v", err)
	}
}
