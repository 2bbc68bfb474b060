package workers_test

import (
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// TestFlashBoot: a worker that idled out is frozen, and thawed for the next job, which it gets with the first request after that: what it
// wanted before is of a process that did not run. In the end it goes.
func TestFlashBoot(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.FlashBoot = fleet.FlashBootOn })
	s.submit(`1`)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 1)
	g, _ := l.given()
	l.reports(g, agentrpc.JobReport_DONE, `1`, plain)
	l.wants(p.ID, 1)
	frozen := func(want bool) func() bool {
		return func() bool { rec, _ := s.Record(p.ID); return !rec.Frozen.IsZero() == want }
	}
	idles := func() { // for as long as it takes since the leader learned that its job is done
		t.Helper()
		s.eventually("it is frozen", func() bool {
			s.Advance(time.Second)
			s.workers.Kick(s.endpoint)
			return frozen(true)()
		})
	}
	idles()
	l.wants(p.ID, 0)
	if got := s.workers.Counts(s.endpoint); got.Idle != 1 || len(s.pods()) != 1 {
		t.Errorf("counted %+v", got)
	}
	v := s.submit(`2`)
	s.eventually("it is thawed", frozen(false))
	if !l.silent() {
		t.Errorf("it was told %v before it asked", l.next())
	}
	l.wants(p.ID, 1)
	if g, _ = l.given(); g.GetJobId() != v.ID || g.GetPodId() != string(p.ID) {
		t.Errorf("given %v", g)
	}
	s.lead() // the next leader has a frozen worker with a job thawed, though none freezes such a one
	s.must(s.FreezeWorker(t.Context(), p))
	l, _ = s.connect(p.Host)
	s.eventually("it is thawed again", frozen(false))
	l.wants(p.ID, 0)
	l.reports(g, agentrpc.JobReport_DONE, `2`, plain)
	l.wants(p.ID, 1)
	s.eventually("its job is done", func() bool { return s.job(v).Status == "COMPLETED" })
	idles()
	s.Advance(50 * time.Minute)
	s.workers.Kick(s.endpoint)
	if n := len(s.pods()); n != 1 {
		t.Errorf("%d workers before an hour was over", n)
	}
	s.Advance(10 * time.Minute)
	s.workers.Kick(s.endpoint)
	s.worker(0)
}
