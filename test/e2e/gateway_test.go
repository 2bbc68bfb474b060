package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// gatewayPod serves a page on 8080, a WebSocket that says everything back on 9000, and events without an end on 9001.
const gatewayPod = `trap 'exit 0' TERM; mkdir /w; echo page >/w/index.html; httpd -f -p 8080 -h /w &
cat >/ws.sh <<'END'
while read -r line; do [ "${#line}" -gt 1 ] || break; done
printf 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'
exec cat
END
cat >/sse.sh <<'END'
while read -r line; do [ "${#line}" -gt 1 ] || break; done
printf 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n'
while printf 'data: tick\n\n'; do sleep 0.1; done
END
nc -ll -p 9000 -e sh /ws.sh & nc -ll -p 9001 -e sh /sse.sh & wait`

// door is one of the places where requests come in.
type door struct {
	t            *testing.T
	api, key     string
	host, domain string // of the pod's ports, without port
}

func (g door) do(ctx context.Context, host, path, key string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.api+path, nil)
	if err != nil {
		return 0, "", err
	}
	if host != "" {
		req.Host = host
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return res.StatusCode, strings.TrimSpace(string(text)), errors.Join(err, res.Body.Close())
}

// page is the pod's page, and how it was answered.
func (g door) page() (int, string, error) {
	return g.do(g.t.Context(), g.host+"-8080."+g.domain, "/", "")
}

// stream is a connection that was upgraded, or on which events come.
type stream struct {
	net.Conn
	in *bufio.Reader
}

// open sends a request for an endless answer, and reads its head.
func (g door) open(port int, upgrade bool) *stream {
	g.t.Helper()
	conn := must[net.Conn](g.t)((&net.Dialer{}).DialContext(g.t.Context(), "tcp", strings.TrimPrefix(g.api, "http://")))
	g.t.Cleanup(func() { _ = conn.Close() })
	s := &stream{conn, bufio.NewReader(conn)}
	req := must[*http.Request](g.t)(http.NewRequestWithContext(g.t.Context(), http.MethodGet, g.api+"/", nil))
	req.Host = fmt.Sprintf("%s-%d.%s", g.host, port, g.domain)
	if upgrade {
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "websocket")
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if err := req.Write(conn); err != nil {
		g.t.Fatal(err)
	}
	res := must[*http.Response](g.t)(http.ReadResponse(s.in, req)) //nolint:bodyclose // it ends with the connection
	if want := map[bool]int{true: http.StatusSwitchingProtocols, false: http.StatusOK}[upgrade]; res.StatusCode != want {
		g.t.Fatalf("status %d", res.StatusCode)
	}
	return s
}

// echoes reports whether a WebSocket says something back.
func (s *stream) echoes(text string) error {
	_ = s.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(s, text+"\n"); err != nil {
		return err
	}
	line, err := s.in.ReadString('\n')
	if err == nil && line != text+"\n" {
		err = fmt.Errorf("%q came back for %q", line, text)
	}
	return err
}

// repeats reports whether a command that says everything back does so.
func repeats(e *client.Exec, text string) error {
	if err := e.Send(fleet.ExecFrame{Channel: fleet.ExecStdin, Data: []byte(text)}); err != nil {
		return err
	}
	for got := ""; got != text; {
		f, err := e.Receive()
		switch {
		case err != nil:
			return err
		case f.Channel != fleet.ExecStdout || !strings.HasPrefix(text, got+string(f.Data)):
			return fmt.Errorf("%d %q came back for %q", f.Channel, f.Data, text)
		}
		got += string(f.Data)
	}
	return nil
}

// ticks reads so many more events.
func (s *stream) ticks(n int) error {
	_ = s.SetDeadline(time.Now().Add(20 * time.Second))
	for n > 0 {
		line, err := s.in.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.HasPrefix(line, "data: tick") {
			n--
		}
	}
	return nil
}

func gatewaysOf(t *testing.T, d *devtest.Dev) []admin.Gateway {
	t.Helper()
	return must[client.Answer[admin.GatewayList]](t)(operator(t, d).Gateways(t.Context())).Value.Gateways
}

// TestGateways is two gateways beside three schedulers: what runs through one of them does not notice that the leader dies, that the other
// gateway dies, or that nobody leads; a gateway that is drained finishes what it has, and one that was removed carries nothing.
func TestGateways(t *testing.T) {
	t.Parallel()
	d, err := suite.site.Start(filepath.Join(t.TempDir(), "gateways"), "--schedulers", "3", "--gateways", "2")
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			if err := d.Stop(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			d.PrintLogs(testWriter{t})
		}
	}()
	body := devtest.CPUPod("web", gatewayPod)
	body.Ports = []string{"8080/http", "9000/http", "9001/http"}
	pod := must[client.Answer[v2.Pod]](t)(user(t, d).CreatePod(t.Context(), body)).Value
	reach(t, d, pod.ID, fleet.StatusRunning)
	lb := done[made](t, d, "", "POST", "/v2/serverless", fmt.Sprintf(
		`{"name":"lb","type":"LOAD_BALANCER","image":%q,"cpu":[{"id":"cpu3c","vcpuCount":2}],"scaling":{"type":"REQUEST_COUNT","requestCount":4},`+
			`"workers":{"min":1,"max":1,"idleTimeout":60},"env":{"PORT":"8080"},`+
			`"args":"{\"entrypoint\":[\"sh\",\"-c\"],\"cmd\":[\"trap 'exit 0' TERM; mkdir /w; echo ok >/w/ping; echo balanced >/w/name; httpd -f -p $PORT -h /w & wait\"]}"}`,
		devtest.Image)).ID
	info := must[devtest.Info](t)(d.Info())
	var doors []door
	var processes []devtest.Process
	for _, p := range info.Processes {
		if p.Role == "gateway" {
			processes = append(processes, p)
			doors = append(doors, door{t, p.API, info.APIKey, pod.ID, info.ProxyDomain})
		}
	}
	if len(doors) != 2 {
		t.Fatalf("processes: %+v", info.Processes)
	}
	await(t, func() error {
		for _, g := range gatewaysOf(t, d) {
			if g.State != "connected" || g.Hosts != 1 {
				return fmt.Errorf("gateway %+v", g)
			}
		}
		return nil
	})
	one, two := doors[0], doors[1]
	balanced := func(g door, key string) error {
		status, text, err := g.do(t.Context(), lb+"."+g.domain, "/name", key)
		if err == nil && (status != http.StatusOK || text != "balanced") {
			err = fmt.Errorf("%d %q", status, text)
		}
		return err
	}
	for _, g := range doors {
		await(t, func() error { // its program may still be starting
			status, text, err := g.page()
			if err == nil && (status != http.StatusOK || text != "page") {
				err = fmt.Errorf("page: %d %q", status, text)
			}
			return err
		})
		await(t, func() error { return balanced(g, info.APIKey) })
		if status, text, err := g.do(t.Context(), lb+"."+g.domain, "/name", "rpa_0000000000000000000000000000000000000000"); err != nil || status != http.StatusUnauthorized {
			t.Errorf("a key of nobody: %d %q %v", status, text, err)
		}
		if status, text, err := g.do(t.Context(), "", "/v2/pods/"+pod.ID+"/logs?follow=false", "rpa_0000000000000000000000000000000000000000"); err != nil || status != http.StatusUnauthorized {
			t.Errorf("a log for a key of nobody: %d %q %v", status, text, err)
		}
		if status, text, err := g.do(t.Context(), "", "/v2/pods/"+pod.ID, info.APIKey); err != nil || status != http.StatusOK || !strings.Contains(text, pod.ID) {
			t.Errorf("the API by way of a gateway: %d %q %v", status, text, err)
		}
	}
	socket, events, other := one.open(9000, true), one.open(9001, false), two.open(9000, true)
	through := must[*client.Client](t)(client.New(one.api, fleet.Secret(info.APIKey), "e2e"))
	t.Cleanup(through.Close)
	anyLine := client.LogEvents{Line: func(client.LogLine) error { return nil }}
	session, end := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(end)
	shell := must[*client.Exec](t)(through.ExecPod(session, pod.ID, v2.ExecRequest{Command: []string{"cat"}, Stdin: true}))
	t.Cleanup(func() { _ = shell.Close() })
	alive := func(when string) {
		t.Helper()
		if err := errors.Join(socket.echoes(when), events.ticks(3), repeats(shell, when)); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	alive("at first")
	if err := other.echoes("two"); err != nil {
		t.Fatal(err)
	}

	first, _ := leaderOf(t, d, 0)
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	alive("the leader was killed")
	leader, followers := leaderOf(t, d, first.PID)
	alive("another leads")

	if err := through.PodLogs(t.Context(), pod.ID, client.LogQuery{Tail: 1}, anyLine); err != nil {
		t.Errorf("a log: %v", err)
	}
	// Nobody leads: all that there is are the gateways and the host.
	for _, p := range append(followers, leader) {
		if err := syscall.Kill(p.PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(p.PID, syscall.SIGCONT) }()
	}
	await(t, func() error {
		status, text, err := one.do(t.Context(), "", "/v2/pods/"+pod.ID, info.APIKey)
		if err == nil && (status != http.StatusServiceUnavailable || !strings.Contains(text, "No scheduler leads")) {
			err = fmt.Errorf("%d %q", status, text)
		}
		return err
	})
	alive("nobody leads")
	if status, text, err := one.page(); err != nil || status != http.StatusOK || text != "page" {
		t.Errorf("page without a leader: %d %q %v", status, text, err)
	}
	content := must[io.ReadCloser](t)(through.ReadFiles(t.Context(), pod.ID, "/w/index.html"))
	if tar, err := io.ReadAll(content); err != nil || !bytes.Contains(tar, []byte("page")) {
		t.Errorf("a file without a leader: %d bytes, %v", len(tar), err)
	}
	_ = content.Close()
	if err := through.PodLogs(t.Context(), pod.ID, client.LogQuery{Tail: 1}, anyLine); err != nil {
		t.Errorf("a log without a leader: %v", err)
	}
	if status, text, err := one.do(t.Context(), "", "/v2/pods/"+pod.ID+"/logs?follow=false", "rpa_0000000000000000000000000000000000000000"); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("a log for a key of nobody, without a leader: %d %q %v", status, text, err)
	}
	if err := balanced(one, info.APIKey); err != nil { // the key was good less than a minute ago
		t.Errorf("an endpoint without a leader: %v", err)
	}
	for _, p := range append(followers, leader) {
		if err := syscall.Kill(p.PID, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	alive("they are back")
	await(t, func() error {
		status, _, err := one.do(t.Context(), "", "/v2/pods/"+pod.ID, info.APIKey)
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})

	if err := syscall.Kill(processes[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := other.echoes("two"); err == nil {
		t.Error("a WebSocket outlives its gateway")
	}
	alive("the other gateway was killed")
	await(t, func() error { // it is started again, and its host comes back
		status, text, err := two.page()
		if err == nil && (status != http.StatusOK || text != "page") {
			err = fmt.Errorf("%d %q", status, text)
		}
		return err
	})

	// A drained gateway finishes what it has.
	must[client.Answer[admin.Gateway]](t)(operator(t, d).DrainGateway(t.Context(), processes[0].ID))
	await(t, func() error {
		if status, text, err := one.page(); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(text, "drained") {
			return fmt.Errorf("a drained gateway: %d %q %w", status, text, err)
		}
		if status, _, err := one.do(t.Context(), "", "/healthz", ""); err != nil || status != http.StatusServiceUnavailable {
			return fmt.Errorf("health of a drained gateway: %d %w", status, err)
		}
		return nil
	})
	alive("it drains")
	state := func(want string) func() error {
		return func() error {
			for _, g := range gatewaysOf(t, d) {
				if g.ID == processes[0].ID && g.State != want {
					return fmt.Errorf("%+v", g)
				}
			}
			return nil
		}
	}
	await(t, state("draining"))
	_, _ = socket.Close(), events.Close()
	await(t, state("drained"))
	must[client.Answer[admin.Gateway]](t)(operator(t, d).UndrainGateway(t.Context(), processes[0].ID))
	await(t, func() error { _, text, err := one.page(); return errors.Join(err, differs(text, "page")) })

	// A gateway that was removed carries nothing, and loses what it has.
	other = two.open(9000, true)
	if err := other.echoes("two"); err != nil {
		t.Fatal(err)
	}
	if err := operator(t, d).RemoveGateway(t.Context(), processes[1].ID); err != nil {
		t.Fatal(err)
	}
	_ = other.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := other.in.ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("what ran through it: %v", err)
	}
	await(t, func() error {
		status, text, err := two.page()
		if err == nil && (status != http.StatusServiceUnavailable || !strings.Contains(text, "removed")) {
			err = fmt.Errorf("a removed gateway: %d %q", status, text)
		}
		return err
	})
	if left := gatewaysOf(t, d); len(left) != 1 || left[0].ID != processes[0].ID {
		t.Errorf("left are %+v", left)
	}
	if status, text, err := one.page(); err != nil || status != http.StatusOK || text != "page" {
		t.Errorf("the gateway that is left: %d %q %v", status, text, err)
	}
	stopped = true
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := suite.site.NothingLeft(pod.ID); err != nil {
		t.Error(err)
	}
}

func differs(got, want string) error {
	if got != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}
