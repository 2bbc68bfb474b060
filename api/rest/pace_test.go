package rest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gantry/api/v2"

	"github.com/coder/websocket"

	"gantry/fleet"
)

// paced serves one exec session with short waits; the program does nothing until it is killed.
func paced(t *testing.T, p pace) (conn *websocket.Conn, killed chan struct{}) {
	t.Helper()
	rules := execRules{request: ruleOf[v2.ExecRequest](t), size: ruleOf[v2.ExecSize](t)}
	killed = make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		_ = newExecSocket(c, rules, p).hold(r.Context(), nil, func(context.Context, fleet.ExecRequest) (fleet.ExecSession, error) {
			return &idleSession{killed: killed}, nil
		})
	}))
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, strings.Replace(srv.URL, "http", "ws", 1), nil) //nolint:bodyclose // the library says that there is none to close
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn, killed
}

// idleSession takes nothing and writes nothing.
type idleSession struct{ killed chan struct{} }

func (s *idleSession) Send(fleet.ExecFrame) error { <-s.killed; return io.ErrClosedPipe }
func (s *idleSession) Receive() (fleet.ExecFrame, error) {
	<-s.killed
	return fleet.ExecFrame{}, io.ErrClosedPipe
}
func (s *idleSession) Close() error { close(s.killed); return nil }

func TestExecFirstMessageIsAwaited(t *testing.T) {
	p := defaultPace()
	p.first = 20 * time.Millisecond
	conn, _ := paced(t, p)
	_, data, err := conn.Read(t.Context())
	if err != nil || !strings.Contains(string(data), "did not come in time") {
		t.Errorf("%q %v", data, err)
	}
	if _, _, err := conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Error(err)
	}
}

// TestExecDeafClientIsLeft never reads, so that no ping is answered.
func TestExecDeafClientIsLeft(t *testing.T) {
	p := defaultPace()
	p.ping, p.pong = 5*time.Millisecond, 20*time.Millisecond
	conn, killed := paced(t, p)
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"command":["hang"]}`)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-killed:
	case <-time.After(time.Minute):
		t.Error("the program of a client that does not answer goes on")
	}
}

// TestExecFullClientIsKept sends more than the program takes: pings wait behind it, and the client is not to blame.
func TestExecFullClientIsKept(t *testing.T) {
	p := defaultPace()
	p.ping, p.pong = 5*time.Millisecond, 5*time.Millisecond
	conn, killed := paced(t, p)
	ctx := conn.CloseRead(t.Context())
	if err := conn.Write(ctx, websocket.MessageText, []byte(`{"command":["hang"],"stdin":true}`)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first is held by Send, the second waits behind it
		if err := conn.Write(ctx, websocket.MessageBinary, []byte("\x00x")); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-killed:
		t.Error("a client whose program is slow was left")
	case <-time.After(20 * (p.ping + p.pong)):
	}
	_ = conn.CloseNow() // that is noticed, though the program still takes nothing
	select {
	case <-killed:
	case <-time.After(time.Minute):
		t.Error("the program of a client that left goes on")
	}
}

// TestStalledTransferEnds gives nothing to a transfer: it ends without its client or its host.
func TestStalledTransferEnds(t *testing.T) {
	a := newAPI(Config{})
	a.pace.stall = 20 * time.Millisecond
	c := &call{w: httptest.NewRecorder(), who: fleet.Principal{Account: "a"}}
	_, ctx, end, err := a.transferring(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Error("a transfer without progress goes on")
	}
}
