package proxy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// TestRefusalsInTheClientsFormat: a page for people, JSON for programs that ask for it, and words for everybody else.
func TestRefusalsInTheClientsFormat(t *testing.T) {
	s := newSite(t, nil, rest.Limits{}, nil)
	code := 1
	ended := newPod(t, s.plane)
	if err := s.plane.Report(ended, fleet.EventFailed, func(r *plane.PodReport) { r.ExitCode = &code }); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ accept, kind, text string }{
		{"", "text/plain; charset=utf-8", "the pod is not running: it ended with code 1\n"},
		{"*/*", "text/plain; charset=utf-8", "the pod is not running: it ended with code 1\n"},
		{"text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8", "<p>the pod is not running: it ended with code 1</p>"},
		{"application/json", "application/problem+json", ""},
	} {
		resp, body := s.do(t, string(ended)+"-8080.proxy.localhost", http.MethodGet, "/", nil, http.Header{"Accept": {c.accept}})
		if resp.status != http.StatusBadGateway || resp.header.Get("Content-Type") != c.kind || !strings.Contains(body, c.text) || resp.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%q: %d %v %q", c.accept, resp.status, resp.header, body)
		}
		if c.text == "" {
			var got struct {
				Status int
				Detail string
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil || got.Status != 502 || got.Detail != "the pod is not running: it ended with code 1" {
				t.Errorf("%q: %v", body, err)
			}
		}
	}
	if resp, body := s.get(t, s.host(8080)); resp.status != 502 || !strings.Contains(body, fleet.NothingListens) {
		t.Errorf("nothing listens: %d %q", resp.status, body)
	}
}

// TestGRPC calls a health service, which needs HTTP/2 and trailers, and watches it for longer than the server's limits.
func TestGRPC(t *testing.T) {
	s := newSite(t, nil, rest.Limits{Read: 200 * time.Millisecond, Write: 200 * time.Millisecond}, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, service := grpc.NewServer(), health.NewServer()
	healthpb.RegisterHealthServer(g, service)
	served := make(chan error, 1)
	go func() { served <- g.Serve(ln) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	s.plane.Serve(s.pod, 8080, ln.Addr().String())
	conn, err := grpc.NewClient("passthrough:///"+s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(s.host(8080)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := healthpb.NewHealthClient(conn)
	if out, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || out.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(out, err)
	}
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Errorf("a status in trailers came as %v", err)
	}
	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{1, 2, 1} {
		service.SetServingStatus("", want)
		for {
			out, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if out.GetStatus() == want {
				break
			}
		}
		outlast(200 * time.Millisecond)
	}
}

// TestTrailersAndExpectations pass in both directions.
func TestTrailersAndExpectations(t *testing.T) {
	var trailer, expect string
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		expect = r.Header.Get("Expect")
		if r.URL.Path == "/no" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		trailer = r.Trailer.Get("Sum")
		w.Header().Set("Trailer", "Total")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("Total", "4")
		w.Header().Set(http.TrailerPrefix+"Late", "yes")
	}), rest.Limits{}, nil)
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.host(8080)+"/", r)
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer, req.Header = http.Header{"Sum": nil}, http.Header{"Expect": {"100-continue"}}
	go func() {
		_, _ = io.WriteString(w, "hello")
		req.Trailer.Set("Sum", "5")
		_ = w.Close()
	}()
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || string(body) != "body" || resp.Trailer.Get("Total") != "4" || resp.Trailer.Get("Late") != "yes" || trailer != "5" || expect != "100-continue" {
		t.Errorf("%q %v, %v, trailer %q, expect %q", body, err, resp.Trailer, trailer, expect)
	}
}

// TestTricksWithHeaders: what two servers might read differently reaches no pod, and nobody reaches a port by a name that is not its own.
func TestTricksWithHeaders(t *testing.T) {
	asked := make(chan string, 64)
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- r.Method + " " + r.RequestURI + " " + r.Host + " " + string(body)
	}), rest.Limits{}, nil)
	host := s.host(8080)
	for name, c := range map[string]struct {
		request, status, pod string // pod: what it gets; empty: nothing
	}{
		"length and chunks": {
			"POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n", "200", "POST / " + host + " ",
		},
		"two lengths":                {"POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "400", ""},
		"odd encoding":               {"POST / HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501", ""},
		"a length with a sign":       {"POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: +5\r\n\r\nhello", "400", ""},
		"a space before the colon":   {"GET / HTTP/1.1\r\nHost: " + host + "\r\nX-A : b\r\n\r\n", "400", ""},
		"two hosts":                  {"GET / HTTP/1.1\r\nHost: " + host + "\r\nHost: other\r\n\r\n", "400", ""},
		"a host with a quote":        {"GET / HTTP/1.1\r\nHost: " + host + ":\"x\r\n\r\n", "400", ""},
		"an absolute URI":            {"GET http://" + host + "/a/../b HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n", "200", "GET /a/../b " + host + " "},
		"an absolute URI of another": {"GET http://elsewhere/x HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n", "200", ""}, // the API's
		"CONNECT":                    {"CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n", "405", ""},
		"dots":                       {"GET /../../etc/passwd HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n", "200", "GET /../../etc/passwd " + host + " "},
		"headers without end":        {"GET / HTTP/1.1\r\nHost: " + host + "\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "431", ""},
	} {
		c2, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c2.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c2, c.request)
		resp, err := http.ReadResponse(bufio.NewReader(c2), &http.Request{Method: http.MethodGet})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			_ = c2.Close()
			continue
		}
		_ = resp.Body.Close()
		_ = c2.Close()
		got := ""
		if c.pod != "" {
			got = <-asked
		}
		if !strings.HasPrefix(resp.Status, c.status) || got != c.pod {
			t.Errorf("%s: %s, the pod got %q", name, resp.Status, got)
		}
	}
	select {
	case got := <-asked:
		t.Errorf("the pod got %q too", got)
	default:
	}
}
