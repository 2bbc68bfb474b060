package rest_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/api/limit"
	"gantry/api/rest"
	old "gantry/api/v1"
	"gantry/fleet"
	"gantry/test/plane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gpuBody and cpuBody are the smallest good bodies.
const (
	gpuBody = `{"name":"a","image":"busybox","gpu":{"id":"NVIDIA H100 80GB HBM3"}}`
	cpuBody = `{"name":"a","image":"busybox","cpu":{"id":"cpu3g","vcpuCount":2}}`
)

// site is an API on a real server at a loopback address.
type site struct {
	plane  *plane.Plane
	api    *rest.API
	v1     *rest.Face
	base   string
	client *http.Client
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newSite(t *testing.T, change func(*rest.Config), limits rest.Limits) *site {
	t.Helper()
	cp := plane.New(t)
	cfg := rest.Config{Service: cp, Log: quiet(), Now: cp.Now, Version: "test", Rates: limit.Default(), Failures: limit.DefaultFailures}
	if change != nil {
		change(&cfg)
	}
	api, v1, busy := newAPI(t, cfg)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		busy.Add(1)
		defer busy.Done()
		if old.Owns(r.URL.Path) {
			v1.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
	return &site{plane: cp, api: api, v1: v1, base: serve(t, h, limits, api.Close), client: newClient(t)}
}

// described is a face that has a document.
type described interface {
	Document() []byte
	Routes() []rest.Route
}

// faces are those of a site.
func (s *site) faces() map[string]described { return map[string]described{"v2": s.api, "v1": s.v1} }

// served is an API with the face of version 1 on it.
type served struct {
	api *rest.API
	v1  *rest.Face
}

// spare are APIs whose tests have ended.
var spare struct {
	sync.Mutex
	apis []served
}

// newAPI returns an API that is as new until the test ends, and what its requests are to be counted in: a server that shut
// down has not waited for those whose connection is a WebSocket.
func newAPI(t *testing.T, cfg rest.Config) (*rest.API, *rest.Face, *sync.WaitGroup) {
	t.Helper()
	spare.Lock()
	defer spare.Unlock()
	var of served
	if n := len(spare.apis); n > 0 {
		of, spare.apis = spare.apis[n-1], spare.apis[:n-1]
		of.api.Begin(cfg)
	} else {
		var err error
		if of.api, err = rest.New(cfg); err != nil {
			t.Fatal(err)
		}
		if of.v1, err = old.New(of.api); err != nil {
			t.Fatal(err)
		}
	}
	busy := &sync.WaitGroup{}
	t.Cleanup(func() { // after the server has ended
		busy.Wait()
		spare.Lock()
		defer spare.Unlock()
		spare.apis = append(spare.apis, of)
	})
	return of.api, of.v1, busy
}

// serve runs h until the test ends and returns its base address.
func serve(t *testing.T, h http.Handler, limits rest.Limits, closing func()) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := rest.NewServer(h, limits, quiet())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		closing()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Errorf("shut down: %v", err)
			_ = srv.Close()
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

func newClient(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// answer is a whole answer.
type answer struct {
	request string // method and path
	status  int
	header  http.Header
	body    string
}

// ask sends a request with a key and a JSON body, which may be empty, and reads the answer.
func (s *site) ask(t *testing.T, method, path, key, body string, header ...string) answer {
	t.Helper()
	resp := s.open(t, method, path, key, body, header...)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{request: method + " " + path, status: resp.StatusCode, header: resp.Header, body: string(text)}
}

// open sends a request as ask does and leaves the answer's body open.
func (s *site) open(t *testing.T, method, path, key, body string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+plane.KeyText(key).Reveal())
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header[http.CanonicalHeaderKey(header[i])] = nil
		if header[i+1] != "" {
			for v := range strings.SplitSeq(header[i+1], "\n") {
				req.Header.Add(header[i], v)
			}
		}
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// webPod is the pod that most rows speak of.
func webPod() fleet.PodRequest {
	return fleet.PodRequest{
		Name: "web", Image: "busybox", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: 2},
		Ports: []fleet.Port{{Number: 8080, Protocol: "http"}, {Number: 22, Protocol: "tcp"}}, Env: map[string]string{"A": "1"},
	}
}

// makePod makes a pod of the account of User, plays its host's events and returns it.
func makePod(t testing.TB, p *plane.Plane, events ...fleet.Trigger) fleet.PodID {
	t.Helper()
	return request(t, p, webPod(), events...)
}

// request makes the pod that is asked for, for User, plays its host's events and returns it.
func request(t testing.TB, p *plane.Plane, req fleet.PodRequest, events ...fleet.Trigger) fleet.PodID {
	t.Helper()
	v, err := p.CreatePod(t.Context(), p.Who(plane.User), req)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		report(t, p, v.Pod.ID, e)
	}
	return v.Pod.ID
}

func report(t testing.TB, p *plane.Plane, id fleet.PodID, event fleet.Trigger, change ...func(*plane.PodReport)) {
	t.Helper()
	if err := p.Report(id, event, change...); err != nil {
		t.Fatal(err)
	}
}
