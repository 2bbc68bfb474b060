package agent

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
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/pod"
	"gantry/agent/reports"
	"gantry/agent/session"
	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/internal/scrape"
	"gantry/netctl"
	"gantry/storage/volume"
)

// many is a runtime that reads all pods at once.
type many struct{ usage }

func (*many) Usages(_ context.Context, ids []fleet.PodID) map[fleet.PodID]pod.Usage {
	out := map[fleet.PodID]pod.Usage{}
	for _, id := range ids {
		out[id] = pod.Usage{CPU: 1500 * time.Millisecond, Memory: 250 * mb, Disk: 3 * fleet.GB, DiskSize: 4 * fleet.GB}
	}
	return out
}

// scrapable is a daemon with everything that metrics tell of, and without a session.
func scrapable(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	mounted := &volumestest.Mounts{Notify: make(chan struct{}, 1)}
	mounted.SetHealth(volume.Health{Backend: "fast"})
	d := &daemon{
		Config: Config{
			Dir: dir, Instance: "0a1b", Metrics: "127.0.0.1:0", Version: "1.2.3", Log: slog.New(slog.DiscardHandler),
			Volumes: mounted,
			Notices: func() []fleet.Notice {
				return []fleet.Notice{{Code: "runc_old"}, {Code: "runc_old", Severe: true}, {Code: "disk_unlimited"}}
			},
		},
		book: book, metrics: newMetrics(),
		stock: fleet.Inventory{
			Total: fleet.Resources{MilliCPU: 8000, MemoryMB: 64_000, DiskGB: 500}, Kernel: "6.1",
			GPUs: []fleet.GPU{{UUID: "GPU-a", Type: "NVIDIA L4", MemoryMB: 24_000}, {UUID: "GPU-b", Type: "NVIDIA L4", Sick: "XID 79"}},
		},
		runtime: "containerd 2.1", images: []string{"a", "b"},
	}
	d.public.Store(&Publish{})
	d.reports = reports.New(func() {}, d.metrics.reported)
	d.store, d.sampler = enrolled(t), newSampler(&many{}, &meter{}, book, d.reports)
	var err error
	if d.sessions, err = session.New(session.Config{Log: d.Log}); err != nil {
		t.Fatal(err)
	}
	d.measure()
	return d
}

// enrolled is the store of a host that has joined.
func enrolled(t *testing.T) *pki.Store {
	t.Helper()
	store, err := pki.OpenStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewCA("cluster", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Enroll(ca, pki.Identity{Role: pki.RoleHost, ID: "host"}, time.Hour, time.Now()); err != nil {
		t.Fatal(err)
	}
	return store
}

func order(id fleet.PodID, generation uint64, gpus ...string) pod.Assignment {
	return pod.Assignment{
		Pod: id, Incarnation: 1, Goal: fleet.GoalRun, Generation: generation, GPUs: gpus,
		Name: "a tenant's", Image: "registry.example/tenant", Limits: fleet.Resources{MilliCPU: 2000, MemoryMB: 1000, DiskGB: 4},
	}
}

// scrapeOf returns the lines of an answer that begin so.
func scrapeOf(t *testing.T, d *daemon, prefix string) []string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatal(answer.Body)
	}
	var out []string
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, prefix) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func begin(t *testing.T, d *daemon, id fleet.PodID) {
	t.Helper()
	if err := d.book.Begin(pod.Assignment{Pod: id, Incarnation: 1}, "boot"); err != nil {
		t.Fatal(err)
	}
}

// TestMetricsAreWhatTheManualSays: the table of docs/metrics.md has every metric, and no other.
func TestMetricsAreWhatTheManualSays(t *testing.T) {
	d := scrapable(t)
	ledgertest.SetFull(t, d.book, order("p1", 1, "GPU-a"))
	begin(t, d, "p1")
	d.metrics.room(40, 100)
	d.sampler.readAll(t.Context())
	families, err := d.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		if strings.HasPrefix(f.GetName(), "gantry_") {
			got = append(got, fmt.Sprintf("| `%s` | %s | %s | %s |", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()))
		}
	}
	manual, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(manual)) {
		if strings.HasPrefix(line, "| `gantry_") && strings.Count(line, "|") == 5 && !strings.HasPrefix(line, "| `gantry_scheduler_") && !strings.HasPrefix(line, "| `gantry_s3_") {
			want = append(want, strings.TrimSpace(line))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/metrics.md (-) and the agent (+):\n%s", diff)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestMetricsTellOfHostAndPods(t *testing.T) {
	d := scrapable(t)
	ledgertest.SetFull(t, d.book, order("p1", 1, "GPU-a"), order("p2", 1), order("waits", 1))
	begin(t, d, "p1")
	begin(t, d, "p2")
	code := 3
	at := time.Now()
	ended := pod.Ended{Incarnation: 1, Event: fleet.EventExited, ExitCode: &code, At: at}
	if err := d.book.End("p2", ended); err != nil {
		t.Fatal(err)
	}
	steps := map[fleet.Step]time.Time{}
	for i, s := range []fleet.Step{fleet.StepReceived, fleet.StepPulled, fleet.StepNetworked, fleet.StepDefined, fleet.StepTasked, fleet.StepStarted} {
		steps[s] = at.Add(time.Duration(i) * time.Second)
	}
	for _, r := range []pod.Report{
		{Pod: "p1", Event: fleet.EventRunning, At: at, Steps: steps},
		{Pod: "p2", Event: fleet.EventRunning, At: at}, // one that ran before the agent did
		{Pod: "p2", Event: fleet.EventExited, At: at},
		{Pod: "p3", Event: fleet.EventFailed, At: at},
		{Pod: "p3", Event: fleet.EventFailed, At: at.Add(-time.Hour)}, // of another agent's life
		{Pod: "p3", Event: pod.EventGone, At: at},
	} {
		d.reports.Report(r)
	}
	over := d.metrics.Session()
	d.metrics.answered(nil)
	d.metrics.room(40, 100)
	d.metrics.collected(3)
	d.sampler.readAll(t.Context())
	for _, want := range []string{
		`gantry_host_info{kernel="6.1",runtime="containerd 2.1",version="1.2.3"} 1`,
		`gantry_host_cpu_offered_cores 8`, `gantry_host_cpu_ordered_cores 6`, `gantry_host_memory_ordered_bytes 3e+09`,
		`gantry_host_disk_ordered_bytes 1.2e+10`, `gantry_host_images 2`,
		`gantry_host_pods{goal="run",status="running"} 1`, `gantry_host_pods{goal="run",status="ended"} 1`, `gantry_host_pods{goal="run",status="waiting"} 1`,
		`gantry_host_pods{goal="gone",status="ended"} 0`,
		`gantry_host_notices{code="runc_old"} 2`, `gantry_host_notices{code="disk_unlimited"} 1`,
		`gantry_host_gpu_healthy{gpu="GPU-a"} 1`, `gantry_host_gpu_healthy{gpu="GPU-b"} 0`, `gantry_host_gpu_utilization_ratio{gpu="GPU-a"} 0.4`,
		`gantry_host_gpu_utilization_ratio{gpu="GPU-b"} 0.4`,
		`gantry_pod_cpu_seconds_total{pod="p1"} 1.5`, `gantry_pod_memory_bytes{pod="p1"} 2.5e+08`, `gantry_pod_disk_bytes{pod="p1"} 3e+09`,
		`gantry_pod_disk_limit_bytes{pod="p1"} 4e+09`, `gantry_pod_gpu_utilization_ratio{pod="p1"} 0.4`, `gantry_pod_gpu_memory_utilization_ratio{pod="p1"} 0.5`,
		`gantry_agent_session_connected 1`, `gantry_agent_sessions_total 1`, `gantry_agent_containerd_reachable 1`,
		`gantry_host_image_disk_bytes 100`, `gantry_host_image_disk_used_bytes 40`, `gantry_agent_images_removed_total 3`,
		`gantry_agent_pod_starts_total 1`, `gantry_agent_pod_exits_total 1`, `gantry_agent_pod_failures_total 1`, `gantry_agent_pod_removals_total 1`,
		`gantry_agent_pod_start_duration_seconds_sum{step="all"} 5`, `gantry_agent_pod_start_duration_seconds_sum{step="task"} 1`,
		`gantry_agent_pod_start_duration_seconds_count{step="pull"} 0`, `gantry_agent_ledger_write_duration_seconds_count 4`,
	} {
		if got := scrapeOf(t, d, want[:strings.LastIndexByte(want, ' ')+1]); !slices.Equal(got, []string{want}) {
			t.Errorf("%v, want %s", got, want)
		}
	}
	if got := scrapeOf(t, d, `gantry_pod_cpu_seconds_total`); len(got) != 1 {
		t.Errorf("pods that do not run have series: %q", got)
	}
	for _, line := range scrapeOf(t, d, "gantry_") {
		if strings.Contains(line, "tenant") {
			t.Errorf("a label is the tenant's: %s", line)
		}
	}
	over()
	d.metrics.answered(context.DeadlineExceeded)
	for _, want := range []string{`gantry_agent_session_connected 0`, `gantry_agent_containerd_reachable 0`} {
		if got := scrapeOf(t, d, want); len(got) != 1 {
			t.Errorf("no %s", want)
		}
	}
}

// TestAThousandPodsLeaveNoSeries: a host that has had many pods tells no more than a new one.
func TestAThousandPodsLeaveNoSeries(t *testing.T) {
	const rounds, each = 20, 50
	d := scrapable(t)
	d.sampler.readAll(t.Context())
	before := len(scrapeOf(t, d, "gantry_"))
	generation, busy := uint64(0), 0
	for r := range rounds {
		var orders []pod.Assignment
		for i := range each {
			orders = append(orders, order(fleet.PodID(fmt.Sprintf("pod%d-%d", r, i)), generation+1))
		}
		generation++
		if _, err := d.book.SetFull(generation, orders, ledgertest.FirstFree); err != nil {
			t.Fatal(err)
		}
		begin(t, d, orders[0].Pod)
		d.sampler.readAll(t.Context())
		busy = max(busy, len(scrapeOf(t, d, "gantry_")))
		generation++
		if _, err := d.book.SetFull(generation, nil, ledgertest.FirstFree); err != nil {
			t.Fatal(err)
		}
		for _, a := range orders {
			d.reports.Report(pod.Report{Pod: a.Pod, Event: fleet.EventExited, At: time.Now()})
			if err := d.book.Forget(a.Pod); err != nil {
				t.Fatal(err)
			}
			d.reports.Report(pod.Report{Pod: a.Pod, Event: pod.EventGone, At: time.Now()})
		}
	}
	d.sampler.readAll(t.Context())
	if after := len(scrapeOf(t, d, "gantry_")); after != before || busy <= before {
		t.Errorf("%d series before, %d with pods, %d after them", before, busy, after)
	}
	if got := scrapeOf(t, d, "gantry_agent_pod_removals_total"); !slices.Equal(got, []string{"gantry_agent_pod_removals_total 1000"}) {
		t.Errorf("%q", got)
	}
}

func TestMetricsAreServedUntilTheEnd(t *testing.T) {
	d := scrapable(t)
	d.sampler.readAll(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.scraped().Serve(ctx, l) }()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	get := func(method, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, body := get(http.MethodGet, "/metrics"); code != http.StatusOK || !strings.Contains(body, "gantry_host_cpu_offered_cores 8\n") || !strings.Contains(body, "\nprocess_resident_memory_bytes ") || !strings.Contains(body, "\ngo_goroutines ") {
		t.Errorf("%d: %s", code, body)
	}
	if code, body := get(http.MethodGet, "/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("%d: %s", code, body)
	}
	if code, _ := get(http.MethodPost, "/metrics"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
	if code, _ := get(http.MethodGet, "/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("another path: %d", code)
	}
	d.sampler.mu.Lock()
	d.sampler.readAt = time.Now().Add(-2 * stuckAfter)
	d.sampler.mu.Unlock()
	if code, body := get(http.MethodGet, "/healthz"); code != http.StatusServiceUnavailable {
		t.Errorf("of an agent that hangs: %d: %s", code, body)
	}
	tooMany(t, l.Addr().String())
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the server goes on after the end")
	}
}

// tooMany opens more connections than there may be, and looks that those above are closed.
func tooMany(t *testing.T, addr string) {
	t.Helper()
	var last net.Conn
	for range scrape.PerAddress + 1 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		last = c
	}
	if err := last.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(last).ReadByte(); err == nil || os.IsTimeout(err) {
		t.Errorf("the connection above the limit is open: %v", err)
	}
}

func TestTrafficIsThePods(t *testing.T) {
	const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
gn0a1bxyz:   500 2 0 0 0 0 0 0   700 3 0 0 0 0 0 0
short: 1 2
`
	got := parseTraffic(strings.NewReader(text))
	if len(got) != 2 || got["gn0a1bxyz"] != (traffic{received: 700, sent: 500}) {
		t.Errorf("%v", got)
	}
	if _, ok := readTraffic()["lo"]; !ok {
		t.Error("the host has no lo")
	}
	if name := netctl.LinkName("0a1b", "p1"); len(name) != 15 {
		t.Errorf("a link is named %s", name)
	}
}

func TestHeartbeatHasTheDisk(t *testing.T) {
	d := scrapable(t)
	ledgertest.SetFull(t, d.book, order("p1", 1))
	begin(t, d, "p1")
	d.sampler.readAll(t.Context())
	pods := d.sampler.heartbeat().GetPods()
	if len(pods) != 1 || pods[0].GetDiskPercent() != 75 || pods[0].GetMemoryPercent() != 25 {
		t.Errorf("%v", pods)
	}
}
