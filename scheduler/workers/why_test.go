package workers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
	"gantry/serverless/scale"
	"gantry/test/plane"
)

// waits wants that a job, and its endpoint, say why it waits.
func (s *shop) waits(v fleet.JobView, job, endpoint string) {
	s.t.Helper()
	var a, b string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the job says %q, the endpoint %q", a, b)
		}
	}()
	s.eventually(fmt.Sprintf("the job waits because %q, the endpoint says %q", job, endpoint), func() bool {
		e, err := s.Endpoint(s.t.Context(), s.who, s.endpoint)
		s.must(err)
		a, b = s.job(v).Reason, e.Reason
		return a == job && b == endpoint
	})
}

// works has a worker ask for jobs, and waits until it is ready.
func (s *shop) works(p *fleet.Pod) *link {
	s.t.Helper()
	s.runs(p)
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 1)
	s.eventually("the worker is ready", func() bool { rec, _ := s.Record(p.ID); return !rec.Ready.IsZero() })
	return l
}

// TestAJobSaysWhyItWaits for a worker that starts, for its image, and for those before it.
func TestAJobSaysWhyItWaits(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	first := s.submit(`1`)
	p := s.worker(1)
	s.waits(first, "no worker yet: 1 starting", "no worker yet: 1 starting")
	s.SetLive(p.ID, fleet.Live{At: s.Now().Add(time.Second), PullDone: 63, PullTotal: 100})
	s.waits(first, "no worker yet: 1 starting, pulling image 63 %", "no worker yet: 1 starting, pulling image 63 %")
	const trouble = "no worker can start: its registry does not answer"
	s.SetLive(p.ID, fleet.Live{At: s.Now().Add(time.Second), Activity: "its registry does not answer" + fleet.TryingAgain, PullTotal: 100})
	s.waits(first, trouble, trouble)
	s.must(s.Report(p.ID, fleet.EventWaiting))
	s.waits(first, trouble, trouble)
	s.SetReachable(p.Host, false)
	s.waits(first, "no worker can start: its host does not say why", "no worker can start: its host does not say why")
	s.SetReachable(p.Host, true)
	s.SetLive(p.ID, fleet.Live{At: s.Now().Add(time.Second)})

	second, third := s.submit(`2`), s.submit(`3`)
	l := s.works(p)
	g, _ := l.given()
	s.waits(second, "max workers reached, 0 jobs before this one", "max workers reached, 2 jobs in the queue")
	s.waits(third, "max workers reached, 1 job before this one", "max workers reached, 2 jobs in the queue")
	if got := s.job(first); got.Status != "IN_PROGRESS" || got.Reason != "" {
		t.Errorf("%+v", got)
	}
	s.must2(s.UpdateEndpoint(t.Context(), s.who, s.endpoint, func(e *fleet.EndpointSpec) { e.Workers.Max, e.Scaler.Value = 5, 3600 }))
	s.waits(third, "1 job before this one", "2 jobs in the queue")
	s.must2(s.PurgeJobs(t.Context(), s.who, s.endpoint))
	s.must2(s.CancelJob(t.Context(), s.who, s.endpoint, g.GetJobId()))
	s.waits(first, "", "")
	if l.next().GetStop() == nil {
		t.Fatal("the worker was not told to stop")
	}
	// It does not ask for another job.
	last := s.submit(`4`)
	const idle = "no worker asks for a job, though 1 of 1 have none"
	s.waits(last, idle, idle)
	l.wants(p.ID, 1)
	l.given()
	s.waits(last, "", "")
}

func (s *shop) must2(_ any, err error) {
	s.t.Helper()
	s.must(err)
}

// TestNoRoomSaysWhatPlacementSaid, until there is some.
func TestNoRoomSaysWhatPlacementSaid(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) {
		e.CPU, e.GPU = nil, &fleet.EndpointGPU{Pools: []string{"ADA_80_PRO"}, Excluded: []string{"NVIDIA H100 PCIe"}, Count: 8}
	})
	v := s.submit(`1`)
	first := s.worker(1)
	s.must2(s.UpdateEndpoint(t.Context(), s.who, s.endpoint, func(e *fleet.EndpointSpec) {
		e.Scaler, e.Workers.Idle = fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1}, 0
	}))
	second := s.submit(`2`)
	l := s.works(first)
	l.given()
	var why string
	s.eventually("it says why", func() bool { why = s.job(second).Reason; return strings.HasPrefix(why, "no capacity: ") })
	for _, part := range []string{"1 host: ", "GPU", "; "} {
		if !strings.Contains(why, part) {
			t.Errorf("it waits because %q, without %q", why, part)
		}
	}
	s.waits(second, why, why)
	if got := s.workers.Counts(s.endpoint); got != (fleet.WorkerCounts{Running: 1, Throttled: 1}) {
		t.Errorf("%+v", got)
	}
	s.must2(s.CancelJob(t.Context(), s.who, s.endpoint, second.ID))
	s.waits(v, "", "")
	if got := s.workers.Counts(s.endpoint); got != (fleet.WorkerCounts{Running: 1}) {
		t.Errorf("%+v", got)
	}
}

// TestWithoutCreditNoJobIsTaken, and those that wait say so.
func TestWithoutCreditNoJobIsTaken(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 0 })
	v := s.submit(`1`)
	s.waits(v, "max workers reached, 0 jobs before this one", "max workers reached, 1 job in the queue")
	s.SetBroke(plane.User, true)
	const why = "the account's balance is too low to run jobs"
	s.waits(v, why, why)
	if _, err := s.SubmitJob(t.Context(), s.who, s.endpoint, fleet.JobRequest{Body: []byte(`{"input":1}`)}); fleet.CodeOf(err) != fleet.CodeNoCredit {
		t.Errorf("submitted: %v", err)
	}
	s.SetBroke(plane.User, false)
	s.waits(v, "max workers reached, 0 jobs before this one", "max workers reached, 1 job in the queue")
	s.submit(`2`)
}

// TestStatusesOfACrashLoop: what starts again is unhealthy, and so is the next that is not started yet.
func TestStatusesOfACrashLoop(t *testing.T) {
	s := newShop(t, func(*fleet.EndpointSpec) {})
	v := s.submit(`1`)
	p := s.worker(1)
	list := func() []fleet.WorkerView {
		got, err := s.EndpointWorkers(t.Context(), s.who, s.endpoint)
		s.must(err)
		return got.Workers
	}
	if all := list(); len(all) != 1 || all[0].Status != fleet.WorkerInitializing {
		t.Errorf("%+v", all)
	}
	s.must(s.Report(p.ID, fleet.EventExited, func(r *state.PodReport) { r.ExitCode, r.LogTail = new(1), "loading\nno CUDA here\n" }))
	s.eventually("the crash is known", func() bool { return s.workers.Counts(s.endpoint) == fleet.WorkerCounts{Unhealthy: 1} })
	const why = "workers crash, 1 in a row; the next one starts in 1s: exit code 1: loading | no CUDA here"
	s.waits(v, why, why)
	s.Advance(2 * time.Second)
	s.workers.Kick(s.endpoint)
	s.worker(1)
	if all := list(); len(all) != 1 || all[0].Status != fleet.WorkerUnhealthy || s.workers.Counts(s.endpoint) != (fleet.WorkerCounts{Unhealthy: 1}) {
		t.Errorf("%+v, counted %+v", all, s.workers.Counts(s.endpoint))
	}
}

// TestACrashWithoutRoomForTheNextWorkerSaysSo: it does not start in 0 s.
func TestACrashWithoutRoomForTheNextWorkerSaysSo(t *testing.T) {
	s := newShop(t, func(*fleet.EndpointSpec) {})
	v := s.submit(`1`)
	p := s.worker(1)
	s.Do(state.SetHostEligibility{Host: p.Host, Eligibility: fleet.EligibilityCordoned, At: s.Now()})
	s.must(s.Report(p.ID, fleet.EventExited, func(r *state.PodReport) { r.ExitCode, r.LogTail = new(1), "no CUDA here\n" }))
	s.eventually("it is refused", func() bool {
		s.Advance(time.Second)
		s.workers.Kick(s.endpoint)
		why := s.job(v).Reason
		return strings.HasPrefix(why, "no capacity: ") && strings.HasSuffix(why, "; workers crash, 1 in a row: exit code 1: no CUDA here")
	})
}

// TestANewReleaseIsNotBlamedForCrashesOfTheOneBefore: neither does it say so, nor do its jobs fail with their count.
func TestANewReleaseIsNotBlamedForCrashesOfTheOneBefore(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.FailAfter, e.Workers.Max = 60, 1 })
	v := s.submit(`1`)
	p := s.worker(1)
	s.must(s.Report(p.ID, fleet.EventExited))
	s.eventually("the crash is known", func() bool { return strings.HasPrefix(s.job(v).Reason, "workers crash, 1 in a row; ") })
	s.must2(s.UpdateEndpoint(t.Context(), s.who, s.endpoint, func(e *fleet.EndpointSpec) { e.Image = "worker:2" }))
	p = s.worker(1)
	s.waits(v, "no worker yet: 1 starting", "no worker yet: 1 starting")
	s.Advance(61 * time.Second)
	s.must(s.Report(p.ID, fleet.EventExited))
	s.eventually("the next crash is the first", func() bool { return strings.HasPrefix(s.job(v).Reason, "workers crash, 1 in a row; ") })
}

// TestNoMoreWorkersThanTheAccountMayHave, whatever its endpoint may; it says so, and goes on once the limit is raised.
func TestNoMoreWorkersThanTheAccountMayHave(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) {
		e.Workers, e.Scaler = fleet.WorkerBounds{Max: 3}, fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1}
	})
	most := func(n int64) {
		s.Do(state.UpdateAccount{Account: s.who.Account, Limits: map[string]*int64{"workers": &n}})
	}
	most(1)
	s.submit(`1`)
	p := s.worker(1)
	second := s.submit(`2`)
	s.works(p).given()
	const why = "the account has as many workers as it may have, "
	s.waits(second, why+"0 jobs before this one", why+"1 job in the queue")
	if got := s.workers.Counts(s.endpoint); got != (fleet.WorkerCounts{Running: 1, Throttled: 1}) {
		t.Errorf("%+v", got)
	}
	if _, err := s.StartWorker(t.Context(), s.endpoint); fleet.CodeOf(err) != fleet.CodeQuota {
		t.Errorf("started one more: %v", err)
	}
	most(2)
	s.eventually("there is another worker", func() bool { return len(s.pods()) == 2 })
	s.eventually("nothing is throttled", func() bool { return s.workers.Counts(s.endpoint).Throttled == 0 })
}

// TestNoWorkersBeyondTheAccountsSpendLimit has an endpoint say that its account lets itself spend no more; it goes on once it does.
func TestNoWorkersBeyondTheAccountsSpendLimit(t *testing.T) {
	s := newShop(t, func(*fleet.EndpointSpec) {})
	own := func(limit fleet.Money) {
		s.must2(s.SetAccount(t.Context(), s.who, fleet.AccountSettings{SpendLimit: &limit}))
	}
	own(0)
	v := s.submit(`1`)
	s.eventually("the endpoint says why", func() bool {
		e, err := s.Endpoint(t.Context(), s.who, s.endpoint)
		s.must(err)
		return strings.HasPrefix(e.Reason, "no worker could be started: The account may not spend more than its own spend limit of $0.000 per hour") &&
			s.job(v).Reason == e.Reason
	})
	if n := len(s.pods()); n != 0 {
		t.Errorf("%d workers were started", n)
	}
	own(100 * fleet.Dollar)
	s.Advance(scale.RoomPause)
	s.workers.Kick(s.endpoint)
	s.works(s.worker(1)).given()
}
