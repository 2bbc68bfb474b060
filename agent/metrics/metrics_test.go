package metrics

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
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"gantry/agent/inventory"
	"gantry/agent/ledger"
	"gantry/agent/ledger/ledgertest"
	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/agent/reports"
	"gantry/agent/usage"
	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/internal/scrape"
	"gantry/netctl"
	"gantry/storage/volume"
)

// host is one with everything that metrics tell of, and without a session.
type host struct {
	metrics *Metrics
	book    *ledger.Ledger
	reports *reports.Reports
	use     usage.Snapshot
	tables  inventory.Tables
	runtime *inventory.Runtime
	log     *slog.Logger
}

// asked is a container runtime that answers.
type asked struct{}

func (asked) Version(context.Context) (string, error)  { return "containerd 2.1", nil }
func (asked) Images(context.Context) ([]string, error) { return []string{"a", "b"}, nil }

func scrapable(t *testing.T) *host {
	t.Helper()
	h := &host{metrics: New(), book: ledgertest.Open(t, t.TempDir()), log: slog.New(slog.DiscardHandler)}
	h.reports = reports.New(func() {}, h.metrics.Reported)
	h.book.WhenWritten(h.metrics.Written)
	h.runtime = inventory.NewRuntime(asked{}, h.metrics.Answered, h.log)
	h.runtime.Look(t.Context())
	stock := fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 8000, MemoryMB: 64_000, DiskGB: 500}, Kernel: "6.1",
		GPUs: []fleet.GPU{{UUID: "GPU-a", Type: "NVIDIA L4", MemoryMB: 24_000}, {UUID: "GPU-b", Type: "NVIDIA L4", Sick: "XID 79"}},
	}
	has := inventory.New(inventory.Config{
		Stock: stock, Version: "1.2.3", Runtime: h.runtime,
		Conditions: []func() []fleet.Condition{h.tables.Conditions, func() []fleet.Condition {
			return []fleet.Condition{{Code: "runc_old"}, {Code: "runc_old", Severe: true}, {Code: "disk_unlimited"}}
		}},
	})
	store := enrolled(t)
	keeper := overlay.New(overlay.Config{
		Host: "h1", File: filepath.Join(t.TempDir(), "networks.bin"), Changed: func() {}, Log: h.log,
	}, netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500})
	h.metrics.Show(View{
		Records: h.book.Records, Generation: h.book.Generation, Inventory: has.Inventory, Tables: &h.tables,
		Usage: func() usage.Snapshot { return h.use }, Networks: keeper.Stats,
		Backends: func() []volume.Health { return []volume.Health{{Backend: "fast"}} },
		Heard:    func() time.Time { return time.Time{} },
		Expiry: func() time.Time {
			leaf, err := store.Leaf()
			if err != nil {
				t.Error(err)
			}
			return leaf.NotAfter
		},
	})
	return h
}

// sampled says of every pod that it uses something, and of the host's GPUs.
func (h *host) sampled() {
	busy := fleet.GPUUse{Util: 40, MemoryUtil: 50}
	h.use = usage.Snapshot{Pods: map[fleet.PodID]usage.Sample{}, GPUs: map[string]fleet.GPUUse{"GPU-a": busy, "GPU-b": busy}, At: time.Now()}
	for _, rec := range h.book.Records() {
		s := usage.Sample{
			Incarnation: rec.Assignment.Incarnation,
			Use:         pod.Usage{CPU: 1500 * time.Millisecond, Memory: 250 * fleet.MB, Disk: 3 * fleet.GB, DiskSize: 4 * fleet.GB},
		}
		for range rec.Assignment.GPUs {
			s.GPUs = append(s.GPUs, busy)
		}
		h.use.Pods[rec.Assignment.Pod] = s
	}
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
func scrapeOf(t *testing.T, d *host, prefix string) []string {
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

func begin(t *testing.T, d *host, id fleet.PodID) {
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
	d.metrics.Room(40, 100)
	d.metrics.Models(30, 90)
	d.sampled()
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
	manual, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for line := range strings.Lines(string(manual)) {
		others := slices.ContainsFunc([]string{"scheduler", "gateway", "s3"}, func(who string) bool { return strings.HasPrefix(line, "| `gantry_"+who+"_") })
		if strings.HasPrefix(line, "| `gantry_") && strings.Count(line, "|") == 5 && !others {
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
	d.metrics.Answered(nil)
	d.metrics.Room(40, 100)
	d.metrics.Models(30, 90)
	d.metrics.Collected(3)
	d.sampled()
	for _, want := range []string{
		`gantry_host_info{kernel="6.1",runtime="containerd 2.1",version="1.2.3"} 1`,
		`gantry_host_cpu_offered_cores 8`, `gantry_host_cpu_ordered_cores 6`, `gantry_host_memory_ordered_bytes 3e+09`,
		`gantry_host_disk_ordered_bytes 1.2e+10`, `gantry_host_images 2`,
		`gantry_host_pods{goal="run",status="running"} 1`, `gantry_host_pods{goal="run",status="ended"} 1`, `gantry_host_pods{goal="run",status="waiting"} 1`,
		`gantry_host_pods{goal="gone",status="ended"} 0`,
		`gantry_host_conditions{code="runc_old"} 2`, `gantry_host_conditions{code="disk_unlimited"} 1`,
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
	d.metrics.Answered(context.DeadlineExceeded)
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
	d.sampled()
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
		d.sampled()
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
	d.sampled()
	if after := len(scrapeOf(t, d, "gantry_")); after != before || busy <= before {
		t.Errorf("%d series before, %d with pods, %d after them", before, busy, after)
	}
	if got := scrapeOf(t, d, "gantry_agent_pod_removals_total"); !slices.Equal(got, []string{"gantry_agent_pod_removals_total 1000"}) {
		t.Errorf("%q", got)
	}
}

func TestMetricsAreServedUntilTheEnd(t *testing.T) {
	d := scrapable(t)
	d.sampled()
	var last atomic.Int64 // when the pods were sampled
	last.Store(time.Now().UnixNano())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- d.metrics.Server("", nil, func() time.Time { return time.Unix(0, last.Load()) }, d.log).Serve(ctx, l)
	}()
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
	last.Store(time.Now().Add(-2 * stuckAfter).UnixNano())
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
	case <-time.After(time.Minute):
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
	if err := last.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(last).ReadByte(); err == nil || os.IsTimeout(err) {
		t.Errorf("the connection above the limit is open: %v", err)
	}
}
