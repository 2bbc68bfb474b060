package serverless

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	balanceface "gantry/api/balance"
	"gantry/api/jobs"
	"gantry/api/proxy"
	"gantry/fleet"
	"gantry/scheduler/balance"
	"gantry/scheduler/state"
	"gantry/scheduler/workers"
	"gantry/serverless/queue"
	"gantry/test/plane"
)

// quick is a pace at which tests need not wait.
var quick = balance.Pace{
	Starting: 2 * time.Millisecond, Ready: 2 * time.Millisecond, Answer: patience, Report: 2 * time.Millisecond, Quiet: 5 * time.Millisecond,
}

// server is a worker's program.
type server struct {
	id     fleet.PodID
	health atomic.Int32 // what its health answers
	asked  atomic.Int32 // requests that reached it
	http   *httptest.Server
}

// square is an installation with one endpoint that balances, whose workers are real servers. The hosts are played.
type square struct {
	*plane.Plane
	t        testing.TB
	endpoint fleet.EndpointID
	front    *httptest.Server
	workers  *workers.Workers
	work     http.HandlerFunc // of each worker
	begins   int32            // what a new worker's health answers
	port     int              // at which workers listen

	mu      sync.Mutex // guards the field below
	servers map[fleet.PodID]*server
}

type servedBy struct{}

// newSquare makes a square. A request reaches work; begins is what the health of a new worker answers.
func newSquare(t testing.TB, work http.HandlerFunc, change func(*fleet.EndpointSpec), options ...func(*square, *balanceface.Config, *balance.Pace)) *square {
	t.Helper()
	p := plane.New(t)
	p.WithJobs()
	s := &square{Plane: p, t: t, work: work, begins: http.StatusOK, port: 80, servers: map[fleet.PodID]*server{}}
	pace := quick
	config := balanceface.Config{Domain: "pods.test", May: p.MayRequest, Log: slog.New(slog.DiscardHandler)}
	for _, o := range options {
		o(s, &config, &pace)
	}
	made, _, err := p.CreateEndpoint(t.Context(), p.Who(plane.User), "", func(e *fleet.EndpointSpec) {
		e.Name, e.Type, e.Image, e.CPU = "web", fleet.EndpointBalanced, "web:1", []fleet.CPURequest{{Flavor: "cpu3c", VCPU: 2}}
		e.Scaler, e.Workers.Max = fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1}, 3
		change(e)
	}, nil)
	s.must(err)
	s.endpoint = made.ID
	balancer := p.Balancer(pace, func() *workers.Workers { return s.workers })
	s.workers = p.Workers(func(context.Context, queue.ID) error { return nil })
	config.Balancer = balancer
	config.Proxy = proxy.New(proxy.Config{Domain: config.Domain, Dialer: balancer, Log: config.Log})
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = s.workers.Lead(ctx) })
	tasks.Go(func() { _ = balancer.Run(ctx) })
	tasks.Go(func() { s.play(ctx) })
	took := func() error {
		_, err := balancer.Take(ctx, &fleet.Endpoint{}, fleet.WorkerWish{}, nil)
		return err
	}
	s.eventually("requests are balanced", func() bool { return fleet.CodeOf(took()) == fleet.CodeNotFound })
	jobFace := jobs.New(jobs.Config{Service: p, Keys: p, Log: config.Log, Now: p.Now, Workers: s.workers.Counts})
	s.front = httptest.NewServer(balanceface.New(config).Wrap(jobFace))
	t.Cleanup(func() {
		s.front.Client().CloseIdleConnections()
		s.front.Close()
		cancel()
		tasks.Wait()
		if err := took(); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("a request after the end: %v", err)
		}
		config.Proxy.Close()
		for _, one := range s.servers {
			one.http.CloseClientConnections()
			one.http.Close()
		}
	})
	return s
}

func (s *square) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// play plays the host: it starts the containers of workers, and ends them.
func (s *square) play(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		wanted := map[fleet.PodID]bool{}
		s.View(func(v *state.View) {
			for _, p := range v.WorkersOf(s.endpoint) {
				wanted[p.ID] = p.Status.Active() && p.Goal == fleet.GoalRun
			}
		})
		for id, wants := range wanted {
			s.mu.Lock()
			known := s.servers[id] != nil
			s.mu.Unlock()
			if wants && !known {
				s.start(id)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// start plays a container that starts.
func (s *square) start(id fleet.PodID) {
	one := &server{id: id}
	one.health.Store(s.begins)
	one.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ping" {
			w.WriteHeader(int(one.health.Load()))
			return
		}
		one.asked.Add(1)
		s.work(w, r.WithContext(context.WithValue(r.Context(), servedBy{}, one)))
	}))
	s.mu.Lock()
	s.servers[id] = one
	s.mu.Unlock()
	s.Serve(id, s.port, one.http.Listener.Addr().String())
	for _, event := range []fleet.Trigger{fleet.EventStarting, fleet.EventRunning} {
		if err := s.Report(id, event); err != nil {
			s.t.Log(err) // it was ended meanwhile
		}
	}
}

// all returns the servers of workers that are to run.
func (s *square) all() (out []*server) {
	var ids []fleet.PodID
	s.View(func(v *state.View) {
		for _, p := range v.WorkersOf(s.endpoint) {
			if p.Status.Active() && p.Goal == fleet.GoalRun {
				ids = append(ids, p.ID)
			}
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if one := s.servers[id]; one != nil {
			out = append(out, one)
		}
	}
	return out
}

// eventually waits for a condition.
func (s *square) eventually(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not in time: %s; %v", what, s.workers.Why(s.endpoint, -1))
		}
	}
}

// pass has time pass, and the leader look at it.
func (s *square) pass(d time.Duration) {
	s.Advance(d)
	s.workers.HealthChanged(s.endpoint)
}

// counts are the endpoint's workers.
func (s *square) counts() fleet.WorkerCounts { return s.workers.Counts(s.endpoint) }

// ready waits until so many workers take requests.
func (s *square) ready(n int) []*server {
	s.t.Helper()
	s.eventually(fmt.Sprintf("%d workers", n), func() bool { c := s.counts(); return c.Idle+c.Running == n })
	return s.all()
}

// answer is what a request got.
type answer struct {
	status int
	body   string
	worker string
	header http.Header
}

// request makes a request of the endpoint's users, by the host's name; header has names and values in turn.
func (s *square) request(method, path string, body io.Reader, header ...string) *http.Request {
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.front.URL+path, body)
	s.must(err)
	r.Host = string(s.endpoint) + ".pods.test:8080"
	r.Header.Set("Authorization", "Bearer "+plane.KeyText(plane.User).Reveal())
	for i := 0; i+1 < len(header); i += 2 {
		if r.Header.Del(header[i]); header[i+1] != "" {
			r.Header.Set(header[i], header[i+1])
		}
	}
	return r
}

func (s *square) do(r *http.Request) (answer, error) {
	resp, err := s.front.Client().Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(body), resp.Header.Get("X-Runpod-Worker-Id"), resp.Header}, err
}

func (s *square) ask(method, path, body string, header ...string) answer {
	s.t.Helper()
	got, err := s.do(s.request(method, path, strings.NewReader(body), header...))
	s.must(err)
	return got
}

// echo answers with what it was asked.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %q %q", r.Method, r.URL.RequestURI(), body, r.Header.Get("Authorization"))
}

func asIs(*fleet.EndpointSpec) {}

// TestARequestStartsAWorker that is asked only once it is ready, and goes when nobody needs it.
func TestARequestStartsAWorker(t *testing.T) {
	s := newSquare(t, echo, asIs, func(s *square, _ *balanceface.Config, _ *balance.Pace) { s.begins = http.StatusNoContent })
	got := make(chan answer, 1)
	go func() {
		a, err := s.do(s.request("POST", "/v1/chat?a=%2F;b", strings.NewReader("hello")))
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	s.eventually("a worker that gets ready", func() bool { return s.counts().Initializing == 1 && len(s.all()) == 1 })
	one := s.all()[0]
	s.eventually("it is asked for its health", func() bool { _, ok := s.workers.Health(s.endpoint, one.id); return ok })
	s.eventually("it says that it gets ready", func() bool {
		h, _ := s.workers.Health(s.endpoint, one.id)
		return h.State == balance.Initializing
	})
	s.Advance(7 * time.Second)
	one.health.Store(http.StatusOK)
	a := <-got
	if a.status != 200 || a.body != `POST /v1/chat?a=%2F;b "hello" ""` || a.worker != string(one.id) || a.header.Get("X-Gantry-Worker-Id") != a.worker {
		t.Errorf("%+v", a)
	}
	list, err := s.EndpointWorkers(t.Context(), s.Who(plane.User), s.endpoint)
	s.must(err)
	if len(list.Workers) != 1 || list.Workers[0].Note.ColdStart != 7*time.Second {
		t.Errorf("%+v", list.Workers)
	}
	s.eventually("it is charged", func() bool { p, _ := s.Record(one.id); return !p.Ready.IsZero() }) // noted beside the request
	s.eventually("it goes", func() bool { s.pass(time.Second); return len(s.all()) == 0 })
}

// TestByPath reaches the same worker, and leaves to the face of jobs what is its own.
func TestByPath(t *testing.T) {
	s := newSquare(t, echo, func(e *fleet.EndpointSpec) { e.Workers.Min = 1 })
	s.ready(1)
	by := func(method, path string) answer {
		r := s.request(method, "/v2/"+string(s.endpoint)+path, nil)
		r.Host = ""
		got, err := s.do(r)
		s.must(err)
		return got
	}
	for path, want := range map[string]string{
		"/a%2Fb/c?x=1": `GET /a%2Fb/c?x=1 "" ""`, "": `GET / "" ""`, "/": `GET / "" ""`, "/openai/v1/models": `GET /openai/v1/models "" ""`,
	} {
		if got := by("GET", path); got.status != 200 || got.body != want {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := by("GET", "/health"); got.status != 200 || !strings.Contains(got.body, `"ready":1`) {
		t.Errorf("%+v", got)
	}
	if got := by("POST", "/run"); got.status != 400 {
		t.Errorf("%+v", got)
	}
}

// TestRequestsWithoutAGoodKey reach no worker.
func TestRequestsWithoutAGoodKey(t *testing.T) {
	s := newSquare(t, echo, asIs)
	for _, c := range []struct {
		key, host, want string
		status          int
	}{
		{"", "", `{"error":"no token provided"}`, 401},
		{"Bearer nonsense", "", `{"error":"invalid api key"}`, 401},
		{"Bearer gk_" + strings.Repeat("a", 43), "", `{"error":"invalid api key"}`, 401},
		{"Bearer " + plane.KeyText(plane.Other).Reveal(), "", `{"error":"endpoint not found"}`, 404},
		{"Bearer " + plane.KeyText(plane.User).Reveal(), "abcdefghijklmn.pods.test", `{"error":"endpoint not found"}`, 404},
	} {
		r := s.request("GET", "/x", nil, "Authorization", c.key)
		if c.host != "" {
			r.Host = c.host
		}
		got, err := s.do(r)
		s.must(err)
		if got.status != c.status || strings.TrimSpace(got.body) != c.want {
			t.Errorf("%q: %+v", c.key, got)
		}
	}
	if n := len(s.all()); n != 0 {
		t.Errorf("%d workers were started", n)
	}
}

// TestWorkersAreNoPages: nobody reaches them around the key.
func TestWorkersAreNoPages(t *testing.T) {
	s := newSquare(t, echo, func(e *fleet.EndpointSpec) {
		e.Workers.Min, e.Ports = 1, []fleet.Port{{Number: 80, Protocol: "http"}}
	})
	one := s.ready(1)[0]
	if _, _, err := s.HTTPPort(t.Context(), one.id, 80); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Error(err)
	}
	if _, err := s.DialPod(t.Context(), one.id, 80); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Error(err)
	}
}

// hold is a worker's program whose requests end when the test says so.
type hold struct {
	began chan *server
	end   chan struct{}
}

func newHold() *hold { return &hold{make(chan *server, 100), make(chan struct{})} }

func (h *hold) serve(w http.ResponseWriter, r *http.Request) {
	one, _ := r.Context().Value(servedBy{}).(*server)
	h.began <- one
	select {
	case <-h.end:
	case <-r.Context().Done():
	}
	_, _ = io.WriteString(w, string(one.id))
}

// TestRequestsUnderWayScale the endpoint up, and each goes where the fewest are.
func TestRequestsUnderWayScale(t *testing.T) {
	h := newHold()
	s := newSquare(t, h.serve, asIs)
	var answers sync.WaitGroup
	for range 3 {
		answers.Go(func() {
			if a, err := s.do(s.request("GET", "/", nil)); err != nil || a.status != 200 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	for range 3 {
		<-h.began
	}
	s.ready(3)
	counted := func(serving int, completed uint64) func() bool {
		return func() bool {
			return s.workers.Requests(s.endpoint) == fleet.JobCounts{Running: serving, Completed: completed}
		}
	}
	s.eventually("all are counted", counted(3, 0))
	close(h.end)
	answers.Wait()
	s.eventually("none is counted", counted(0, 3))
}

// TestTheLessBusyOfTwo gets a request; a WebSocket keeps a worker busy.
func TestTheLessBusyOfTwo(t *testing.T) {
	h := newHold()
	s := newSquare(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			echo(w, r)
			return
		}
		one, _ := r.Context().Value(servedBy{}).(*server)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		h.began <- one
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("you said " + line)
		_ = rw.Flush()
	}, func(e *fleet.EndpointSpec) { e.Workers.Min, e.Workers.Max = 2, 2 })
	s.ready(2)
	conn, err := net.Dial("tcp", s.front.Listener.Addr().String())
	s.must(err)
	defer func() { _ = conn.Close() }()
	r := s.request("GET", "/", nil, "Connection", "Upgrade", "Upgrade", "websocket")
	s.must(r.Write(conn))
	busy := <-h.began
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, r)
	s.must(err)
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("X-Gantry-Worker-Id") != string(busy.id) {
		t.Fatalf("%+v", resp)
	}
	for range 20 {
		if a := s.ask("GET", "/", ""); a.worker == string(busy.id) {
			t.Fatal("the busier one of two got a request")
		}
	}
	s.eventually("it is counted", func() bool { return s.workers.Requests(s.endpoint).Running == 1 })
	_, err = io.WriteString(conn, "hello\n")
	s.must(err)
	if line, err := from.ReadString('\n'); err != nil || line != "you said hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	s.must(conn.Close())
	s.eventually("it is counted no more", func() bool { return s.workers.Requests(s.endpoint).Running == 0 })
}

// TestAWorkerOfOnesChoice is given where that is possible, and the answer is as the contract has it where it is not.
func TestAWorkerOfOnesChoice(t *testing.T) {
	s := newSquare(t, echo, func(e *fleet.EndpointSpec) { e.Workers.Min, e.Workers.Max = 2, 2 }, func(_ *square, _ *balanceface.Config, pace *balance.Pace) {
		pace.Strict = 20 * time.Millisecond
	})
	both := s.ready(2)
	const gone = "abcdefghijklmn"
	for range 5 {
		for _, one := range both {
			for _, form := range []string{"", "strict ", "strict-resume "} {
				if a := s.ask("GET", "/", "", "X-Runpod-Worker-Id", form+string(one.id)); a.status != 200 || a.worker != string(one.id) {
					t.Fatalf("%q: %+v", form, a)
				}
			}
		}
	}
	if a := s.ask("GET", "/", "", "X-Gantry-Worker-Id", gone); a.status != 200 || a.worker == gone {
		t.Errorf("%+v", a)
	}
	for _, form := range []string{"strict ", "strict-resume "} {
		if a := s.ask("GET", "/", "", "X-Runpod-Worker-Id", form+gone); a.status != 404 || !strings.Contains(a.body, `"affinity_worker_gone"`) {
			t.Errorf("%+v", a)
		}
	}
	for _, bad := range []string{"loose " + gone, "strict " + gone + " x", "NOT-AN-ID"} {
		if a := s.ask("GET", "/", "", "X-Runpod-Worker-Id", bad); a.status != 400 || !strings.Contains(a.body, "X-Runpod-Worker-Id") {
			t.Errorf("%+v", a)
		}
	}
	both[0].health.Store(http.StatusServiceUnavailable)
	s.eventually("it is unhealthy", func() bool { h, _ := s.workers.Health(s.endpoint, both[0].id); return h.State == balance.Unhealthy })
	if a := s.ask("GET", "/", "", "X-Runpod-Worker-Id", string(both[0].id)); a.status != 200 || a.worker != string(both[1].id) {
		t.Errorf("%+v", a)
	}
	if a := s.ask("GET", "/", "", "X-Runpod-Worker-Id", "strict "+string(both[0].id)); a.status != 400 || !strings.Contains(a.body, `"worker_timeout"`) {
		t.Errorf("%+v", a)
	}
}

// TestAFrozenWorkerIsWoken by who insists on it.
func TestAFrozenWorkerIsWoken(t *testing.T) {
	s := newSquare(t, echo, func(e *fleet.EndpointSpec) { e.FlashBoot = fleet.FlashBootOn })
	id := s.ask("GET", "/", "").worker
	frozen := func() bool { p, _ := s.Record(fleet.PodID(id)); return !p.Frozen.IsZero() }
	s.eventually("it is frozen", func() bool { s.pass(time.Second); return frozen() })
	if a := s.ask("GET", "/", "", "X-Gantry-Worker-Id", "strict-resume "+id); a.status != 200 || a.worker != id {
		t.Errorf("%+v", a)
	}
}

// TestLimitsOfAnEndpoint are answered in the form of the job plane.
func TestLimitsOfAnEndpoint(t *testing.T) {
	s := newSquare(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/large":
			_, _ = w.Write(make([]byte, fleet.MB+1))
		case "/stream":
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(make([]byte, fleet.MB))
		case "/said":
			w.Header().Set("Content-Length", fmt.Sprint(fleet.MB+1))
			_, _ = w.Write(make([]byte, fleet.MB+1))
		case "/break":
			conn, _, _ := http.NewResponseController(w).Hijack()
			_ = conn.Close()
		default:
			n, _ := io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprint(w, n)
		}
	}, func(e *fleet.EndpointSpec) { e.Workers.Min, e.Workers.Max, e.MaxBodyMB = 1, 1, 1 })
	one := s.ready(1)[0]
	whole := strings.Repeat("x", int(fleet.MB))
	for _, c := range []struct {
		path, body, want string
		status           int
	}{
		{"/", whole, "1000000", 200},
		{"/", whole + "x", `{"error":"the body is too large; max size is 1 MB"}`, 413},
		{"/said", "", `{"error":"the worker's answer is larger than 1 MB"}`, 502},
		{"/break", "", `{"error":"the worker broke off before it answered"}`, 502},
	} {
		if a := s.ask("POST", c.path, c.body); a.status != c.status || strings.TrimSpace(a.body) != c.want {
			t.Errorf("%s with %d bytes: %d %.100q", c.path, len(c.body), a.status, a.body)
		}
	}
	if _, err := s.do(s.request("GET", "/stream", nil)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a stream that is too large: %v", err)
	}
	s.eventually("answers that broke off failed", func() bool {
		return s.workers.Requests(s.endpoint) == fleet.JobCounts{Completed: 1, Failed: 3}
	})
	before := one.asked.Load()
	if a := s.ask("GET", "/break", ""); a.status != 502 || one.asked.Load() != before+1 {
		t.Errorf("%+v, asked %d times", a, one.asked.Load()-before)
	}
	chunked := s.request("POST", "/", io.MultiReader(strings.NewReader(whole), strings.NewReader("x")))
	if a, err := s.do(chunked); err != nil || a.status != 413 && a.status != 502 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestEndedRequestsAreCounted at /health: those below 500 as completed, the others as failed, and those of refused clients not at all.
func TestEndedRequestsAreCounted(t *testing.T) {
	s := newSquare(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
		}
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
	}, func(e *fleet.EndpointSpec) { e.Workers.Min, e.TimeoutMS = 1, 50 })
	s.ready(1)
	for _, path := range []string{"/200", "/204", "/404", "/500", "/503", "/slow"} {
		s.ask("GET", path, "")
	}
	s.ask("GET", "/200", "", "Authorization", "")
	health := func() string {
		r := s.request("GET", "/v2/"+string(s.endpoint)+"/health", nil)
		r.Host = ""
		a, err := s.do(r)
		s.must(err)
		return a.body
	}
	const want = `"jobs":{"completed":3,"failed":3,"inProgress":0,"inQueue":0,"retried":0}`
	s.eventually(want, func() bool { return strings.Contains(health(), want) })
}

// TestAWorkerThatIsSlow is not waited for.
func TestAWorkerThatIsSlow(t *testing.T) {
	s := newSquare(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		func(e *fleet.EndpointSpec) { e.Workers.Min, e.TimeoutMS = 1, 50 })
	if a := s.ask("GET", "/", ""); a.status != 504 || strings.TrimSpace(a.body) != `{"error":"the worker did not answer in time"}` {
		t.Errorf("%+v", a)
	}
}

// TestWaitingForAWorker ends, and so many may wait.
func TestWaitingForAWorker(t *testing.T) {
	s := newSquare(t, echo, asIs, func(s *square, c *balanceface.Config, _ *balance.Pace) {
		s.begins, c.PerAccount = http.StatusNoContent, 1
	})
	ctx, leave := context.WithCancel(t.Context())
	var first sync.WaitGroup
	first.Go(func() {
		if a, err := s.do(s.request("GET", "/", nil).WithContext(ctx)); err == nil { //nolint:contextcheck // it is a part of the test's
			t.Errorf("%+v", a)
		}
	})
	waits := func(n int) func() bool {
		return func() bool { return s.workers.Requests(s.endpoint).Waiting == n }
	}
	s.eventually("it waits", waits(1))
	if a := s.ask("GET", "/", ""); a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, `{"error":"too many requests at a time"}`) {
		t.Errorf("%+v", a)
	}
	leave()
	first.Wait()
	s.eventually("it waits no more", waits(0))
	change := func(change func(e *fleet.EndpointSpec)) {
		_, err := s.UpdateEndpoint(t.Context(), s.Who(plane.User), s.endpoint, change)
		s.must(err)
	}
	change(func(e *fleet.EndpointSpec) { e.WaitSeconds = 1 })
	if a := s.ask("GET", "/", ""); a.status != 400 || strings.TrimSpace(a.body) != `{"error":"timed out waiting for worker"}` {
		t.Errorf("%+v", a)
	}
	s.eventually("it failed, and what was refused or left did not", func() bool {
		return s.workers.Requests(s.endpoint) == fleet.JobCounts{Failed: 1}
	})
	change(func(e *fleet.EndpointSpec) { e.Workers.Max = 0 })
	s.eventually("there is none at once", func() bool { return strings.Contains(s.ask("GET", "/", "").body, `{"error":"no workers available"}`) })
}

// TestWrongPorts are told in the worker's state, and it is ended in the end.
func TestWrongPorts(t *testing.T) {
	s := newSquare(t, echo, func(e *fleet.EndpointSpec) { e.Workers.Min, e.Workers.Max = 1, 1 }, func(s *square, _ *balanceface.Config, _ *balance.Pace) { s.port = 8000 })
	reason := func() string {
		list, err := s.EndpointWorkers(t.Context(), s.Who(plane.User), s.endpoint)
		s.must(err)
		for _, w := range list.Workers {
			return w.Note.Reason
		}
		return ""
	}
	s.eventually("its state says so", func() bool { return reason() == "nothing listens on port 80 (PORT)" })
	first := s.all()[0].id
	s.pass(8*time.Minute + time.Second)
	s.eventually("it is ended", func() bool { p, ok := s.Record(first); return !ok || p.Goal != fleet.GoalRun })
	if why := s.workers.Why(s.endpoint, -1); !strings.Contains(why, "nothing listens on port 80") {
		t.Error(why)
	}
}

// TestAWorkerThatTakesNoConnection loses its request to another.
func TestAWorkerThatTakesNoConnection(t *testing.T) {
	s := newSquare(t, echo, func(e *fleet.EndpointSpec) { e.Workers.Min, e.Workers.Max = 2, 2 }, func(_ *square, _ *balanceface.Config, pace *balance.Pace) {
		pace.Ready = time.Hour // it is found out by requests
	})
	both := s.ready(2)
	s.Serve(both[0].id, 80, "")
	for range 10 {
		if a := s.ask("POST", "/", "whole"); a.status != 200 || a.worker != string(both[1].id) || !strings.Contains(a.body, `"whole"`) {
			t.Fatalf("%+v", a)
		}
	}
}

// TestAReleaseLetsRequestsFinish where they are, while new ones go to its own workers.
func TestAReleaseLetsRequestsFinish(t *testing.T) {
	h := newHold()
	s := newSquare(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			h.serve(w, r)
			return
		}
		echo(w, r)
	}, func(e *fleet.EndpointSpec) { e.Workers.Min, e.Workers.Max = 1, 2 })
	old := s.ready(1)[0]
	got := make(chan answer, 1)
	go func() {
		a, err := s.do(s.request("GET", "/hold", nil))
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	<-h.began
	_, err := s.UpdateEndpoint(t.Context(), s.Who(plane.User), s.endpoint, func(e *fleet.EndpointSpec) { e.Image = "web:2" })
	s.must(err)
	s.eventually("new requests go to a new worker", func() bool { return s.ask("GET", "/", "").worker != string(old.id) })
	s.pass(time.Hour)
	if !slices.ContainsFunc(s.all(), func(one *server) bool { return one.id == old.id }) {
		t.Error("the old worker was ended in the middle of a request")
	}
	close(h.end)
	if a := <-got; a.status != 200 || a.body != string(old.id) {
		t.Errorf("%+v", a)
	}
	s.eventually("the old worker goes", func() bool {
		s.pass(time.Second)
		return !slices.ContainsFunc(s.all(), func(one *server) bool { return one.id == old.id })
	})
}
