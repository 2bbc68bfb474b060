package chaos

import (
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

	"gantry/test/chaos/lab"
)

// suite is what the tests share.
var suite struct {
	lab *lab.Lab
	bin string

	mu      sync.Mutex // guards what follows
	cluster *cluster   // of three schedulers, made by the first test that needs it
	broken  error      // why there is none
}

// long reports whether faults last as long as reliability.md says, rather than seconds.
var long = os.Getenv("CHAOS") == "long"

func TestMain(m *testing.M) {
	code, failed, err := summarize(func() int { return run(m) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos: read what the tests print:", err)
	}
	for _, text := range failed {
		fmt.Fprintln(os.Stderr, text)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int) {
	fail := func(err error) int { fmt.Fprintln(os.Stderr, "chaos:", err); return 1 }
	if os.Geteuid() != 0 {
		return fail(errors.New("needs root: it makes network namespaces and mounts"))
	}
	var err error
	if suite.lab, err = lab.New(); err != nil {
		return fail(err)
	}
	defer func() {
		if err := suite.lab.Close(); err != nil {
			code = fail(err)
		}
	}()
	suite.bin = filepath.Join(suite.lab.Dir, "bin")
	if err := build("./cmd/..."); err != nil {
		return fail(err)
	}
	code = m.Run()
	if c := suite.cluster; c != nil {
		c.stopHosts()
		if err := c.removeAgents(); err != nil {
			code = fail(err)
		}
		if code != 0 {
			c.printLogs(os.Stderr)
		}
	}
	return code
}

// build builds programs of this tree.
func build(what string) error {
	if err := os.MkdirAll(suite.bin, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", suite.bin+"/", what)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", what, err, out)
	}
	return nil
}

func binary(name string) string { return filepath.Join(suite.bin, name) }

// shared returns the cluster of three that tests share, whole and quiet.
func shared(t *testing.T) *cluster {
	t.Helper()
	suite.mu.Lock()
	defer suite.mu.Unlock()
	if suite.cluster == nil && suite.broken == nil {
		suite.cluster, suite.broken = startCluster("main", 3, 6)
	}
	if suite.broken != nil {
		t.Fatal("the shared cluster did not start: ", suite.broken)
	}
	c := suite.cluster
	t.Cleanup(func() {
		if err := c.heal(); err != nil {
			t.Error("heal: ", err)
		}
		if t.Failed() {
			c.printLogs(testWriter{t})
		}
	})
	if err := c.heal(); err != nil {
		t.Fatal("the cluster of the test before: ", err)
	}
	return c
}

type testWriter struct{ t *testing.T }

// Write logs.
func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(p))
	return len(p), nil
}

// until repeats a check until it passes or the time is over.
func until(limit time.Duration, check func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v: %w", limit, err)
		}
		time.Sleep(10 * time.Millisecond) // between two looks at a condition
	}
}

func await(t *testing.T, limit time.Duration, check func() error) {
	t.Helper()
	if err := until(limit, check); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pick chooses by whether the run is long.
func pick[T any](short, longer T) T {
	if long {
		return longer
	}
	return short
}

// printLogs writes what the daemons said last that is worth a look. With CHAOS_LOGS, the whole logs are copied to that folder.
func (c *cluster) printLogs(w io.Writer) {
	show := func(name, path string) {
		var lines []string
		for line := range strings.Lines(readTail(path, 1<<20)) {
			if !strings.Contains(line, `"level":"INFO"`) {
				lines = append(lines, line)
			}
		}
		_, _ = fmt.Fprintf(w, "--- %s\n%s\n", name, strings.Join(lines[max(0, len(lines)-12):], ""))
		if dir := os.Getenv("CHAOS_LOGS"); dir != "" {
			if text, err := os.ReadFile(path); err == nil {
				_ = os.WriteFile(filepath.Join(dir, name+".log"), text, 0o600) // it is for people
			}
		}
	}
	for _, m := range c.members {
		show(m.name, m.log)
	}
	for _, a := range c.agents {
		show(a.name, a.log)
	}
}

func readTail(path string, size int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > size {
		_, _ = f.Seek(-size, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	return string(text)
}
