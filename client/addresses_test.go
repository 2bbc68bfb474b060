package client

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gantry/api/v2"
	"gantry/fleet"
)

// several returns a client of more than one API; the address of a nil handler is one where nobody listens.
func several(t *testing.T, faces ...http.HandlerFunc) *Client {
	t.Helper()
	var all []string
	for _, f := range faces {
		if f == nil {
			all = append(all, deaf(t))
			continue
		}
		srv := httptest.NewServer(f)
		t.Cleanup(srv.Close)
		all = append(all, srv.URL)
	}
	c, err := New(strings.Join(all, ", "), "gk_test", "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// deaf returns an address that refuses connections.
func deaf(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return "http://" + ln.Addr().String()
}

// nothing is the refusal of a member that does not lead.
func nothing(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-Gantry-Nothing-Done", "1")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusServiceUnavailable)
}

func TestAnotherAddressIsAskedOnlyWhereThatIsSafe(t *testing.T) {
	ctx := context.Background()
	read := func(c *Client) error { return second(c.Pod(ctx, "p")) }
	make := func(c *Client) error { return second(c.CreatePod(ctx, v2.CreatePodRequest{Name: "web"})) }
	key := func(c *Client) error {
		return second(c.CreateKey(ctx, v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "k"}}))
	}
	upload := func(c *Client) error {
		return c.WriteFiles(ctx, "p", "/", io.NopCloser(strings.NewReader("x")))
	}
	away := status(503, "")
	tests := []struct {
		name  string
		call  func(*Client) error
		first http.HandlerFunc // of the first address; the second is good
		there int              // requests that the second sees
		ok    bool
	}{
		{"nobody listens", key, nil, 1, true},
		{"nobody listens, a read", read, nil, 1, true},
		{"does not lead", key, nothing, 1, true},
		{"does not lead, a read", read, nothing, 1, true},
		{"connection lost, a read", read, drop, 1, true},
		{"connection lost, a create with a key", make, drop, 1, true},
		{"connection lost, a create without a key", key, drop, 0, false},
		{"outcome unknown, a create without a key", key, away, 0, false},
		{"away, a read", read, away, 1, true},
		{"refused", read, status(404, ""), 0, false},
		{"a body that was begun", upload, nil, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &flaky{}
			err := tt.call(several(t, tt.first, f.ServeHTTP))
			keys, _ := f.seen()
			if (err == nil) != tt.ok || len(keys) != tt.there {
				t.Errorf("%d requests to the second: %v", len(keys), err)
			}
		})
	}
}

func TestTheAddressThatAnsweredStaysInUse(t *testing.T) {
	a, b := &flaky{failures: []http.HandlerFunc{nothing}}, &flaky{}
	c := several(t, a.ServeHTTP, b.ServeHTTP)
	for range 3 {
		if err := second(c.Pod(context.Background(), "p")); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := a.seen()
	other, _ := b.seen()
	if len(first) != 1 || len(other) != 3 {
		t.Errorf("%d requests to the first, %d to the second", len(first), len(other))
	}
}

func TestEveryAddressIsTriedOnce(t *testing.T) {
	c := several(t, nil, nil, nil)
	err := second(c.Pod(context.Background(), "p"))
	var gone *Unreachable
	if !errors.As(err, &gone) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
	a, b := &flaky{}, &flaky{}
	a.failures = []http.HandlerFunc{nothing, nothing}
	b.failures = []http.HandlerFunc{nothing, nothing}
	err = second(several(t, a.ServeHTTP, b.ServeHTTP).Once().CreateKey(context.Background(), v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "k"}}))
	first, _ := a.seen()
	other, _ := b.seen()
	if err == nil || len(first) != 1 || len(other) != 1 {
		t.Errorf("%d and %d requests: %v", len(first), len(other), err)
	}
}

func TestAPathPrefixIsKeptAtEachAddress(t *testing.T) {
	var asked string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.RequestURI()
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(srv.Close)
	c, err := New(deaf(t)+"/a/,"+srv.URL+"/b", "", "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := c.FindHosts(context.Background(), HostQuery{States: []string{"ready"}, Labels: []string{"a=b c"}}); err != nil {
		t.Fatal(err)
	}
	if asked != "/b/admin/v1/hosts?label=a%3Db+c&state=ready" {
		t.Errorf("asked for %s", asked)
	}
}

func TestAddressesThatAreNone(t *testing.T) {
	for _, text := range []string{"", ",", "http://a,", "http://a,ftp://b", "http://a,http://u:p@b", strings.Repeat("http://a,", 2)} {
		if _, err := New(text, "", "test"); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	many := make([]string, maxAddresses+1)
	for i := range many {
		many[i] = "http://host" + strings.Repeat("x", i)
	}
	if _, err := New(strings.Join(many, ","), "", "test"); err == nil {
		t.Error("any number of addresses was taken")
	}
}

// hung returns the address of an API that takes connections and never answers.
func hung(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // the kernel takes connections that nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.Addr().String()
}

// hurried is a client of an API that hangs and of a good one.
func hurried(t *testing.T, scheme string, good http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(good)
	t.Cleanup(srv.Close)
	c, err := New(scheme+"://"+hung(t)+","+srv.URL, "gk_test", "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.bases.read, c.bases.write = 50*time.Millisecond, 100*time.Millisecond
	return c
}

func TestAnAddressThatHangsDoesNotHoldUpTheOthers(t *testing.T) {
	ctx := context.Background()
	read := func(c *Client) error { return second(c.Pod(ctx, "p")) }
	create := func(c *Client) error { return second(c.CreatePod(ctx, v2.CreatePodRequest{Name: "web"})) }
	key := func(c *Client) error {
		return second(c.CreateKey(ctx, v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "k"}}))
	}
	upload := func(c *Client) error {
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		return c.WriteFiles(short, "p", "/", io.NopCloser(strings.NewReader("x")))
	}
	brief := func(c *Client) error {
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		return second(c.Pod(short, "p"))
	}
	tests := []struct {
		name string
		call func(*Client) error
		ok   bool
	}{
		{"a read", read, true},
		{"a read, once", func(c *Client) error { return read(c.Once()) }, true},
		{"a create with a key", create, true},
		{"what may have been done", key, false},
		{"an upload, whose end takes its time", upload, false},
		{"a read with little time", brief, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &flaky{}
			c := hurried(t, "http", f.ServeHTTP)
			err := tt.call(c)
			if keys, _ := f.seen(); (err == nil) != tt.ok || (len(keys) == 1) != tt.ok {
				t.Errorf("%d requests to the second: %v", len(keys), err)
			}
			if err := key(c); err != nil {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

func TestWhatWasNeverSentGoesToTheNextAddress(t *testing.T) {
	f := &flaky{}
	c := hurried(t, "https", f.ServeHTTP) // its handshake does not end
	if err := second(c.CreateKey(context.Background(), v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "k"}})); err != nil {
		t.Error(err)
	}
}

func TestASessionDoesNotHangAtAnAddress(t *testing.T) {
	c := hurried(t, "http", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		_, _, _ = conn.Read(r.Context())
		_ = conn.Write(r.Context(), websocket.MessageBinary, []byte{byte(fleet.ExecStdout), 'x'})
	})
	e, err := c.ExecPod(context.Background(), "p", v2.ExecRequest{Command: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	if frame, err := e.Receive(); err != nil || string(frame.Data) != "x" {
		t.Errorf("%v %v", frame, err)
	}
}
