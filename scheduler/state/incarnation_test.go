package state

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"

	"gantry/fleet"
)

// A host that names an incarnation which was never given out is not believed: the pod's next starts would be below it for every
// honest host.
func TestAnIncarnationThatWasNeverGivenOutIsIgnored(t *testing.T) {
	w := newWorld(t).settle()
	w.podIn(fleet.StatusRunning, fleet.GoalRun)
	for _, made := range []uint64{2, 1 << lineageBits, maxGeneration - 1} {
		r := w.report("pod-1", fleet.EventExited)
		r.Reports[0].Incarnation = made
		w.must(r)
		if p := w.pod("pod-1"); p.Incarnation != 1 || p.Status != fleet.StatusRunning {
			t.Fatalf("incarnation %d made it %d, %s", made, p.Incarnation, p.Status)
		}
	}
	w.must(w.act("pod-1", fleet.ActionRestart))
	w.must(w.report("pod-1", fleet.EventRunning))
	if p := w.pod("pod-1"); p.Incarnation != 2 || p.Status != fleet.StatusRunning {
		t.Errorf("incarnation %d, %s", p.Incarnation, p.Status)
	}
	w.check()
}

// lockedReader looks, whenever it is read, whether others could write.
type lockedReader struct {
	io.Reader
	s    *Store
	open bool
}

func (r *lockedReader) Read(p []byte) (int, error) {
	if r.s.writing.TryLock() {
		r.s.writing.Unlock()
		r.open = true
	}
	return r.Reader.Read(p)
}

// Nobody writes while a snapshot takes the place of the state: what was written meanwhile would be lost, or in a file that is gone.
func TestARestoreLetsNobodyWrite(t *testing.T) {
	w := newWorld(t).settle()
	s, err := Open(filepath.Join(t.TempDir(), "state.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := &lockedReader{Reader: bytes.NewReader(w.snapshot()), s: s}
	if err := s.Restore(r); err != nil {
		t.Fatal(err)
	}
	if r.open {
		t.Error("others could write while the snapshot was read")
	}
	if s.Index() != w.s.Index() {
		t.Errorf("index %d, want %d", s.Index(), w.s.Index())
	}
}
