package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/api/graphql"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/feed/storage"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const (
	apiHosts  = 100
	apiPods   = 1000
	readers   = 16
	creators  = 200
	apiLimit  = 60 * time.Second
	createOf  = `{"name":"bench","image":"registry.example/library/busybox:1.36","cpu":{"id":"cpu3c","vcpuCount":2},"args":"sleep 3600","ports":["80/http"],"env":{"MODE":"bench","TOKEN":"0123456789abcdef0123456789abcdef"}}`
	jsonTypes = "application/json"
)

// controlPlane is a scheduler of one member on a real Raft log with fsync, its REST face on a loopback
// port, and hosts that are records only.
type controlPlane struct {
	node  *replica.Node
	store *state.Store
	svc   *scheduler.Service
	base  string
	key   string
	who   fleet.Principal
}

func newControlPlane(b *testing.B) *controlPlane {
	b.Helper()
	return newControlPlaneOf(b, apiHosts, fleet.Inventory{Total: fleet.Resources{MilliCPU: 1 << 40, MemoryMB: 1 << 40, DiskGB: 1 << 40}}, nil)
}

// newControlPlaneOf makes a control plane of hosts that are alike, but for their GPUs; those are given by host.
func newControlPlaneOf(b *testing.B, hosts int, each fleet.Inventory, gpus func(host int) []fleet.GPU) *controlPlane {
	b.Helper()
	dir, log := b.TempDir(), slog.New(slog.DiscardHandler)
	p := &controlPlane{}
	var err error
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	seal := filepath.Join(dir, "seal.key")
	must(pki.NewSealKeyFile(seal))
	sealer, err := pki.LoadSealer(seal)
	must(err)
	must(replica.Create(dir))
	p.store, err = state.Open(filepath.Join(dir, replica.StateFile), state.Options{})
	must(err)
	p.node, err = replica.Open(replica.Config{
		Dir: dir, ID: "a", Address: "a", Store: p.store, Log: log, SnapshotThreshold: 1 << 40,
		Fatal: func(err error) { b.Errorf("replica: %v", err) },
	})
	must(err)
	b.Cleanup(func() { must(errors.Join(p.node.Close(), p.store.Close())) })
	ctx, cancel := context.WithTimeout(context.Background(), apiLimit)
	defer cancel()
	must(p.node.Bootstrap(ctx))
	led := errors.New("led")
	if err := p.node.WhileLeader(ctx, func(context.Context) error { return led }); !errors.Is(err, led) {
		b.Fatal(err)
	}
	reach := dispatch.New(dispatch.Config{Store: p.store, Node: p.node, Log: log})
	p.svc = scheduler.New(scheduler.Config{Store: p.store, Node: p.node, Dispatch: reach, Storage: storage.New(p.store, volumes.Backends{}, log), Sealer: sealer, Log: log})
	p.populate(ctx, b, sealer)
	p.addHosts(ctx, b, hosts, each, gpus)
	api, err := rest.New(rest.Config{Service: p.svc, Log: log, Version: "bench"})
	must(err)
	b.Cleanup(api.Close)
	face, err := graphql.New(api, log)
	must(err)
	p.base = listen(b, rest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if graphql.Owns(r.URL.Path) {
			face.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	}), rest.Limits{}, log))
	return p
}

// populate makes the cluster and an account with a key.
func (p *controlPlane) populate(ctx context.Context, b *testing.B, sealer *pki.Sealer) {
	b.Helper()
	now := time.Now()
	ca, err := pki.NewCA("bench", now)
	if err != nil {
		b.Fatal(err)
	}
	boot, err := scheduler.Bootstrap(sealer, ca, now)
	if err != nil {
		b.Fatal(err)
	}
	account := fleet.Account{ID: fleet.AccountID(fleet.NewID()), Name: "bench", CreatedAt: now, Limits: boundless()}
	all, _ := fleet.Preset("all")
	key, text, err := scheduler.NewKey(sealer, account.ID, "bench", all, now)
	if err != nil {
		b.Fatal(err)
	}
	p.key, p.who = text.Reveal(), fleet.Principal{Key: key.ID, Account: account.ID, Can: all}
	cmds := []state.Command{
		boot,
		state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-1", Name: "dc-1"}},
		state.PutAccount{Account: account},
		state.PutKey{Key: key},
	}
	p.propose(ctx, b, cmds)
}

// addHosts makes hosts that are records only.
func (p *controlPlane) addHosts(ctx context.Context, b *testing.B, hosts int, each fleet.Inventory, gpus func(host int) []fleet.GPU) {
	b.Helper()
	now, hash := time.Now(), []byte("h")
	var cmds []state.Command
	for i := range hosts {
		id := fleet.HostID(fmt.Sprintf("h%013d", i))
		inv := each
		if gpus != nil {
			inv.GPUs = gpus(i)
		}
		token := fleet.JoinToken{ID: fleet.TokenID(id), Hash: hash, DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour)}
		cmds = append(cmds, state.PutToken{Token: token, At: now},
			state.JoinHost{Token: token.ID, Hash: hash, Host: fleet.Host{ID: id, Name: string(id), MachineID: string(id), JoinedAt: now}, At: now},
			state.ConnectHost{Host: id, MachineID: string(id), BootID: "b", At: now, Inventory: inv})
		if len(cmds) > 300 {
			p.propose(ctx, b, cmds)
			cmds = nil
		}
	}
	p.propose(ctx, b, cmds)
}

// propose commits commands, none of which may be refused.
func (p *controlPlane) propose(ctx context.Context, b *testing.B, cmds []state.Command) {
	b.Helper()
	if len(cmds) == 0 {
		return
	}
	res, err := p.node.Propose(ctx, cmds...)
	if err != nil {
		b.Fatal(err)
	}
	for _, r := range res {
		if r.Err != nil {
			b.Fatal(r.Err)
		}
	}
}

// listen serves until the benchmark ends and returns the base address.
func listen(b *testing.B, srv interface {
	Serve(net.Listener) error
	Close() error
},
) string {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	b.Cleanup(func() {
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			b.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

// bare serves one answer as plainly as net/http can.
func bare(b *testing.B, body []byte) string {
	b.Helper()
	return listen(b, &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonTypes)
		_, _ = w.Write(body)
	})})
}

// load sends requests from a number of clients, each on a connection of its own, and returns how long
// each took and how many were answered in a second.
func load(b *testing.B, clients, requests int, status int, next func() (*http.Request, error)) (took samples, rate float64) {
	b.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: clients, DisableCompression: true}
	defer transport.CloseIdleConnections()
	c := &http.Client{Transport: transport, Timeout: apiLimit}
	took = samples{}
	var mu sync.Mutex
	var left atomic.Int64
	left.Store(int64(requests))
	var group sync.WaitGroup
	began := time.Now()
	for range clients {
		group.Go(func() {
			var mine []time.Duration
			for left.Add(-1) >= 0 {
				at := time.Now()
				if err := once(c, status, next); err != nil {
					b.Error(err)
					return
				}
				mine = append(mine, time.Since(at))
			}
			mu.Lock()
			defer mu.Unlock()
			for _, d := range mine {
				took.add("took", d)
			}
		})
	}
	group.Wait()
	return took, float64(requests) / time.Since(began).Seconds()
}

func once(c *http.Client, status int, next func() (*http.Request, error)) error {
	req, err := next()
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != status {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	return err
}

func (p *controlPlane) get(url string) func() (*http.Request, error) {
	return func() (*http.Request, error) {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+p.key)
		}
		return req, err
	}
}

func (p *controlPlane) post() (*http.Request, error) { return p.postOf(createOf) }

// postOf makes a request that creates a pod.
func (p *controlPlane) postOf(body string) (*http.Request, error) {
	req, err := http.NewRequest(http.MethodPost, p.base+"/v2/pods", strings.NewReader(body))
	if err == nil {
		req.Header.Set("Authorization", "Bearer "+p.key)
		req.Header.Set("Content-Type", jsonTypes)
	}
	return req, err
}

// answer reads one answer.
func answer(b *testing.B, next func() (*http.Request, error)) []byte {
	b.Helper()
	req, err := next()
	if err != nil {
		b.Fatal(err)
	}
	resp, err := (&http.Client{Timeout: apiLimit}).Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	return body
}

// BenchmarkRead takes turns: reading one pod, and listing 1,000, through the API, and the same bytes
// from a bare net/http handler. The same 16 clients load both.
func BenchmarkRead(b *testing.B) {
	p := newControlPlane(b)
	pod := p.pods(b)
	for _, c := range []struct {
		name, path string
		requests   int
	}{{"get", "/v2/pods/" + string(pod), 20000}, {"list-1000", "/v2/pods", 200}} {
		b.Run(c.name, func(b *testing.B) {
			next := p.get(p.base + c.path)
			body := answer(b, next)
			floor := p.get(bare(b, body))
			got, rates, floors := samples{}, samples{}, samples{}
			for range max(1, b.N/4) { // each turn is thousands of requests
				took, rate := load(b, readers, c.requests, http.StatusOK, next)
				tookFloor, rateFloor := load(b, readers, c.requests, http.StatusOK, floor)
				got["p99"] = append(got["p99"], took.at("took", 0.99))
				floors["p99"] = append(floors["p99"], tookFloor.at("took", 0.99))
				rates["gantry"] = append(rates["gantry"], rate)
				rates["bare"] = append(rates["bare"], rateFloor)
			}
			b.ReportMetric(float64(len(body)), "bytes")
			b.ReportMetric(rates.median("gantry"), "gantry/s")
			b.ReportMetric(rates.median("bare"), "bare/s")
			b.ReportMetric(rates.median("gantry")/rates.median("bare"), "ratio")
			b.ReportMetric(got.median("p99"), "gantry-p99-ms")
			b.ReportMetric(floors.median("p99"), "bare-p99-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// pods makes 1,000 pods and returns the last.
func (p *controlPlane) pods(b *testing.B) (pod fleet.PodID) {
	b.Helper()
	for range apiPods {
		v, err := p.svc.CreatePod(context.Background(), p.who, fleet.PodRequest{
			Name: "bench", Image: "registry.example/library/busybox:1.36", CPU: &fleet.CPURequest{Flavor: "cpu3c", VCPU: 2},
			Ports: []fleet.Port{{Number: 80, Protocol: "http"}}, Env: map[string]string{"MODE": "bench"},
		})
		if err != nil {
			b.Fatal(err)
		}
		pod = v.Pod.ID
	}
	return pod
}

// query makes a request of GraphQL.
func (p *controlPlane) query(text string) func() (*http.Request, error) {
	body, err := json.Marshal(map[string]string{"query": text})
	return func() (*http.Request, error) {
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequest(http.MethodPost, p.base+"/graphql", bytes.NewReader(body))
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+p.key)
			req.Header.Set("Content-Type", jsonTypes)
		}
		return req, err
	}
}

// BenchmarkGraphQL takes turns: who one is, and a list of 1,000 pods as a command line client asks for it, through GraphQL, and the read
// of one pod and the list of version 2 with the same 16 clients.
func BenchmarkGraphQL(b *testing.B) {
	p := newControlPlane(b)
	pod := p.pods(b)
	for _, c := range []struct {
		name, query, path string
		requests          int
	}{
		{"myself", `{ myself { id email } }`, "/v2/pods/" + string(pod), 20000},
		{"list-1000", `{ myself { pods { id containerDiskInGb costPerHr desiredStatus dockerArgs env gpuCount imageName lastStatusChange machineId
			memoryInGb name podType ports uptimeSeconds vcpuCount volumeInGb volumeMountPath
			runtime { ports { ip isIpPublic privatePort publicPort type } } machine { gpuDisplayName location } } } }`, "/v2/pods", 200},
	} {
		b.Run(c.name, func(b *testing.B) {
			next, floor := p.query(c.query), p.get(p.base+c.path)
			b.ReportMetric(float64(len(answer(b, next))), "bytes")
			b.ReportMetric(float64(len(answer(b, floor))), "v2-bytes")
			got, rates := samples{}, samples{}
			for range max(1, b.N/4) {
				took, rate := load(b, readers, c.requests, http.StatusOK, next)
				tookFloor, rateFloor := load(b, readers, c.requests, http.StatusOK, floor)
				got["p50"] = append(got["p50"], took.at("took", 0.5))
				got["v2"] = append(got["v2"], tookFloor.at("took", 0.5))
				rates["graphql"] = append(rates["graphql"], rate)
				rates["v2"] = append(rates["v2"], rateFloor)
			}
			b.ReportMetric(rates.median("graphql"), "graphql/s")
			b.ReportMetric(rates.median("v2"), "v2/s")
			b.ReportMetric(rates.median("graphql")/rates.median("v2"), "ratio")
			b.ReportMetric(got.median("p50"), "graphql-p50-ms")
			b.ReportMetric(got.median("v2"), "v2-p50-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// boundless are limits that no bench reaches.
func boundless() fleet.Limits {
	out := fleet.Limits{}
	for _, l := range fleet.AllLimits() {
		out[l.String()] = fleet.MaxLimit
	}
	return out
}
