package workers_test

import (
	"context"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/jobs"
	"gantry/scheduler/workers"
	"gantry/serverless/queue"
)

// idle returns a shop with a worker that has done a job and asks for so many others.
func idle(t *testing.T, slots int, change func(*fleet.EndpointSpec)) (*shop, *fleet.Pod, *link) {
	t.Helper()
	s := newShop(t, change)
	v := s.submit(`0`)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 1)
	g, _ := l.given()
	l.reports(g, agentrpc.JobReport_DONE, `0`, plain)
	s.status(v, "COMPLETED")
	l.wants(p.ID, slots)
	l.reports(g, agentrpc.JobReport_DONE, `0`, plain) // what was said before is known
	s.look()
	return s, p, l
}

// look has the endpoint looked at, and returns when that is done.
func (s *shop) look() {
	s.t.Helper()
	s.must(s.workers.GiveAfter(s.t.Context(), s.endpoint, func() {}, func() {}))
}

// takes commits that a worker takes the next job.
func (s *shop) takes(p fleet.PodID) []jobs.Job {
	return s.DoJob(jobs.Take{Take: queue.Take{At: queue.At(s.Now()), Endpoint: s.endpoint, Worker: p, Max: 1}}).([]jobs.Job)
}

// TestAJobThatNeedNotWaitIsTakenInItsEntry: one commit until the host is told, and another when it is done.
func TestAJobThatNeedNotWaitIsTakenInItsEntry(t *testing.T) {
	s, p, l := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	before := s.Jobs.AppliedIndex()
	v := s.submit(`1`)
	if got := s.job(v); v.Status != "IN_QUEUE" || got.Status != "IN_PROGRESS" || got.Worker != p.ID {
		t.Errorf("submitted %+v, then %+v", v, got)
	}
	g, _ := l.given()
	if l.reports(g, agentrpc.JobReport_DONE, `1`, plain); g.GetJobId() != v.ID || g.GetAttempt() != 1 {
		t.Errorf("given %v", g)
	}
	if n := s.Jobs.AppliedIndex() - before; n != 2 || s.job(v).Status != "COMPLETED" {
		t.Errorf("%d entries, %+v", n, s.job(v))
	}
	if waits := s.submit(`2`); s.job(waits).Status != "IN_QUEUE" {
		t.Errorf("taken by a worker that did not ask: %+v", s.job(waits))
	}
}

// TestTheFirstJobThatWaitsIsTaken, which need not be the one that was submitted.
func TestTheFirstJobThatWaitsIsTaken(t *testing.T) {
	s, p, l := idle(t, 2, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	_, one := s.workers.Hold(s.endpoint)
	_, two := s.workers.Hold(s.endpoint)
	first := s.submit(`1`)
	one(nil, true) // and the look that comes after it gives the first one
	g, _ := l.given()
	if g.GetJobId() != first.ID || g.GetPodId() != string(p.ID) {
		t.Errorf("given %v", g)
	}
	second := s.submit(`2`)
	two(nil, true)
	if g, _ = l.given(); g.GetJobId() != second.ID {
		t.Errorf("given %v", g)
	}
}

// TestALookThatBeganBeforeASubmission neither stops its job nor ends its worker, though that had idled out.
func TestALookThatBeganBeforeASubmission(t *testing.T) {
	s, p, l := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	var v fleet.JobView
	s.must(s.workers.GiveAfter(t.Context(), s.endpoint, func() { s.Advance(time.Minute) }, func() { v = s.submit(`1`) }))
	g, _ := l.given()
	if len(s.pods()) != 1 || g.GetJobId() != v.ID {
		t.Errorf("%d workers, given %v", len(s.pods()), g)
	}
	l.reports(g, agentrpc.JobReport_DONE, `1`, plain)
	if got := s.job(v); got.Status != "COMPLETED" || got.Worker != p.ID {
		t.Errorf("%+v", got)
	}
}

// TestAWorkerThatWasGivenAJobIsNotReplacedBefore by a look that began earlier, though it asked to be.
func TestAWorkerThatWasGivenAJobIsNotReplacedBefore(t *testing.T) {
	s, p, l := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	_, accept := s.workers.Hold(s.endpoint)
	s.submit(`1`)
	s.must(s.workers.GiveAfter(t.Context(), s.endpoint, func() {}, func() {
		accept(s.takes(p.ID), true)
		g, _ := l.given()
		l.reports(g, agentrpc.JobReport_PROGRESS, `1`, func(m *agentrpc.JobReport) { m.Refresh = true })
	}))
	if all := s.pods(); len(all) != 1 || all[0].ID != p.ID {
		t.Error("it was ended with its job")
	}
}

// TestAnOfferKeepsItsWorkerAndItsSlot while its command is being committed.
func TestAnOfferKeepsItsWorkerAndItsSlot(t *testing.T) {
	s, p, l := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	pod, accept := s.workers.Hold(s.endpoint)
	if pod != p.ID {
		t.Fatalf("offered to %q", pod)
	}
	s.Advance(time.Minute)
	if s.look(); len(s.pods()) != 1 {
		t.Error("the worker was ended")
	}
	v := s.submit(`1`)
	if s.look(); s.job(v).Status != "IN_QUEUE" || !l.silent() {
		t.Errorf("the slot was given twice: %+v", s.job(v))
	}
	taken := s.takes(p.ID)
	s.look()
	if !l.silent() {
		t.Errorf("the host was told by another: %v", l.next())
	}
	accept(taken, true)
	if g, _ := l.given(); g.GetJobId() != v.ID {
		t.Errorf("given %v", g)
	}
	if s.look(); !l.silent() {
		t.Errorf("the host was told again: %v", l.next())
	}
}

// TestAnOfferOfWhichNothingIsKnown: the worker gets no other before the jobs that were taken by it were looked for.
func TestAnOfferOfWhichNothingIsKnown(t *testing.T) {
	s, p, l := idle(t, 2, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	_, lost := s.workers.Hold(s.endpoint)
	_, other := s.workers.Hold(s.endpoint)
	first := s.submit(`1`)
	s.takes(p.ID)
	lost(nil, false)
	next := s.submit(`2`)
	if s.look(); s.job(next).Status != "IN_QUEUE" || !l.silent() {
		t.Errorf("given meanwhile: %+v", s.job(next))
	}
	other(nil, true)
	got := map[string]bool{}
	for range 2 {
		g, _ := l.given()
		got[g.GetJobId()] = true
	}
	if !got[first.ID] || !got[next.ID] {
		t.Errorf("given %v", got)
	}
}

// TestAnOfferToAHostWhoseStreamBeganAnew: the new stream began with its job.
func TestAnOfferToAHostWhoseStreamBeganAnew(t *testing.T) {
	s, p, _ := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	_, accept := s.workers.Hold(s.endpoint)
	v := s.submit(`1`)
	taken := s.takes(p.ID)
	l, held := s.connect(p.Host)
	if len(held.GetJobs()) != 1 || held.GetJobs()[0].GetJobId() != v.ID {
		t.Fatalf("held %v", held)
	}
	accept(taken, true)
	if s.look(); !l.silent() {
		t.Errorf("told of a job that it was told of: %v", l.next())
	}
}

// pods does something before a worker is ended or frozen.
type pods struct {
	workers.Pods
	before func()
}

func (p pods) EndWorker(ctx context.Context, pod *fleet.Pod) error {
	p.before()
	return p.Pods.EndWorker(ctx, pod)
}

func (p pods) FreezeWorker(ctx context.Context, pod *fleet.Pod) error {
	p.before()
	return p.Pods.FreezeWorker(ctx, pod)
}

// TestAWorkerThatIsBeingEndedIsOfferedNothing, nor one that is being frozen.
func TestAWorkerThatIsBeingEndedIsOfferedNothing(t *testing.T) {
	for _, boot := range []fleet.FlashBoot{fleet.FlashBootOff, fleet.FlashBootOn} {
		t.Run(string(boot), func(t *testing.T) {
			s, _, l := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max, e.FlashBoot = 1, boot })
			var got fleet.JobView
			s.must(s.workers.GiveAfter(t.Context(), s.endpoint, func() { s.Advance(time.Minute) }, func() {
				s.workers.Pods = pods{s.workers.Pods, func() { got = s.job(s.submit(`1`)) }}
			}))
			if got.Status != "IN_QUEUE" || !l.silent() {
				t.Errorf("given: %+v", got)
			}
		})
	}
}

// TestTheNextJobGoesToTheWorkerWithFewerOnTheirWay.
func TestTheNextJobGoesToTheWorkerWithFewerOnTheirWay(t *testing.T) {
	s, first, l := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max = 2 })
	s.submit(`1`)
	has, _ := l.given()
	s.submit(`2`)
	s.Advance(5 * time.Second)
	s.workers.Kick(s.endpoint)
	second := s.worker(2)
	s.runs(second)
	to := l
	if second.Host != first.Host {
		to, _ = s.connect(second.Host)
	}
	to.wants(second.ID, 1)
	g, _ := to.given()
	l.wants(first.ID, 1)
	to.wants(second.ID, 3)
	l.reports(has, agentrpc.JobReport_DONE, `1`, plain)
	to.reports(g, agentrpc.JobReport_DONE, `2`, plain)
	s.look()
	var got []fleet.PodID
	for range 5 {
		pod, _ := s.workers.Hold(s.endpoint)
		got = append(got, pod)
	}
	if got[0] == got[1] || got[2] != second.ID || got[3] != second.ID || got[4] != "" {
		t.Errorf("offered to %v", got)
	}
}
