package ctrd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"

	"gantry/agent/containerfs"
	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

// TestFreeze: a frozen process does nothing, is still there for an agent that begins, goes on where it was, and ends by SIGKILL when it is
// thawed. All of it may be asked for twice, and of what is not there.
func TestFreeze(t *testing.T) {
	b := setup(t)
	ctx := t.Context()
	s := b.spec(b.local(nil), `sh -c "while true; do echo; sleep 0.01; done"`)
	b.start(s)
	cpu := func() string {
		text, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(b.look(s.Pod).PID), "schedstat"))
		must(t, err)
		return string(text)
	}
	frozen := func(want bool) {
		t.Helper()
		if c := b.look(s.Pod); c.Frozen != want || c.Task != pod.TaskRunning || c.PID == 0 {
			t.Errorf("frozen %t: %+v", want, c)
		}
	}
	moves := func() {
		t.Helper()
		before := cpu()
		must(t, ctrdtest.Eventually(time.Minute, func() error {
			if cpu() == before {
				return fmt.Errorf("it does nothing")
			}
			return nil
		}))
	}
	moves()
	frozen(false)
	for range 2 {
		must(t, b.r.Freeze(ctx, s.Pod, true))
	}
	frozen(true)
	before := cpu()
	for deadline := time.Now().Add(200 * time.Millisecond); time.Now().Before(deadline); {
		if now := cpu(); now != before {
			t.Fatalf("it ran while it was frozen: %s, then %s", before, now)
		}
	}
	for range 2 {
		must(t, b.r.Freeze(ctx, s.Pod, false))
	}
	frozen(false)
	moves()
	must(t, b.r.Freeze(ctx, s.Pod, true))
	must(t, b.r.Signal(ctx, s.Pod, int(syscall.SIGKILL)))
	must(t, b.r.Freeze(ctx, s.Pod, false))
	must(t, b.r.Wait(ctx, s.Pod))
	if c := b.look(s.Pod); c.Task != pod.TaskStopped || c.Frozen || c.ExitCode != 137 {
		t.Errorf("after SIGKILL: %+v", c)
	}
	for _, id := range []fleet.PodID{s.Pod, "nobody"} {
		must(t, b.r.Freeze(ctx, id, true))
		must(t, b.r.Freeze(ctx, id, false))
	}
	b.remove(s.Pod)
	s = b.spec(b.local(nil), "sleep 1000")
	b.start(s)
	must(t, b.r.Freeze(ctx, s.Pod, true))
	b.remove(s.Pod) // also what is frozen
}

// TestAThawOfWhatTheShimFroze: an agent of before had the shim freeze a container; commands run in it again after the thaw.
func TestAThawOfWhatTheShimFroze(t *testing.T) {
	x := setupExec(t, nil)
	_, err := x.r.client.TaskService().Pause(x.r.in(t.Context()), &tasks.PauseTaskRequest{ContainerID: string(x.s.Pod)})
	must(t, err)
	if !x.look(x.s.Pod).Frozen {
		t.Error("it is not frozen")
	}
	must(t, x.r.Freeze(t.Context(), x.s.Pod, false))
	if x.look(x.s.Pod).Frozen {
		t.Error("it is frozen")
	}
	if out, diag, code := x.run(containerfs.ExecSpec{Command: []string{"echo", "again"}}, ""); out != "again\n" || code != 0 {
		t.Errorf("%q, %q, %d", out, diag, code)
	}
}

// TestFreezerOfTheSecondVersion freezes a process by a hierarchy of cgroup v2.
func TestFreezerOfTheSecondVersion(t *testing.T) {
	root := t.TempDir()
	must(t, unix.Mount("none", root, "cgroup2", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(root, 0)) })
	c := cgroupFS{root: root, parent: "gantry-freezer-test"}
	if err := c.freeze(t.Context(), "one", true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a group: %v", err)
	}
	must(t, os.MkdirAll(filepath.Join(root, c.path("one")), 0o755))
	t.Cleanup(func() {
		must(t, c.clear(context.Background(), "one"))
		c.removeParents()
	})
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	must(t, os.WriteFile(filepath.Join(root, c.path("one"), "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	must(t, c.freeze(t.Context(), "one", true))
	is := func(want bool) {
		t.Helper()
		if got, err := c.frozen("one"); got != want || err != nil {
			t.Errorf("frozen is %t, %v", got, err)
		}
	}
	is(true)
	_, err = in.Write([]byte("x"))
	must(t, err)
	got := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(out, make([]byte, 1))
		got <- err
	}()
	select {
	case err := <-got:
		t.Errorf("it ran while it was frozen: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	must(t, c.freeze(t.Context(), "one", false))
	must(t, <-got)
	is(false)
	must(t, in.Close())
	must(t, cmd.Wait())
}
