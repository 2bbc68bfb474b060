package forward_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/api/forward"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

const patience = 2 * time.Minute

var browser = &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Second}, Timeout: 2 * patience}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// board tells all members of a test who leads.
type board struct {
	mu      sync.Mutex
	leader  *member
	changes chan struct{}
}

func (b *board) set(m *member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leader = m
	close(b.changes)
	b.changes = make(chan struct{})
}

func (b *board) now() *member {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leader
}

// seen is the board as one member sees it.
type seen struct {
	*board
	by *member
}

func (s seen) Leads() bool { return s.now() == s.by }

func (s seen) Leader() string {
	if m := s.now(); m != nil {
		return m.link
	}
	return ""
}

func (s seen) Changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// member is one scheduler under test, with real TLS between members.
type member struct {
	id    string
	link  string
	api   *httptest.Server
	fwd   *forward.Forwarder
	mux   *agentrpc.Mux
	inner *http.Server
	calls atomic.Int64
}

type site struct {
	*board
	t  *testing.T
	ca *pki.CA
}

func newSite(t *testing.T) *site {
	t.Helper()
	ca, err := pki.NewCA("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &site{board: &board{changes: make(chan struct{})}, t: t, ca: ca}
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// add makes a member whose service is h.
func (s *site) add(id string, h http.HandlerFunc, change ...func(*forward.Config)) *member {
	s.t.Helper()
	certs, err := pki.OpenStore(s.t.TempDir())
	s.must(err)
	s.must(certs.Enroll(s.ca, pki.Identity{Role: pki.RoleScheduler, ID: id}, time.Hour, time.Now()))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	log := slog.New(slog.DiscardHandler)
	mux, err := agentrpc.NewMux(ln, certs, agentrpc.MuxConfig{Log: log})
	s.must(err)
	m := &member{id: id, link: ln.Addr().String(), mux: mux}
	local := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.calls.Add(1)
		w.Header().Set("Served-By", id)
		h(w, r)
	})
	m.inner = &http.Server{
		Handler: forward.Accept(forward.AcceptConfig{
			Leads: func() bool { return s.now() == m }, Local: local, Log: log,
			Check: func(conn net.Conn) error {
				who, err := agentrpc.ConnIdentity(conn)
				if err == nil && who.ID == "removed" {
					err = errors.New("removed")
				}
				return err
			},
		}),
		ConnContext: forward.ConnContext, ReadHeaderTimeout: patience,
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = m.inner.Serve(mux.HTTP()) }()
	cfg := forward.Config{
		Member: id, Leaders: seen{s.board, m}, Local: local, Log: log,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return agentrpc.DialHTTP(ctx, certs, address)
		},
		Always: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
	}
	for _, f := range change {
		f(&cfg)
	}
	m.fwd = forward.New(cfg)
	m.api = httptest.NewServer(m.fwd)
	s.t.Cleanup(func() {
		m.fwd.Close()
		m.api.CloseClientConnections()
		m.api.Close()
		_ = m.inner.Close()
		s.must(mux.Close())
		<-served
		browser.CloseIdleConnections()
	})
	return m
}

// die ends a member's inner server as a crash would.
func (m *member) die() {
	_ = m.inner.Close()
	_ = m.mux.Close()
}

type answer struct {
	status int
	body   string
	header http.Header
}

func (s *site) ask(m *member, method, path string, body io.Reader, header ...string) answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, m.api.URL+path, body)
	s.must(err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := browser.Do(req)
	s.must(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	s.must(err)
	return answer{resp.StatusCode, string(text), resp.Header}
}

// asking asks meanwhile. Where that fails, the test has, and nothing comes.
func (s *site) asking(m *member, method string, body io.Reader) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		defer close(done)
		done <- s.ask(m, method, "/", body)
	}()
	return done
}

func (a answer) refused(t *testing.T, text string, nothingDone bool) {
	t.Helper()
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1" || !strings.Contains(a.body, text) ||
		!strings.Contains(a.body, `"unavailable"`) || (a.header.Get(forward.HeaderNothingDone) == "1") != nothingDone {
		t.Errorf("answered %d %v %s", a.status, a.header, a.body)
	}
}

// echo answers with what it was asked.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Trailer", "Sum")
	fmt.Fprintf(w, "%s %s %s %d forwarded=%q client=%q from=%s xff=%q", r.Method, r.Host, r.URL, len(body),
		r.Header.Get(forward.HeaderForwarded), r.Header.Get(forward.HeaderClient), r.RemoteAddr, r.Header.Get("X-Forwarded-For"))
	w.Header().Set("Sum", "ok")
}

func TestAFollowerSendsOn(t *testing.T) {
	s := newSite(t)
	a, b := s.add("a", echo), s.add("b", echo)
	s.set(a)
	host := strings.TrimPrefix(b.api.URL, "http://")
	got := s.ask(b, http.MethodPost, "/x/y?q=1;2&z=%zz", strings.NewReader("body"), "X-Forwarded-For", "6.6.6.6")
	want := "POST " + host + " /x/y?q=1;2&z=%zz 4 forwarded=\"\" client=\"\" from=127.0.0.1:"
	if !strings.HasPrefix(got.body, want) || got.header.Get("Served-By") != "a" || !strings.HasSuffix(got.body, `xff="6.6.6.6"`) {
		t.Errorf("got %v, want %s", got, want)
	}
	for i, size := range []int64{0, 1, 1 << 20, 1<<20 + 1, 5 << 20} {
		got := s.ask(b, http.MethodPost, "/", io.LimitReader(rand.Reader, size))
		if !strings.Contains(got.body, fmt.Sprintf(" / %d ", size)) {
			t.Errorf("%d: body of %d: %v", i, size, got)
		}
		big := bytes.Repeat([]byte("x"), int(size))
		got = s.ask(b, http.MethodPost, "/", bytes.NewReader(big), "Expect", "100-continue")
		if !strings.Contains(got.body, fmt.Sprintf(" / %d ", size)) {
			t.Errorf("%d: body of known length %d: %v", i, size, got)
		}
	}
	if got := s.ask(b, http.MethodGet, "/healthz", nil); got.header.Get("Served-By") != "b" {
		t.Errorf("health comes from %v", got)
	}
	if got := s.ask(a, http.MethodGet, "/", nil); got.header.Get("Served-By") != "a" {
		t.Errorf("the leader's comes from %v", got)
	}
}

// Headers between schedulers count for nothing when a client sends them.
func TestClientsCannotSpoof(t *testing.T) {
	s := newSite(t)
	a, b := s.add("a", echo), s.add("b", echo)
	s.set(a)
	for _, m := range []*member{a, b} {
		got := s.ask(m, http.MethodGet, "/", nil, forward.HeaderForwarded, "b", forward.HeaderClient, "9.9.9.9:9")
		if !strings.Contains(got.body, `forwarded="" client="" from=127.0.0.1:`) {
			t.Errorf("%s: %v", m.id, got)
		}
	}
}

func TestOnlySchedulersReachTheInside(t *testing.T) {
	s := newSite(t)
	a := s.add("a", echo)
	s.set(a)
	removed := s.add("removed", echo)
	if got := s.ask(removed, http.MethodGet, "/", nil); got.status != http.StatusForbidden {
		t.Errorf("a removed member got %v", got)
	}
	if a.calls.Load() != 0 {
		t.Error("it was served")
	}
}

// Two members that each take the other for the leader do not send a request to and fro.
func TestNoLoops(t *testing.T) {
	s := newSite(t)
	short := func(c *forward.Config) { c.Wait = 300 * time.Millisecond }
	a, b := s.add("a", echo, short), s.add("b", echo, short)
	s.set(&member{link: a.link}) // a is taken for the leader, and does not lead
	s.ask(b, http.MethodPost, "/", nil).refused(t, "nothing was done", true)
	s.ask(a, http.MethodPost, "/", nil).refused(t, "nothing was done", true)
	if a.calls.Load()+b.calls.Load() != 0 {
		t.Error("somebody served it")
	}
}

func TestWithoutALeader(t *testing.T) {
	s := newSite(t)
	a := s.add("a", echo)
	b := s.add("b", echo, func(c *forward.Config) { c.Wait = 200 * time.Millisecond })
	s.ask(b, http.MethodPost, "/", strings.NewReader("x")).refused(t, "nothing was done", true)

	// One that is elected meanwhile is waited for, and one that becomes the leader itself serves.
	for _, lead := range []*member{a, nil} {
		c := s.add("c", echo)
		if lead == nil {
			lead = c
		}
		s.set(nil)
		done := s.asking(c, http.MethodPost, strings.NewReader("body"))
		s.set(lead)
		if got := <-done; got.header.Get("Served-By") != lead.id || !strings.Contains(got.body, " / 4 ") {
			t.Errorf("got %v", got)
		}
	}
}

// A leader that cannot be reached did nothing: the request goes to the next one.
func TestADeadLeaderIsNotAsked(t *testing.T) {
	s := newSite(t)
	a, b, c := s.add("a", echo), s.add("b", echo), s.add("c", echo)
	a.die()
	s.set(a)
	done := s.asking(b, http.MethodPost, strings.NewReader("body"))
	s.set(c)
	if got := <-done; got.header.Get("Served-By") != "c" {
		t.Errorf("got %v", got)
	}
}

// A leader that dies with a request may have done it: only reads are tried again.
func TestALeaderDiesWithTheRequest(t *testing.T) {
	s := newSite(t)
	var a *member
	reached := make(chan struct{}, 8)
	a = s.add("a", func(_ http.ResponseWriter, r *http.Request) {
		reached <- struct{}{}
		<-r.Context().Done()
	})
	b, c := s.add("b", echo), s.add("c", echo)
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		s.set(a)
		done := s.asking(b, method, nil)
		<-reached
		s.set(c)
		_ = a.inner.Close()
		got := <-done
		if method == http.MethodGet {
			if got.header.Get("Served-By") != "c" {
				t.Errorf("a read: %v", got)
			}
			continue
		}
		got.refused(t, "outcome is not known", false)
		if c.calls.Load() != 0 {
			t.Error("a write was done again")
		}
		a = s.add("a2", func(_ http.ResponseWriter, r *http.Request) {
			reached <- struct{}{}
			<-r.Context().Done()
		})
	}
}

// A leader that hangs is given up once another leads, also by what streams from it.
func TestAHungLeaderIsGivenUp(t *testing.T) {
	s := newSite(t)
	reached := make(chan struct{}, 8)
	a := s.add("a", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			fmt.Fprint(w, "begun")
			_ = http.NewResponseController(w).Flush()
		}
		reached <- struct{}{}
		<-r.Context().Done()
	})
	b, c := s.add("b", echo, func(c *forward.Config) { c.Handover = 50 * time.Millisecond }), s.add("c", echo)
	s.set(a)
	done := s.asking(b, http.MethodPost, nil)
	<-reached
	resp, err := browser.Get(b.api.URL + "/stream") //nolint:noctx // ends with the member
	s.must(err)
	defer resp.Body.Close()
	s.set(c)
	(<-done).refused(t, "outcome is not known", false)
	if text, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the stream was taken for a whole one: %v %q", resp, text)
	}
}

// Nothing is kept back of a stream, in either direction, and the leader sees when the client leaves.
func TestStreams(t *testing.T) {
	s := newSite(t)
	left := make(chan struct{})
	a := s.add("a", func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		buf := make([]byte, 16)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 {
				_, _ = w.Write(append([]byte("data: "), buf[:n]...))
				_ = rc.Flush()
			}
			if err != nil {
				<-r.Context().Done()
				close(left)
				return
			}
		}
	})
	b := s.add("b", echo)
	s.set(a)
	out, in := io.Pipe()
	defer in.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.api.URL+"/", out)
	s.must(err)
	go func() { _, _ = in.Write([]byte("one")) }()
	resp, err := browser.Do(req)
	s.must(err)
	defer resp.Body.Close()
	buf := make([]byte, 9)
	for _, word := range []string{"one", "two", "six"} {
		if word != "one" {
			go func() { _, _ = in.Write([]byte(word)) }()
		}
		if _, err := io.ReadFull(resp.Body, buf); err != nil || string(buf) != "data: "+word {
			t.Fatalf("%q %v", buf, err)
		}
	}
	cancel()
	select {
	case <-left:
	case <-time.After(patience):
		t.Error("the leader does not see that the client left")
	}
}

// A refusal of the leader's that says that nothing was done is tried again; another one is passed on.
func TestRefusalsOfTheLeader(t *testing.T) {
	s := newSite(t)
	var times atomic.Int64
	a := s.add("a", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/unknown" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if times.Add(1) < 3 {
			w.Header().Set(forward.HeaderNothingDone, "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		echo(w, r)
	})
	b := s.add("b", echo)
	s.set(a)
	if got := s.ask(b, http.MethodPost, "/", strings.NewReader("body")); got.status != http.StatusOK || !strings.Contains(got.body, " / 4 ") {
		t.Errorf("got %v", got)
	}
	before := a.calls.Load()
	if got := s.ask(b, http.MethodPost, "/unknown", nil); got.status != http.StatusServiceUnavailable || a.calls.Load() != before+1 {
		t.Errorf("got %v after %d calls", got, a.calls.Load()-before)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	s := newSite(t)
	reached := make(chan struct{})
	a := s.add("a", func(_ http.ResponseWriter, r *http.Request) { close(reached); <-r.Context().Done() })
	b := s.add("b", echo)
	s.set(a)
	done := s.asking(b, http.MethodPost, nil)
	<-reached
	b.fwd.Close()
	(<-done).refused(t, "outcome is not known", false)
	s.ask(b, http.MethodPost, "/", nil).refused(t, "cannot take", true)
}
