package survive

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/fleet"
	"gantry/test/devtest"
)

// running starts a pod that has begun, and returns it with its processes.
func (h *host) running(number int) (*life, []int) {
	h.Helper()
	l := &life{host: h, number: number}
	if err := errors.Join(l.create(), l.reached(acts[0])); err != nil {
		h.Fatal(err)
	}
	return l, must[[]int](h)(devtest.ProcessesOf(l.marker()))
}

// undisturbed fails unless a pod still runs in its first incarnation as the same processes.
func (l *life) undisturbed(pids []int) error {
	now, err := devtest.ProcessesOf(l.marker())
	if err == nil && !slices.Equal(now, pids) {
		err = fmt.Errorf("processes %v, were %v", now, pids)
	}
	return errors.Join(err, l.is(l.pod, fleet.StatusRunning, 1))
}

// holds fails when something stops being true within a time.
func (w *world) holds(what string, during time.Duration, check func() error) {
	w.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // between two looks
		if err := check(); err != nil {
			w.Fatalf("%s: %v", what, err)
		}
	}
}

// watchdog has agents that start from now on feed a watchdog, and returns how often that was done.
func (w *world) watchdog() *atomic.Int64 {
	w.Helper()
	path := filepath.Join(w.dir, "notify")
	conn := must[*net.UnixConn](w)(net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path}))
	w.env = append(w.env, "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=300000")
	fed, ended := new(atomic.Int64), make(chan struct{})
	go func() {
		defer close(ended)
		text := make([]byte, 64)
		for {
			n, err := conn.Read(text)
			if err != nil {
				return
			}
			if string(text[:n]) == "WATCHDOG=1" {
				fed.Add(1)
			}
		}
	}()
	w.Cleanup(func() { _ = conn.Close(); <-ended })
	return fed
}

// TestContainerdAway kills the containerd and leaves it dead for a while: nothing is said to have ended, what is ordered
// meanwhile is done later, and what ended meanwhile is told.
func TestContainerdAway(t *testing.T) {
	away := 2 * time.Second
	if long {
		away = 2 * time.Minute
	}
	w := newWorld(t)
	fed := w.watchdog()
	h := w.newHost("away", "points")
	stays, pids := h.running(70001)
	ends, _ := h.running(70002)
	stops, _ := h.running(70003)
	w.containerd.Kill()
	before := fed.Load()
	if err := stops.act(stops.pod, fleet.ActionStop); err != nil {
		t.Fatal(err)
	}
	late := &life{host: h, number: 70004}
	if err := late.create(); err != nil {
		t.Fatal(err)
	}
	w.holds("while containerd is away", away, func() error {
		p, err := w.pod(late.pod)
		if err == nil && p.Status != fleet.StatusProvisioning && p.Status != fleet.StatusStarting {
			err = fmt.Errorf("a pod that cannot be made is %s", p.Status)
		}
		return errors.Join(err, stays.undisturbed(pids), w.is(ends.pod, fleet.StatusRunning, 1))
	})
	if fed.Load() == before {
		t.Error("the agent did not feed its watchdog while containerd was away")
	}
	h.ready() // it was never lost
	for _, pid := range must[[]int](t)(devtest.ProcessesOf(ends.marker())) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	w.holds("an end that containerd cannot tell", away/10, func() error { return w.is(ends.pod, fleet.StatusRunning, 1) })
	w.containerd.Start()
	await(t, "the late pod runs", func() error { return w.is(late.pod, fleet.StatusRunning, 1) })
	await(t, "the stop is done", func() error { return w.is(stops.pod, fleet.StatusExited, 1) })
	await(t, "the end is told", func() error {
		p, err := w.pod(ends.pod)
		if err == nil && p.Status != fleet.StatusExited && p.Status != fleet.StatusError {
			err = fmt.Errorf("it is %s", p.Status)
		}
		return err
	})
	w.holds("after containerd is back", time.Second, func() error { return stays.undisturbed(pids) })
	h.gone(stays, ends, stops, late)
}

func (w *world) act(pod string, action fleet.Trigger) error {
	_, err := w.user.ActPod(w.Context(), pod, action)
	return err
}

// gone terminates pods and waits until nothing of them is left.
func (h *host) gone(lives ...*life) {
	h.Helper()
	for _, l := range lives {
		if err := h.user.DeletePod(h.Context(), l.pod); err != nil {
			h.Error(err)
		}
	}
	for _, l := range lives {
		await(h, "a terminated pod goes", l.nothingLeft)
	}
}

// TestContainerdUpgraded replaces the containerd by a newer one while a pod runs, which make test-containerd builds.
func TestContainerdUpgraded(t *testing.T) {
	newer := must[string](t)(filepath.Abs(filepath.Join("..", "..", ".bin", "containerd-2")))
	w := newWorld(t)
	h := w.newHost("upgraded", "points")
	l, pids := h.running(71001)
	w.containerd.Stop()
	t.Setenv(ctrdtest.EnvDir, newer)
	w.containerd.Start()
	version := func() string {
		a, err := w.admin.Host(t.Context(), h.id)
		if err != nil {
			return err.Error()
		}
		return string(a.Value.Runtime)
	}
	before := version()
	other, _ := h.running(71002)
	w.holds("after the upgrade", time.Second, func() error { return l.undisturbed(pids) })
	if err := errors.Join(acts[2].begin(l), l.reached(act{status: fleet.StatusExited, number: 1, lines: "begin end"})); err != nil {
		t.Errorf("stop a pod of the older containerd: %v", err)
	}
	if err := errors.Join(h.agent.end(syscall.SIGKILL), h.start()); err != nil {
		t.Fatal(err)
	}
	await(t, "the host says which containerd it has", func() error {
		if now := version(); now == before {
			return fmt.Errorf("it says %s", now)
		}
		return nil
	})
	h.gone(l, other)
}

// TestAgentUpgraded replaces the agent by one of another release, and back, while pods run.
func TestAgentUpgraded(t *testing.T) {
	w := newWorld(t)
	h := w.newHost("release", "before")
	l, pids := h.running(72001)
	stopped, _ := h.running(72002)
	done := act{status: fleet.StatusExited, number: 1, lines: "begin end"}
	if err := errors.Join(acts[2].begin(stopped), stopped.reached(done)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		kind, version string
		signal        syscall.Signal
	}{{"points", "v2", syscall.SIGTERM}, {"before", "v1", syscall.SIGTERM}, {"points", "v2", syscall.SIGKILL}} {
		if err := h.agent.end(step.signal); err != nil {
			t.Fatal(err)
		}
		h.kind = step.kind
		if err := h.start(); err != nil {
			t.Fatal(err)
		}
		await(t, "the other release has a session", func() error {
			a, err := w.admin.Host(t.Context(), h.id)
			if err == nil && (string(a.Value.AgentVersion) != step.version || a.Value.State != fleet.HostReady) {
				err = fmt.Errorf("version %s, %s", a.Value.AgentVersion, a.Value.State)
			}
			return err
		})
		if err := errors.Join(l.undisturbed(pids), w.is(stopped.pod, fleet.StatusExited, 1)); err != nil {
			t.Fatalf("under %s: %v", step.version, err)
		}
	}
	if err := errors.Join(acts[2].begin(l), l.reached(done), acts[3].begin(stopped)); err != nil {
		t.Error(err)
	}
	await(t, "a pod of the older release starts again", func() error { return w.is(stopped.pod, fleet.StatusRunning, 2) })
	h.gone(l, stopped)
}
