package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/test/devtest"
)

// cliWith is cli with something to read.
func cliWith(t *testing.T, d *devtest.Dev, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), reachTimeout)
	defer cancel()
	cmd := must[*exec.Cmd](t)(d.Command(ctx, args...))
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestExecInARealPod runs commands through the command line, the API, the scheduler, the agent and
// containerd.
func TestExecInARealPod(t *testing.T) {
	t.Parallel()
	d := suite.dev
	body := devtest.CPUPod("exec", devtest.Sleeper)
	body.Env = map[string]string{"GREETING": "from the pod"}
	id := create(t, d, body).ID
	reach(t, d, id, fleet.StatusRunning)
	out, errs, code := cli(t, d, "pod", "exec", id, "--", "sh", "-c", `echo "$GREETING"; echo trouble >&2; exit 7`)
	if out != "from the pod\n" || errs != "trouble\n" || code != 7 {
		t.Errorf("stdout %q, stderr %q, exit code %d", out, errs, code)
	}
	large := strings.Repeat("0123456789abcdef\n", 20000)
	if out, errs, code := cliWith(t, d, large, "pod", "exec", "-i", id, "--", "cat"); out != large || code != 0 {
		t.Errorf("%d bytes came back of %d, exit code %d: %s", len(out), len(large), code, errs)
	}
	if _, errs, code := cli(t, d, "pod", "exec", id, "--", "/no/such/program"); code != 127 || errs == "" {
		t.Errorf("a program that is not there: exit code %d, %q", code, errs)
	}
	act(t, d, id, fleet.ActionStop)
	reach(t, d, id, fleet.StatusExited)
	if _, errs, code := cli(t, d, "pod", "exec", id, "--", "true"); code == 0 || errs == "" {
		t.Errorf("a stopped pod: exit code %d, %q", code, errs)
	}
}

// TestCopyIntoAndOutOfARealPod takes a folder there and back.
func TestCopyIntoAndOutOfARealPod(t *testing.T) {
	t.Parallel()
	d := suite.dev
	id := create(t, d, devtest.CPUPod("copy", devtest.Sleeper)).ID
	reach(t, d, id, fleet.StatusRunning)
	from, to := filepath.Join(t.TempDir(), "tree"), t.TempDir()
	data := bytes.Repeat([]byte("data"), 1<<18)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(from, "sub"), 0o755),
		os.WriteFile(filepath.Join(from, "sub", "file"), data, 0o640),
		os.WriteFile(filepath.Join(from, "run.sh"), []byte("#!/bin/sh\necho ran\n"), 0o755),
		os.Symlink("sub/file", filepath.Join(from, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if out, errs, code := cli(t, d, "pod", "cp", from, id+":/tmp/there"); code != 0 {
		t.Fatalf("into the pod: %d %s %s", code, out, errs)
	}
	if out, errs, code := cli(t, d, "pod", "exec", id, "--", "sh", "-c", "/tmp/there/run.sh && wc -c < /tmp/there/link"); out != "ran\n1048576\n" || code != 0 {
		t.Errorf("in the pod: %q %s %d", out, errs, code)
	}
	back := filepath.Join(to, "back")
	if out, errs, code := cli(t, d, "pod", "cp", id+":/tmp/there", back); code != 0 {
		t.Fatalf("out of the pod: %d %s %s", code, out, errs)
	}
	got := must[[]byte](t)(os.ReadFile(filepath.Join(back, "sub", "file")))
	info := must[os.FileInfo](t)(os.Stat(filepath.Join(back, "sub", "file")))
	if link := must[string](t)(os.Readlink(filepath.Join(back, "link"))); !bytes.Equal(got, data) || info.Mode().Perm() != 0o640 || link != "sub/file" {
		t.Errorf("%d bytes, mode %v, link %q", len(got), info.Mode(), link)
	}
	if _, errs, code := cli(t, d, "pod", "cp", id+":/no/such", back); code == 0 || errs == "" {
		t.Errorf("what is not there: exit code %d, %q", code, errs)
	}
	if _, errs, code := cli(t, d, "pod", "cp", id+":/proc/1/environ", back); code == 0 || errs == "" {
		t.Errorf("/proc: exit code %d, %q", code, errs)
	}
}

// TestExecEndsWithItsAgent kills the agent under a command: the client is told, and nothing of it stays.
func TestExecEndsWithItsAgent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dev")
	d, err := suite.site.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	}()
	c := user(t, d)
	made, err := c.CreatePod(t.Context(), devtest.CPUPod("exec", devtest.Sleeper))
	if err != nil {
		t.Fatal(err)
	}
	id := made.Value.ID
	reach(t, d, id, fleet.StatusRunning)
	const marker = "sleep 86400.7"
	ctx, cancel := context.WithTimeout(t.Context(), reachTimeout)
	defer cancel()
	cmd := must[*exec.Cmd](t)(d.Command(ctx, "pod", "exec", id, "--", "sleep", "86400.7"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, func() error { _, err := inPod(marker); return err })
	kill9(t, d, "agent")
	if err := cmd.Wait(); err == nil || ctx.Err() != nil {
		t.Errorf("the client ended with %v, %v", err, ctx.Err())
	}
	await(t, func() error {
		if pid, err := inPod(marker); err == nil {
			return errors.New("process " + pid + " is still there")
		}
		return nil
	})
	if got := reach(t, d, id, fleet.StatusRunning); got.Incarnation != 1 {
		t.Errorf("the pod itself was started again: incarnation %d", got.Incarnation)
	}
}

// inPod returns the id of the process whose whole command line is the marker.
func inPod(marker string) (string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return "", err
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err == nil && strings.TrimSuffix(strings.ReplaceAll(string(data), "\x00", " "), " ") == marker {
			return filepath.Base(filepath.Dir(name)), nil
		}
	}
	return "", errors.New("no process has the command line " + marker)
}
