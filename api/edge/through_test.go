package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// limit is the server's for a request and its answer.
const limit = time.Second

// page is what a pod serves at an http port: a WebSocket that echoes, a stream that goes on when told, or the body that came.
func page(t *testing.T, more chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/socket":
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.CloseNow() }()
			for {
				kind, data, err := c.Read(r.Context())
				if err != nil || c.Write(r.Context(), kind, data) != nil {
					return
				}
			}
		case "/stream":
			for range 3 {
				_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-Proto")+"\n")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-more:
				case <-r.Context().Done():
					t.Error("the stream was cut")
					return
				}
			}
		case "/late":
			<-time.After(3 * limit / 2)
		default:
			_, _ = io.Copy(w, r.Body)
		}
	})
}

// visit puts a pod's port behind TLS for users, with limits that are short, and returns a browser that visits it.
func visit(t *testing.T, limits rest.Limits, more chan struct{}) (browser *http.Client, host string) {
	t.Helper()
	p := plane.New(t)
	v, err := p.CreatePod(t.Context(), p.Who(plane.User), fleet.PodRequest{
		Name: "web", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 2}, Cloud: fleet.CloudSecure, Ports: []fleet.Port{{Number: 8080, Protocol: "http"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Report(v.Pod.ID, fleet.EventRunning); err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	inside, _ := listen(t)
	pod := &http.Server{Handler: page(t, more), ReadHeaderTimeout: time.Minute}
	go func() { _ = pod.Serve(inside) }()
	t.Cleanup(func() { _ = pod.Close() })
	p.Serve(v.Pod.ID, 8080, inside.Addr().String())
	host = string(v.Pod.ID) + "-8080." + proxy.DefaultDomain

	middle := proxy.New(proxy.Config{Targets: p, Dialer: p, Log: quiet})
	_, browser = overTLS(t, proxy.DefaultDomain, middle.Wrap(http.NotFoundHandler()), limits)
	t.Cleanup(middle.Close)
	return browser, host
}

// overTLS serves a handler as the API is served, under a name and those below it, and returns the address and a browser that asks there
// whatever it is to visit.
func overTLS(t *testing.T, name string, h http.Handler, limits rest.Limits) (addr string, browser *http.Client) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	cert := selfSigned(t, name, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	pair := Pair{filepath.Join(t.TempDir(), "crt"), filepath.Join(t.TempDir(), "key")}
	lay(t, pair, cert, cert)
	files, err := OpenFiles([]Pair{pair}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ln, _ := listen(t)
	s := rest.NewServer(h, limits, quiet)
	s.TLSConfig = (&FrontEnd{Files: files}).Config()
	go func() { _ = s.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	roots := x509.NewCertPool()
	roots.AddCert(cert.Leaf)
	tr := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return ln.Addr().String(), &http.Client{Transport: tr, Timeout: patience}
}

// Pods' ports work over TLS as without it, for longer than the server's limits: WebSockets, which browsers open beside
// HTTP/2, streams and bodies within it.
func TestPodsPortsOverTLS(t *testing.T) {
	limits, more := rest.Limits{Read: limit, Write: limit}, make(chan struct{})
	browser, host := visit(t, limits, more)
	resp, err := browser.Get("https://" + host + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.ProtoMajor != 2 {
		t.Errorf("the browser speaks %s", resp.Proto)
	}
	socket, shake, err := websocket.Dial(t.Context(), "wss://"+host+"/socket", &websocket.DialOptions{HTTPClient: browser}) //nolint:bodyclose // there is none
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.CloseNow() }()
	if shake.ProtoMajor != 1 {
		t.Errorf("the WebSocket is in %s", shake.Proto)
	}
	late := make(chan error, 1)
	go func() {
		answer, err := browser.Get("https://" + host + "/late") // as of a program that thinks before it says anything
		if err == nil {
			_ = answer.Body.Close()
		}
		late <- err
	}()
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := lines.ReadString('\n'); line != "https\n" {
			t.Fatalf("%q %v", line, err)
		}
		if i == 0 {
			<-time.After(3 * limit / 2) // it has certainly passed
		}
		if err := socket.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, got, err := socket.Read(t.Context()); err != nil || string(got) != "hello" {
			t.Fatalf("%q %v", got, err)
		}
		more <- struct{}{}
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if err := <-late; err != nil {
		t.Error(err)
	}
	body := make([]byte, 4<<20)
	_, _ = rand.Read(body)
	echo, err := browser.Post("https://"+host+"/echo", "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = echo.Body.Close() }()
	if got, err := io.ReadAll(echo.Body); err != nil || !bytes.Equal(got, body) || echo.ProtoMajor != 2 {
		t.Errorf("%d bytes in %s: %v", len(got), echo.Proto, err)
	}
}

// A client that says nothing, or half of what it has to, is cut off: in the handshake, in the head of a request.
func TestSlowClientsAreCutOff(t *testing.T) {
	ln, _ := listen(t)
	cert := selfSigned(t, "gantry.test", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	s := rest.NewServer(http.NotFoundHandler(), rest.Limits{Header: 2 * time.Second}, slog.New(slog.DiscardHandler))
	s.TLSConfig = (&FrontEnd{}).Config()
	s.TLSConfig.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
	go func() { _ = s.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { _ = s.Close() })
	silent, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	half, err := tls.Dial("tcp", ln.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}) //nolint:gosec // it is the test's
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(half, "GET / HTTP/1.1\r\nHost: gantry.test\r\n"); err != nil {
		t.Fatal(err)
	}
	for what, conn := range map[string]net.Conn{"a handshake": silent, "a head": half} {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		var late net.Error
		if _, err := io.Copy(io.Discard, conn); errors.As(err, &late) && late.Timeout() {
			t.Errorf("a client that does not end %s stays", what)
		}
		_ = conn.Close()
	}
}
