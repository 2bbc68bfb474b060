package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/test/devtest"
)

// TestDevOnAGivenContainerd lets a second Gantry use the containerd of the first: they do not meet.
func TestDevOnAGivenContainerd(t *testing.T) {
	t.Parallel()
	socket, err := suite.dev.Argument("agent", "--containerd")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "dev")
	d, err := suite.site.Start(dir, "--containerd", socket)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			if err := d.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
	defer stop()
	mine, err := user(t, d).CreatePod(t.Context(), devtest.CPUPod("guest", devtest.Sleeper))
	if err != nil {
		t.Fatal(err)
	}
	other := create(t, suite.dev, devtest.CPUPod("host", devtest.Sleeper))
	reach(t, d, mine.Value.ID, fleet.StatusRunning)
	before := reach(t, suite.dev, other.ID, fleet.StatusRunning)
	stop()
	if err := suite.site.NothingLeft(mine.Value.ID); err != nil {
		t.Error(err)
	}
	if after := reach(t, suite.dev, other.ID, fleet.StatusRunning); after.Incarnation != before.Incarnation {
		t.Error("stopping one Gantry touched the other's pod")
	}
}

// TestKilledDevIsTakenOver kills the supervisor itself: pods run on, and the next one on the folder
// finds everything.
func TestKilledDevIsTakenOver(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dev")
	d, err := suite.site.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	const marker = "sleep 86400.9"
	made, err := user(t, d).CreatePod(t.Context(), devtest.CPUPod("orphan", `trap "exit 0" TERM; `+marker+` & wait`))
	if err != nil {
		t.Fatal(err)
	}
	reach(t, d, made.Value.ID, fleet.StatusRunning)
	var pid int
	await(t, func() (err error) { pid, err = devtest.ProcessOf(marker); return err })
	first, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	next, err := suite.site.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := next.Stop(); err != nil {
			t.Error(err)
		}
		if err := suite.site.NothingLeft(made.Value.ID); err != nil {
			t.Error(err)
		}
	}()
	second, err := next.Info()
	if err != nil {
		t.Fatal(err)
	}
	if first.APIKey != second.APIKey {
		t.Error("the key changed")
	}
	after := reach(t, next, made.Value.ID, fleet.StatusRunning)
	if got, err := devtest.ProcessOf(marker); got != pid || after.Incarnation != 1 {
		t.Errorf("process %d, was %d; incarnation %d: %v", got, pid, after.Incarnation, err)
	}
}

func TestDevRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Close() })
	for name, args := range map[string][]string{
		"a port that is taken":       {"--listen", busy.Addr().String()},
		"GPUs that cannot be read":   {"--listen", "127.0.0.1:0", "--simulate-gpus", "H100"},
		"a folder that is in use":    {"--listen", "127.0.0.1:0", "--data-dir", suite.dev.Dir},
		"an archive that is missing": {"--listen", "127.0.0.1:0", "--image-archive", "/no/such.tar"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "dev")
			if !strings.Contains(strings.Join(args, " "), "--data-dir") {
				args = append(args, "--data-dir", dir)
			}
			out, errs, code := cli(t, suite.dev, append([]string{"dev"}, args...)...)
			if code == 0 || errs == "" {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errs)
			}
			if _, err := os.Stat(filepath.Join(dir, "dev.json")); !errors.Is(err, os.ErrNotExist) {
				t.Error(fmt.Errorf("dev.json: %w", err))
			}
		})
	}
}
