package cephtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// answers reports whether a folder can be made in another. A process of its own does it: one that waits for a server cannot be
// killed. It ends with the mount, at the latest.
func answers(t *testing.T, dir string) bool {
	t.Helper()
	cmd := exec.Command("mkdir", filepath.Join(dir, fmt.Sprint(time.Now().UnixNano()))) //nolint:noctx // as said
	must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	timer := time.NewTimer(500 * time.Millisecond)
	defer timer.Stop()
	select {
	case err := <-done:
		return err == nil
	case <-timer.C:
		return false
	}
}

func wantAnswer(t *testing.T, c *Cluster, dir, when string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !answers(t, dir); {
		if time.Now().After(deadline) {
			t.Fatal(c.explained(fmt.Errorf("the mount does not answer %s", when)))
		}
	}
}

func TestClusterAndItsFaults(t *testing.T) {
	ctx := t.Context()
	c := StartT(t)
	said := c.explained(errors.New("it failed")).Error()
	if !strings.Contains(said, "it failed") || !strings.Contains(said, "--- mon.log\n") || !strings.Contains(said, "--- mds.log\n") {
		t.Errorf("a failed start would say %s", said)
	}
	admin, err := c.Mount(ctx, Admin)
	must(t, err)
	must(t, os.Chmod(admin, 0o711))
	plain, err := c.Mount(ctx, Plain)
	must(t, err)
	wantAnswer(t, c, plain, "at first")

	must(t, c.Freeze(MDS))
	if answers(t, plain) {
		t.Error("a mount answers while the metadata server is frozen")
	}
	must(t, c.Thaw(MDS))
	wantAnswer(t, c, plain, "when the metadata server goes on")

	must(t, c.StopMDS())
	if answers(t, plain) {
		t.Error("a mount answers without a metadata server")
	}
	must(t, c.StartMDS(ctx))
	wantAnswer(t, c, plain, "when the metadata server is back")

	must(t, c.StopMon())
	wantAnswer(t, c, plain, "without a monitor")
	must(t, c.StartMon(ctx))

	tryRevoke(t, c)
	wantAnswer(t, c, plain, "after another's key was revoked")

	dir := c.dir
	must(t, c.Close())
	must(t, c.Close())
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	if pids := users(dir); len(pids) > 0 {
		t.Errorf("processes are still there: %v", pids)
	}
}

// tryRevoke checks that a client without its key can neither mount nor use what it had mounted, until it has another.
func tryRevoke(t *testing.T, c *Cluster) {
	t.Helper()
	ctx := t.Context()
	key, err := c.AddClient(ctx, "third", "allow rw path="+Folder)
	if err != nil || key == "" || c.Key("third") != key {
		t.Fatalf("another client has the key %q: %v", key, err)
	}
	third, err := c.Mount(ctx, "third")
	must(t, err)
	must(t, c.Revoke(ctx, "third"))
	if answers(t, third) {
		t.Error("a mount answers without its key")
	}
	if _, err := c.Mount(ctx, "third"); err == nil {
		t.Error("a client without a key can mount")
	}
	if _, err := c.AddClient(ctx, "third", "allow rw path="+Folder); err != nil {
		t.Fatal(err)
	}
	again, err := c.Mount(ctx, "third")
	must(t, err)
	wantAnswer(t, c, again, "with another key")
}

func TestSweep(t *testing.T) {
	parent := t.TempDir()
	ended := exec.CommandContext(t.Context(), "true")
	must(t, ended.Run())
	dead := filepath.Join(parent, fmt.Sprintf("%s%d-1", tempPrefix, ended.ProcessState.Pid()))
	own := filepath.Join(parent, fmt.Sprintf("%s%d-1", tempPrefix, os.Getpid()))
	at := filepath.Join(dead, "mnt")
	must(t, os.MkdirAll(at, 0o700))
	must(t, os.Mkdir(own, 0o700))
	must(t, unix.Mount("test", at, "tmpfs", 0, ""))
	daemon := exec.CommandContext(t.Context(), "sh", "-c", "read x", filepath.Join(dead, "ceph.conf"))
	in, err := daemon.StdinPipe()
	must(t, err)
	must(t, daemon.Start())
	must(t, sweep(parent))
	if err := daemon.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("a daemon that was left: %v", err)
	}
	_ = in.Close() // Wait has
	if left, _ := os.ReadDir(parent); len(left) != 1 || left[0].Name() != filepath.Base(own) {
		t.Errorf("left: %v", left)
	}
}
