package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gantry/api/problem"
	"gantry/test/metricstable"
)

// TestMetricsAreWhatTheManualSays: the table of docs/metrics.md has every metric of the scheduler, and no other.
func TestMetricsAreWhatTheManualSays(t *testing.T) {
	r := newMetrics().registry
	for _, x := range series {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: x.name, Help: x.help}, x.labels)
		g.WithLabelValues(make([]string, len(x.labels))...)
		r.MustRegister(g)
	}
	metricstable.Check(t, r, "gantry_scheduler_")
}

func TestMetricsFlag(t *testing.T) {
	for _, good := range []string{"", "127.0.0.1:9413", "[::1]:1"} {
		if c := settings(t, "--metrics", good); c.validate() != nil {
			t.Errorf("%q: %v", good, c.validate())
		}
	}
	for _, bad := range []string{"0.0.0.0:9413", "9413", "127.0.0.1:0"} {
		if c := settings(t, "--metrics", bad); c.validate() == nil || !strings.Contains(c.validate().Error(), "--metrics must be ") {
			t.Errorf("%q: %v", bad, c.validate())
		}
	}
}

// TestRequestsAreCountedByFace: a pod's page that fails is no failure of the API, and a request keeps its id on its way to the leader.
func TestRequestsAreCountedByFace(t *testing.T) {
	d := &parts{metrics: newMetrics(), domain: "proxy.localhost", log: slog.New(slog.DiscardHandler)}
	var ids []string
	h := d.counted(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ids = append(ids, r.Header.Get("X-Request-Id"))
		w.WriteHeader(http.StatusBadGateway)
	}))
	for _, at := range []string{"http://k3n8w0zq5r7d2a-80.proxy.localhost/", "http://api.example/v2/pods"} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, at, nil))
	}
	named := httptest.NewRequest(http.MethodGet, "http://api.example/v2/pods", nil)
	named.Header.Set("X-Request-Id", "mine-1")
	h.ServeHTTP(httptest.NewRecorder(), named)
	if ids[0] != "" || ids[1] == "" || ids[2] != "mine-1" || problem.ChooseRequestID(named) != "mine-1" {
		t.Errorf("%q", ids)
	}
	text := metricstable.Text(t, d.metrics.registry)
	for _, want := range []string{
		`gantry_scheduler_http_requests_total{code="502",face="api"} 2`, `gantry_scheduler_http_requests_total{code="502",face="pod"} 1`,
		`gantry_scheduler_http_requests_total{code="429",face="api"} 0`, `gantry_scheduler_http_request_duration_seconds_count{face="api"} 2`,
		`gantry_scheduler_http_requests_open{face="api"} 0`,
	} {
		if !text[want] {
			t.Errorf("no %s in %v", want, text)
		}
	}
}

// TestPrometheusReadsAScheduler has a real Prometheus scrape a real scheduler, and asks it for every metric of the table.
func TestPrometheusReadsAScheduler(t *testing.T) {
	w, metrics := &world{t: t}, freePort(t)
	at := startPrometheus(t, metrics)
	m := newMachine(t, build(t, ""))
	m.must("init", "--data-dir", m.dir, "--keys-file", filepath.Join(t.TempDir(), "keys.json"), "--address", m.link)
	m.start("--metrics", metrics)
	w.eventually("Prometheus has the leader's metrics", func() bool {
		return len(query(t, at, "gantry_scheduler_leads == 1 and gantry_scheduler_voters == 1 and gantry_scheduler_voters_answering == 1 and gantry_scheduler_voters_wanted == 1")) == 1 &&
			len(query(t, at, "gantry_scheduler_books_timestamp_seconds > 0")) == 1
	})
	for _, row := range metricstable.Read(t, metricstable.Root(t)) {
		name, ok := strings.CutPrefix(row.Name, "gantry_scheduler_")
		if row.Type == "histogram" {
			name += "_count"
		}
		if ok && len(query(t, at, "gantry_scheduler_"+name)) == 0 {
			t.Errorf("Prometheus has no %s", row.Name)
		}
	}
	if got := query(t, at, "gantry_scheduler_certificate_expiry_timestamp_seconds - time() > 0"); len(got) != 1 {
		t.Errorf("the certificate has ended: %v", got)
	}
}

// startPrometheus runs Prometheus with deploy/prometheus/scrape.yml, whose address of the scheduler is replaced, and the alerts beside it.
func startPrometheus(t *testing.T, target string) (address string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"scrape.yml", "alerts.yml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.NewReplacer("127.0.0.1:9413", target, "scrape_interval: 15s", "scrape_interval: 200ms", "scrape_timeout: 10s", "scrape_timeout: 200ms").Replace(string(text))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address = freePort(t)
	log := &syncBuffer{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+filepath.Join(dir, "scrape.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(log)
		}
	})
	return address
}

// query asks Prometheus; nothing comes while it does not answer.
func query(t *testing.T, address, expr string) []json.RawMessage {
	t.Helper()
	res, err := browser.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return nil
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	var out struct {
		Data struct{ Result []json.RawMessage }
	}
	if err != nil || res.StatusCode == http.StatusServiceUnavailable || res.StatusCode == http.StatusOK && json.Unmarshal(text, &out) != nil {
		return nil
	}
	if res.StatusCode != http.StatusOK {
		t.Fatal(fmt.Sprint(res.StatusCode, " ", string(text)))
	}
	return out.Data.Result
}
