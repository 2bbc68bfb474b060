package workers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
	"gantry/scheduler/workers"
	"gantry/serverless/queue"
	"gantry/test/plane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// shop is a control plane whose leader brings jobs and workers together, with one endpoint and a host that a test plays.
type shop struct {
	*plane.Plane
	t        *testing.T
	workers  *workers.Workers
	who      fleet.Principal
	endpoint fleet.EndpointID
	end      func()
}

func newShop(t *testing.T, change func(*fleet.EndpointSpec)) *shop {
	t.Helper()
	p := plane.New(t)
	p.WithJobs()
	s := &shop{Plane: p, t: t, workers: p.Workers(nobody), who: p.Who(plane.User)}
	s.who.Invoke = []string{fleet.InvokeAll}
	made, _, err := p.CreateEndpoint(t.Context(), s.who, "", func(e *fleet.EndpointSpec) {
		e.Name, e.Image, e.CPU = "embed", "worker:1", []fleet.CPURequest{{Flavor: "cpu3c", VCPU: 2}}
		e.Scaler, e.Workers.Max, e.Workers.Idle = fleet.Scaler{Type: fleet.ScaleByDelay, Value: 4}, 2, 10
		change(e)
	}, nil)
	s.must(err)
	s.endpoint = made.ID
	s.lead()
	t.Cleanup(func() { s.end() })
	return s
}

// nobody is told of ends.
func nobody(context.Context, queue.ID) error { return nil }

// lead begins a time of leadership, and ends the one before.
func (s *shop) lead() {
	if s.end != nil {
		s.end()
		s.workers = s.Workers(nobody)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	w := s.workers
	go func() { over <- w.Lead(ctx) }()
	s.eventually("it leads", w.Leads)
	s.end = func() {
		cancel()
		if over != nil {
			if err := <-over; err != nil {
				s.t.Error(err)
			}
			over = nil
		}
	}
}

func (s *shop) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// eventually waits for a condition.
func (s *shop) eventually(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("not in time: " + what)
		}
	}
}

// pods returns the workers that are to run.
func (s *shop) pods() (out []*fleet.Pod) {
	s.View(func(v *state.View) {
		for _, p := range v.WorkersOf(s.endpoint) {
			if p.Goal == fleet.GoalRun && p.Status.Active() {
				out = append(out, p)
			}
		}
	})
	return out
}

// worker waits until there are n workers, and returns the last that came.
func (s *shop) worker(n int) *fleet.Pod {
	s.t.Helper()
	var last *fleet.Pod
	s.eventually(fmt.Sprintf("%d workers", n), func() bool {
		all := s.pods()
		last = nil
		for _, p := range all {
			if last == nil || p.CreatedAt.After(last.CreatedAt) {
				last = p
			}
		}
		return len(all) == n
	})
	return last
}

// runs plays the host that has a worker's container running.
func (s *shop) runs(p *fleet.Pod) {
	s.t.Helper()
	s.must(s.Report(p.ID, fleet.EventStarting))
	s.must(s.Report(p.ID, fleet.EventRunning))
}

func (s *shop) submit(input string) fleet.JobView {
	s.t.Helper()
	v, err := s.SubmitJob(s.t.Context(), s.who, s.endpoint, fleet.JobRequest{Body: []byte(`{"input":` + input + `}`)})
	s.must(err)
	return v
}

func (s *shop) job(v fleet.JobView) fleet.JobView {
	s.t.Helper()
	got, err := s.Job(s.t.Context(), s.who, s.endpoint, v.ID, 0)
	s.must(err)
	return got
}

// status waits until a job has a status.
func (s *shop) status(v fleet.JobView, want string) fleet.JobView {
	s.t.Helper()
	var got fleet.JobView
	s.eventually("job "+v.ID+" is "+want, func() bool { got = s.job(v); return got.Status == want })
	return got
}

// link is the stream of a host that a test plays.
type link struct {
	s      *shop
	ctx    context.Context
	cancel context.CancelFunc
	down   chan *agentrpc.JobsDown
	up     chan *agentrpc.JobsUp
	over   chan error
	gone   chan struct{} // closed: the host's session is over
	number uint64
}

// connect begins the stream of a host and takes what it holds.
func (s *shop) connect(host fleet.HostID) (*link, *agentrpc.JobsHeld) {
	s.t.Helper()
	return s.dial(host, 1000)
}

// dial is connect with room for so many messages that the host has not read.
func (s *shop) dial(host fleet.HostID, room int) (*link, *agentrpc.JobsHeld) {
	s.t.Helper()
	l := &link{s: s, down: make(chan *agentrpc.JobsDown, room), up: make(chan *agentrpc.JobsUp), over: make(chan error, 1), gone: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	w := s.workers
	go func() {
		err := w.Serve(host, l.gone, l)
		l.cancel() // as gRPC ends a stream with its handler
		l.over <- err
	}()
	s.t.Cleanup(l.leave)
	return l, l.next().GetHeld()
}

func (l *link) leave() {
	l.cancel()
	if l.over != nil {
		err := <-l.over
		l.s.t.Log("the stream ended: ", err)
		l.over = nil
	}
}

func (l *link) Context() context.Context { return l.ctx }
func (l *link) Send(m *agentrpc.JobsDown) error {
	select {
	case l.down <- m:
		return nil
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
}

func (l *link) Recv() (m *agentrpc.JobsUp, err error) {
	select {
	case m = <-l.up:
		return m, nil
	case <-l.ctx.Done():
		return nil, l.ctx.Err()
	}
}

// next waits for a message of the scheduler.
func (l *link) next() *agentrpc.JobsDown {
	l.s.t.Helper()
	select {
	case m := <-l.down:
		return m
	case <-time.After(patience):
		l.s.t.Fatal("the scheduler says nothing")
		return nil
	}
}

// silent reports whether the scheduler has said nothing more.
func (l *link) silent() bool { return len(l.down) == 0 }

func (l *link) wants(pod fleet.PodID, n int) {
	l.up <- &agentrpc.JobsUp{Kind: &agentrpc.JobsUp_Wants{Wants: &agentrpc.WorkerWants{PodId: string(pod), Slots: int32(n)}}} //nolint:gosec // small
}

// given waits for a job, all of its parts.
func (l *link) given() (*agentrpc.JobGiven, string) {
	l.s.t.Helper()
	body := ""
	for {
		g := l.next().GetGiven()
		if g == nil {
			l.s.t.Fatal("another message than a job")
		}
		if body += string(g.GetBody()); !g.GetMore() {
			return g, body
		}
	}
}

// reports sends a report in parts of a size, and waits until it is kept.
func (l *link) reports(g *agentrpc.JobGiven, kind agentrpc.JobReport_Kind, body string, change func(*agentrpc.JobReport)) *agentrpc.JobKept {
	l.s.t.Helper()
	l.number++
	for first := true; first || body != ""; first = false {
		n := min(len(body), 200<<10)
		m := &agentrpc.JobReport{
			Number: l.number, PodId: g.GetPodId(), JobId: g.GetJobId(), Attempt: g.GetAttempt(), Kind: kind, Body: []byte(body[:n]), More: n < len(body),
		}
		change(m)
		l.up <- &agentrpc.JobsUp{Kind: &agentrpc.JobsUp_Report{Report: m}}
		body = body[n:]
	}
	kept := l.next().GetKept()
	if kept.GetNumber() != l.number {
		l.s.t.Fatalf("kept %v, not %d", kept, l.number)
	}
	return kept
}

func plain(*agentrpc.JobReport) {}

// TestAJobFromZeroToZero: a job of an endpoint without workers starts one, which takes it, answers it, idles out and is gone.
func TestAJobFromZeroToZero(t *testing.T) {
	s := newShop(t, func(*fleet.EndpointSpec) {})
	v := s.submit(`{"n":7}`)
	p := s.worker(1)
	if p.Owner != s.endpoint.Owner() || p.Release != 1 || p.Account != s.who.Account {
		t.Errorf("the worker is %+v", p)
	}
	if why := s.workers.Why(s.endpoint, 0); !strings.HasPrefix(why, "no worker yet: 1 starting") {
		t.Errorf("it waits because %q", why)
	}
	s.runs(p)
	l, held := s.connect(p.Host)
	if len(held.GetJobs()) != 0 {
		t.Errorf("held before it began: %v", held)
	}
	l.wants(p.ID, 1)
	g, body := l.given()
	var in struct {
		ID    string
		Input struct{ N int }
	}
	s.must(json.Unmarshal([]byte(body), &in))
	if g.GetPodId() != string(p.ID) || g.GetJobId() != v.ID || in.ID != v.ID || in.Input.N != 7 || g.GetAttempt() != 1 {
		t.Errorf("given %v: %s", g, body)
	}
	s.eventually("the worker is ready", func() bool { rec, _ := s.Record(p.ID); return !rec.Ready.IsZero() })
	if got := s.workers.Counts(s.endpoint); got.Running != 1 || got.Idle+got.Initializing != 0 {
		t.Errorf("counted %+v", got)
	}
	if kept := l.reports(g, agentrpc.JobReport_PROGRESS, `"half"`, plain); kept.GetError() != "" || string(s.job(v).Output) != `"half"` {
		t.Errorf("%v, %+v", kept, s.job(v))
	}
	if kept := l.reports(g, agentrpc.JobReport_DONE, `{"sum":49}`, plain); kept.GetError() != "" {
		t.Error(kept)
	}
	if got := s.job(v); got.Status != "COMPLETED" || string(got.Output) != `{"sum":49}` || got.Worker != p.ID {
		t.Errorf("%+v", got)
	}
	if kept := l.reports(g, agentrpc.JobReport_DONE, `{"sum":50}`, plain); kept.GetError() != "" || string(s.job(v).Output) != `{"sum":49}` {
		t.Errorf("a result that came twice: %v", kept)
	}
	l.wants(p.ID, 1)
	s.Advance(9 * time.Second)
	s.workers.Kick(s.endpoint)
	if n := len(s.pods()); n != 1 {
		t.Errorf("%d workers before it idled out", n)
	}
	s.Advance(2 * time.Second)
	s.workers.Kick(s.endpoint)
	s.worker(0)
}

// TestLargeBodiesComeInParts, both ways, and a result that nobody may keep ends the job with the reason.
func TestLargeBodiesComeInParts(t *testing.T) {
	s := newShop(t, func(*fleet.EndpointSpec) {})
	big := `{"text":"` + strings.Repeat("x", 3<<20) + `"}`
	v := s.submit(big)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 2)
	g, body := l.given()
	if want := `{"id":"` + v.ID + `","input":` + big + `}`; body != want {
		t.Errorf("%d bytes were given, not %d", len(body), len(want))
	}
	if kept := l.reports(g, agentrpc.JobReport_DONE, big, plain); kept.GetError() != "" || string(s.job(v).Output) != big {
		t.Errorf("%v, %d bytes", kept, len(s.job(v).Output))
	}
	for kind, want := range map[agentrpc.JobReport_Kind]string{
		agentrpc.JobReport_FAILED: "no such model", agentrpc.JobReport_DISCARDED: "the result was discarded",
	} {
		v := s.submit(`{}`)
		g, _ := l.given()
		body := map[agentrpc.JobReport_Kind]string{agentrpc.JobReport_FAILED: `"no such model"`}[kind]
		l.reports(g, kind, body, func(m *agentrpc.JobReport) { m.Reason = "too large" })
		if got := s.job(v); got.Status != "FAILED" || got.Error != want {
			t.Errorf("%v: %+v", kind, got)
		}
		l.wants(p.ID, 2)
	}
}

// TestReportsOfOneHostAreBounded: the parts of one that has not come whole count beside those that are being committed, and the largest
// one has room.
func TestReportsOfOneHostAreBounded(t *testing.T) {
	const part = 256 << 10
	synctest.Test(t, func(t *testing.T) {
		for committing, want := range map[int64]int{0: 84, 12 << 20: 47, 24<<20 - 1: 0} {
			if n := workers.PartsTaken(committing, part); n != want {
				t.Errorf("beside %d bytes %d parts of 256 KiB are taken, not %d", committing, n, want)
			}
		}
	})
}

// TestAJobThatComesBackIsGivenAnew, also to the worker that gave it back, and by a look that began before.
func TestAJobThatComesBackIsGivenAnew(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	first := s.submit(`{"n":1}`)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 1)
	g, _ := l.given()
	s.must(s.workers.GiveAfter(t.Context(), s.endpoint, func() {
		s.submit(`{"n":2}`)
		l.wants(p.ID, 1)
		l.reports(g, agentrpc.JobReport_PROGRESS, "1", plain) // what was said before is known
	}, func() { l.reports(g, agentrpc.JobReport_REFUSED, "", plain) }))
	if again, _ := l.given(); again.GetJobId() != first.ID {
		t.Errorf("given %v", again)
	}
}

// TestASlotIsNotLostWithAJobThatEnded before its worker's host was told of it.
func TestASlotIsNotLostWithAJobThatEnded(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	s.submit(`{"n":1}`)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.dial(p.Host, 0)
	l.wants(p.ID, 2)
	s.eventually("the host is about to be told of one job", func() bool { return s.workers.Counts(s.endpoint).Running == 1 })
	ended := s.submit(`{"n":2}`)
	s.eventually("it has another", func() bool { return s.job(ended).Status == "IN_PROGRESS" })
	if _, err := s.CancelJob(t.Context(), s.who, s.endpoint, ended.ID); err != nil {
		t.Fatal(err)
	}
	next := s.submit(`{"n":3}`)
	l.given()
	for { // the host may be told to stop what it was not given
		m := l.next()
		if m.GetStop() != nil {
			continue
		}
		if m.GetGiven().GetJobId() != next.ID {
			t.Errorf("told %v", m)
		}
		return
	}
}

// TestJobsOfAWorkerThatIsGone are given out again; a job that the worker never saw is as it was; and a leader that begins knows what
// workers have.
func TestJobsOfAWorkerThatIsGone(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	v := s.submit(`{}`)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 1)
	g, _ := l.given()
	l.reports(g, agentrpc.JobReport_REFUSED, "", plain)
	if got := s.status(v, "IN_QUEUE"); got.Attempts != 0 {
		t.Errorf("the worker never saw it: %+v", got)
	}
	l.wants(p.ID, 1)
	l.given()
	// Another scheduler leads: it tells the host what its workers have, and takes the result of what the last one gave.
	s.lead()
	if err := <-l.over; err == nil {
		t.Error("the stream ended without a reason")
	}
	l.over = nil
	l, held := s.connect(p.Host)
	if len(held.GetJobs()) != 1 || held.GetJobs()[0].GetJobId() != v.ID || held.GetJobs()[0].GetAttempt() != 1 {
		t.Fatalf("held %v", held)
	}
	// The worker dies: another one gets the job.
	s.must(s.Report(p.ID, fleet.EventExited, func(r *state.PodReport) { code := 137; r.ExitCode = &code }))
	s.eventually("the dead one is ended", func() bool { rec, _ := s.Record(p.ID); return rec.Status == fleet.StatusTerminated })
	s.status(v, "IN_QUEUE")
	s.Advance(2 * time.Second) // a pause after a crash
	s.workers.Kick(s.endpoint)
	next := s.worker(1)
	s.runs(next)
	l.wants(next.ID, 1)
	g, _ = l.given()
	if g.GetPodId() != string(next.ID) || g.GetAttempt() != 2 {
		t.Errorf("given %v", g)
	}
	// What the dead one says of it counts no more, unless it is a success.
	stranger := &agentrpc.JobGiven{PodId: string(p.ID), JobId: v.ID, Attempt: 1}
	l.reports(stranger, agentrpc.JobReport_FAILED, `"late"`, plain)
	if got := s.job(v); got.Status != "IN_PROGRESS" {
		t.Errorf("%+v", got)
	}
	l.reports(g, agentrpc.JobReport_LOST, "", func(m *agentrpc.JobReport) { m.Reason = "it does not know it any more" })
	if got := s.status(v, "FAILED"); got.Error != "job timed out after 1 retries" || !strings.Contains(got.Reason, "does not know it") {
		t.Errorf("%+v", got)
	}
}

// TestACancelledJobIsStopped at its worker; one that cannot be told is replaced when it has nothing else to do.
func TestACancelledJobIsStopped(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	v := s.submit(`{}`)
	p := s.worker(1)
	s.runs(p)
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 1)
	g, _ := l.given()
	_, err := s.CancelJob(t.Context(), s.who, s.endpoint, v.ID)
	s.must(err)
	if stop := l.next().GetStop(); stop.GetJobId() != v.ID || stop.GetPodId() != string(p.ID) {
		t.Errorf("told to stop %v", stop)
	}
	l.reports(g, agentrpc.JobReport_UNSTOPPED, "", plain)
	s.worker(0)
	if got := s.job(v); got.Status != "CANCELLED" {
		t.Errorf("%+v", got)
	}
}

// TestACrashLoopFailsItsJobs after as long as its owner said, with what the workers said; before that it backs off.
func TestACrashLoopFailsItsJobs(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.FailAfter = 60 })
	v := s.submit(`{}`)
	for n := 1; ; n++ {
		var p *fleet.Pod
		s.eventually("the next worker, or the end", func() bool {
			s.Advance(time.Second)
			s.workers.Kick(s.endpoint)
			if all := s.pods(); len(all) > 0 {
				p = all[0]
			}
			return p != nil || s.job(v).Ended
		})
		if p == nil {
			if n < 4 || n > 9 {
				t.Errorf("%d workers were started in a minute", n-1)
			}
			break
		}
		s.must(s.Report(p.ID, fleet.EventExited, func(r *state.PodReport) { code := 1; r.ExitCode, r.LogTail = &code, "loading\nno CUDA here\n" }))
		s.eventually("it is ended", func() bool { rec, _ := s.Record(p.ID); return rec.Status == fleet.StatusTerminated })
		if why := s.workers.Why(s.endpoint, 0); !strings.Contains(why, fmt.Sprintf("workers crash, %d in a row", n)) || !strings.Contains(why, "exit code 1: loading | no CUDA here") {
			t.Errorf("it waits because %q", why)
		}
	}
	if got := s.job(v); got.Status != "FAILED" || !strings.Contains(got.Error, "no CUDA here") {
		t.Errorf("%+v", got)
	}
}

// TestADeletedEndpointLeavesNothing: neither workers nor jobs.
func TestADeletedEndpointLeavesNothing(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Min = 2 })
	s.worker(2)
	s.submit(`{}`)
	s.must(s.DeleteEndpoint(t.Context(), s.who, s.endpoint))
	s.worker(0)
}

// TestWhatAHostMayNotSay: of others' workers, of jobs that are none, and more than one report at a time.
func TestWhatAHostMayNotSay(t *testing.T) {
	s := newShop(t, func(e *fleet.EndpointSpec) { e.Workers.Max = 1 })
	v := s.submit(`{}`)
	p := s.worker(1)
	s.runs(p)
	other, _ := s.connect("another-host00")
	other.wants(p.ID, 5)
	lie := &agentrpc.JobGiven{PodId: string(p.ID), JobId: v.ID, Attempt: 1}
	other.reports(lie, agentrpc.JobReport_DONE, `"mine"`, plain)
	if got := s.job(v); got.Status != "IN_QUEUE" || !other.silent() {
		t.Errorf("another host's word counts: %+v", got)
	}
	l, _ := s.connect(p.Host)
	l.wants(p.ID, 1)
	g, _ := l.given()
	for what, c := range map[string]struct {
		kind agentrpc.JobReport_Kind
		job  string
		body string
	}{
		"no id": {agentrpc.JobReport_DONE, "x", `1`}, "no kind": {99, v.ID, `1`}, "no JSON": {agentrpc.JobReport_PROGRESS, v.ID, `{`},
	} {
		if kept := l.reports(&agentrpc.JobGiven{PodId: g.GetPodId(), JobId: c.job, Attempt: 1}, c.kind, c.body, plain); kept.GetError() == "" {
			t.Errorf("%s was taken", what)
		}
	}
	if got := s.job(v); got.Status != "IN_PROGRESS" {
		t.Errorf("%+v", got)
	}
	send := func(m *agentrpc.JobReport) { l.up <- &agentrpc.JobsUp{Kind: &agentrpc.JobsUp_Report{Report: m}} }
	send(&agentrpc.JobReport{Number: 100, PodId: g.GetPodId(), JobId: v.ID, Kind: agentrpc.JobReport_DONE, Body: []byte("1"), More: true})
	send(&agentrpc.JobReport{Number: 101, PodId: g.GetPodId(), JobId: v.ID, Kind: agentrpc.JobReport_DONE, Body: []byte("1")})
	if err := <-l.over; err == nil || !strings.Contains(err.Error(), "between the parts") {
		t.Errorf("two at once: %v", err)
	}
	l.over = nil
}
