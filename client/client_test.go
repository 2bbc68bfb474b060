package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"gantry/api/v2"
	"gantry/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	c, err := New(srv.URL+"/", "gk_secret", "test/1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return c
}

func TestNewRefusesBadAddress(t *testing.T) {
	for _, address := range []string{"", "127.0.0.1:8080", "ftp://x", "http://", "http://key@host", "http://[::1"} {
		if _, err := New(address, "", ""); err == nil {
			t.Errorf("%q was accepted", address)
		}
	}
}

func TestNewRefusesKeysThatNoHeaderBears(t *testing.T) {
	for _, key := range []fleet.Secret{"gk_a\n", "gk a", "gk_\x00", "gk_\u00e4"} {
		if _, err := New("http://127.0.0.1:1", key, "test"); err == nil || strings.Contains(err.Error(), "gk") {
			t.Errorf("%q: %v", key.Reveal(), err)
		}
	}
}

func TestCallSendsKeyAndKeepsRaw(t *testing.T) {
	const body = `{ "id":"a", "name" : "web", "other": 1 }`
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer gk_secret" || r.URL.EscapedPath() != "/v2/pods/a%2Fb" || r.UserAgent() != "test/1" {
			t.Errorf("got %s %s %v", r.Method, r.URL.EscapedPath(), r.Header)
		}
		_, _ = io.WriteString(w, body)
	})
	pod, err := c.Pod(context.Background(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	if string(pod.Raw) != body || pod.Value.Name != "web" {
		t.Errorf("got %s %+v", pod.Raw, pod.Value)
	}
}

func TestProblemIsRead(t *testing.T) {
	tests := []struct {
		name string
		h    http.HandlerFunc
		want Problem
	}{
		{"problem", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `{"title":"Bad Request","status":400,"detail":"no room","code":"no_capacity","requestId":"r","excluded":[{"reason":"GPU type","hosts":3}]}`)
		}, Problem{Problem: v2.Problem{
			Title: "Bad Request", Status: 400, Detail: "no room", Code: fleet.CodeNoCapacity, RequestID: "r",
			Excluded: []fleet.Exclusion{{Reason: "GPU type", Hosts: 3}},
		}}},
		{"gateway", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(502)
			_, _ = io.WriteString(w, "<html>")
		}, Problem{Problem: v2.Problem{Title: "Bad Gateway", Status: 502, Detail: "The API answered 502 Bad Gateway."}, RetryAfter: 7 * time.Second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := serve(t, tt.h).Once().Pods(context.Background())
			var p *Problem
			if !errors.As(err, &p) {
				t.Fatalf("got %v", err)
			}
			if diff := cmp.Diff(tt.want, *p); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUnreachableSpeaksPlainly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := New(address, "", "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Pods(context.Background())
	if want := "cannot reach " + address + ": connection refused"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if !Temporary(err) {
		t.Error("not temporary")
	}
}

func TestCancelledCallReturnsItsCause(t *testing.T) {
	entered := make(chan struct{})
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("enough")
	go func() {
		<-entered
		cancel(why)
	}()
	if _, err := c.Pods(ctx); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

func TestEventReader(t *testing.T) {
	type got struct{ Kind, ID, Data string }
	tests := []struct {
		name, in string
		want     []got
	}{
		{"one", "id: 1\ndata: a\n\n", []got{{"", "1", "a"}}},
		{"crlf, comment, several data lines", ": hi\r\n\r\nid:1\r\ndata:a\r\ndata: b\r\n\r\n", []got{{"", "1", "a\nb"}}},
		{"id stays", "id: 1\ndata: a\n\ndata: b\n\n", []got{{"", "1", "a"}, {"", "1", "b"}}},
		{"kind", "event: error\ndata: {}\n\n", []got{{"error", "", "{}"}}},
		{"cut off", "id: 1\ndata: a\n\nid: 2\ndata: b\n", []got{{"", "1", "a"}}},
		{"space kept but one", "data:  a \n\n", []got{{"", "", " a "}}},
		{"long", "data: " + strings.Repeat("x", 100_000) + "\n\n", []got{{"", "", strings.Repeat("x", 100_000)}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newEventReader(strings.NewReader(tt.in))
			var all []got
			for {
				ev, err := r.next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, got{ev.kind, ev.id, string(ev.data)})
			}
			if diff := cmp.Diff(tt.want, all); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEventReaderRefusesEndlessEvent(t *testing.T) {
	r := newEventReader(io.LimitReader(zeros{}, 2*maxEvent))
	if _, err := r.next(); !errors.Is(err, errEventTooLong) {
		t.Errorf("got %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// logServer serves a log of n lines, dropping the connection after each few of them.
type logServer struct {
	n, each int
	mu      sync.Mutex
	asked   []string // Last-Event-ID of each connection
	down    int      // answers 503 this many times, after the first connection
}

func (s *logServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	last := r.Header.Get("Last-Event-ID")
	s.asked = append(s.asked, last)
	busy := len(s.asked) > 1 && s.down > 0
	if busy {
		s.down--
	}
	s.mu.Unlock()
	if busy {
		w.WriteHeader(503)
		return
	}
	from := 0
	if last != "" {
		_, _ = fmt.Sscanf(last, "2026-01-01T00:00:00.000Z/%d", &from)
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := from + 1; i <= min(from+s.each, s.n); i++ {
		_, _ = fmt.Fprintf(w, "id: 2026-01-01T00:00:00.000Z/%d\ndata: {\"source\":\"container\",\"line\":\"line %d\",\"ts\":\"2026-01-01T00:00:00.000Z\"}\n\n", i, i)
	}
	_ = http.NewResponseController(w).Flush()
	if from+s.each >= s.n {
		if r.URL.Query().Get("follow") == "true" {
			<-r.Context().Done()
		}
		return
	}
	_, _ = io.WriteString(w, "id: broken")
	panic(http.ErrAbortHandler) // drops the connection in the middle of an event
}

func TestLogGoesOnAfterTheLastLine(t *testing.T) {
	for _, follow := range []bool{false, true} {
		t.Run(fmt.Sprint("follow ", follow), func(t *testing.T) {
			srv := &logServer{n: 7, each: 3, down: 1}
			c := serve(t, srv.ServeHTTP)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			var lines []string
			lost := 0
			err := c.PodLogs(ctx, "p", LogQuery{Tail: 100, Follow: follow}, LogEvents{
				Line: func(l LogLine) error {
					lines = append(lines, l.Line)
					if follow && len(lines) == srv.n {
						cancel()
					}
					return nil
				},
				Lost: func(error) { lost++ },
			})
			if follow != errors.Is(err, context.Canceled) || !follow && err != nil {
				t.Fatal(err)
			}
			var want []string
			for i := range srv.n {
				want = append(want, fmt.Sprint("line ", i+1))
			}
			if diff := cmp.Diff(want, lines); diff != "" {
				t.Error(diff)
			}
			srv.mu.Lock()
			defer srv.mu.Unlock()
			if !slices.Contains(srv.asked, "2026-01-01T00:00:00.000Z/3") || !slices.Contains(srv.asked, "2026-01-01T00:00:00.000Z/6") || lost == 0 {
				t.Errorf("asked after %q, lost %d times", srv.asked, lost)
			}
		})
	}
}

func TestFollowedLogSurvivesADropBeforeTheFirstLine(t *testing.T) {
	var mu sync.Mutex
	n := 0
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		n++
		first := n == 1
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		if first {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "id: 1\ndata: {\"line\":\"x\"}\n\n")
	})
	got := errors.New("got it")
	err := c.PodLogs(context.Background(), "p", LogQuery{Follow: true}, LogEvents{Line: func(LogLine) error { return got }})
	if !errors.Is(err, got) {
		t.Error(err)
	}
}

// TestOtherServersAreNamed: what answers so is no Gantry API, and a key follows no redirect to elsewhere.
func TestOtherServersAreNamed(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		},
		"refusal": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "what?", http.StatusNotFound) },
		"page":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
	} {
		_, err := serve(t, h).Once().Pods(context.Background())
		var other *Foreign
		if !errors.As(err, &other) || !strings.Contains(err.Error(), " is no Gantry API: it answered ") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLogErrors(t *testing.T) {
	tests := []struct {
		name   string
		follow bool
		h      http.HandlerFunc
		status int
	}{
		{"unknown pod", true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, 404},
		{"no key", true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, 401},
		{"host away at first", true, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, 503},
		{"error event", false, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "event: error\ndata: {\"detail\":\"bad\",\"status\":500}\n\n")
		}, 500},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := serve(t, tt.h).PodLogs(context.Background(), "p", LogQuery{Follow: tt.follow}, LogEvents{Line: func(LogLine) error { return nil }})
			var p *Problem
			if !errors.As(err, &p) || p.Status != tt.status {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestFollowedLogEndsWhenThePodIsDeleted(t *testing.T) {
	var mu sync.Mutex
	n := 0
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		n++
		gone := n > 1
		mu.Unlock()
		if gone {
			w.WriteHeader(404)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1\ndata: {\"line\":\"x\"}\n\n")
	})
	if err := c.PodLogs(context.Background(), "p", LogQuery{Follow: true}, LogEvents{Line: func(LogLine) error { return nil }}); err != nil {
		t.Error(err)
	}
}
