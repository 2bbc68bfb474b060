package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain is also the process that TestKillAtAnyTime kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("GANTRY_TEST_DISKS"); dir != "" {
		fmt.Fprintln(os.Stderr, disksForEver(dir, os.Getenv("GANTRY_TEST_MECHANISM")))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// disksForEver makes, keeps, grows, renames and removes disks until it fails.
func disksForEver(dir, mechanism string) error {
	p, err := Open(Config{Dir: dir, Mechanism: mechanism, Direct: mechanism == Loop})
	if err != nil {
		return err
	}
	ctx := context.Background()
	for gb := int64(1); ; gb++ {
		at, err := p.Keep(ctx, "kept", 1+gb%64)
		if err != nil {
			return err
		}
		if err := noted(at); err != nil {
			return err
		}
		if _, err := p.Make(ctx, "scratch", 1+gb%3); err != nil {
			return err
		}
		if err := errors.Join(p.Rename(ctx, "moved", "moved.1"), p.Rename(ctx, "moved.1", "moved")); err != nil {
			return err
		}
		if at, err = p.Keep(ctx, "moved", 1); err != nil {
			return err
		}
		if err := noted(at); err != nil {
			return err
		}
		if err := p.Remove(ctx, "scratch"); err != nil {
			return err
		}
	}
}

// noted checks the note of a disk that is kept.
func noted(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "note"))
	if err == nil && string(b) != "kept" {
		err = fmt.Errorf("the note is %q", b)
	}
	return err
}

func TestKillAtAnyTime(t *testing.T) {
	p := openPool(t, Loop, true)
	ctx := t.Context()
	for _, name := range []string{"kept", "moved"} {
		dir, err := p.Keep(ctx, name, 1)
		must(t, err)
		write(t, dir, "note", "kept")
	}
	for range 8 {
		killedAfter(t, p.dir, Loop, time.Duration(20+rand.IntN(120))*time.Millisecond)
		again, err := Open(Config{Dir: p.dir, Mechanism: Loop, Direct: true})
		must(t, err)
		if err := again.Rename(ctx, "moved.1", "moved"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		for _, name := range []string{"kept", "moved"} {
			dir, err := again.Keep(ctx, name, 1)
			must(t, err)
			must(t, noted(dir))
		}
		dir, err := again.Make(ctx, "scratch", 1)
		must(t, err)
		if left := entries(t, dir); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
		must(t, again.Remove(ctx, "scratch"))
		names, err := again.Names()
		if got := strings.Join(names, " "); err != nil || got != "kept moved" {
			t.Errorf("disks %q, %v", got, err)
		}
	}
}

// killedAfter runs disksForEver in another process for a while.
func killedAfter(t *testing.T, dir, mechanism string, d time.Duration) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "GANTRY_TEST_DISKS="+dir, "GANTRY_TEST_MECHANISM="+mechanism)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	timer := time.AfterFunc(d, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the other process: %v", err)
	}
}
