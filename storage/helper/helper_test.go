package helper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case "storage-helper":
			os.Exit(Main(testFuncs))
		case "caller": // one that is killed
			c := &Caller{Argv: []string{os.Args[0], "storage-helper"}, Env: []string{"GORACE=atexit_sleep_ms=0"}}
			_ = c.Call(context.Background(), "g", "echo", 1, nil)
			file, pid := os.Getenv("PID_FILE"), 0
			for pid == 0 {
				c.mu.Lock()
				if c.spare != nil {
					pid = c.spare.PID()
				}
				c.mu.Unlock()
			}
			_ = os.WriteFile(file+"-spare", []byte(strconv.Itoa(pid)), 0o600)
			spare := c.takeSpare()
			_ = c.Call(context.Background(), "g", "pid", file, nil)
			runtime.KeepAlive(spare)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

var testFuncs = map[string]Func{
	"echo": func(_ context.Context, in json.RawMessage) (any, error) { return in, nil },
	"stat": func(_ context.Context, in json.RawMessage) (any, error) {
		var path string
		_ = json.Unmarshal(in, &path)
		info, err := os.Stat(path)
		if err != nil {
			return nil, ipc.Mark("lost", fmt.Errorf("look at it: %w", err))
		}
		return info.Size(), nil
	},
	"open": func(_ context.Context, in json.RawMessage) (any, error) {
		var path string
		_ = json.Unmarshal(in, &path)
		return os.Open(path)
	},
	"pid": func(ctx context.Context, in json.RawMessage) (any, error) {
		var path string
		_ = json.Unmarshal(in, &path)
		if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			return nil, err
		}
		select {}
	},
	"self": func(context.Context, json.RawMessage) (any, error) { return os.Getpid(), nil },
	"wait": func(ctx context.Context, _ json.RawMessage) (any, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	},
	"crash": func(context.Context, json.RawMessage) (any, error) { panic("out of order") },
	"flood": func(context.Context, json.RawMessage) (any, error) {
		return strings.Repeat("x", maxAnswer), nil
	},
	"environment": func(context.Context, json.RawMessage) (any, error) {
		return append(os.Environ(), os.Args[1:]...), nil
	},
}

func newCaller(t testing.TB) *Caller {
	t.Helper()
	c := &Caller{Argv: []string{os.Args[0], "storage-helper"}, Env: []string{"GORACE=atexit_sleep_ms=0"}}
	t.Cleanup(c.Close)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestCall(t *testing.T) {
	c := newCaller(t)
	t.Setenv("SECRET_OF_THE_CALLER", "1")
	var got string
	must(t, c.Call(within(t, 5*time.Second), "g", "echo", "héllo\n", &got))
	if got != "héllo\n" {
		t.Errorf("got %q", got)
	}
	must(t, c.Call(t.Context(), "g", "echo", strings.Repeat("x", 1<<18), nil))
	var seen []string
	must(t, c.Call(t.Context(), "g", "environment", nil, &seen))
	for _, s := range seen {
		if strings.Contains(s, "SECRET") {
			t.Errorf("the process has %s", s)
		}
	}
}

func TestErrorsCross(t *testing.T) {
	c := newCaller(t)
	err := c.Call(within(t, 5*time.Second), "g", "stat", "/no/file", nil)
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, unix.ENOENT) || ipc.Kind(err) != "lost" || !strings.Contains(err.Error(), "look at it") {
		t.Errorf("%v of kind %q", err, ipc.Kind(err))
	}
	for op, want := range map[string]string{"crash": "out of order", "none": "no operation", "flood": "without an answer"} {
		if err := c.Call(within(t, 5*time.Second), "g", op, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", op, err)
		}
	}
	if err := (&Caller{Argv: []string{"/no/program"}}).Call(t.Context(), "g", "echo", nil, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
	if err := c.Call(t.Context(), "g", "echo", strings.Repeat("x", maxRequest), nil); err == nil {
		t.Error("a request beyond the bound passed")
	}
}

func TestCallFD(t *testing.T) {
	c := newCaller(t)
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, []byte("content"), 0o600))
	f, err := c.CallFD(t.Context(), "g", "open", path)
	must(t, err)
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "content" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, c.Call(t.Context(), "g", "open", path, nil))
	if f, err := c.CallFD(t.Context(), "g", "open", path+"-"); f != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := c.CallFD(t.Context(), "g", "echo", path); f != nil || err == nil {
		t.Errorf("no file: %v, %v", f, err)
	}
}

func TestDeadlineAndCancel(t *testing.T) {
	c := newCaller(t)
	if err := c.Call(within(t, 300*time.Millisecond), "g", "wait", nil, nil); err == nil {
		t.Error("no error")
	}
	path := filepath.Join(t.TempDir(), "pid")
	err := c.Call(within(t, 400*time.Millisecond), "g", "pid", path, nil)
	if !errors.Is(err, ErrStuck) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if c.Stuck("g") != 0 {
		t.Error("a process that could be killed counts as stuck")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Call(ctx, "g", "echo", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestCallsOfAGroupWaitForEachOther(t *testing.T) {
	c := newCaller(t)
	var all sync.WaitGroup
	var errs atomic.Int32
	for range 5 * MostInGroup {
		all.Go(func() {
			if c.Call(within(t, 20*time.Second), "g", "echo", 1, nil) != nil {
				errs.Add(1)
			}
		})
	}
	all.Wait()
	if errs.Load() > 0 {
		t.Errorf("%d failed", errs.Load())
	}
}

// TestNothingIsLeftOfADeadCaller: the helper process ends with who called it.
func TestNothingIsLeftOfADeadCaller(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pid")
	caller := exec.Command(os.Args[0], "caller")
	caller.Env = append(os.Environ(), "PID_FILE="+path)
	must(t, caller.Start())
	var pids []int
	for _, file := range []string{path, path + "-spare"} {
		waitFor(t, "the helper process", func() bool {
			text, _ := os.ReadFile(file)
			pid, _ := strconv.Atoi(string(bytes.TrimSpace(text)))
			if pid > 0 {
				pids = append(pids, pid)
			}
			return pid > 0
		})
	}
	must(t, caller.Process.Kill())
	_ = caller.Wait()
	for _, pid := range pids {
		waitFor(t, "its end", func() bool { return unix.Kill(pid, 0) == unix.ESRCH })
	}
}

// TestOneProcessWaitsForTheNextCall: it is used for one call, and one that has died is not missed.
func TestOneProcessWaitsForTheNextCall(t *testing.T) {
	c := newCaller(t)
	var before int
	waiting := func() (pid int) {
		waitFor(t, "a process that waits", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.spare != nil {
				pid = c.spare.PID()
			}
			return pid != before && pid != 0
		})
		before = pid
		return pid
	}
	var pid int
	must(t, c.Call(t.Context(), "g", "self", nil, &pid))
	spare := waiting()
	must(t, c.Call(t.Context(), "g", "self", nil, &pid))
	if pid != spare {
		t.Errorf("process %d was asked, %d waited", pid, spare)
	}
	dead := waiting()
	must(t, unix.Kill(dead, unix.SIGKILL))
	waitFor(t, "its end", func() bool { return unix.Kill(dead, 0) == unix.ESRCH })
	must(t, c.Call(t.Context(), "g", "self", nil, &pid))
	spare = waiting()
	c.Close()
	if err := unix.Kill(spare, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("after Close process %d is still there: %v", spare, err)
	}
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain for", what)
		}
	}
}

// silent is a folder of a file system that answers nothing until it is let go.
type silent struct {
	fusefs.Inode
	go_   chan struct{}
	asked atomic.Int32
}

func (s *silent) Lookup(_ context.Context, _ string, _ *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	s.asked.Add(1)
	<-s.go_
	return nil, syscall.ENOENT
}

// due is a context whose deadline passes when over is closed.
type due struct {
	context.Context //nolint:containedctx // it is one
	over            chan struct{}
}

func (d due) Done() <-chan struct{} { return d.over }

func (d due) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestStuck: processes that even SIGKILL does not end are counted, and hinder nobody.
func TestStuck(t *testing.T) {
	root := &silent{go_: make(chan struct{})}
	var once sync.Once
	release := func() { once.Do(func() { close(root.go_) }) }
	zero := time.Duration(0)
	dir := t.TempDir()
	server, err := fusefs.Mount(dir, root, &fusefs.Options{
		EntryTimeout: &zero, MountOptions: fuse.MountOptions{Name: "silent", DirectMountStrict: true},
	})
	must(t, err)
	t.Cleanup(func() {
		release()
		must(t, server.Unmount())
	})
	c := newCaller(t)
	var calls sync.WaitGroup
	deadline := due{within(t, time.Minute), make(chan struct{})}
	for i := range MostInGroup + 2 {
		calls.Go(func() {
			err := c.Call(deadline, "dead", "stat", filepath.Join(dir, strconv.Itoa(i)), nil)
			if !errors.Is(err, ErrStuck) && !errors.Is(err, ErrTooManyStuck) {
				t.Errorf("%v", err)
			}
		})
	}
	waitFor(t, "as many calls as may be", func() bool { return root.asked.Load() == MostInGroup })
	close(deadline.over)
	calls.Wait()
	if n := c.Stuck("dead"); n != MostInGroup {
		t.Fatalf("%d are stuck", n)
	}
	if err := c.Call(t.Context(), "dead", "echo", 1, nil); !errors.Is(err, ErrTooManyStuck) {
		t.Errorf("one more: %v", err)
	}
	must(t, c.Call(within(t, 10*time.Second), "other", "echo", 1, nil))
	release()
	waitFor(t, "the end of the stuck ones", func() bool { return c.Stuck("dead") == 0 })
	must(t, c.Call(within(t, 10*time.Second), "dead", "echo", 1, nil))
}

func TestClose(t *testing.T) {
	c := newCaller(t)
	path := filepath.Join(t.TempDir(), "pid")
	done := make(chan error, 1)
	go func() { done <- c.Call(context.Background(), "g", "pid", path, nil) }()
	waitFor(t, "the helper process", func() bool {
		text, _ := os.ReadFile(path)
		return len(text) > 0
	})
	c.Close()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v", err)
	}
	if err := c.Call(t.Context(), "g", "echo", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

func BenchmarkCall(b *testing.B) {
	c := newCaller(b)
	for b.Loop() {
		must(b, c.Call(context.Background(), "g", "echo", 1, nil))
	}
}
