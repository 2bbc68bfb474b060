package rest_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"gantry/api/limit"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/internal/share"
	"gantry/test/plane"
)

// street is an API behind a gate on a real server, whose clients have addresses of their own.
type street struct {
	*testing.T
	srv    *rest.Server
	gate   *rest.Gate
	addr   string
	secure bool
	held   chan struct{} // ends what /hold holds
}

// newStreet serves an API, and /hold, which is answered when the test ends. A request for the host "page" is one to a pod.
func newStreet(t *testing.T, limits rest.Limits, secure bool) *street {
	t.Helper()
	cp := plane.New(t)
	api, _, busy := newAPI(t, rest.Config{Service: cp, Log: quiet(), Now: cp.Now, Version: "test", Rates: limit.Default(), Failures: limit.DefaultFailures})
	s := &street{T: t, secure: secure, held: make(chan struct{})}
	s.gate = rest.NewGate(rest.GateConfig{
		Requests: limits.Connections, PerAddress: limits.PerAddress, Trusted: limits.Trusted, Vital: api.Vital,
		Pod: func(r *http.Request) bool { return r.Host == "page" },
	})
	s.srv = rest.NewServer(s.gate.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		busy.Add(1)
		defer busy.Done()
		switch r.URL.Path {
		case "/hold":
			_ = http.NewResponseController(w).Flush()
			<-s.held
		case "/socket":
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
				busy.Go(func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() })
			}
		default:
			api.ServeHTTP(w, r)
		}
	})), limits, quiet())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	done := make(chan error, 1)
	go func() {
		if secure {
			cert := httptest.NewUnstartedServer(nil)
			cert.StartTLS()
			s.srv.TLSConfig = &tls.Config{Certificates: cert.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
			cert.Close()
			done <- s.srv.ServeTLS(ln, "", "")
			return
		}
		done <- s.srv.Serve(ln)
	}()
	t.Cleanup(func() {
		close(s.held)
		api.Close()
		_ = s.srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return s
}

// from dials from 127.0.0.n.
func (s *street) from(n byte) net.Conn {
	s.Helper()
	d := net.Dialer{Timeout: 20 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}
	c, err := d.DialContext(s.Context(), "tcp", s.addr)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// open sends a request over a connection and returns the status of the answer, which may go on; 0: there was none.
func (s *street) open(c net.Conn, path string) int {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: api\r\n\r\n", path); err != nil {
		return 0
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil) //nolint:bodyclose // its end may not come before that of the test
	if err != nil {
		return 0
	}
	if resp.ContentLength > 0 {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	return resp.StatusCode
}

// hold takes n seats for 127.0.0.n with requests under way.
func (s *street) hold(n byte, seats int) {
	s.Helper()
	for range seats {
		if s.open(s.from(n), "/hold") != http.StatusOK {
			s.Fatal("a seat was refused")
		}
	}
}

// ask makes a request over a connection of its own from 127.0.0.n; 0: there was no answer.
func (s *street) ask(n byte, path, key string) (status int, header http.Header) {
	s.Helper()
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, n)}}
			return d.DialContext(ctx, "tcp", s.addr)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
	}
	defer tr.CloseIdleConnections()
	scheme := "http://"
	if s.secure {
		scheme = "https://"
	}
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, scheme+"api"+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+plane.KeyText(key).Reveal())
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		return 0, nil
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, resp.Header
}

// TestOneAddressLeavesRoomForOthers: an address has its share of connections and no more, whatever it does with them.
func TestOneAddressLeavesRoomForOthers(t *testing.T) {
	s := newStreet(t, rest.Limits{Connections: 40, PerAddress: 10}, false)
	s.hold(2, 10)
	for range 50 {
		if status := s.open(s.from(2), "/healthz"); status != 0 && status != http.StatusServiceUnavailable {
			t.Fatalf("a connection beyond the share: %d", status)
		}
	}
	if status, _ := s.ask(3, "/healthz", ""); status != http.StatusOK {
		t.Errorf("another address: %d", status)
	}
	if public, _ := s.srv.Counts(); public.Open > 11 || public.RefusedOwn != 50 {
		t.Errorf("%+v", public)
	}
}

// TestIdleConnectionsOfTheGreediestGiveWay: one request a minute keeps no seat from others.
func TestIdleConnectionsOfTheGreediestGiveWay(t *testing.T) {
	s := newStreet(t, rest.Limits{Connections: 20, PerAddress: 18}, false)
	for range 18 {
		if s.open(s.from(2), "/healthz") != http.StatusOK {
			t.Fatal("a seat was refused")
		}
	}
	modest := s.from(3)
	if s.open(modest, "/healthz") != http.StatusOK {
		t.Fatal("a seat was refused")
	}
	for n := range byte(6) {
		if s.open(s.from(10+n), "/hold") != http.StatusOK {
			t.Errorf("address %d was refused", n)
		}
	}
	if s.open(modest, "/healthz") != http.StatusOK {
		t.Error("a client with one idle connection lost it")
	}
	if public, _ := s.srv.Counts(); public.Ended != 5 || public.RefusedAll != 0 {
		t.Errorf("%+v", public)
	}
}

// TestWhatMustGetThrough: health and operators when all seats are taken, any good key when its address has its share, over
// plain HTTP and over HTTP/2.
func TestWhatMustGetThrough(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			s := newStreet(t, rest.Limits{Connections: 8, PerAddress: 4, Spare: 4}, secure)
			if secure {
				for n := range byte(8) {
					s.holdTLS(2 + n/4)
				}
			} else {
				s.hold(2, 4)
				s.hold(3, 4)
			}
			for _, c := range []struct {
				who       string
				from      byte
				path, key string
				want      int
			}{
				{"health, all taken", 4, "/healthz", "", 200},
				{"an operator, all taken", 4, "/admin/v1/hosts", plane.Operator, 200},
				{"an account, all taken", 4, "/v2/pods", plane.User, 503},
				{"no key, all taken", 4, "/v2/pods", "", 503},
				{"an unknown key, all taken", 4, "/v2/pods", "nobody", 503},
				{"the document, all taken", 4, "/openapi.json", "", 503},
				{"health, at the greedy address", 2, "/healthz", "", 200},
				{"an operator, at the greedy address", 2, "/admin/v1/hosts", plane.Operator, 200},
				{"an account, at the greedy address", 2, "/v2/pods", plane.User, 200},
				{"another account, at the greedy address", 3, "/v2/pods", plane.Other, 200},
				{"no key, at the greedy address", 2, "/v2/pods", "", 429},
				{"an expired key, at the greedy address", 2, "/v2/pods", plane.Expired, 429},
			} {
				status, header := s.ask(c.from, c.path, c.key)
				if status != c.want {
					t.Errorf("%s: %d, want %d", c.who, status, c.want)
				}
				if again := header.Get("Retry-After") != ""; again != (c.want > 400) {
					t.Errorf("%s: Retry-After %q", c.who, header.Get("Retry-After"))
				}
			}
			// Those that say nothing on a spare seat keep it from nobody.
			for n := range byte(8) {
				s.from(20 + n)
			}
			if status, _ := s.ask(5, "/healthz", ""); status != http.StatusOK {
				t.Errorf("health beside silent connections: %d", status)
			}
			if g := s.gate.Counts(); g.Passed != 7 || g.RefusedAll != 4 || g.RefusedOwn != 2 {
				t.Errorf("%+v", g)
			}
		})
	}
}

// holdTLS takes a seat with a request under way over TLS.
func (s *street) holdTLS(n byte) {
	s.Helper()
	c := tls.Client(s.from(n), &tls.Config{InsecureSkipVerify: true})
	if s.open(c, "/hold") != http.StatusOK {
		s.Fatal("a seat was refused")
	}
}

// TestTakenOverConnectionsCount: a WebSocket has a seat until it ends.
func TestTakenOverConnectionsCount(t *testing.T) {
	s := newStreet(t, rest.Limits{Connections: 3, PerAddress: 2}, false)
	first := s.from(2)
	for _, c := range []net.Conn{first, s.from(2)} {
		if s.open(c, "/socket") != http.StatusSwitchingProtocols {
			t.Fatal("no WebSocket")
		}
	}
	if status, _ := s.ask(2, "/healthz", ""); status == http.StatusOK {
		t.Error("a third connection is served")
	}
	_ = first.Close()
	s.soon("the seat is free", func() bool { status, _ := s.ask(2, "/healthz", ""); return status == http.StatusOK })
}

// TestStreamsOfOneConnectionAreBounded: what HTTP/2 lets a client do over one connection counts as over many.
func TestStreamsOfOneConnectionAreBounded(t *testing.T) {
	g := rest.NewGate(rest.GateConfig{Requests: 5, PerAddress: 3, Trusted: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.9.9.9") }})
	held, begun := make(chan struct{}), make(chan struct{})
	h := g.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- struct{}{}; <-held }))
	ended := make(chan struct{})
	hold := func(from string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = from
		go func() { h.ServeHTTP(httptest.NewRecorder(), r); ended <- struct{}{} }()
		<-begun
	}
	refused := func(from string, want int) {
		t.Helper()
		r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
		r.RemoteAddr = from
		h.ServeHTTP(w, r)
		if w.Code != want || w.Header().Get("Retry-After") == "" || w.Header().Get("X-Gantry-Nothing-Done") != "1" {
			t.Errorf("%s: %d %v", from, w.Code, w.Header())
		}
	}
	for i := range 3 {
		hold(fmt.Sprintf("[2001:db8::%d]:1", i))
	}
	refused("[2001:db8::ffff]:1", http.StatusTooManyRequests) // of the same /64
	hold("10.9.9.9:1")
	hold("[2001:db8:0:1::1]:1")
	refused("10.9.9.9:1", http.StatusServiceUnavailable)
	refused("10.0.0.1:1", http.StatusServiceUnavailable)
	close(held)
	for range 5 {
		<-ended
	}
	if n := g.Counts(); n != (rest.GateCounts{RefusedOwn: 1, RefusedAll: 2}) {
		t.Errorf("%+v", n)
	}
}

// TestVitalRequestsOfOneAccountAreBounded: a good key is no way around an address's share.
func TestVitalRequestsOfOneAccountAreBounded(t *testing.T) {
	held, begun := make(chan struct{}), make(chan struct{}, 100)
	g := rest.NewGate(rest.GateConfig{
		Requests: 1000, PerAddress: 1,
		Vital: func(r *http.Request, _ share.Why) (fleet.AccountID, bool) {
			return fleet.AccountID(r.Header.Get("Account")), true
		},
	})
	h := g.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- struct{}{}; <-held }))
	ended := make(chan int, 100)
	go func() {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		ended <- 200
	}()
	<-begun
	ask := func(account string) {
		r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
		r.Header.Set("Account", account)
		h.ServeHTTP(w, r)
		ended <- w.Code
	}
	for range 64 {
		go ask("a")
		<-begun
	}
	go ask("a")
	if code := <-ended; code != http.StatusTooManyRequests {
		t.Errorf("the 65th: %d", code)
	}
	go ask("b")
	<-begun
	close(held)
	for range 66 {
		if code := <-ended; code != http.StatusOK {
			t.Error(code)
		}
	}
}

// soon waits until something holds.
func (s *street) soon(what string, ok func() bool) {
	s.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			s.Fatal("not in time: " + what)
		}
	}
}

// TestAGoodKeyPassesWhateverItsNeighboursDid: one account's pod, from the address that all pods of its host have, fails as often as
// it likes with keys, without one, and at paths that do not exist; every other account's keys are good all the same, and operators'.
func TestAGoodKeyPassesWhateverItsNeighboursDid(t *testing.T) {
	s := newSite(t, func(cfg *rest.Config) { cfg.Rates = limit.Quotas{} }, rest.Limits{})
	limited := 0
	for i := range 3 * limit.DefaultFailures {
		path, key := "/v2/pods", "nobody"
		switch i % 3 {
		case 0:
			key = ""
		case 1:
			path = "/v2/no/such/path"
		}
		if got := s.ask(t, "GET", path, key, ""); got.status == http.StatusTooManyRequests {
			limited++
		}
		if i%20 == 0 {
			for _, key := range []string{plane.User, plane.Other, plane.Operator} {
				if got := s.ask(t, "GET", "/v2/pods", key, ""); got.status != http.StatusOK {
					t.Fatalf("%s after %d failures of a neighbour: %d %s", key, i, got.status, got.body)
				}
			}
		}
	}
	if want := 2 * limit.DefaultFailures; limited != want {
		t.Errorf("%d requests were limited, want %d", limited, want)
	}
	if got := s.ask(t, "GET", "/admin/v1/hosts", plane.Operator, ""); got.status != http.StatusOK {
		t.Errorf("an operator: %d", got.status)
	}
}

// TestUnknownPathsCount: with a good key as its account's requests, else as failures of the address.
func TestUnknownPathsCount(t *testing.T) {
	s := newSite(t, func(cfg *rest.Config) { cfg.Rates, cfg.Failures = limit.Quotas{Minute: 2}, 3 }, rest.Limits{})
	for i, step := range []struct {
		method, path, key string
		want              int
	}{
		{"GET", "/no", plane.User, 404},
		{"PATCH", "/v2/pods", plane.User, 405},
		{"GET", "/no", plane.User, 429},
		{"GET", "/v2/pods", plane.User, 429},
		{"GET", "/no", "", 404},
		{"GET", "/v2//pods", "", 404},
		{"PATCH", "/v2/pods", "nobody", 405},
		{"GET", "/no", "", 429},
		{"PATCH", "/v2/pods", "", 429},
		{"GET", "/v2/pods", "", 429},
		{"GET", "/no", plane.Other, 404},
	} {
		got := s.ask(t, step.method, step.path, step.key, "")
		if got.status != step.want || (got.status == 429) != (got.header.Get("Retry-After") != "") {
			t.Errorf("step %d: %d %v", i, got.status, got.header)
		}
	}
}
