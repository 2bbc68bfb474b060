package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

const patience = 2 * time.Minute

// world is a gateway whose schedulers do not answer, and that was told of before.
type world struct {
	*testing.T
	ca   *pki.CA
	g    *Gateway
	addr string
}

func (w *world) certs(ca *pki.CA, role pki.Role, id string) *pki.Store {
	w.Helper()
	s, err := pki.OpenStore(w.TempDir())
	if err == nil {
		err = s.Enroll(ca, pki.Identity{Role: role, ID: id}, time.Hour, time.Now())
	}
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	ca, err := pki.NewCA("cluster-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, ca: ca}
	log := slog.New(slog.DiscardHandler)
	certs := w.certs(ca, pki.RoleGateway, "g1")
	w.g, err = New(Config{
		Certs: certs, Schedulers: []string{"127.0.0.1:1"}, Keep: func([]string) error { return nil }, Domain: "p.test", DrainLimit: 50 * time.Millisecond, Log: log,
		PerAddress: 1024, PerAccount: 1024, All: 1024,
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mux, err := agentrpc.NewMux(ln, certs, agentrpc.MuxConfig{Log: log, DataOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	w.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.g.Run(ctx, mux.Data()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := mux.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// told has the gateway know routes, as from a scheduler that is lost since.
func (w *world) told(control *agentrpc.RoutesControl, hosts ...*agentrpc.RouteHost) {
	w.g.link.table.Take(&agentrpc.RoutesPart{Anew: true, Whole: true, Index: 7, Hosts: hosts, Pods: []*agentrpc.RoutePod{{
		Id: "pod00000000001", AccountId: "acc", HostId: "h1", Status: "RUNNING", Goal: "run", Incarnation: 1, HttpPorts: []int32{80},
	}}})
	w.g.link.set(func() { w.g.link.control = control })
}

func (w *world) dial(certs *pki.Store, epoch uint64) (*agentrpc.DataConn, error) {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	return agentrpc.DialData(ctx, certs, func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}, agentrpc.DataPeer{Addr: w.addr, Gateway: "g1"}, &agentrpc.DataHello{Epoch: epoch})
}

func (w *world) soon(what string, ok func() bool) {
	w.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			w.Fatalf("not in time: %s", what)
		}
	}
}

// TestHostsThatAGatewayRefuses: those of other clusters, of no record, of an older session, and those that are gone or fenced.
func TestHostsThatAGatewayRefuses(t *testing.T) {
	w := newWorld(t)
	foreign, err := pki.NewCA("cluster-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.told(&agentrpc.RoutesControl{}, &agentrpc.RouteHost{Id: "h1", State: "ready", Epoch: 3}, &agentrpc.RouteHost{Id: "h2", State: "fenced", Epoch: 3},
		&agentrpc.RouteHost{Id: "h3", State: "gone", Epoch: 3})
	for name, c := range map[string]struct {
		certs *pki.Store
		epoch uint64
		says  string
	}{
		"an older session":          {w.certs(w.ca, pki.RoleHost, "h1"), 2, "another session"},
		"no record":                 {w.certs(w.ca, pki.RoleHost, "h9"), 3, "not known here"},
		"fenced":                    {w.certs(w.ca, pki.RoleHost, "h2"), 3, "fenced"},
		"gone":                      {w.certs(w.ca, pki.RoleHost, "h3"), 3, "gone"},
		"a scheduler":               {w.certs(w.ca, pki.RoleScheduler, "s1"), 3, ""},
		"a gateway":                 {w.certs(w.ca, pki.RoleGateway, "g2"), 3, ""},
		"the host of other cluster": {w.certs(foreign, pki.RoleHost, "h1"), 3, ""},
	} {
		if d, err := w.dial(c.certs, c.epoch); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
	d, err := w.dial(w.certs(w.ca, pki.RoleHost, "h1"), 3)
	if err != nil {
		t.Fatal(err)
	}
	w.soon("it is connected", func() bool { return w.g.Counts().Hosts == 1 })
	w.g.link.table.Take(&agentrpc.RoutesPart{Whole: true, Index: 8, Hosts: []*agentrpc.RouteHost{{Id: "h1", State: "fenced", Epoch: 3}}})
	select {
	case <-d.Done():
	case <-time.After(patience):
		t.Error("a host that was fenced keeps its connection")
	}
}

// endless plays an agent: it answers requests for a page that never ends.
func endless(d *agentrpc.DataConn) {
	for {
		s, err := d.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = s.Reset() }()
			if _, err := s.RecvAsk(); err == nil && s.Send(&agentrpc.Frame{}) == nil {
				if _, err := http.ReadRequest(bufio.NewReader(s)); err != nil {
					return
				}
				_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
				_, _ = io.Copy(io.Discard, s)
			}
		}()
	}
}

// TestADrainEndsAfterItsLimit: what goes on for longer is ended, new requests are refused meanwhile, and taken again afterwards.
func TestADrainEndsAfterItsLimit(t *testing.T) {
	w := newWorld(t)
	front := httptest.NewServer(w.g)
	defer front.Close()
	get := func() (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL, nil)
		if err != nil {
			return nil, err
		}
		req.Host = "pod00000000001-80.p.test"
		req.Close = true
		return http.DefaultTransport.RoundTrip(req)
	}
	res, err := get()
	if err != nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("before it knows routes: %v %v", res, err)
	}
	_ = res.Body.Close()
	w.told(&agentrpc.RoutesControl{}, &agentrpc.RouteHost{Id: "h1", State: "ready", Epoch: 3})
	d, err := w.dial(w.certs(w.ca, pki.RoleHost, "h1"), 3)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); endless(d) }()
	defer func() { _ = d.Close(); <-served }()
	w.soon("it is connected", func() bool { return w.g.Counts().Hosts == 1 })
	open := func() io.ReadCloser {
		t.Helper()
		res, err := get()
		if err == nil && res.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", res.StatusCode)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		return res.Body
	}
	body := open()
	w.g.link.set(func() { w.g.link.control = &agentrpc.RoutesControl{Draining: true} })
	if res, err := get(); err != nil || res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("while it drains: %v %v", res, err)
	} else {
		_ = res.Body.Close()
	}
	if _, err := body.Read(make([]byte, 1)); err == nil {
		t.Error("it went on")
	}
	_ = body.Close()
	w.soon("nothing is under way", func() bool { return w.g.Counts().Open == 0 })
	w.g.link.set(func() { w.g.link.control = &agentrpc.RoutesControl{} })
	_ = open().Close()
}
