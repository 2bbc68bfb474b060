// Package serverless shows both ends of serverless endpoints together: the face of jobs over HTTP, a real group that has them, the
// leader's workers and scaling, a real stream, the agent's gate, and worker programs in the ways of several libraries. Hosts and containers
// are played.
package serverless

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	gate "gantry/agent/workers"
	"gantry/api/jobs"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
	"gantry/scheduler/workers"
	"gantry/serverless/queue"
	"gantry/serverless/webhook"
	"gantry/test/plane"
	library "gantry/test/program/worker"
)

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		os.Exit(work())
	}
	goleak.VerifyTestMain(m)
}

const patience = 2 * time.Minute

// town is an installation with one endpoint.
type town struct {
	*plane.Plane
	agentrpc.UnimplementedLinkServer
	t        *testing.T
	endpoint fleet.EndpointID
	url      string
	client   *http.Client
	hooks    *webhook.Sender
	worker   library.Config
	gate     *gate.Gate
	results  string // folder of the gate's
	endGate  func() // has the gate end as with its process
	conn     *grpc.ClientConn
	wire     wire
	played   bool // the test itself plays the workers
	log      *slog.Logger
	tasks    sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	lead    *workers.Workers
	resign  func()
	addrs   map[fleet.PodID]string
	running map[fleet.PodID]context.CancelFunc
}

func newTown(t *testing.T, worker library.Config, change func(*fleet.EndpointSpec), options ...func(*town)) *town {
	t.Helper()
	p := plane.New(t)
	p.WithJobs()
	n := &town{
		Plane: p, t: t, worker: worker, results: t.TempDir(), addrs: map[fleet.PodID]string{}, running: map[fleet.PodID]context.CancelFunc{},
	}
	for _, o := range options {
		o(n)
	}
	n.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	made, _, err := p.CreateEndpoint(t.Context(), p.Who(plane.User), "", func(e *fleet.EndpointSpec) {
		e.Name, e.Image, e.CPU = "embed", "worker:1", []fleet.CPURequest{{Flavor: "cpu3c", VCPU: 2}}
		e.Scaler, e.Workers.Max = fleet.Scaler{Type: fleet.ScaleByDelay, Value: 4}, 1
		change(e)
	}, nil)
	n.must(err)
	n.endpoint = made.ID
	n.hooks = webhook.NewSender(nil, true)
	n.begin()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	n.must(err)
	server := grpc.NewServer()
	agentrpc.RegisterLinkServer(server, n)
	n.tasks.Go(func() { _ = server.Serve(l) })
	n.conn, err = grpc.NewClient("passthrough:///"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(n.wire.dial))
	n.must(err)
	ctx, end := context.WithCancel(context.Background())
	n.replaceGate()
	if !n.played {
		n.tasks.Go(func() { n.play(ctx) })
	}
	face := httptest.NewServer(jobs.New(jobs.Config{
		Service: p, Keys: p, Log: slog.New(slog.DiscardHandler), Now: p.Now, PerWorker: 100,
		Workers: func(id fleet.EndpointID) fleet.WorkerCounts { return n.leader().Counts(id) },
	}))
	n.client, n.url = face.Client(), face.URL+"/v2/"+string(n.endpoint)+"/"
	t.Cleanup(func() {
		face.Close()
		face.Client().CloseIdleConnections()
		end()
		n.endGate()
		n.mu.Lock()
		resign := n.resign
		n.mu.Unlock()
		resign()
		n.hooks.Close()
		_ = n.conn.Close()
		server.Stop()
		n.tasks.Wait()
	})
	return n
}

// replaceGate has another agent answer the workers, at the same addresses, with what the one before kept.
func (n *town) replaceGate() {
	if n.endGate != nil {
		n.endGate()
	}
	ctx, end := context.WithCancel(context.Background())
	n.gate = gate.New(ctx, gate.Config{Dir: n.results, Log: n.log, Listen: func(id fleet.PodID) (net.Listener, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		l, err := net.Listen("tcp", cmp.Or(n.addrs[id], "127.0.0.1:0"))
		if err == nil {
			n.addrs[id] = l.Addr().String()
		}
		return l, err
	}})
	over, ending := n.gate.Begin(n.conn), n.gate
	n.endGate = func() { end(); over(); ending.Wait() }
}

func (n *town) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *town) leader() *workers.Workers {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lead
}

// begin has another scheduler lead.
func (n *town) begin() {
	n.mu.Lock()
	resign := n.resign
	n.mu.Unlock()
	if resign != nil {
		resign()
	}
	w := n.Workers(func(ctx context.Context, id queue.ID) error {
		view, request, key, err := n.EndedJob(id)
		if err != nil {
			return err
		}
		to, record, err := jobs.Webhook(&view, request)
		if err != nil {
			return err
		}
		return n.hooks.Send(ctx, to, record, key)
	})
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- w.Lead(ctx) }()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lead, n.resign = w, sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			n.t.Error(err)
		}
	})
}

// Jobs implements agentrpc.LinkServer.
func (n *town) Jobs(stream agentrpc.Link_JobsServer) error {
	return n.leader().Serve(plane.Host, nil, stream)
}

// play plays the host: it starts and ends the containers of workers.
func (n *town) play(ctx context.Context) {
	var programs sync.WaitGroup
	defer programs.Wait()
	known := map[fleet.PodID]bool{}
	for tick := time.NewTicker(time.Millisecond); ; {
		wanted := map[fleet.PodID]*fleet.Pod{}
		n.View(func(v *state.View) {
			for _, p := range v.WorkersOf(n.endpoint) {
				wanted[p.ID] = p
			}
		})
		for id, p := range wanted {
			if !known[id] && p.Status.Active() {
				known[id] = true
				n.start(ctx, p, &programs)
			}
		}
		n.mu.Lock()
		for id, stop := range n.running {
			if wanted[id] == nil {
				n.gate.Drain(id)
				stop()
				delete(n.running, id)
			}
		}
		n.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			n.mu.Lock()
			for id, stop := range n.running {
				n.gate.Drain(id)
				stop()
			}
			n.mu.Unlock()
			return
		}
	}
}

// start plays a container that starts.
func (n *town) start(ctx context.Context, p *fleet.Pod, programs *sync.WaitGroup) {
	if err := n.gate.Open(p.ID, p.Incarnation, true); err != nil { //nolint:contextcheck // it ends with the gate's
		n.t.Error(err)
		return
	}
	env, err := n.Environment(p)
	if err != nil {
		n.t.Error(err)
	}
	for _, event := range []fleet.Trigger{fleet.EventStarting, fleet.EventRunning} {
		if err := n.Report(p.ID, event); err != nil {
			n.t.Log(err) // it was ended meanwhile
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	at, config := n.addrs[p.ID], n.worker
	config.Env = func(name string) string { return strings.Replace(env[name], fleet.WorkerGate, at, 1) }
	config.Say, config.Exit = func(string) {}, func(int) {}
	ctx, n.running[p.ID] = context.WithCancel(ctx)
	programs.Go(func() {
		if err := library.Run(ctx, config); err != nil {
			n.t.Error(err)
		}
		n.gate.Close(p.ID)
	})
}

// ask makes a request of the endpoint's users.
func (n *town) ask(method, path, body string) map[string]any {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, n.url+path, strings.NewReader(body))
	n.must(err)
	r.Header.Set("Authorization", "Bearer "+plane.KeyText(plane.User).Reveal())
	r.Header.Set("Content-Type", "application/json")
	res, err := n.client.Do(r)
	n.must(err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	n.must(err)
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil || res.StatusCode != http.StatusOK {
		n.t.Fatalf("%s %s: %d %s", method, path, res.StatusCode, text)
	}
	return out
}

// ended waits until a job has ended.
func (n *town) ended(id string) map[string]any {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		got, err := n.AwaitJob(ctx, n.caller(), n.endpoint, id, time.Second)
		switch {
		case err != nil:
			n.t.Fatalf("%v; it waits because %s", err, n.leader().Why(n.endpoint, 0))
		case got.Ended:
			return n.ask("GET", "status/"+id, "")
		}
	}
}

func plain(*fleet.EndpointSpec) {}

// TestAJobIsAnswered from zero workers, by programs in the ways of all libraries.
func TestAJobIsAnswered(t *testing.T) {
	for _, version := range []string{"1.6", "1.7.12", "1.10"} {
		t.Run(version, func(t *testing.T) {
			n := newTown(t, library.Config{Library: version, Handler: "echo"}, plain)
			got := n.ask("POST", "runsync", `{"input":{"a":[1,2]}}`)
			if got["status"] == "IN_QUEUE" || got["status"] == "IN_PROGRESS" {
				got = n.ended(got["id"].(string))
			}
			if output, _ := json.Marshal(got["output"]); got["status"] != "COMPLETED" || string(output) != `{"a":[1,2]}` {
				t.Errorf("%v", got)
			}
		})
	}
}

// TestHandlersOfAllKinds end their jobs as their users expect.
func TestHandlersOfAllKinds(t *testing.T) {
	for handler, want := range map[string]string{"error": "FAILED", "stream": "COMPLETED", "progress": "COMPLETED", "refresh": "COMPLETED", "empty": "COMPLETED", "lie": "COMPLETED"} {
		t.Run(handler, func(t *testing.T) {
			n := newTown(t, library.Config{Handler: handler}, plain)
			got := n.ended(n.ask("POST", "run", `{"input":{"a":1}}`)["id"].(string))
			if got["status"] != want || handler == "error" && got["error"] == nil {
				t.Errorf("%v", got)
			}
			if handler != "stream" {
				return
			}
			stream := n.ask("GET", "stream/"+got["id"].(string), "")
			if chunks, _ := json.Marshal(stream["stream"]); !strings.Contains(string(chunks), "chunk 0") || !strings.Contains(string(chunks), "chunk 2") {
				t.Errorf("streamed %s", chunks)
			}
		})
	}
}

// TestManyJobsAndAChangeOfLeader: each is answered once, with its own answer, whoever leads.
func TestManyJobsAndAChangeOfLeader(t *testing.T) {
	n := newTown(t, library.Config{Handler: "echo", Concurrency: 4}, func(e *fleet.EndpointSpec) {
		e.Workers.Max, e.Scaler = 3, fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1}
	})
	const jobs = 60
	var ids []string
	for i := range jobs {
		ids = append(ids, n.ask("POST", "run", fmt.Sprintf(`{"input":{"n":%d}}`, i))["id"].(string))
		if i%20 == 10 {
			n.begin()
		}
	}
	for i, id := range ids {
		got := n.ended(id)
		if output, _ := json.Marshal(got["output"]); got["status"] != "COMPLETED" || string(output) != fmt.Sprintf(`{"n":%d}`, i) {
			t.Errorf("%v", got)
		}
	}
	health := n.ask("GET", "health", "")
	if counts, _ := json.Marshal(health["jobs"]); !strings.Contains(string(counts), `"completed":60`) || !strings.Contains(string(counts), `"retried":0`) {
		t.Errorf("%v", health)
	}
}

// TestALargeJob goes the whole way, and back.
func TestALargeJob(t *testing.T) {
	n := newTown(t, library.Config{Handler: "echo"}, plain)
	text := strings.Repeat("x", 9<<20)
	got := n.ended(n.ask("POST", "run", `{"input":{"a":"`+text+`"}}`)["id"].(string))
	if output, _ := got["output"].(map[string]any); got["status"] != "COMPLETED" || output["a"] != text {
		t.Errorf("%v, %d bytes", got["status"], len(fmt.Sprint(got["output"])))
	}
}

// TestAWebhookIsToldOfTheEnd, again where it was not taken, and no more once it was.
func TestAWebhookIsToldOfTheEnd(t *testing.T) {
	const secret = "0123456789abcdef"
	n := newTown(t, library.Config{Handler: "echo"}, func(e *fleet.EndpointSpec) { e.NewWebhookKey = new(fleet.Secret(secret)) })
	told := make(chan string, 10)
	refuses := 1
	owner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		at, signature, _ := strings.Cut(r.Header.Get(webhook.SignatureHeader), ",v1=")
		mac := hmac.New(sha256.New, []byte(secret))
		_, _ = mac.Write([]byte(strings.TrimPrefix(at, "t=") + "." + string(body)))
		if signature != hex.EncodeToString(mac.Sum(nil)) {
			t.Errorf("signed %q", r.Header.Get(webhook.SignatureHeader))
		}
		if refuses--; refuses >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		told <- string(body)
	}))
	defer owner.Close()
	id := n.ended(n.ask("POST", "run", `{"input":{"a":1},"webhook":"`+owner.URL+`/hook"}`)["id"].(string))["id"]
	pass := time.NewTicker(10 * time.Millisecond) // the plane's time, for the pause between calls
	defer pass.Stop()
	late := time.After(patience)
	for heard := 0; heard < 2; {
		select {
		case body := <-told:
			heard++
			var got map[string]any
			if err := json.Unmarshal([]byte(body), &got); err != nil || got["id"] != id || got["status"] != "COMPLETED" || got["webhook"] != owner.URL+"/hook" {
				t.Errorf("told %s, %v", body, err)
			}
		case <-pass.C:
			n.Advance(webhook.Pause / 20)
		case <-late:
			t.Fatal("it was not told")
		}
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		left := 0
		n.Plane.Jobs.Jobs.View(func(q *queue.Queue) { left = len(q.Untold()) })
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is to be told still")
		}
	}
	if len(told) != 0 {
		t.Errorf("told once more: %s", <-told)
	}
}
