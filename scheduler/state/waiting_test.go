package state

import (
	"testing"
	"time"

	"gantry/fleet"
)

// While its image cannot be had, a pod costs what a stopped one does: from when its host first tried, until the host says anything else.
func TestAPodWhoseImageCannotBeHadIsNotCharged(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	rate := func() (out fleet.Money) {
		w.view(func(v *View) { out = v.HourlyRate("acme") })
		return out
	}
	full := rate()
	if full == 0 {
		t.Fatal("it costs nothing")
	}
	waits := w.report("pod-1", fleet.EventWaiting)
	w.must(waits)
	p := w.pod("pod-1")
	if p.Status != fleet.StatusProvisioning || p.Waiting.IsZero() || rate() != 0 {
		t.Errorf("it is %s, waits since %s, costs %d an hour", p.Status, p.Waiting, rate())
	}
	later := waits
	later.Reports = []PodReport{waits.Reports[0]}
	later.At, later.Reports[0].At = waits.At.Add(time.Minute), waits.At.Add(time.Minute)
	w.view(func(v *View) {
		if !v.Recorded("host-a", &later.Reports[0]) {
			t.Error("what is recorded would be proposed again")
		}
	})
	w.must(later)
	if got := w.pod("pod-1"); !got.Waiting.Equal(p.Waiting) {
		t.Errorf("it waits since %s, at first since %s", got.Waiting, p.Waiting)
	}
	w.must(w.report("pod-1", fleet.EventStarting))
	if got := w.pod("pod-1"); !got.Waiting.IsZero() || got.Status != fleet.StatusStarting || rate() != full {
		t.Errorf("it is %s, waits since %s, costs %d an hour", got.Status, got.Waiting, rate())
	}
	w.check()
}

// What it was asked to stop is told in peace: a late word of the image starts nothing, and its next start is charged from its own beginning.
func TestAStoppedPodWaitsForNoImage(t *testing.T) {
	w := newWorld(t).settle()
	w.create("pod-1", "host-a", 0)
	w.must(w.report("pod-1", fleet.EventWaiting), w.act("pod-1", fleet.ActionStop))
	ended := w.pod("pod-1").EndedAt
	w.must(w.report("pod-1", fleet.EventWaiting), w.report("pod-1", fleet.EventExited))
	if p := w.pod("pod-1"); p.Status != fleet.StatusExited || !p.EndedAt.Equal(ended) || !p.Waiting.IsZero() {
		t.Errorf("got %s, ended %s, waits since %s", p.Status, p.EndedAt, p.Waiting)
	}
	w.check()
}
