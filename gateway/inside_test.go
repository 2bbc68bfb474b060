package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// keyOf is a key of somebody, as long as keys are.
func keyOf(who string) string { return "gk_" + who + strings.Repeat("0", 43-len(who)) }

// TestTheInsideOfPods: a gateway serves logs, commands and files of pods that run on a host that is connected with it, for
// keys that may see them. All else it leaves to the leader, refusals among it.
func TestTheInsideOfPods(t *testing.T) {
	w := newWorld(t)
	w.told(&agentrpc.RoutesControl{Leader: "127.0.0.1:1"}, &agentrpc.RouteHost{Id: "h1", State: "ready", Epoch: 3}, &agentrpc.RouteHost{Id: "h2", State: "ready", Epoch: 1})
	w.g.link.table.Take(&agentrpc.RoutesPart{Whole: true, Index: 8, Pods: []*agentrpc.RoutePod{
		{Id: "pod00000000002", AccountId: "acc", HostId: "h1", Status: "EXITED", Goal: "run"},
		{Id: "pod00000000003", AccountId: "acc", HostId: "h1", Status: "RUNNING", Goal: "stop"},
		{Id: "pod00000000004", AccountId: "acc", HostId: "h2", Status: "RUNNING", Goal: "run"},
		{Id: "pod00000000005", AccountId: "acc", HostId: "h1", Status: "RUNNING", Goal: "run", EndpointId: "endpoint000001"},
	}})
	w.g.keys.ask = func(_ context.Context, q *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
		if !q.GetWho() || q.GetPodId() != "" || q.GetEndpointId() != "" {
			t.Errorf("asked %v", q)
		}
		switch q.GetKey() {
		case keyOf("owner"):
			return &agentrpc.KeyAnswer{Holder: &agentrpc.KeyHolder{AccountId: "acc", Pods: "write"}}, nil
		case keyOf("reader"):
			return &agentrpc.KeyAnswer{Holder: &agentrpc.KeyHolder{AccountId: "acc", Pods: "read"}}, nil
		case keyOf("other"):
			return &agentrpc.KeyAnswer{Holder: &agentrpc.KeyHolder{AccountId: "other", Pods: "write"}}, nil
		case keyOf("pod"):
			return &agentrpc.KeyAnswer{Holder: &agentrpc.KeyHolder{AccountId: "acc"}}, nil
		case keyOf("old"): // as a scheduler of an earlier release answers
			return &agentrpc.KeyAnswer{}, nil
		}
		return &agentrpc.KeyAnswer{Code: string(fleet.CodeUnauthorized)}, nil
	}
	w.g.link.set(func() { w.g.link.lost = time.Now().Add(time.Hour) }) // a leader is known
	d, err := w.dial(w.certs(w.ca, pki.RoleHost, "h1"), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	w.soon("the host is connected", func() bool { return w.g.Counts().Hosts == 1 })
	for _, c := range []struct {
		who, method, path string
		here              bool
	}{
		{"owner", "GET", "/v2/pods/pod00000000001/logs?tail=1", true},
		{"owner", "GET", "/v2/pods/pod00000000001/exec", true},
		{"owner", "GET", "/v2/pods/pod00000000001/files?path=/", true},
		{"owner", "PUT", "/v2/pods/pod00000000001/files?path=/", true},
		{"reader", "PUT", "/v2/pods/pod00000000001/files?path=/", false},
		{"owner", "PUT", "/v2/pods/pod00000000004/files?path=/", false},
		{"owner", "GET", "/v2/pods/pod00000000001", false},
		{"owner", "DELETE", "/v2/pods/pod00000000001/logs", false},
		{"owner", "GET", "/v2/pods/pod00000000002/logs", false}, // does not run
		{"owner", "GET", "/v2/pods/pod00000000003/exec", false}, // is being stopped
		{"owner", "GET", "/v2/pods/pod00000000004/exec", false}, // its host is not connected here
		{"owner", "GET", "/v2/pods/pod00000000005/exec", false}, // a worker
		{"owner", "GET", "/v2/pods/pod00000000009/logs", false}, // not known
		{"reader", "GET", "/v2/pods/pod00000000001/logs", true},
		{"reader", "GET", "/v2/pods/pod00000000001/exec", false},
		{"reader", "GET", "/v2/pods/pod00000000001/files?path=/", false},
		{"other", "GET", "/v2/pods/pod00000000001/logs", false},
		{"pod", "GET", "/v2/pods/pod00000000001/logs", false},
		{"old", "GET", "/v2/pods/pod00000000001/logs", false},
		{"nobody", "GET", "/v2/pods/pod00000000001/logs", false},
		{"", "GET", "/v2/pods/pod00000000001/logs", false},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		if c.who != "" {
			r.Header.Set("Authorization", "Bearer "+keyOf(c.who))
		}
		if got := (insides{g: w.g}).here(r); got != c.here {
			t.Errorf("%s %s for %q: served here: %v", c.method, c.path, c.who, got)
		}
	}
	w.g.link.set(func() { w.g.link.lost = time.Time{} })
	r := httptest.NewRequest(http.MethodPut, "/v2/pods/pod00000000001/files?path=/", nil)
	r.Header.Set("Authorization", "Bearer "+keyOf("owner"))
	if (insides{g: w.g}).here(r) {
		t.Error("files are written although no leader can record it")
	}
	// What would be served here all the same is refused here as well.
	inner := insides{g: w.g}
	for name, err := range map[string]error{
		"another's pod":     errOf(inner.running(t.Context(), fleet.Principal{Account: "other"}, "pod00000000001")),
		"a worker":          errOf(inner.running(t.Context(), fleet.Principal{Account: "acc"}, "pod00000000005")),
		"one that is ended": errOf(inner.running(t.Context(), fleet.Principal{Account: "acc"}, "pod00000000002")),
		"files are written": inner.WritePodFiles(t.Context(), fleet.Principal{Account: "acc"}, "pod00000000001", "/", nil),
	} {
		if err == nil {
			t.Errorf("%s: not refused", name)
		}
	}
	r = httptest.NewRequest(http.MethodGet, "/v2/pods/pod00000000001/logs", nil)
	r.Header.Set("Authorization", "Bearer "+keyOf("other"))
	answer := httptest.NewRecorder()
	w.g.inside.ServeHTTP(answer, r)
	if answer.Code != http.StatusNotFound {
		t.Errorf("another's log: %d %s", answer.Code, answer.Body)
	}
}

func errOf(_ fleet.HostID, err error) error { return err }

// TestAWriteIsOnRecordFirst: files reach the host only once the leader has the line, with the key, the pod and the client's address.
func TestAWriteIsOnRecordFirst(t *testing.T) {
	w := newWorld(t)
	w.told(&agentrpc.RoutesControl{Leader: "127.0.0.1:1"}, &agentrpc.RouteHost{Id: "h1", State: "ready", Epoch: 3})
	w.g.keys.ask = func(context.Context, *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
		return &agentrpc.KeyAnswer{Holder: &agentrpc.KeyHolder{AccountId: "acc", Pods: "write"}}, nil
	}
	w.g.link.set(func() { w.g.link.lost = time.Now().Add(time.Hour) })
	d, err := w.dial(w.certs(w.ca, pki.RoleHost, "h1"), 3)
	if err != nil {
		t.Fatal(err)
	}
	got, noted := make(chan string, 10), false
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			s, err := d.Accept()
			if err != nil {
				return
			}
			ask, err := s.RecvAsk()
			if err != nil || !ask.GetFiles().GetWrite() || !noted {
				t.Errorf("asked %v, %v; on record: %v", ask, err, noted)
			}
			_ = s.Send(&agentrpc.Frame{})
			text := ""
			for {
				f, err := s.Recv()
				if err != nil || f.GetEnd() {
					break
				}
				text += string(f.GetData())
			}
			got <- ask.GetFiles().GetPodId() + ask.GetFiles().GetPath() + " " + text
			_ = s.Send(&agentrpc.Frame{End: true})
			_ = s.CloseWrite()
		}
	}()
	defer func() { _ = d.Close(); <-served }()
	w.soon("the host is connected", func() bool { return w.g.Counts().Hosts == 1 })
	put := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPut, "/v2/pods/pod00000000001/files?path=/to", strings.NewReader("an archive"))
		r.Header.Set("Authorization", "Bearer "+keyOf("owner"))
		r.Header.Set("Content-Type", "application/x-tar")
		r.RemoteAddr = "192.0.2.7:4444"
		answer := httptest.NewRecorder()
		w.g.ServeHTTP(answer, r)
		return answer
	}
	if a := put(); a.Code != http.StatusServiceUnavailable {
		t.Errorf("without a leader that answers: %d %s", a.Code, a.Body)
	}
	w.g.noteWrite = func(context.Context, *agentrpc.FilesWrite) error { return fleet.Forbidden("no more") }
	if a := put(); a.Code != http.StatusForbidden || !strings.Contains(a.Body.String(), "no more") {
		t.Errorf("what the leader refuses: %d %s", a.Code, a.Body)
	}
	w.g.noteWrite = func(_ context.Context, in *agentrpc.FilesWrite) error {
		if noted = true; in.GetKey() != keyOf("owner") || in.GetPodId() != "pod00000000001" || in.GetAddress() != "192.0.2.7" {
			t.Errorf("noted %v", in)
		}
		return nil
	}
	if a := put(); a.Code != http.StatusNoContent {
		t.Fatalf("%d %s", a.Code, a.Body)
	}
	if text := <-got; text != "pod00000000001/to an archive" {
		t.Errorf("the host got %q", text)
	}
}

// revocable is a gateway with a pod on a host, which serves one tunnel until the gateway closes it, and a key that a test deletes.
type revocable struct {
	*world
	front   *httptest.Server
	deleted atomic.Bool
	passed  atomic.Int64  // of a key's memory
	asked   atomic.Bool   // the host has the tunnel
	served  chan struct{} // closed when the tunnel is
}

func newRevocable(t *testing.T) *revocable {
	w := &revocable{world: newWorld(t), served: make(chan struct{})}
	w.g.keys.now = func() time.Time { return time.Now().Add(time.Duration(w.passed.Load())) }
	w.g.keys.ask = func(context.Context, *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
		if w.deleted.Load() {
			return &agentrpc.KeyAnswer{Code: string(fleet.CodeUnauthorized), Text: "invalid bearer token"}, nil
		}
		return &agentrpc.KeyAnswer{Holder: &agentrpc.KeyHolder{AccountId: "acc", Pods: "write"}}, nil
	}
	w.told(&agentrpc.RoutesControl{Leader: "127.0.0.1:1"}, &agentrpc.RouteHost{Id: "h1", State: "ready", Epoch: 3})
	d, err := w.dial(w.certs(w.ca, pki.RoleHost, "h1"), 3)
	if err != nil {
		t.Fatal(err)
	}
	go func() { // the host: a log without lines, or a program without output
		defer close(w.served)
		s, err := d.Accept()
		if err != nil {
			return
		}
		defer func() { _ = s.Reset() }()
		if _, err := s.RecvAsk(); err == nil && s.Send(&agentrpc.Frame{}) == nil {
			w.asked.Store(true)
			_, _ = io.Copy(io.Discard, s)
		}
	}()
	t.Cleanup(func() { _ = d.Close(); <-w.served })
	w.soon("the host is connected", func() bool { return w.g.Counts().Hosts == 1 })
	w.front = httptest.NewServer(w.g)
	t.Cleanup(w.front.Close)
	return w
}

// revoke deletes the key, and has what the gateway remembers of it be over.
func (w *revocable) revoke() {
	w.deleted.Store(true)
	w.passed.Store(int64(keyGood))
}

// TestALogEndsWithItsKey: a log that is followed here ends once the memory of a key is over that was deleted.
func TestALogEndsWithItsKey(t *testing.T) {
	w := newRevocable(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.front.URL+"/v2/pods/pod00000000001/logs", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close = true
	r.Header.Set("Authorization", "Bearer "+keyOf("owner"))
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	w.revoke()
	if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), `"code":"unauthorized"`) {
		t.Errorf("the log ends with %q, %v", text, err)
	}
	<-w.served
}

// TestAProgramEndsWithItsKey: a program that runs in a pod through this gateway ends as a log does, and its host is told by the end of
// the tunnel.
func TestAProgramEndsWithItsKey(t *testing.T) {
	w := newRevocable(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, w.front.URL+"/v2/pods/pod00000000001/exec", &websocket.DialOptions{ //nolint:bodyclose // of a WebSocket
		HTTPHeader: http.Header{"Authorization": {"Bearer " + keyOf("owner")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	if err := conn.Write(ctx, websocket.MessageText, []byte(`{"command":["sh"],"tty":true,"stdin":true}`)); err != nil {
		t.Fatal(err)
	}
	w.soon("the host runs the program", w.asked.Load)
	w.revoke()
	_, data, err := conn.Read(ctx)
	if want := string(byte(fleet.ExecExit)) + `{"code":-1,"error":"invalid bearer token"}`; err != nil || string(data) != want {
		t.Errorf("the program ends with %q, %v", data, err)
	}
	if _, _, err := conn.Read(ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("closed with %v", err)
	}
	<-w.served
}
