package ctrd

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

func nopLog() *log.Logger { return log.New(io.Discard, "", 0) }

func TestDaemonAwayIsRetried(t *testing.T) {
	b := setup(t)
	b.d.Stop()
	begin := time.Now()
	_, err := b.r.Look(b.ctx, "none")
	wantFault(t, err, pod.Retry, sentenceAway)
	_, err = b.r.Pull(b.ctx, "127.0.0.1:1/x", nil, nil)
	wantFault(t, err, pod.Retry, sentenceAway)
	if d := time.Since(begin); d > time.Minute {
		t.Errorf("it took %v to see that the daemon is away", d)
	}
	b.d.Start()
	if err := ctrdtest.Eventually(time.Minute, func() error { _, err := b.r.Look(b.ctx, "none"); return err }); err != nil {
		t.Error(err)
	}
}

func TestDaemonKilledWhilePodRuns(t *testing.T) {
	b := setup(t)
	gate := b.TempDir()
	s := b.spec(b.local(nil), `sh -c "echo before; while [ ! -e /etc/hosts ] || [ \$(cat /etc/hosts) != go ]; do sleep 0.05; done; echo after; exit 7"`)
	s.Hosts = filepath.Join(gate, "hosts")
	if err := os.WriteFile(s.Hosts, []byte("no"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.start(s)
	b.log(s, "before")
	before := b.look(s.Pod)
	waited := make(chan error, 1)
	go func() { waited <- b.r.Wait(b.ctx, s.Pod) }()
	select {
	case err := <-waited:
		t.Fatal("the wait ended too early", err)
	case <-time.After(50 * time.Millisecond):
	}
	b.d.Kill()
	wantFault(t, <-waited, pod.Retry, "")
	_, err := b.r.Look(b.ctx, s.Pod)
	wantFault(t, err, pod.Retry, sentenceAway)
	if err := syscall.Kill(before.PID, 0); err != nil {
		t.Fatal("the process died with the daemon")
	}
	b.d.Start()
	var after pod.Container
	if err := ctrdtest.Eventually(time.Minute, func() error { after, err = b.r.Look(b.ctx, s.Pod); return err }); err != nil {
		t.Fatal(err)
	}
	if after != before {
		t.Fatalf("after %+v, before %+v", after, before)
	}
	go func() { waited <- b.r.Wait(b.ctx, s.Pod) }()
	if err := os.WriteFile(s.Hosts, []byte("go"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if c := b.finish(s.Pod); c.ExitCode != 7 {
		t.Fatalf("%+v", c)
	}
	b.log(s, "after")
	b.remove(s.Pod)
}

func TestExitWhileDaemonIsAway(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), `sh -c "trap 'exit 5' TERM; echo ready; while true; do sleep 0.05; done"`)
	b.start(s)
	b.log(s, "ready")
	pid := b.look(s.Pod).PID
	b.d.Kill()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := ctrdtest.Eventually(time.Minute, func() error { return alive(pid) }); err != nil {
		t.Fatal(err)
	}
	b.d.Start()
	if err := ctrdtest.Eventually(time.Minute, func() error { return b.r.Wait(b.ctx, s.Pod) }); err != nil {
		t.Fatal(err)
	}
	version, err := b.r.Version(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := b.look(s.Pod)
	if strings.HasPrefix(version, "containerd 1.6.") {
		if c.Task != pod.TaskStopped || c.Lost || c.ExitCode != 5 {
			t.Errorf("%+v", c)
		}
	} else if c.Task != pod.TaskStopped || !c.Lost { // newer daemons drop the exit status
		t.Errorf("%+v", c)
	}
	b.remove(s.Pod)
}

// alive returns an error while a process lives.
func alive(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	if _, rest, _ := strings.Cut(string(text), ") "); strings.HasPrefix(rest, "Z") {
		return nil
	}
	return fmt.Errorf("process %d lives", pid)
}

// shim returns the pid of a pod's shim.
func (b *bench) shim(id fleet.PodID) int {
	b.Helper()
	for _, line := range b.d.Leftovers() {
		if strings.Contains(line, "containerd-shim") && strings.Contains(line, string(id)) {
			pid, _, _ := strings.Cut(strings.TrimPrefix(line, "process "), ":")
			n, err := strconv.Atoi(pid)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("the pod has no shim")
	return 0
}

func TestShimKilledIsLost(t *testing.T) {
	for _, away := range []bool{false, true} {
		t.Run(fmt.Sprintf("daemonAway=%v", away), func(t *testing.T) {
			b := setup(t)
			s := b.spec(b.local(nil), "sleep 600")
			b.start(s)
			pid := b.look(s.Pod).PID
			shim := b.shim(s.Pod)
			if away {
				b.d.Kill()
			}
			if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			b.d.Start()
			var c pod.Container
			err := ctrdtest.Eventually(time.Minute, func() (err error) {
				if c, err = b.r.Look(b.ctx, s.Pod); err == nil && c.Task == pod.TaskRunning {
					err = fmt.Errorf("still running")
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if c.Task != pod.TaskStopped || !c.Lost || c.ExitCode != lostExitCode || !c.ExitedAt.IsZero() {
				t.Errorf("%+v", c)
			}
			b.remove(s.Pod)
			if err := ctrdtest.Eventually(time.Minute, func() error { return alive(pid) }); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStartLabelOfAnotherBootIsNotLost(t *testing.T) {
	b := setup(t)
	s := b.spec(b.local(nil), "true")
	b.start(s)
	b.finish(s.Pod)
	if _, err := b.r.endTask(b.r.in(b.ctx), s.Pod); err != nil {
		t.Fatal(err)
	}
	if c := b.look(s.Pod); !c.Lost {
		t.Errorf("same boot: %+v", c)
	}
	b.r.boot = "another"
	if c := b.look(s.Pod); !c.Exists || c.Task != pod.TaskNone {
		t.Errorf("another boot: %+v", c)
	}
	b.remove(s.Pod)
}

func TestRemoveTakesWhateverIsLeft(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	t.Run("running", func(t *testing.T) {
		s := b.spec(ref, `sh -c "trap '' TERM; sleep 600 & sleep 600"`)
		b.start(s)
		b.remove(s.Pod)
	})
	t.Run("created", func(t *testing.T) {
		s := b.spec(ref, "sleep 600")
		if err := b.r.Define(b.ctx, s); err != nil {
			t.Fatal(err)
		}
		if err := b.r.Task(b.ctx, s.Pod); err != nil {
			t.Fatal(err)
		}
		b.remove(s.Pod)
	})
	t.Run("task without container", func(t *testing.T) {
		s := b.spec(ref, "sleep 600")
		b.start(s)
		pid := b.look(s.Pod).PID
		if err := b.r.client.ContainerService().Delete(b.r.in(b.ctx), string(s.Pod)); err != nil {
			t.Fatal(err)
		}
		b.remove(s.Pod)
		if err := alive(pid); err != nil {
			t.Error(err)
		}
	})
	t.Run("snapshot without container", func(t *testing.T) {
		s := b.spec(ref, "sleep 600")
		if err := b.r.Define(b.ctx, s); err != nil {
			t.Fatal(err)
		}
		if err := b.r.client.ContainerService().Delete(b.r.in(b.ctx), string(s.Pod)); err != nil {
			t.Fatal(err)
		}
		if c := b.look(s.Pod); !c.Exists || c.Incarnation != 0 || c.Task != pod.TaskNone {
			t.Errorf("%+v", c)
		}
		s.Incarnation = 2
		b.start(s) // a new one is made over what is left
		b.remove(s.Pod)
	})
}

func TestRemoveKillsAProcessWithoutRuntime(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	s := b.spec(ref, "sleep 600")
	b.start(s)
	pid, shim := b.look(s.Pod).PID, b.shim(s.Pod)
	b.d.Kill()
	if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(b.d.RuncRoot(), b.r.cfg.Namespace, string(s.Pod))); err != nil {
		t.Fatal(err)
	}
	b.d.Start()
	if err := ctrdtest.Eventually(time.Minute, func() error { return b.r.Remove(b.ctx, s.Pod) }); err != nil {
		t.Fatal(err)
	}
	if err := ctrdtest.Eventually(time.Minute, func() error { return alive(pid) }); err != nil {
		t.Error(err)
	}
}

func TestCleanKeepsImagesUnlessAsked(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	s := b.spec(ref, "sleep 600")
	b.start(s)
	if err := b.r.Clean(b.ctx, false); err != nil {
		t.Fatal(err)
	}
	if c := b.look(s.Pod); c.Exists {
		t.Errorf("%+v", c)
	}
	if d, err := b.r.Image(b.ctx, ref); err != nil || d == "" {
		t.Errorf("image: %q, %v", d, err)
	}
	if err := b.r.Clean(b.ctx, true); err != nil {
		t.Fatal(err)
	}
	if d, err := b.r.Image(context.Background(), ref); err != nil || d != "" {
		t.Errorf("image: %q, %v", d, err)
	}
}
