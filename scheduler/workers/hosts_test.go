package workers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/test/plane"
)

// TestAnUnreachableHostsJobsAreGivenOutAgain, to a worker elsewhere; a success of the first counts all the same, and one worker too many
// goes when both hosts are there.
func TestAnUnreachableHostsJobsAreGivenOutAgain(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	s.twoHosts()
	v := s.submit(`{}`)
	first := s.worker(1)
	s.runs(first)
	l, _ := s.connect(first.Host)
	l.wants(first.ID, 1)
	given, _ := l.given()
	l.leave()
	if got := s.job(v); got.Status != "IN_PROGRESS" {
		t.Errorf("a stream that breaks loses jobs: %+v", got)
	}
	s.SetReachable(first.Host, false)
	s.status(v, "IN_QUEUE")
	second := s.worker(2)
	if second.ID == first.ID {
		for _, p := range s.pods() {
			if p.ID != first.ID {
				second = p
			}
		}
	}
	if second.Host == first.Host {
		t.Fatal("the second is on the host that cannot be reached")
	}
	if got := s.workers.Counts(s.endpoint); got.Unhealthy != 1 || got.Initializing != 1 || got.Idle != 0 || got.Running != 0 {
		t.Errorf("counted %+v", got)
	}
	s.runs(second)
	other, _ := s.connect(second.Host)
	other.wants(second.ID, 1)
	again, _ := other.given()
	if again.GetPodId() != string(second.ID) || again.GetAttempt() != 2 {
		t.Errorf("given %v", again)
	}
	s.SetReachable(first.Host, true)
	l, held := s.connect(first.Host)
	if len(held.GetJobs()) != 0 {
		t.Errorf("held %v", held)
	}
	l.reports(given, agentrpc.JobReport_DONE, `"late"`, plain)
	if got := s.job(v); got.Status != "COMPLETED" || string(got.Output) != `"late"` {
		t.Errorf("%+v", got)
	}
	l.wants(first.ID, 1)
	s.worker(1)
}

// twoHosts gives a plane that places workers on any of its hosts a second one of the same tier.
func (s *shop) twoHosts() {
	s.t.Helper()
	s.Do(state.SetHostCloud{Host: plane.CommunityHost, Cloud: fleet.CloudSecure})
}

// TestASuccessOfAWorkerThatHasEndedCounts: its host had it when the process died.
func TestASuccessOfAWorkerThatHasEndedCounts(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	v := s.submit(`{}`)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 1)
	g, _ := l.given()
	s.must(s.Report(p.ID, fleet.EventExited))
	s.status(v, "IN_QUEUE")
	l.reports(g, agentrpc.JobReport_DONE, `"kept"`, plain)
	if got := s.job(v); got.Status != "COMPLETED" || string(got.Output) != `"kept"` {
		t.Errorf("%+v", got)
	}
	// A job that it never had is none of its own.
	w := s.submit(`{}`)
	l.reports(&agentrpc.JobGiven{PodId: string(p.ID), JobId: w.ID}, agentrpc.JobReport_DONE, `"lie"`, plain)
	if got := s.job(w); got.Status == "COMPLETED" {
		t.Errorf("%+v", got)
	}
}

// TestWorkersLeaveAHostThatIsDrained: idle ones once another is ready elsewhere, busy ones after their job; not so where the drain keeps
// what runs.
func TestWorkersLeaveAHostThatIsDrained(t *testing.T) {
	for _, keep := range []bool{false, true} {
		s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Min, e.Workers.Max = 1, 1 })
		s.twoHosts()
		first := s.worker(1)
		s.runs(first)
		l, _ := s.connect(first.Host)
		l.wants(first.ID, 1)
		v := s.submit(`{}`)
		g, _ := l.given()
		s.Do(state.SetHostEligibility{Host: first.Host, Eligibility: fleet.EligibilityDraining, KeepRunning: keep, At: s.Now()})
		if keep {
			l.reports(g, agentrpc.JobReport_DONE, `1`, plain)
			l.wants(first.ID, 1)
			s.Advance(time.Minute)
			s.workers.Kick(s.endpoint)
			if all := s.pods(); len(all) != 1 || all[0].ID != first.ID {
				t.Errorf("the drain keeps what runs: %v", all)
			}
			continue
		}
		if held, err := s.HostPods(t.Context(), first.Host); err != nil || len(held) != 1 || !strings.Contains(held[0].Waits, "it is a worker") {
			t.Errorf("the drain says %+v, %v", held, err)
		}
		var second *fleet.Pod
		s.eventually("another worker", func() bool {
			all := s.pods()
			at := slices.IndexFunc(all, func(p *fleet.Pod) bool { return p.ID != first.ID })
			if at >= 0 {
				second = all[at]
			}
			return len(all) == 2
		})
		s.runs(second)
		other, _ := s.connect(second.Host)
		other.wants(second.ID, 1)
		s.eventually("it is ready", func() bool { rec, _ := s.Record(second.ID); return !rec.Ready.IsZero() })
		if n := len(s.pods()); n != 2 {
			t.Errorf("%d workers while the first has a job", n)
		}
		l.reports(g, agentrpc.JobReport_DONE, `1`, plain)
		l.wants(first.ID, 1)
		s.status(v, "COMPLETED")
		if left := s.worker(1); left.ID != second.ID {
			t.Errorf("%v stays", left.Host)
		}
	}
}

// TestTheImageIsFetchedWhereWorkersComeNext, once one has shown that it works, and not again with each job.
func TestTheImageIsFetchedWhereWorkersComeNext(t *testing.T) {
	s := newShop(t, func(*fleet.EndpointSpec) {})
	s.submit("1")
	p := s.worker(1)
	if got := s.Prefetched(); len(got) != 0 {
		t.Errorf("before it asked for a job: %q", got)
	}
	s.ReadyWorker(p.ID)
	s.eventually("the image is fetched", func() bool { return len(s.Prefetched()) > 0 })
	s.submit("2")
	s.worker(1)
	if got := s.Prefetched(); len(got) != 1 || !strings.HasSuffix(got[0], " docker.io/library/worker:1") {
		t.Errorf("%q", got)
	}
	s.Advance(31 * time.Minute)
	s.eventually("it is fetched again", func() bool { s.workers.Kick(s.endpoint); return len(s.Prefetched()) == 2 })
}

// TestALossIsThatOfTheJobsThatWereSeen: what the host was given since it came back is not lost with what it had.
func TestALossIsThatOfTheJobsThatWereSeen(t *testing.T) {
	s, p, l := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	old := s.submit(`1`)
	g, _ := l.given()
	var next fleet.JobView
	s.must(s.workers.GiveAfter(t.Context(), s.endpoint, func() { s.SetReachable(p.Host, false) }, func() {
		s.SetReachable(p.Host, true)
		l, _ = s.connect(p.Host)
		l.wants(p.ID, 1)
		l.reports(g, agentrpc.JobReport_PROGRESS, `0`, plain) // what was said before is known
		next = s.submit(`2`)
	}))
	if got := s.job(next); got.Status != "IN_PROGRESS" || s.attempts(next) != 1 {
		t.Errorf("the job that was given anew, at attempt %d: %+v", s.attempts(next), got)
	}
	if got := s.job(old); got.Status != "IN_QUEUE" {
		t.Errorf("the job of before: %+v", got)
	}
}

// attempts returns how often a job was given out.
func (s *shop) attempts(v fleet.JobView) int {
	s.t.Helper()
	id, _ := jobs.ParseID(v.ID)
	j, err := s.Jobs.Jobs.Get(id, queue.At(s.Now()))
	s.must(err)
	return j.Attempt()
}

// TestAHostWithoutASessionIsGivenNothing: neither by a submission nor by a look, though its stream cannot end for what it does not read.
func TestAHostWithoutASessionIsGivenNothing(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	first := s.submit(`1`)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.dial(p.Host, 0)
	l.wants(p.ID, 3)
	s.status(first, "IN_PROGRESS") // the scheduler waits for the host to read of it
	close(l.gone)
	next := s.submit(`2`)
	if s.look(); s.job(next).Status != "IN_QUEUE" {
		t.Errorf("given to a host that is silent: %+v", s.job(next))
	}
}

// TestAStreamEndsWithItsSession.
func TestAStreamEndsWithItsSession(t *testing.T) {
	_, _, l := idle(t, 1, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	close(l.gone)
	select {
	case <-l.ctx.Done():
	case <-time.After(patience):
		t.Error("it stands")
	}
}
