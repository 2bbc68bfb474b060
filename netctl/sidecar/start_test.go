package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
)

// The processes of these tests, by their commands.
const (
	prompt       = "prompt"
	lateToListen = "late-to-listen"
	lateToAnswer = "late-to-answer"
	mute         = "mute" // it never listens
)

// standIn is a process without its confinement, of which cmd/gantry-net has the test. It leaves a file that tells that it began.
func standIn(args []string) error {
	if err := os.WriteFile(filepath.Join(args[4], fmt.Sprintf("began.%d", os.Getpid())), nil, 0o600); err != nil {
		return err
	}
	switch args[1] {
	case lateToListen:
		time.Sleep(5500 * time.Millisecond)
	case mute:
		select {}
	}
	if err := unix.Listen(controlFD, 8); err != nil {
		return err
	}
	if args[1] == lateToAnswer {
		time.Sleep(4500 * time.Millisecond)
	}
	l, err := net.FileListener(os.NewFile(controlFD, "control"))
	if err != nil {
		return err
	}
	return Serve(context.Background(), l, args[2], Program{
		Serve: func([]*os.File, func(error), *slog.Logger) (Handler, error) { return echo{}, nil },
	}, nil, slog.New(slog.DiscardHandler))
}

// kept is what an agent has that keeps a process of a kind.
func kept(t *testing.T, name string) Config {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Name: name, Program: self, Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	t.Cleanup(func() {
		if err := New(c).Remove(context.Background()); err != nil {
			t.Error(err)
		}
		for _, pid := range c.begun(t) {
			_ = unix.Kill(pid, unix.SIGKILL) // what a test that failed leaves
		}
	})
	return c
}

// begun returns the processes that were ever started.
func (c Config) begun(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		var pid int
		if n, _ := fmt.Sscanf(e.Name(), "began.%d", &pid); n == 1 {
			pids = append(pids, pid)
		}
	}
	return pids
}

func soon(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come to be so: " + what)
		}
	}
}

func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// TestASlowStart has processes that are slow to start, as on a slow machine that boots: each is waited for and not started again.
func TestASlowStart(t *testing.T) {
	for _, name := range []string{lateToListen, lateToAnswer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := kept(t, name)
			client := New(c)
			defer client.Close()
			first, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if err := client.Poke(first); !errors.Is(err, ipc.ErrDown) || !strings.Contains(err.Error(), "does not answer yet") {
				t.Errorf("before it stands: %v", err)
			}
			soon(t, "it stands", func() bool { return client.Poke(t.Context()) == nil })
			if all := c.begun(t); len(all) != 1 {
				t.Errorf("there were the processes %v", all)
			}
		})
	}
}

// TestWhatDoesNotStandIsNotLeft ends an agent before the process that it started listens.
func TestWhatDoesNotStandIsNotLeft(t *testing.T) {
	c := kept(t, mute)
	client := New(c)
	client.begin()
	soon(t, "it began", func() bool { return len(c.begun(t)) == 1 })
	client.Close()
	if pid := c.begun(t)[0]; running(pid) {
		t.Errorf("process %d is there still, and nobody reaches it", pid)
	}
}

// TestAnAgentThatEndsEndsNothing ends an agent while it takes over a process that is slow to answer.
func TestAnAgentThatEndsEndsNothing(t *testing.T) {
	c := kept(t, prompt)
	first := New(c)
	if err := first.Poke(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Close()
	pid := c.begun(t)[0]
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := New(c)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := second.Poke(ctx); !errors.Is(err, ipc.ErrDown) {
		t.Errorf("it answers: %v", err)
	}
	second.Close()
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	third := New(c)
	defer third.Close()
	if conn, err := third.Conn(t.Context()); err != nil || conn.PID() != pid {
		t.Errorf("the process was not left alone: %v", err)
	}
}

// become runs the process that the program was started as, if it was.
func become(args []string) {
	if len(args) < 5 || args[0] != "gantry-net" {
		return
	}
	if err := standIn(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(1)
	}
	syscall.Exit(0) // os.Exit has a program with a race detector wait for a second
}
