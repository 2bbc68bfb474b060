// Package survive shows that what runs on a host does not notice the death of what looks after it: real agents and a
// real scheduler as processes, a containerd of the test's own, and pods whose life is cut at every point at which an
// agent can die. It needs root.
//
// CHAOS=long makes faults last minutes instead of seconds.
package survive

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/test/devtest"
)

const (
	image = "docker.io/library/busybox:survive"

	// patience is how long what must happen may take on a busy machine.
	patience = 2 * time.Minute
)

// long reports whether faults last as long as operators fear, rather than seconds.
var long = os.Getenv("CHAOS") == "long"

// suite is what the tests share.
var suite struct {
	dir     string // short, since sockets lie below it
	archive string // of the image
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	fail := func(err error) int { fmt.Fprintln(os.Stderr, "survive:", err); return 1 }
	if os.Geteuid() != 0 {
		return fail(errors.New("needs root: it starts containers"))
	}
	var err error
	if suite.dir, err = os.MkdirTemp("", "gsv"); err != nil {
		return fail(err)
	}
	defer func() {
		if err := os.RemoveAll(suite.dir); err != nil {
			code = fail(err)
		}
	}()
	if err := build(); err != nil {
		return fail(err)
	}
	return m.Run()
}

// program returns the path of a program that was built for these tests. Those with fault points are in "points", an
// agent of the release before in "before".
func program(kind, name string) string { return filepath.Join(suite.dir, kind, name) }

// build builds the programs, and the image archive.
func build() error {
	suite.archive = filepath.Join(suite.dir, "busybox.tar")
	tasks := [][]string{
		{"build", "-tags", "faultpoints", "-ldflags", "-X main.version=v2", "-o", program("points", ""), "./cmd/gantry", "./cmd/gantry-agent", "./cmd/gantry-logger", "./cmd/gantry-net", "./cmd/gantry-scheduler"},
		{"build", "-ldflags", "-X main.version=v1", "-o", program("before", ""), "./cmd/gantry-agent"},
		{"run", "./test/busyboximage", "--ref", image, suite.archive},
	}
	errs := make(chan error, len(tasks))
	for _, args := range tasks {
		go func() {
			if args[0] == "build" {
				if err := os.MkdirAll(args[slices.Index(args, "-o")+1], 0o755); err != nil {
					errs <- err
					return
				}
				args = slices.Insert(args, 1, "-trimpath", "-buildvcs=false", "-p", fmt.Sprint(runtime.NumCPU()))
			}
			cmd := exec.Command("go", args...)
			cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
			}
			errs <- err
		}()
	}
	var all error
	for range tasks {
		all = errors.Join(all, <-errs)
	}
	return all
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func await(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := devtest.Until(patience, check); err != nil {
		t.Fatalf("%s: after %v: %v", what, patience, err)
	}
}
