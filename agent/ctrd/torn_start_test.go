package ctrd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

// TestATornStartIsBroughtToItsEnd plays a runc that a dying daemon took with it after the process had
// begun, before and after it removed the fifo.
func TestATornStartIsBroughtToItsEnd(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	for _, removed := range []bool{false, true} {
		s := b.spec(ref, `sh -c "echo begun; sleep 600"`)
		b.must(b.r.Define(b.ctx, s))
		b.must(b.r.Task(b.ctx, s.Pod))
		if b.r.begun(s.Pod) {
			t.Error("begun before its start")
		}
		fifo := filepath.Join(b.r.runcState(), string(s.Pod), startFIFO)
		f, err := os.Open(fifo)
		b.must(err)
		_, err = f.Read(make([]byte, 1))
		b.must(err)
		b.must(f.Close())
		if removed {
			b.must(os.Remove(fifo))
		}
		b.must(ctrdtest.Eventually(time.Minute, func() error {
			if !b.r.begun(s.Pod) {
				return errors.New("it does not begin")
			}
			return nil
		}))
		if c := b.look(s.Pod); c.Task != pod.TaskCreated {
			t.Fatalf("the shim knows: %+v", c)
		}
		next := b.agent()
		before := time.Now()
		at, err := next.Start(b.ctx, s.Pod)
		if err != nil || at.Before(before) {
			t.Errorf("removed %v: start: %v, %v", removed, at, err)
		}
		b.must(next.Close())
		if c := b.look(s.Pod); c.Task != pod.TaskRunning || c.StartedAt.IsZero() {
			t.Errorf("removed %v: %+v", removed, c)
		}
		if _, err := os.Lstat(fifo); err == nil {
			t.Error("the fifo is left")
		}
		if got := b.log(s, "begun"); strings.Count(got, "begun") != 1 {
			t.Errorf("it wrote %q", got)
		}
		b.remove(s.Pod)
	}
}
