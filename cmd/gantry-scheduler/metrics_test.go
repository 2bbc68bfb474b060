package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gantry/api/problem"
	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
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

func TestStrandedGPUsAreToldOfEachType(t *testing.T) {
	var got []string
	strandedGPUs([]fleet.GPUCapacity{
		{Type: "NVIDIA H100\xff", Total: 16, Free: 9, Most: 8, Stranded: map[fleet.Shortage]int{fleet.ShortOfMemory: 3}}, {Type: "NVIDIA A40", Total: 1},
	}, func(name string, v float64, labels ...string) { got = append(got, fmt.Sprint(name, labels, v)) })
	want := []string{
		"gantry_scheduler_gpus_stranded[NVIDIA H100 cpu] 0", "gantry_scheduler_gpus_stranded[NVIDIA H100 memory] 3", "gantry_scheduler_gpus_stranded[NVIDIA H100 disk] 0",
		"gantry_scheduler_gpus_stranded[NVIDIA A40 cpu] 0", "gantry_scheduler_gpus_stranded[NVIDIA A40 memory] 0", "gantry_scheduler_gpus_stranded[NVIDIA A40 disk] 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestMetricsOfTheStateFitEachOther has hosts come and go while metrics are read: each reading is of one state.
func TestMetricsOfTheStateFitEachOther(t *testing.T) {
	store, err := state.Open(filepath.Join(t.TempDir(), "state.db"), state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	const gpu, reads = "NVIDIA H100", 2000
	var index uint64
	apply := func(cmds ...state.Command) error {
		index++
		data, err := state.Encode(cmds...)
		if err != nil {
			return err
		}
		results, err := store.Apply([]entry.Entry{{Index: index, Term: 1, Data: data}})
		for _, r := range slices.Concat(results...) {
			err = errors.Join(err, r.Err)
		}
		return err
	}
	now := time.Now()
	// All of the host's GPUs are stranded: it has no disk for a pod.
	inventory := fleet.Inventory{Total: fleet.Resources{MilliCPU: 64_000, MemoryMB: 256_000, DiskGB: 1}}
	for i := range 8 {
		inventory.GPUs = append(inventory.GPUs, fleet.GPU{UUID: fmt.Sprint("gpu-", i), Type: gpu, MemoryMB: 80_000})
	}
	token := fleet.JoinToken{ID: "t", Hash: []byte("h"), DataCenter: "dc", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour)}
	if err := apply(
		state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc", Name: "dc", Region: "r"}}, state.PutToken{Token: token, At: now},
		state.JoinHost{Token: "t", Hash: token.Hash, Host: fleet.Host{ID: "h", Name: "h", MachineID: "m", JoinedAt: now}, At: now},
		state.ConnectHost{Host: "h", MachineID: "m", BootID: "b", Inventory: inventory, At: now},
	); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		for {
			for _, e := range []fleet.Eligibility{fleet.EligibilityCordoned, fleet.EligibilityOpen} {
				if err := apply(state.SetHostEligibility{Host: "h", Eligibility: e, At: now}); err != nil {
					done <- err
					return
				}
			}
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
		}
	}()
	seen := map[int]bool{}
	for n := 0; n < reads || len(seen) < 2; n++ {
		has, err := stockOf(store)
		if err != nil {
			t.Fatal(err)
		}
		free := has.counts.GPUs[gpu].Free
		if stranded := has.gpus[0].Stranded[fleet.ShortOfDisk]; stranded != free {
			t.Errorf("%d GPUs are free, and %d of them are stranded", free, stranded)
			break
		}
		seen[free] = true
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestPrometheusReadsAScheduler has a real Prometheus scrape a real scheduler, asks it for every metric of the table, and sees
// alerts fire: of a certificate for users that soon ends, and of a scheduler that is dead.
func TestPrometheusReadsAScheduler(t *testing.T) {
	w, metrics := &world{t: t}, freePort(t)
	at := startPrometheus(t, metrics)
	m := newMachine(t, build(t, ""))
	m.must("init", "--data-dir", m.dir, "--keys-file", filepath.Join(t.TempDir(), "keys.json"), "--address", m.link)
	cert, key := soonOver(t)
	m.start("--metrics", metrics, "--tls-cert", cert, "--tls-key", key)
	w.eventually("Prometheus has the leader's metrics", func() bool {
		return len(query(t, at, "gantry_scheduler_leads == 1 and gantry_scheduler_voters == 1 and gantry_scheduler_voters_answering == 1 and gantry_scheduler_voters_wanted == 1")) == 1 &&
			len(query(t, at, "gantry_scheduler_billing_run_timestamp_seconds > 0")) == 1
	})
	var missing []string
	w.eventually("Prometheus has every metric of the table", func() bool {
		missing = nil
		for _, row := range metricstable.Read(t, metricstable.Root(t)) {
			name, ok := strings.CutPrefix(row.Name, "gantry_scheduler_")
			if row.Type == "histogram" {
				name += "_count"
			}
			if row.Labels != nil && row.Labels[0] == "type" {
				continue // there are no hosts: scheduler/state has their test
			}
			if ok && len(query(t, at, "gantry_scheduler_"+name)) == 0 {
				missing = append(missing, row.Name)
			}
		}
		return len(missing) == 0
	}, func() string { return fmt.Sprint(missing) })
	w.eventually("its own certificate has not ended", func() bool {
		return len(query(t, at, "gantry_scheduler_certificate_expiry_timestamp_seconds - time() > 0")) == 1
	})
	fires := func(what string) func() bool {
		return func() bool { return len(query(t, at, `ALERTS{alertstate="firing",`+what+`}`)) == 1 }
	}
	w.eventually("the end of the certificate for users is an alert", fires(`alertname="GantryCertificateEnds",name="api.gantry.test",job="gantry-scheduler"`))
	m.kill()
	w.eventually("a dead scheduler is an alert", fires(`alertname="GantryDown",job="gantry-scheduler",severity="page"`))
}

// soonOver makes a certificate for users that ends in an hour, and its key.
func soonOver(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"api.gantry.test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(t.TempDir(), "crt"), filepath.Join(t.TempDir(), "key")
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
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
		changed := strings.NewReplacer("127.0.0.1:9413", target, "scrape_interval: 15s", "scrape_interval: 200ms", "scrape_timeout: 10s", "scrape_timeout: 200ms",
			"evaluation_interval: 15s", "evaluation_interval: 200ms").Replace(string(text))
		changed = regexp.MustCompile(`\bfor: \w+`).ReplaceAllString(changed, "for: 0s")
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
