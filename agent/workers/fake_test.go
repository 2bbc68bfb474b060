package workers

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	library "gantry/test/program/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// brisk are times that a test can wait for.
func brisk() *times {
	return &times{
		hold: 20 * time.Second, again: 300 * time.Millisecond, next: 300 * time.Millisecond, stop: 300 * time.Millisecond,
		pause: 20 * time.Millisecond, body: 5 * time.Second, keep: 5 * time.Second, backOff: 5 * time.Millisecond, most: 20 * time.Millisecond,
		idle: 20 * time.Millisecond,
	}
}

// scheduler is the other end: it notes what comes and keeps it, unless it is told not to.
type scheduler struct {
	agentrpc.UnimplementedLinkServer
	t testing.TB

	mu      sync.Mutex
	held    []*agentrpc.JobHeld
	away    bool // refuses streams
	mute    bool // keeps nothing
	stream  grpc.BidiStreamingServer[agentrpc.JobsUp, agentrpc.JobsDown]
	cut     context.CancelFunc
	opened  int
	wants   []*agentrpc.WorkerWants
	sick    []*agentrpc.WorkerUnhealthy
	reports []*agentrpc.JobReport // whole ones, with all of their body
	changed chan struct{}
}

func (s *scheduler) note(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// Jobs implements agentrpc.LinkServer.
func (s *scheduler) Jobs(stream grpc.BidiStreamingServer[agentrpc.JobsUp, agentrpc.JobsDown]) error {
	ctx, cut := context.WithCancel(stream.Context())
	defer cut()
	refused := false
	s.note(func() {
		if refused = s.away; refused {
			return
		}
		if err := stream.Send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Held{Held: &agentrpc.JobsHeld{Jobs: s.held}}}); err != nil {
			s.t.Log(err)
		}
		s.stream, s.cut = stream, cut
		s.opened++
	})
	if refused {
		return io.ErrUnexpectedEOF
	}
	defer s.note(func() {
		if s.stream == stream {
			s.stream = nil
		}
	})
	go func() {
		var body []byte
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			s.note(func() { body = s.take(stream, m, body) })
		}
	}()
	<-ctx.Done()
	return ctx.Err()
}

func (s *scheduler) take(stream grpc.BidiStreamingServer[agentrpc.JobsUp, agentrpc.JobsDown], m *agentrpc.JobsUp, body []byte) []byte {
	switch kind := m.GetKind().(type) {
	case *agentrpc.JobsUp_Wants:
		s.wants = append(s.wants, kind.Wants)
	case *agentrpc.JobsUp_Unhealthy:
		s.sick = append(s.sick, kind.Unhealthy)
	case *agentrpc.JobsUp_Report:
		r := kind.Report
		body = append(body, r.GetBody()...)
		if r.GetMore() {
			return body
		}
		r.Body, body = body, nil
		s.reports = append(s.reports, r)
		if !s.mute && s.stream == stream {
			s.send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Kept{Kept: &agentrpc.JobKept{Number: r.GetNumber()}}})
		}
	}
	return body
}

// send sends in the stream that stands; the mutex is held.
func (s *scheduler) send(m *agentrpc.JobsDown) {
	if err := s.stream.Send(m); err != nil {
		s.t.Log(err)
	}
}

// until waits for what must come true.
func (s *scheduler) until(what string, f func() bool) {
	s.t.Helper()
	limit := time.After(time.Minute)
	for {
		s.mu.Lock()
		ok, changed := f(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			s.mu.Lock()
			defer s.mu.Unlock()
			s.t.Fatalf("%s: never; wants %v, reports %v", what, s.wants, s.reports)
		}
	}
}

// ready waits until a worker wants so many jobs.
func (s *scheduler) ready(slots int32) {
	s.t.Helper()
	s.until("a worker is ready", func() bool { return len(s.wants) > 0 && s.wants[len(s.wants)-1].GetSlots() == slots })
}

func (s *scheduler) give(id string, attempt uint32, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = append(s.held, &agentrpc.JobHeld{PodId: podID, JobId: id, Attempt: attempt})
	half := len(body) / 2
	for i, part := range []string{body[:half], body[half:]} {
		s.send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Given{Given: &agentrpc.JobGiven{PodId: podID, JobId: id, Attempt: attempt, Body: []byte(part), More: i == 0}}})
	}
}

func (s *scheduler) stop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(&agentrpc.JobsDown{Kind: &agentrpc.JobsDown_Stop{Stop: &agentrpc.JobStop{PodId: podID, JobId: id}}})
}

// said waits for the n-th report, from 1.
func (s *scheduler) said(n int) *agentrpc.JobReport {
	s.t.Helper()
	s.until("a report", func() bool { return len(s.reports) >= n })
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reports[n-1]
}

const podID = "abcdefghijklmn"

// lab is a gate with one worker's pod, and a scheduler.
type lab struct {
	*testing.T
	*scheduler
	gate      *Gate
	times     *times
	dir       string
	conn      *grpc.ClientConn
	base      string
	stopAgent func()
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{T: t, times: brisk(), dir: t.TempDir(), scheduler: &scheduler{t: t, changed: make(chan struct{})}}
	server := grpc.NewServer()
	agentrpc.RegisterLinkServer(server, l.scheduler)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(at) }()
	l.conn, err = grpc.NewClient(at.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = l.conn.Close(); server.Stop(); <-done })
	t.Cleanup(func() { l.stopAgent() })
	l.start(true)
	return l
}

// start starts the agent. begins says that the worker's process does too.
func (l *lab) start(begins bool) {
	l.boot(func() { must(l.T, l.gate.Open(podID, 1, begins)) })
}

// boot starts the agent, which does something before it looks for a scheduler.
func (l *lab) boot(first func()) {
	ctx, cancel := context.WithCancel(context.Background())
	l.gate = New(ctx, Config{Dir: l.dir, Log: slog.New(slog.DiscardHandler), times: l.times, Listen: func(fleet.PodID) (net.Listener, error) {
		at, err := net.Listen("tcp", "127.0.0.1:0")
		if err == nil {
			l.base = "http://" + at.Addr().String()
		}
		return at, err
	}})
	first()
	l.gate.Begin(l.conn)
	l.stopAgent = func() { cancel(); l.gate.Wait() }
}

// connected waits for a stream.
func (l *lab) connected() {
	l.Helper()
	l.until("a stream", func() bool { return l.stream != nil })
}

// leave cuts the stream, and lets no other begin.
func (l *lab) leave() {
	l.note(func() { l.away = true; l.cut() })
	l.until("the end of the stream", func() bool { return l.stream == nil })
	<-l.down()
}

func (l *lab) down() chan struct{} {
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	return l.gate.link.down
}

func (l *lab) comeBack() {
	l.note(func() { l.away, l.mute = false, false })
	l.connected()
}

// env is a worker's environment, which asks at an address.
func env(base, name string) string {
	const query = "?gpu=NVIDIA+L4"
	base += "/v2/endpoint1"
	return map[string]string{
		"RUNPOD_WEBHOOK_GET_JOB":     base + "/job-take/$ID" + query,
		"RUNPOD_WEBHOOK_POST_OUTPUT": base + "/job-done/$RUNPOD_POD_ID/$ID" + query,
		"RUNPOD_WEBHOOK_POST_STREAM": base + "/job-stream/$RUNPOD_POD_ID/$ID" + query,
		"RUNPOD_WEBHOOK_PING":        base + "/ping/$RUNPOD_POD_ID" + query,
		"RUNPOD_AI_API_KEY":          "key", "RUNPOD_POD_ID": podID, "RUNPOD_ENDPOINT_ID": "endpoint1",
	}[name]
}

// work runs a worker until the returned function is called, which waits for it.
func (l *lab) work(c library.Config) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	base := l.base
	if c.Env = func(name string) string { return env(base, name) }; c.Say == nil {
		c.Say = func(line string) { l.Log(line) }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := library.Run(ctx, c); err != nil {
			l.Error(err)
		}
	}()
	end = sync.OnceFunc(func() { cancel(); <-done })
	l.Cleanup(func() { l.gate.Drain(podID); end() })
	return end
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends one request of a worker.
func (l *lab) ask(method, path, body string) (status int, answer string, header http.Header) {
	l.Helper()
	return l.askCtx(context.Background(), method, path, body)
}

func (l *lab) askCtx(ctx context.Context, method, path, body string) (int, string, http.Header) {
	r, err := http.NewRequestWithContext(ctx, method, l.base+"/v2/endpoint1/"+path, strings.NewReader(body))
	must(l.T, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	got, err := client.Do(r)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = got.Body.Close() }()
	text, _ := io.ReadAll(got.Body)
	return got.StatusCode, string(text), got.Header
}

// takes has the worker have a job.
func (l *lab) takes(id string) {
	l.Helper()
	type got struct {
		status int
		body   string
	}
	answer := make(chan got, 1)
	go func() {
		status, body, _ := l.ask("GET", "job-take/"+podID+"?gpu=&job_in_progress=0", "")
		answer <- got{status, body}
	}()
	l.ready(1)
	job := `{"id":"` + id + `","input":{}}`
	l.give(id, 1, job)
	if a := <-answer; a.status != 200 || a.body != job {
		l.Fatalf("it took %+v", a)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
