package ctrd

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

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
