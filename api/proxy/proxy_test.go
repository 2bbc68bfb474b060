package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/api/forward"
	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a proxy on a real server, with one running pod whose port 8080 leads to a real backend.
type site struct {
	plane  *plane.Plane
	proxy  *proxy.Proxy
	addr   string
	pod    fleet.PodID
	dials  atomic.Int64
	client *http.Client
}

// DialPod counts the tunnels that are opened.
func (s *site) DialPod(ctx context.Context, pod fleet.PodID, port int) (fleet.Stream, error) {
	s.dials.Add(1)
	return s.plane.DialPod(ctx, pod, port)
}

func newSite(t *testing.T, backend http.Handler, limits rest.Limits, change func(*proxy.Config)) *site {
	t.Helper()
	s := &site{plane: plane.New(t)}
	cfg := proxy.Config{Targets: s.plane, Dialer: s, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	s.proxy = proxy.New(cfg)
	s.pod = newPod(t, s.plane)
	if backend != nil {
		s.plane.Serve(s.pod, 8080, serve(t, &http.Server{Handler: backend, ReadHeaderTimeout: time.Minute}))
	}
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the API") })
	srv := rest.NewServer(s.proxy.Wrap(next), limits, slog.New(slog.DiscardHandler))
	srv.Protocols = new(http.Protocols) // in place of TLS, with which HTTP/2 comes otherwise
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	s.addr = serve(t, srv)
	t.Cleanup(s.proxy.Close) // before the servers end, which hold what the proxy forwards
	tr := &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	s.client = &http.Client{Transport: tr, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s
}

func newPod(t *testing.T, p *plane.Plane) fleet.PodID {
	t.Helper()
	return podOf(t, p, fleet.CloudSecure)
}

func podOf(t *testing.T, p *plane.Plane, cloud fleet.Cloud) fleet.PodID {
	t.Helper()
	v, err := p.CreatePod(t.Context(), p.Who(plane.User), fleet.PodRequest{
		Name: "web", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 2}, Cloud: cloud,
		Ports: []fleet.Port{{Number: 8080, Protocol: "http"}, {Number: 8081, Protocol: "http"}, {Number: 22, Protocol: "tcp"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Report(v.Pod.ID, fleet.EventRunning); err != nil {
		t.Fatal(err)
	}
	return v.Pod.ID
}

func serve(t *testing.T, srv interface {
	Serve(net.Listener) error
	Close() error
},
) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func (s *site) host(port int) string {
	return fmt.Sprintf("%s-%d.%s", s.pod, port, proxy.DefaultDomain)
}

// answer is an answer without its body.
type answer struct {
	status int
	header http.Header
}

func (s *site) get(t *testing.T, host string) (answer, string) {
	t.Helper()
	return s.do(t, host, http.MethodGet, "/", nil, nil)
}

func (s *site) do(t *testing.T, host, method, path string, body io.Reader, header http.Header) (answer, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+host+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header}, string(text)
}

func TestForwards(t *testing.T) {
	var seen *http.Request
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		seen = r.Clone(r.Context())
		w.Header().Set("X-App", "yes")
		w.Header().Set("Location", "/else?where")
		w.WriteHeader(http.StatusSeeOther)
		_, _ = w.Write(body)
	}), rest.Limits{}, nil)
	header := http.Header{
		"X-Forwarded-For": {"6.6.6.6"}, "X-Forwarded-Host": {"evil"}, "X-Forwarded-Port": {"1"}, "Forwarded": {"for=6.6.6.6"}, "X-Real-Ip": {"6.6.6.6"},
		"Proxy-Authorization": {"x"}, "Connection": {"X-Private"}, "X-Private": {"1"}, "Authorization": {"Bearer app"}, "Cookie": {"a=b"},
	}
	resp, body := s.do(t, strings.ToUpper(s.host(8080))+":81", http.MethodPut, "/a%2Fb//c/../d?x=%zz;y&z", strings.NewReader("hello"), header)
	if resp.status != http.StatusSeeOther || body != "hello" || resp.header.Get("X-App") != "yes" || resp.header.Get("Location") != "/else?where" {
		t.Fatalf("%d %v %q", resp.status, resp.header, body)
	}
	if seen.RequestURI != "/a%2Fb//c/../d?x=%zz;y&z" || seen.Method != http.MethodPut || !strings.EqualFold(seen.Host, s.host(8080)+":81") {
		t.Errorf("%s %s %s", seen.Method, seen.RequestURI, seen.Host)
	}
	for name, want := range map[string]string{
		"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": strings.ToUpper(s.host(8080)) + ":81",
		"X-Forwarded-Port": "", "Forwarded": `for=127.0.0.1;host="` + strings.ToUpper(s.host(8080)) + `:81";proto=http`, "X-Real-Ip": "", "Proxy-Authorization": "", "X-Private": "", "User-Agent": "Go-http-client/1.1",
		"Authorization": "Bearer app", "Cookie": "a=b",
	} {
		if got := strings.Join(seen.Header.Values(name), ","); !strings.EqualFold(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "app") }), rest.Limits{}, nil)
	exited := newPod(t, s.plane)
	if err := s.plane.Report(exited, fleet.EventExited); err != nil {
		t.Fatal(err)
	}
	lost := podOf(t, s.plane, fleet.CloudCommunity)
	s.plane.Serve(lost, 8080, s.addr)
	s.plane.SetReachable(plane.CommunityHost, false)
	domain := "." + proxy.DefaultDomain
	for _, c := range []struct {
		host   string
		status int
		text   string
	}{
		{s.host(8080), 200, "app"},
		{strings.TrimPrefix(domain, "."), 404, "no such pod"},
		{"none0000000001-8080" + domain, 404, "no such pod"},
		{s.host(9999), 404, "no such pod"},
		{s.host(22), 404, "no such pod"},
		{string(s.pod) + domain, 404, "no such pod"},
		{"a." + s.host(8080), 404, "no such pod"},
		{string(s.pod) + "-08080" + domain, 404, "no such pod"},
		{string(s.pod) + "-99999" + domain, 404, "no such pod"},
		{s.host(8081), 502, "does not answer"},
		{string(exited) + "-8080" + domain, 502, "not running"},
		{string(lost) + "-8080" + domain, 502, "does not answer"},
		{"localhost", 200, "the API"},
		{"127.0.0.1:8080", 200, "the API"},
		{"[::1]:80", 200, "the API"},
		{"xproxy.localhost", 200, "the API"},
	} {
		resp, body := s.get(t, c.host)
		if resp.status != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s: got %d %q, want %d %q", c.host, resp.status, body, c.status, c.text)
		}
		if c.status >= 400 && !strings.HasPrefix(resp.header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s: %v", c.host, resp.header)
		}
	}
	s.plane.SetDown(true)
	// Without a leader pods are served as they are known. That something is not there only a leader can say.
	if resp, body := s.get(t, s.host(8080)); resp.status != 200 {
		t.Errorf("without a leader: %d %q", resp.status, body)
	}
	if resp, body := s.get(t, s.host(9999)); resp.status != 503 || resp.header.Get("Retry-After") == "" {
		t.Errorf("a port that is not known, without a leader: %d %q", resp.status, body)
	}
}

func TestTunnelsAreReused(t *testing.T) {
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "app") }), rest.Limits{}, nil)
	for range 20 {
		s.get(t, s.host(8080))
	}
	if n := s.dials.Load(); n != 1 {
		t.Errorf("20 requests opened %d tunnels", n)
	}
}

// TestTunnelThatDiedIsReplaced lets the application close every connection after its answer without
// saying so, as applications with short keep-alive times do.
func TestTunnelThatDiedIsReplaced(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\napp")
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	s := newSite(t, nil, rest.Limits{}, nil)
	s.plane.Serve(s.pod, 8080, ln.Addr().String())
	for range 20 {
		if resp, body := s.get(t, s.host(8080)); resp.status != 200 || body != "app" {
			t.Fatalf("%d %q", resp.status, body)
		}
	}
}

// TestStreams holds an answer back until the client has read its beginning, for longer than the
// server's limits.
func TestStreams(t *testing.T) {
	limits := rest.Limits{Read: 200 * time.Millisecond, Write: 200 * time.Millisecond, Header: 200 * time.Millisecond}
	more := make(chan struct{})
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for range 5 {
			_, _ = io.WriteString(w, "tick\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-more:
			case <-r.Context().Done():
				t.Error("the request was cut")
				return
			}
		}
	}), limits, nil)
	resp, err := s.client.Get("http://" + s.host(8080) + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for range 5 {
		if line, err := lines.ReadString('\n'); line != "tick\n" {
			t.Fatalf("%q %v", line, err)
		}
		outlast(limits.Read)
		more <- struct{}{}
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// outlast waits until a limit has certainly passed.
func outlast(limit time.Duration) { <-time.After(limit + limit/2) }

// TestSlowUpload sends a body for longer than the server's limit for a whole request.
func TestSlowUpload(t *testing.T) {
	limits := rest.Limits{Read: 200 * time.Millisecond, Write: 200 * time.Millisecond, Header: 200 * time.Millisecond}
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		outlast(limits.Read)
		_, _ = w.Write(body)
	}), limits, nil)
	pr, pw := io.Pipe()
	go func() {
		for range 4 {
			_, _ = io.WriteString(pw, "part ")
			outlast(limits.Read)
		}
		_ = pw.Close()
	}()
	if resp, body := s.do(t, s.host(8080), http.MethodPost, "/", pr, nil); resp.status != 200 || body != "part part part part " {
		t.Errorf("%d %q", resp.status, body)
	}
}

// TestSilentClientIsCut stops sending in the middle of a body.
func TestSilentClientIsCut(t *testing.T) {
	ended := make(chan error, 1)
	s := newSite(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		ended <- err
	}), rest.Limits{}, func(c *proxy.Config) { c.ClientIdle = 100 * time.Millisecond })
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\npart", s.host(8080))
	select {
	case err := <-ended:
		if err == nil {
			t.Error("half a body was taken for a whole one")
		}
	case <-time.After(time.Minute):
		t.Error("a silent client holds its tunnel")
	}
}

func TestBigBodies(t *testing.T) {
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }), rest.Limits{}, nil)
	data := make([]byte, 32<<20)
	_, _ = rand.Read(data)
	_, echo := s.do(t, s.host(8080), http.MethodPost, "/", bytes.NewReader(data), nil)
	if sha256.Sum256(data) != sha256.Sum256([]byte(echo)) {
		t.Errorf("%d bytes came back as %d others", len(data), len(echo))
	}
}

// TestBackendDeath cuts the application in the middle of an answer: the client must not take it for
// a whole one. After that the port answers 502.
func TestBackendDeath(t *testing.T) {
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}), rest.Limits{}, nil)
	resp, err := s.client.Get("http://" + s.host(8080) + "/")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if string(body) != "half" || err == nil {
		t.Errorf("%q %v", body, err)
	}
	s.plane.Serve(s.pod, 8080, "")
	if resp, text := s.get(t, s.host(8080)); resp.status != http.StatusBadGateway {
		t.Errorf("%d %q", resp.status, text)
	}
}

func TestPodIsLimited(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-leave
		_, _ = io.WriteString(w, "app")
	}), rest.Limits{}, func(c *proxy.Config) { c.PerPod = 1 })
	first := make(chan int, 1)
	go func() {
		resp, err := s.client.Get("http://" + s.host(8080) + "/")
		if err != nil {
			first <- 0
			return
		}
		_ = resp.Body.Close()
		first <- resp.StatusCode
	}()
	<-entered
	if resp, _ := s.get(t, s.host(8080)); resp.status != http.StatusServiceUnavailable {
		t.Errorf("beyond the limit: %d", resp.status)
	}
	close(leave)
	if got := <-first; got != http.StatusOK {
		t.Errorf("within the limit: %d", got)
	}
}

// TestClientGoneEndsRequest looks whether the application learns that the client left.
func TestClientGoneEndsRequest(t *testing.T) {
	entered, ended := make(chan struct{}), make(chan struct{})
	s := newSite(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
		close(ended)
	}), rest.Limits{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.host(8080)+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := s.client.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Error("an answer came")
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the application still serves a client that left")
	}
}

func FuzzParseHost(f *testing.F) {
	for _, h := range []string{
		"k3n8w0zq5r7d2a-8080.proxy.localhost", "K3N8W0ZQ5R7D2A-80.PROXY.LOCALHOST.:81", "proxy.localhost", "[::1]:80", "a-b.proxy.localhost", "k3n8w0zq5r7d2a-+80.proxy.localhost", "", ":", ".proxy.localhost",
	} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, host string) {
		target, ours, ok := proxy.ParseHost(host, proxy.DefaultDomain)
		if !ok {
			if target != (proxy.Target{}) {
				t.Fatalf("%q: %+v", host, target)
			}
			return
		}
		if !ours || target.Port < 1 || target.Port > 65535 || !fleet.ValidID(string(target.Pod)) {
			t.Fatalf("%q: %+v", host, target)
		}
		again, _, ok := proxy.ParseHost(fmt.Sprintf("%s-%d.%s:1", target.Pod, target.Port, proxy.DefaultDomain), proxy.DefaultDomain)
		if !ok || again != target {
			t.Fatalf("%q: %+v, then %+v", host, target, again)
		}
	})
}

// What schedulers say to each other in headers is nothing that pods or their clients have a say in.
func TestPodsDoNotSpeakForSchedulers(t *testing.T) {
	var seen http.Header
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		w.Header().Set(forward.HeaderNothingDone, "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	}), rest.Limits{}, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.host(8080)+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{forward.HeaderForwarded, forward.HeaderClient, forward.HeaderNothingDone, "Idempotency-Key"} {
		req.Header.Set(name, "k")
	}
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(forward.HeaderNothingDone) != "" {
		t.Errorf("answered %d %v", resp.StatusCode, resp.Header)
	}
	if seen.Get(forward.HeaderForwarded)+seen.Get(forward.HeaderClient)+seen.Get(forward.HeaderNothingDone) != "" || seen.Get("Idempotency-Key") != "k" {
		t.Errorf("the pod was sent %v", seen)
	}
}
