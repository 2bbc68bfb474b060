package rest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// event reads the next event of a stream: its id and data.
func event(t *testing.T, r *bufio.Reader) (id, data string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		switch line = strings.TrimSuffix(line, "\n"); {
		case line == "" && data != "":
			return id, data
		case strings.HasPrefix(line, "id: "):
			id = line[4:]
		case strings.HasPrefix(line, "data: "):
			data = line[6:]
		}
	}
}

// follow opens a pod's log; leave closes it, as the end of the test does.
func follow(t *testing.T, s *site, id fleet.PodID, header ...string) (lines *bufio.Reader, leave func()) {
	t.Helper()
	resp := s.open(t, "GET", "/v2/pods/"+string(id)+"/logs", plane.User, "", header...)
	leave = func() { _ = resp.Body.Close() }
	t.Cleanup(leave)
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	return bufio.NewReader(resp.Body), leave
}

// TestLogsFollow writes lines for longer than the server's limits and reads each at once; then it
// begins again after the last event.
func TestLogsFollow(t *testing.T) {
	limits := rest.Limits{Header: 100 * time.Millisecond, Read: 100 * time.Millisecond, Write: 100 * time.Millisecond}
	s := newSite(t, nil, limits)
	id := makePod(t, s.plane, fleet.EventRunning)
	lines, leave := follow(t, s, id)
	last, begun := "", time.Now()
	for i := 0; i < 3 || time.Since(begun) < 10*limits.Read; i++ {
		s.plane.Log(id, "container", fmt.Sprint("line ", i))
		at, data := event(t, lines)
		if !strings.Contains(data, fmt.Sprintf(`"line":"line %d"`, i)) || at == last {
			t.Fatalf("line %d: %q %s", i, at, data)
		}
		if i == 1 {
			last = at
		}
		<-time.After(limits.Read / 4)
	}
	leave()
	again, _ := follow(t, s, id, "Last-Event-ID", last)
	if _, data := event(t, again); !strings.Contains(data, `"line":"line 2"`) {
		t.Errorf("after %s comes %s", last, data)
	}
}

// TestLogsEndWithReader looks whether the log's source is let go when the reader leaves.
func TestLogsEndWithReader(t *testing.T) {
	ended := make(chan struct{})
	s := newSite(t, func(c *rest.Config) { c.Service = watched{c.Service, ended} }, rest.Limits{})
	_, leave := follow(t, s, makePod(t, s.plane, fleet.EventRunning))
	leave()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the log goes on for nobody")
	}
}

// watched tells when its log has ended.
type watched struct {
	rest.Service
	ended chan struct{}
}

func (w watched) PodLogs(ctx context.Context, who fleet.Principal, id fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error {
	defer close(w.ended)
	return w.Service.PodLogs(ctx, who, id, q, sink)
}

func TestLogStreamsAreLimited(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	s.plane.Log(id, "container", "one")
	for range 64 {
		lines, _ := follow(t, s, id)
		event(t, lines)
	}
	p := refused(t, s.ask(t, "GET", "/v2/pods/"+string(id)+"/logs", plane.User, ""), http.StatusTooManyRequests)
	if p.Code != fleet.CodeLimited {
		t.Error(p)
	}
}

// TestCloseEndsStreams closes the API while a log is followed: the stream ends in order.
func TestCloseEndsStreams(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	lines, _ := follow(t, s, makePod(t, s.plane, fleet.EventRunning))
	s.api.Close()
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestHeadOfLogsEnds(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	resp := s.ask(t, "HEAD", "/v2/pods/"+string(id)+"/logs", plane.User, "")
	if resp.status != http.StatusOK || resp.body != "" || resp.header.Get("Content-Type") != "text/event-stream" {
		t.Error(resp)
	}
}

// stuck never answers by itself.
type stuck struct{ rest.Service }

func (stuck) Pods(ctx context.Context, _ fleet.Principal) ([]fleet.PodView, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestCallIsBounded(t *testing.T) {
	s := newSite(t, func(c *rest.Config) { c.Service, c.CallTimeout = stuck{c.Service}, 50*time.Millisecond }, rest.Limits{})
	resp := s.ask(t, "GET", "/v2/pods", plane.User, "")
	if p := refused(t, resp, http.StatusServiceUnavailable); p.Code != fleet.CodeUnavailable || resp.header.Get("Retry-After") != "1" {
		t.Error(p)
	}
}

func dial(t *testing.T, s *site) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestSlowHeaderIsCut sends the beginning of a header and no more.
func TestSlowHeaderIsCut(t *testing.T) {
	s := newSite(t, nil, rest.Limits{Header: 50 * time.Millisecond})
	c := dial(t, s)
	fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: a\r\n")
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection is not closed: %v", err)
	}
}

// TestSlowBodyIsRefused sends half a body and no more.
func TestSlowBodyIsRefused(t *testing.T) {
	s := newSite(t, nil, rest.Limits{Header: 50 * time.Millisecond, Read: 100 * time.Millisecond})
	c := dial(t, s)
	fmt.Fprintf(c, "POST /v2/pods HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"name\":", plane.KeyText(plane.User).Reveal())
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	got := answer{request: "half a body", status: resp.StatusCode, header: resp.Header, body: string(text)}
	if p := refused(t, got, http.StatusBadRequest); p.Code != fleet.CodeMalformed {
		t.Error(p)
	}
}

func TestLargeHeaderIsRefused(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	resp := s.ask(t, "GET", "/healthz", "", "", "X-Big", strings.Repeat("x", 32<<10))
	if resp.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Error(resp.status)
	}
}

// TestConnectionsAreLimited opens one connection more than allowed; when one ends there is room again.
func TestConnectionsAreLimited(t *testing.T) {
	s := newSite(t, nil, rest.Limits{Connections: 2})
	use := func(c net.Conn) int {
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0 // the refusal was lost in the reset that follows it
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	first, second := dial(t, s), dial(t, s)
	if a, b := use(first), use(second); a != 200 || b != 200 {
		t.Fatal(a, b)
	}
	if got := use(dial(t, s)); got == 200 {
		t.Error("a connection beyond the limit is served")
	}
	_ = first.Close()
	for deadline := time.Now().Add(time.Minute); ; {
		if use(dial(t, s)) == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a closed connection keeps its place")
		}
	}
}
