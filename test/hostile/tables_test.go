package hostile

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

// modest is what a pod beside an attack takes of the kernel's tables.
var modest = []string{
	"/evil/attacker", "have", "inotify", "50", "watches", "1000", "sockets", "1000", "pairs", "200", "files", "1000", "signals", "1000", "terminals", "50", "programs", "50",
}

// TestTablesOfTheKernelAreShared has one pod take all that it gets of each table that the kernel has for all pods: it meets
// a bound of its own, and a pod of another account, and the host, still have theirs.
func TestTablesOfTheKernelAreShared(t *testing.T) {
	h := newHost(t)
	digest := h.mustLoad("example/tables:1", image(t, nil))
	for _, table := range []string{"inotify", "watches", "sockets", "pairs", "files", "crowds", "signals", "terminals", "programs"} {
		t.Run(table, func(t *testing.T) {
			greedy := h.spec(digest, "/evil/attacker", "take", table, "2000000")
			must(t, h.start(greedy))
			t.Logf("the attack ends with %s", h.bound(t, greedy))
			other := h.spec(digest, modest...)
			other.Account = "a2"
			text, c := h.run(other)
			if c.ExitCode != 0 || !strings.Contains(text, "has all") {
				t.Errorf("a pod beside it ended with %+v and wrote %q", c, text)
			}
			if out, err := exec.Command(programs.attacker, "have", "inotify", "5", "sockets", "100", "files", "100", "signals", "100", "terminals", "10").CombinedOutput(); err != nil {
				t.Errorf("the host: %v, %s", err, out)
			}
			if c, err := h.r.Look(h.ctx, greedy.Pod); err != nil || !c.OOMKilled && c.Task != pod.TaskRunning {
				t.Errorf("the attack ended before: %+v, %v, %s", c, err, h.written(greedy))
			}
			h.remove(greedy)
		})
	}
}

// bound waits until an attack on a table ends at a bound, and says which: an error of the kernel's, or the end for want of
// memory, which the pod's own control group counts.
func (h *host) bound(t *testing.T, s pod.ContainerSpec) string {
	t.Helper()
	how := ""
	must(t, ctrdtest.Eventually(60*time.Second, func() error {
		text := h.written(s)
		c, err := h.r.Look(h.ctx, s.Pod)
		switch {
		case err != nil:
			return err
		case c.OOMKilled:
			how = "its memory: " + text
		case strings.Contains(text, "took 2000000 "):
			t.Fatalf("there is no bound: %q", text)
		case strings.Contains(text, "took "):
			how = text
		default:
			return fmt.Errorf("neither a bound nor an end: %+v, %q", c, text)
		}
		return nil
	}))
	return strings.TrimSpace(how)
}
